"""The clients' half of a round: whose work counts, then train, scale by work, encode. The server's half is in round.py.

Shape letters: C clients that turned up, R clients that work, P shared parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnout.clients.probes import Central, Watch
from turnout.clients.state import ClientState, central_model
from turnout.engine.job import Job, Trained
from turnout.engine.train import Trainer
from turnout.exchange import Assignment, Download
from turnout.experiment import Algorithm
from turnout.machine.profiling import stage
from turnout.parts.compression.base import Sending
from turnout.parts.terms.base import terms_bytes, unwitnessed
from turnout.types import Replies, Tensors, Turnout, row_bytes
from turnout.world.attacks import Attackers


def assign_work(algorithm: Algorithm, turnout: Turnout, steps_C: Tensor) -> Assignment | None:
    """The work that counts, most steps first, and each client's factor; None: no client's work counts."""
    counts_C = algorithm.weighting.counts(turnout)
    if turnout.times is not None:
        used_late = algorithm.closing.uses_late
        counts_C = counts_C & (torch.isfinite(turnout.times.arrival_C) if used_late else ~turnout.times.late_C)
    row_R = counts_C.nonzero().squeeze(1)
    if len(row_R) == 0:
        return None
    steps_R, order_R = torch.sort(steps_C[row_R], descending=True, stable=True)
    row_R, scale_R = row_R[order_R], None
    if algorithm.scale_at == "client":
        scale_R = algorithm.weighting.client_scale(turnout)[row_R]
        scale_R = None if bool((scale_R == 1).all()) else scale_R
    return Assignment(turnout.client_C[row_R], steps_R, scale_R)


@dataclass(frozen=True)
class Workplace:
    """A trainer, and what a simulated world does around it.

    trainer    trains clients
    algorithm  the parts
    watch      what clients measure about themselves; None: nothing
    attackers  hostile clients of a simulation; None: there are none
    """

    trainer: Trainer
    algorithm: Algorithm
    watch: Watch | None = None
    attackers: Attackers | None = None

    def train(self, job: Job, seen: Tensors, central: Central | None) -> tuple[Trained, Tensors, Tensors]:
        """Train, and measure before and after: the result, numbers for the report, activations to keep."""
        if self.watch is None:
            return self.trainer.train(job), {}, {}
        before = self.watch.before(self.trainer, job, seen, central)
        trained = self.trainer.train(job)
        after, seen = self.watch.after(self.trainer, job, trained)
        return trained, before | after, seen

    def before_send(self, trained: Trained, client_R: Tensor, t: int) -> tuple[Tensor, Trained]:
        """The updates as they leave the clients: hostile clients replace theirs."""
        update_RP = trained.flat_CP[:, : self.trainer.network.layout.shared]
        if self.attackers is None:
            return update_RP, trained
        update_RP = self.attackers.sent(update_RP, client_R, t)
        return update_RP, replace(trained, finite_C=trained.finite_C & torch.isfinite(update_RP.sum(1)))


def client_work(place: Workplace, download: Download, job: Job, state: ClientState) -> tuple[Replies, ClientState]:
    """Local training of the clients whose work counts: what they send, and what they keep."""
    algorithm, layout, client_R, t = place.algorithm, place.trainer.network.layout, job.client_C, download.t
    central = central_model(layout, download.shared_P, download.states) if place.watch else None
    trained, measured, seen = place.train(job, state.seen, central)
    update_RP, trained = place.before_send(trained, client_R, t)
    with stage("similarity"):  # before the encoding, which may write into the update
        hints = algorithm.substitution.hints(update_RP, t, job.seed)
    with stage("encode"):
        sending = Sending(t, job.seed, client_R, layout.shared_slots)
        message, residuals = algorithm.compression.encode(update_RP, state.residuals, sending)
    kept = replace(state.after(trained, layout, algorithm.local.optimizer), residuals=residuals, seen=seen)
    states = kept.sent(trained, layout, algorithm)

    finite_R = finite_clients(trained.finite_C, kept.to_rows(), states, *unwitnessed(algorithm.terms, trained.uploads))
    message = message.counted()
    beside = row_bytes(states) + row_bytes(hints) + sum(row_bytes(upload) for upload in trained.uploads.values())
    report = {"loss": trained.loss_C.cpu(), "finite": finite_R.cpu(), "bytes_up": message.bytes_C + beside}
    report["bytes_down"] = terms_bytes(algorithm.terms, download.term_states, state.term_states, len(client_R))
    report |= {name: value.cpu() for name, value in measured.items()}
    report |= {} if job.limit is None else {"steps": trained.steps_C}
    return Replies(client_R, message, states, trained.uploads, report, hints), kept


def finite_clients(finite_R: Tensor, *groups: Tensors) -> Tensor:
    """Mask of clients whose update and all of these rows are finite."""
    for rows in groups:
        for value in rows.values():
            if value.is_floating_point():
                finite_R = finite_R & torch.isfinite(value.reshape(len(value), -1).sum(1)).to(finite_R.device)
    return finite_R
