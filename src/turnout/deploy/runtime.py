"""The weight track on real devices: the promise of exchange.py, kept with messages to nodes.

Clients enrol and leave by themselves, the turnout of a round is what was observed, and the server's half of the round
is the same as in a simulation. Replies are read at the border (runtimes/border.py) by the pattern of a reply.

Shape letters: C clients of the cohort, I any clients, R replies, P shared parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnout.clients.state import state_from
from turnout.data.description import Description
from turnout.deploy.devices import DeviceClients
from turnout.deploy.secure import SECURE, SecureExchange
from turnout.deploy.settings import Flower
from turnout.errors import UserError
from turnout.exchange import Assignment, Departure, Download, Measure, Measured, Outbox
from turnout.layout import Layout
from turnout.parts.compression.base import Dense, Sending
from turnout.parts.local import Local, turn_out
from turnout.parts.privacy.discrete import PrivateSum, sum_rule
from turnout.runtimes import border, wire
from turnout.runtimes.border import Refused, Whole
from turnout.runtimes.client_pool import ClientPool, departure_of
from turnout.runtimes.remote import COMMON, NEVER, OWN, REPLY, DeviceTask, Parts, RemoteAnswer
from turnout.runtimes.secure_sum import SumLost, weights_of
from turnout.runtimes.setup import Setup
from turnout.types import SQUARED, Replies, State, Tensors, Turnout
from turnout.world.members import Members

SHARED = "shared"  # the part of a message that has the shared parameters
TIMES = {"training": "training_seconds", "download": "download_seconds", "upload": "upload_seconds"}


class Done(NamedTuple):
    """What a client did: steps of training, and its reply."""

    steps: int
    replies: Replies


class FlowerRuntime(DeviceClients):
    """Real clients that train weights."""

    simulation = None

    def __init__(self, setup: Setup, settings: Flower):
        algorithm = setup.algorithm
        self.encodes = not isinstance(algorithm.compression, Dense)
        if algorithm.membership.drop is not None and any(
            term.client_state(setup.model.flat_P) for term in algorithm.terms
        ):
            raise UserError("algorithm.membership.drop drops clients that are away, and these cannot send the rows "
                            "that algorithm.terms need when a client leaves: leave one of them out")  # fmt: skip
        evaluate = setup.experiment.evaluate
        if algorithm.secure and (
            not settings.server_data or evaluate.per_client or algorithm.measures_personal(evaluate)
        ):
            raise UserError("algorithm.secure hides what each device sends, and devices would report their metrics one "
                            "by one: set runtime.server_data = true for a test set of the server's own, "
                            "evaluate.personal = false, and leave evaluate.per_client out")  # fmt: skip
        super().__init__(settings, setup.experiment, setup.federation, setup.first_marks)
        self.setup, self.algorithm, self.seed = setup, algorithm, setup.experiment.seed
        self.tester = ClientPool(setup) if setup.federation is not None else None
        self._pattern: Replies | None = None  # of a reply, known from the first round on
        self._unfinished: dict[int, Replies] = {}
        self._secure: SecureExchange | None = None  # of the round at hand

    @property
    def layout(self) -> Layout:
        return self.setup.model.layout

    def mean_examples(self, members: Members) -> float:
        return float(self.examples(members.ids()).double().mean()) if len(members) else 0.0

    def _first_rows(self) -> Tensors:
        """What a client keeps for the terms before its first round."""
        shared_P = self.setup.model.flat_P[: self.layout.shared]
        own = {term.name: term.client_state(shared_P) for term in self.algorithm.terms}
        return {f"term/{term}/{name}": value for term, rows in own.items() for name, value in rows.items()}

    def leaving_rows(self, answer: RemoteAnswer) -> Tensors | None:
        return border.rows(answer.parts[OWN], self._first_rows()) if OWN in answer.parts else None

    # -- a round

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        self._unfinished = {}
        if self._pattern is None:
            self._pattern = reply_pattern(self.setup, self.data, download)
        task = DeviceTask("work", partial(self._message, download), self.read_work, download.t)
        self.handle(self.mailbox.collect())
        self._secure = self._exchange(client_C, download.t)
        try:
            done = self.work(client_C if self._secure is None else self._secure.begin(), task)
            return self._replies(client_C, done, download)
        except SumLost as why:
            self.notes.failed.append(f"the secure sum is lost: {why}")
            return self._turnout(client_C, torch.zeros_like(client_C))[0], None

    def _exchange(self, client_C: Tensor, t: int) -> SecureExchange | None:
        rule = sum_rule(self.algorithm)
        if rule is None:
            return None
        weight_C = weights_of(self.algorithm.shares.by, self.examples(client_C))
        return SecureExchange(rule, client_C, weight_C, t, self.survey)

    def _replies(self, client_C: Tensor, done: dict[int, Done], download: Download) -> tuple[Turnout, Replies | None]:
        """The turnout after what clients did, and the replies of those whose work counts, most work first."""
        steps_C = torch.tensor([done[c].steps if c in done else 0 for c in client_C.tolist()])
        turnout, _ = self._turnout(client_C, steps_C)
        counts_C = self.algorithm.weighting.counts(turnout)
        for c, counts in zip(client_C.tolist(), counts_C.tolist(), strict=True):
            if c in done and not counts:
                self._unfinished[c] = done[c].replies
        row_R = counts_C.nonzero().squeeze(1)
        if not len(row_R):
            return turnout, None
        row_R = row_R[torch.sort(steps_C[row_R], descending=True, stable=True).indices]
        replies = Replies.join([done[c].replies for c in client_C[row_R].tolist()])
        return turnout, replies if self._secure is None else self._secure.finish(replies, download.shared_P)

    def _message(self, download: Download, client: int, seconds: float) -> tuple[State, Parts]:
        """The model for one client: whole, or what it missed since the round whose model it holds."""
        download, holds = download.among(torch.tensor([client])), self.enrolled[client].holds
        missed = download.missed(holds) if holds > NEVER and download.start_CP is None else None
        start = {} if download.start_CP is None else {"start": download.start_CP}
        common = {"t": download.t, "lr": download.lr, "states": download.states, "term_states": download.term_states}
        parts = {COMMON: wire.pack(common), OWN: wire.pack({"outbox": download.outbox.to_state(), **start})}
        if missed is None:
            parts[SHARED] = wire.pack({"shared": download.shared_P})
        else:
            parts |= {f"missed-{i}": message for i, (_, message) in enumerate(missed)}
        if self._secure is not None:
            parts[SECURE] = self._secure.part_for(client)
        return {"seconds": seconds, "missed": None if missed is None else [t for t, _ in missed]}, parts

    def read_work(self, client: int, answer: RemoteAnswer) -> Done:
        """What a client has done."""
        steps, client_1 = answer.head.get("steps", -1), torch.tensor([client])
        if (wrong := Whole(1, int(self._turnout(client_1, None)[1][0])).wrong(steps)) is not None:
            raise Refused(f"its steps {wrong}")
        turnout, _ = self._turnout(client_1, torch.tensor([steps]))
        sending = Sending(answer.t, self.seed, client_1, self.layout.shared_slots)
        if bool(self.algorithm.weighting.counts(turnout)[0]) and self._secure is not None:
            entries = self.layout.shared + (not isinstance(self._secure.rule, PrivateSum))
            replies = self._secure.read(client_1, answer.parts[REPLY], entries)
        elif bool(self.algorithm.weighting.counts(turnout)[0]):
            assert self._pattern is not None
            replies = border.work(answer.parts[REPLY], self._pattern, self.algorithm, sending)
        else:
            replies = border.unfinished(answer.parts[REPLY], self.algorithm, sending)
        times = {"reply_seconds": answer.seconds} | reported_times(answer.head)
        timed = {name: torch.tensor([value], dtype=torch.float64) for name, value in times.items()}
        return Done(steps, replace(replies, report=replies.report | timed))

    def _turnout(self, client_C: Tensor, steps_C: Tensor | None) -> tuple[Turnout, Tensor]:
        single = self.setup.model.batch_statistics
        return turnout_after(steps_C, client_C, self.examples(client_C), self.algorithm.local, single)

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        return Replies.join([self._unfinished[c] for c in client_I.tolist()])

    def commit(self, t: int, client_R: Tensor) -> None:
        for c in client_R.tolist():
            client = self.enrolled[c]
            client.used = t
            client.holds = t if self.encodes else NEVER

    def depart(self, client_I: Tensor, outbox: Outbox) -> Departure:
        rows = {c: mine for c in client_I.tolist() if (mine := self.enrolled[c].mine) is not None}
        client_H = torch.tensor(sorted(rows), dtype=torch.int64)
        none = {name: value.new_zeros(0, *value.shape) for name, value in self._first_rows().items()}
        joined = {name: torch.cat([empty, *(rows[c][name] for c in sorted(rows))]) for name, empty in none.items()}
        return departure_of(client_H, state_from(joined, len(client_H), torch.device("cpu")), outbox, self.algorithm)

    def forget(self, client_I: Tensor) -> None:
        self.mark_used(client_I, NEVER)

    # -- other questions

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        """The mean gradient of the clients that answer; None if none does."""
        parts = {COMMON: wire.pack({"shared": shared_P, "states": states, "t": t})}

        def read(client: int, answer: RemoteAnswer) -> Tensor:
            return border.gradient(answer.parts[REPLY], shared_P)

        found = self.survey(client_C, DeviceTask("gradient", lambda client, seconds: ({}, parts), read))
        total_P, mass = torch.zeros_like(shared_P), 0.0
        for c, share in zip(client_C.tolist(), share_C.tolist(), strict=True):
            if c in found:
                total_P, mass = total_P + share * found[c], mass + share
        return total_P / mass if mass else None

    def measure(self, asked: Measure) -> Measured:
        """Test the one model on the server's own test data if it has some, else on devices; clients' own on theirs."""
        central = {} if self.tester is None else self.tester.measure(replace(asked, common=False, own=False)).central
        elsewhere = bool(asked.central) and self.tester is None
        if not (asked.common or asked.own or elsewhere):
            return Measured(central)
        client_C = asked.client_C
        if elsewhere:
            client_C = torch.tensor([c.number for c in self.enrolled if c.member], dtype=torch.int64)
        found = self._measured(replace(asked, central={}, common=asked.common or elsewhere), client_C)
        blank, listed = torch.tensor([torch.nan], dtype=torch.float64), client_C.tolist()

        def columns(kind: str) -> Tensors:
            """Metrics of the clients, NaN for those that did not report."""
            rows: dict[int, Tensors] = {c: getattr(m, kind) for c, (m, _) in found.items()}
            names = sorted({name for values in rows.values() for name in values})
            return {n: torch.cat([rows.get(c, {}).get(n, blank).double() for c in listed]) for n in names}

        common, own = columns("common"), columns("own")
        if elsewhere:  # means over all tested samples
            tested_C = torch.tensor([float(found[c][1]) if c in found else 0.0 for c in listed])
            central = {"global": {}}
            for name, value_C in common.items():
                known_C = ~torch.isnan(value_C) & (tested_C > 0)
                if bool(known_C.any()):
                    weight_C = tested_C[known_C].double()
                    central["global"][name] = float((value_C[known_C] * weight_C).sum() / weight_C.sum())
        keep = torch.isin(client_C, asked.client_C)
        common, own = ({n: v[keep] for n, v in values.items()} for values in (common, own))
        return Measured(central, common if asked.common else {}, own)

    def _measured(self, asked: Measure, client_C: Tensor) -> dict[int, tuple[Measured, int]]:
        """What each client measured, and on how many samples: at most as many as it enrolled with."""

        def message(client: int, seconds: float) -> tuple[State, Parts]:
            tree = wire.measure_tree(asked, torch.tensor([client]))
            common = {name: tree.pop(name) for name in ("t", "shared", "states", "central", "common", "own")}
            return {}, {COMMON: wire.pack(common), OWN: wire.pack(tree)}

        def read(client: int, answer: RemoteAnswer) -> tuple[Measured, int]:
            if not answer.head.get("tested"):
                raise Refused("its answer lacks the number of samples it tested on")
            found = border.measured(answer.parts[REPLY], self.setup.experiment.task, asked.common, asked.own)
            return found, min(answer.head["tested"], self.enrolled[client].examples)

        return self.survey(client_C, DeviceTask("measure", message, read))

    def describe(self) -> dict[str, Any]:
        return self.setup.place.describe() | {"engine": "on devices", "chunk": 1, "threads": 1}

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        return {"cohort": 4 * self.layout.width * (2 if self.encodes else 1) * cohort}


def turnout_after(
    steps_C: Tensor | None, client_C: Tensor, examples_C: Tensor, local: Local, drop_single: bool
) -> tuple[Turnout, Tensor]:
    """The turnout of clients that took so many steps (None: all of them), and the steps of complete work."""
    full, full_C = turn_out(client_C, torch.ones(len(client_C), dtype=torch.float64), examples_C, local, drop_single)
    if steps_C is None:
        return full, full_C
    part_C = torch.where(full_C > 0, steps_C.double() / full_C.clamp(min=1), 0.0)
    return turn_out(client_C, part_C, examples_C, local, drop_single)[0], full_C


def reported_times(head: State) -> dict[str, float]:
    """Seconds of training and transfers that a device reports; NaN if it does not.

    `upload_seconds` are those of its previous reply: how long a reply takes is known once it has arrived.
    """
    return {column: float(head.get(name, math.nan)) for name, column in TIMES.items()}


# -- the pattern of a reply


def reply_pattern(setup: Setup, data: Description, download: Download) -> Replies:
    """Names, shapes and types of a reply to such a download, but for its encoded update.

    One step is trained on made-up samples, which needs only the description of the data.
    """
    bare = setup.experiment.but(**{"evaluate.recovery": False, "evaluate.gradients": False})
    clients = ClientPool(replace(setup, experiment=bare, federation=data.load(samples=4)))
    one = torch.zeros(1, dtype=torch.int64)
    start = None if download.start_CP is None else download.start_CP[:1]
    asked = replace(download.among(one) if start is None else replace(download, client_C=one), start_CP=start)
    found, _ = clients.work(asked, Assignment(one, torch.ones(1, dtype=torch.int64)))
    report = {n: v for n, v in found.reported().report.items() if n != SQUARED}  # a device could claim less
    return replace(found, report=report)
