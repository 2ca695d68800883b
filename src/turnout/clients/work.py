"""The clients' half of a round: whose work counts, then train, scale by work, encode. The server's half is in round.py.

Shape letters: C clients that turned up, R clients that work, P shared parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.clients.probes import WorkHooks
from turnout.clients.state import ClientState, sent_states
from turnout.engine.job import Job
from turnout.engine.train import Trainer
from turnout.exchange import Assignment
from turnout.experiment import Algorithm
from turnout.machine.profiling import stage
from turnout.parts.compression.base import Sending
from turnout.parts.terms.base import terms_bytes, unwitnessed
from turnout.types import SQUARED, Replies, Tensors, Turnout, row_bytes


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


def client_work(
    trainer: Trainer, algorithm: Algorithm, job: Job, state: ClientState, hooks: WorkHooks | None
) -> tuple[Replies, Tensors]:
    """Local training of the clients whose work counts: what they send (soon, if a GPU trains), and what they keep."""
    layout, client_R, terms = trainer.network.layout, job.client_C, algorithm.terms
    measured = {} if hooks is None else hooks.before(trainer, job, state.seen)
    with stage("local training"):
        trained = trainer.train(job)
    update_RP, seen = trained.flat_CP[:, : layout.shared], Tensors()
    if hooks is not None:
        update_RP, after, seen = hooks.after(trainer, job, trained)
        measured |= after
    hints = algorithm.substitution.hints(update_RP, job.t, job.seed)  # before the encoding, which may write into it
    sending = Sending(job.t, job.seed, client_R, layout.shared_slots)
    message, residuals = algorithm.compression.encode(update_RP, state.residuals, sending)
    message, rows = message.counted(), state.rows_after(trained, layout, algorithm.local.optimizer, residuals, seen)
    states, uploads = sent_states(trained, layout, algorithm), trained.uploads
    if hooks is not None:
        states, uploads = hooks.beside(client_R, states, uploads)
    checked, bytes_down = [rows, states], torch.zeros(len(client_R), dtype=torch.int64)
    if terms:
        checked += unwitnessed(terms, uploads)
        bytes_down = terms_bytes(terms, job.server_term_states, state.term_states, len(client_R))
    finite_R = finite_clients(trained.finite_C, *checked)
    bytes_up = message.bytes_C + row_bytes(states) + row_bytes(hints) + sum(map(row_bytes, uploads.values()))
    report = {"loss": trained.loss_C, "finite": finite_R, "bytes_up": bytes_up, "bytes_down": bytes_down} | measured
    report |= {} if job.limit is None else {"steps": trained.steps_C}
    report |= {SQUARED: trained.squared_C} if len(trained.squared_C) else {}
    return Replies(client_R, message, states, uploads, report, hints), rows


def finite_clients(finite_R: Tensor, *groups: Tensors) -> Tensor:
    """Mask of clients whose update and all of these rows are finite."""
    for rows in groups:
        for value in rows.values():
            if value.is_floating_point():
                finite_R = finite_R & torch.isfinite(value.reshape(len(value), -1).sum(1)).to(finite_R.device)
    return finite_R
