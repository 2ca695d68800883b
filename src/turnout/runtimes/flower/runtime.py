"""The runtime of real devices: the promise of exchange.py, kept with messages to nodes.

Clients enrol and leave by themselves, what was seen in a round is its turnout, and the same server's half of the round
runs as in a simulation.

Shape letters: C clients of the cohort, I any clients, R replies, P shared parameters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turnout.clients.state import state_from
from turnout.data.description import Description
from turnout.errors import Mistake
from turnout.exchange import Assignment, Download, Farewell, Measure, Measured, Told
from turnout.layout import Layout
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.local import turn_out
from turnout.runtimes import wire
from turnout.runtimes.border import fault
from turnout.runtimes.clients import Clients, farewell_of
from turnout.runtimes.flower.devices import Devices, digest_of
from turnout.runtimes.flower.enrolled import Client
from turnout.runtimes.flower.link import Parts
from turnout.runtimes.flower.messages import COMMON, NEVER, OWN, REPLY, question, work_parts
from turnout.runtimes.flower.post import Heard
from turnout.runtimes.flower.settings import Flower
from turnout.runtimes.flower.template import template, unlike
from turnout.runtimes.flower.work import RoundOfWork, Work
from turnout.runtimes.setup import Setup
from turnout.types import Replies, Tensors, Turnout
from turnout.world.members import Members


@dataclass(frozen=True)
class Done:
    """What a client did: so many steps, and its reply; `t` is the round it was asked in."""

    steps: int
    replies: Replies
    t: int


class FlowerRuntime(Devices):
    """Real clients that train weights."""

    simulation = None

    def __init__(self, setup: Setup, settings: Flower):
        check_parts(setup, settings)
        super().__init__(settings, digest_of(setup.experiment))
        self.setup, self.algorithm, self.seed = setup, setup.algorithm, setup.experiment.seed
        self.tester = Clients(setup) if setup.federation is not None else None
        self._template: Replies | None = None
        self._late: dict[int, Done] = {}
        self._unfinished: dict[int, Replies] = {}
        self._worked: dict[int, int] = {}  # the round each of the last replies was made in

    @property
    def layout(self) -> Layout:
        return self.setup.model.layout

    def mean_examples(self, members: Members) -> float:
        return float(self.examples(members.ids()).double().mean()) if len(members) else 0.0

    def late_reply(self, client: Client, heard: Heard) -> None:
        done = self.checked(client, heard) if self.settings.late == "use" else None
        if done is not None:
            self._late[client.number] = done

    def _first_rows(self) -> Tensors:
        """What a client keeps for the terms before its first round."""
        shared_P = self.setup.model.flat_P[: self.layout.shared]
        own = {term.name: term.mine(shared_P) for term in self.algorithm.terms}
        return {f"mine/{term}/{name}": value for term, rows in own.items() for name, value in rows.items()}

    def rows_of(self, heard: Heard) -> Tensors | None:
        """The rows a client that leaves has sent, where they are what they should be."""
        if OWN not in heard.parts:
            return None
        like = self._first_rows()
        try:
            rows: Tensors = wire.flatten(wire.unpack(heard.parts[OWN])["rows"])[0]
        except (Mistake, KeyError, AttributeError):
            return None
        good = rows.keys() == like.keys() and all(
            rows[n].shape == (1, *v.shape) and bool(torch.isfinite(rows[n].double()).all()) for n, v in like.items()
        )
        return rows if good else None

    # -- a round

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        self._unfinished, self._worked = {}, {}
        if self._template is None:
            self._template = template(self.setup, self._described(), download)
        work = Work(download.t, partial(self._work_parts, download), partial(self.checked, download=download))
        self.hear(self.post.collect())
        late, self._late = self._late, {}
        done = RoundOfWork(self, client_C, work, late).play()
        steps_C = torch.tensor([done[c].steps if c in done else 0 for c in client_C.tolist()])
        turnout = self._turnout(client_C, steps_C, download.t)
        counts_C = self.algorithm.weighting.counts(turnout)
        for c, counts in zip(client_C.tolist(), counts_C.tolist(), strict=True):
            if c in done and not counts:
                self._unfinished[c] = done[c].replies
        row_R = counts_C.nonzero().squeeze(1)
        if not len(row_R):
            return turnout, None
        row_R = row_R[torch.sort(steps_C[row_R], descending=True, stable=True).indices]
        used = [done[c] for c in client_C[row_R].tolist()]
        self._worked = {int(d.replies.client_C[0]): d.t for d in used}
        return turnout, Replies.join([d.replies for d in used])

    def _work_parts(self, download: Download, client: Client, seconds: float) -> Parts:
        own = download.among(torch.tensor([client.number]))
        return work_parts(own, client.standing(self.run), client.holds, seconds)

    def _described(self) -> Description:
        if self.data is None:
            raise Mistake("no device has said what its data is like yet")
        return self.data

    def _full(self, client_C: Tensor, t: int) -> tuple[Turnout, Tensor]:
        everything_C, examples_C = torch.ones(len(client_C), dtype=torch.float64), self.examples(client_C)
        return turn_out(client_C, everything_C, examples_C, self.algorithm.local, self._single, t)

    @property
    def _single(self) -> bool:
        return self.setup.model.batch_statistics

    def _turnout(self, client_C: Tensor, steps_C: Tensor, t: int) -> Turnout:
        full_C = self._full(client_C, t)[1]
        fraction_C = torch.where(full_C > 0, steps_C.double() / full_C.clamp(min=1), 0.0)
        return turn_out(client_C, fraction_C, self.examples(client_C), self.algorithm.local, self._single, t)[0]

    def checked(self, client: Client, heard: Heard, download: Download | None = None) -> Done | None:
        """What a client sends after work; None where it did none, or where it cannot be used."""
        steps, t = heard.head.get("steps"), heard.letter.t
        if steps is None or REPLY not in heard.parts:
            return None
        try:
            replies = wire.replies_of(wire.unpack(heard.parts[REPLY]))
            wrong = self._wrong_reply(client, steps, replies, t, download)
        except (Mistake, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            wrong = f"its reply cannot be read ({type(error).__name__})"
        if wrong is not None:
            self.notes.refused.append(f"{client.name}: {wrong}")
            return None
        assert self._template is not None
        report = {name: v for name, v in replies.report.items() if name in self._template.report}
        times = {
            "reply_seconds": time.monotonic() - heard.sent,
            "training_seconds": float(heard.head.get("training", 0.0)),
        }
        report |= {name: torch.tensor([value], dtype=torch.float64) for name, value in times.items()}
        return Done(steps, replace(replies, report=report), t)

    def _wrong_reply(
        self, client: Client, steps: Any, replies: Replies, t: int, download: Download | None
    ) -> str | None:
        client_1 = torch.tensor([client.number])
        full = int(self._full(client_1, t)[1][0])
        if type(steps) is not int or not 0 < steps <= full:
            return f"it reports {steps!r} steps of {full}"
        assert self._template is not None
        turnout = self._turnout(client_1, torch.tensor([steps]), t)
        if not bool(self.algorithm.weighting.counts(turnout)[0]):
            held = self.algorithm.compression.held(self._template.message.tensors)
            same = replies.message.tensors.keys() == held.keys() and torch.equal(replies.client_C, client_1)
            return None if same else "it sends an update that does not count"
        wrong = unlike(replies, self._template)
        if wrong is not None:
            return wrong
        sending = Sending(t, self.seed, client_1, self.layout.shared_slots)
        states = self._template.states
        like = {name: value[0] for name, value in states.items()} if download is None else download.states
        like = {name: value[0] for name, value in states.items()} | dict(like)
        return fault(replies, Assignment(client_1, torch.tensor([steps])), self.algorithm, self.layout, like, sending)

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        return Replies.join([self._unfinished[c] for c in client_I.tolist()])

    def commit(self, t: int, client_R: Tensor) -> None:
        for c in client_R.tolist():
            client = self.enrolled[c]
            client.used = self._worked[c]
            client.holds = NEVER if isinstance(self.algorithm.compression, Dense) else client.used

    def farewell(self, client_I: Tensor, told: Told) -> Farewell:
        rows = {c: mine for c in client_I.tolist() if (mine := self.enrolled[c].mine) is not None}
        client_H = torch.tensor(sorted(rows), dtype=torch.int64)
        none = {name: value.new_zeros(0, *value.shape) for name, value in self._first_rows().items()}
        joined = {name: torch.cat([empty, *(rows[c][name] for c in sorted(rows))]) for name, empty in none.items()}
        return farewell_of(client_H, state_from(joined, len(client_H), torch.device("cpu")), told, self.algorithm)

    def forget(self, client_I: Tensor) -> None:
        for c in client_I.tolist():
            self.enrolled[c].used = self.enrolled[c].holds = NEVER

    # -- other questions

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        clients = [self.enrolled[c] for c in client_C.tolist()]
        common = wire.pack({"shared": shared_P, "states": states, "t": t})
        parts = {c.number: question("gradient", c.standing(self.run)) | {COMMON: common} for c in clients}
        total_P, mass = torch.zeros_like(shared_P), 0.0
        found = self.survey("gradient", clients, parts)
        for c, share in zip(client_C.tolist(), share_C.tolist(), strict=True):
            gradient_P = self._vector(found.get(c), shared_P)
            if gradient_P is not None:
                total_P, mass = total_P + share * gradient_P, mass + share
        return total_P / mass if mass else None

    def _vector(self, heard: Heard | None, like_P: Tensor) -> Tensor | None:
        if heard is None:
            return None
        try:
            found = wire.unpack(heard.parts[REPLY])["gradient"]
        except (Mistake, KeyError):
            return None
        good = isinstance(found, Tensor) and found.shape == like_P.shape and bool(torch.isfinite(found).all())
        return found.to(like_P) if good else None

    def measure(self, asked: Measure) -> Measured:
        """The one model on the server's own test data where it has some, else on devices; clients' own on theirs."""
        central = {} if self.tester is None else self.tester.measure(replace(asked, common=False, own=False)).central
        elsewhere = bool(asked.central) and self.tester is None
        if not (asked.common or asked.own or elsewhere):
            return Measured(central)
        client_C = asked.client_C
        if elsewhere:
            client_C = torch.tensor([c.number for c in self.enrolled.members()], dtype=torch.int64)
        found, tested = self._measured(replace(asked, central={}, common=asked.common or elsewhere), client_C)
        common, own = (
            _columns(client_C, {c: getattr(m, name) for c, m in found.items()}) for name in ("common", "own")
        )
        if elsewhere:
            central = {"global": _pooled(common, torch.tensor([float(tested.get(c, 0)) for c in client_C.tolist()]))}
        keep = torch.isin(client_C, asked.client_C)
        common, own = ({n: v[keep] for n, v in values.items()} for values in (common, own))
        return Measured(central, common if asked.common else {}, own)

    def _measured(self, asked: Measure, client_C: Tensor) -> tuple[dict[int, Measured], dict[int, int]]:
        clients, parts = [self.enrolled[c] for c in client_C.tolist()], {}
        for client in clients:
            tree = wire.measure_tree(asked, torch.tensor([client.number]))
            common = {name: tree.pop(name) for name in ("t", "shared", "states", "central", "common", "own")}
            parts[client.number] = question("measure", client.standing(self.run)) | {
                COMMON: wire.pack(common), OWN: wire.pack(tree),
            }  # fmt: skip
        found, tested = {}, {}
        for c, heard in self.survey("measure", clients, parts).items():
            try:
                measured, count = wire.measured_of(wire.unpack(heard.parts[REPLY])), heard.head.get("tested")
                values = [*measured.common.values(), *measured.own.values()]
            except (Mistake, KeyError, AttributeError, TypeError):
                continue
            if type(count) is int and 0 < count < 1 << 40 and all(tuple(v.shape) == (1,) for v in values):
                found[c], tested[c] = measured, count
        return found, tested

    def describe(self) -> dict[str, Any]:
        return self.setup.place.describe() | {"engine": "on devices", "chunk": 1, "threads": 1}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        width = 4 * self.layout.width * (2 if not isinstance(self.algorithm.compression, Dense) else 1)
        return {"cohort": width * cohort}


def _columns(client_C: Tensor, rows: dict[int, Tensors]) -> Tensors:
    """Metrics of some clients, NaN for those who have said nothing."""
    names = sorted({name for values in rows.values() for name in values})
    blank = torch.tensor([torch.nan], dtype=torch.float64)
    return {n: torch.cat([rows.get(c, {}).get(n, blank).double() for c in client_C.tolist()]) for n in names}


def _pooled(values: Tensors, tested_C: Tensor) -> dict[str, float]:
    """Means over all tested samples."""
    found = {}
    for name, value_C in values.items():
        heard_C = ~torch.isnan(value_C) & (tested_C > 0)
        if bool(heard_C.any()):
            weight_C = tested_C[heard_C].double()
            found[name] = float((value_C[heard_C] * weight_C).sum() / weight_C.sum())
    return found


def check_parts(setup: Setup, settings: Flower) -> None:
    """Refuse what devices cannot do."""
    algorithm = setup.algorithm
    if settings.late == "use" and not isinstance(algorithm.compression, Dense):
        raise Mistake("runtime.late = 'use' takes updates of earlier rounds, which only dense ones can be: leave "
                      "algorithm.compression out, or discard late replies")  # fmt: skip
    if algorithm.membership.drop is not None and any(term.mine(setup.model.flat_P) for term in algorithm.terms):
        raise Mistake("algorithm.membership.drop drops clients that are away, and these cannot say the farewell that "
                      "algorithm.terms need: leave one of them out")  # fmt: skip
