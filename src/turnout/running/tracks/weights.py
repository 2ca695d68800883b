"""The weight track: federated parameters, by the round of round.py on any runtime.

Shape letters: C members that are measured, c clients of a chunk, P shared parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import nn

from turnout.clients.metrics import spread, summary
from turnout.clients.state import central_model
from turnout.errors import UserError
from turnout.exchange import Enrolment, Measure, Measured, Runtime
from turnout.experiment import Algorithm, Experiment
from turnout.round import run_round
from turnout.round_record import Evaluation, RoundRecord, record_of
from turnout.running.tracks.first_values import FirstValues
from turnout.running.tracks.hindsight import hindsight
from turnout.running.tracks.track import ON_ITS_DEVICE, Track, filled, record_bytes, sample_of
from turnout.runtimes.setup import Model
from turnout.server.state import Context, Server
from turnout.tasks import Predictor
from turnout.types import Extra, State
from turnout.world.members import Members


@dataclass(frozen=True)
class Weights(Track):
    """Federated parameters, prepared for one experiment."""

    experiment: Experiment
    algorithm: Algorithm
    enrolment: Enrolment
    template: nn.Module  # as the user wrote it, for handing trained models back
    model: Model
    runtime: Runtime
    server: Server  # before the first round
    device: torch.device
    fingerprint: str
    first: FirstValues
    central_change: Callable[[Members, Members], str | None] | None = None  # None: the server has no test data
    warnings: tuple[str, ...] = ()
    noise_key: int | None = None  # None: a private run draws its noise from the seed

    def headline(self) -> str:
        return f"{self.clients:,} clients, {self.model.layout.shared:,} shared parameters"

    def begin(self) -> Server:
        return self.server

    def round(self, state: Server, t: int) -> tuple[Server, RoundRecord]:
        until = self.experiment.stop.simulated_seconds
        ctx = Context(self.algorithm, self.runtime, self.experiment.seed, until, self.noise_key)
        happened = run_round(state, t, ctx)
        record, simulation = record_of(happened, ctx), self.runtime.simulation
        seen = {}
        if self.experiment.evaluate.substitution and simulation is not None:
            seen = hindsight(happened, simulation, ctx)
        shift = self.shift(state.objective, happened.after.objective)
        return happened.after, replace(record, extra={**record.extra, **seen, **shift, **self.runtime.noted()})

    def shift(self, before: Members, after: Members) -> Extra:
        """What a reader of the curves must know of a round: whom the objective is over now, and that global metrics
        are measured on other samples from here on. Nothing where the objective stays."""
        if before == after:
            return {}
        other = "other " if len(before) == len(after) else ""
        note: Extra = {"objective": f"{len(before):,} -> {len(after):,} {other}clients"}
        words = self.central_change and self.central_change(before, after)
        return note | ({"test_set": words} if words else {})

    @property
    def stores_releases(self) -> bool:
        private = self.algorithm.privacy
        return private is not None and (private.secret or self.runtime.simulation is None)

    def with_noise_key(self, key: Callable[[], int]) -> Self:
        if not self.stores_releases or self.algorithm.secure is not None:  # clients add the noise of secure sums
            return self
        return replace(self, noise_key=key())

    def reason_to_stop(self, state: Server, t: int) -> str | None:
        return None if self.algorithm.privacy is None else self.algorithm.privacy.reason_to_stop(state.privacy, t)

    def pack(self, state: Server) -> State:
        return state.to_state()

    def unpack(self, tree: State) -> Server:
        return Server.from_state(tree)

    # -- evaluation

    def evaluate(self, state: Server, t: int) -> Evaluation:
        """The global model (where the server has all of it) on the central test set, and on clients' own test data
        where asked; clients' own models where something is theirs."""
        asked = self.asked(state, t)
        measured = self.runtime.measure(asked)
        values = {
            f"{who}_{name}": value for who, metrics in measured.central.items() for name, value in metrics.items()
        }
        per_client = {f"client_{name}": (asked.client_C, value_C) for name, value_C in measured.common.items()}
        per_client |= {f"personal_{name}": (asked.client_C, value_C) for name, value_C in measured.own.items()}
        return Evaluation(t, values | self.personal(measured), per_client)

    def asked(self, state: Server, t: int) -> Measure:
        """What is to be measured."""
        evaluate, mixing = self.experiment.evaluate, self.algorithm.mixing
        whole = central_model(self.model.layout, state.shared_P, state.states) is not None
        common, own = evaluate.per_client and whole, self.algorithm.measures_personal(evaluate)
        none = torch.empty(0, dtype=torch.int64)
        return Measure(
            t=t,
            shared_P=state.shared_P,
            states=state.states,
            client_C=sample_of(state.members, self.experiment) if common or own else none,
            central=tested(state) if whole else {},
            common=common,
            own=own,
            start=partial(mixing.own, state.mixing, shared_P=state.shared_P) if mixing.personal else None,
            outbox=state.outbox,
        )

    def personal(self, measured: Measured) -> dict[str, float]:
        """Means of what clients' own models reach, and the main metric's spread."""
        task, values = self.experiment.task, dict[str, float]()
        for name, value_C in measured.own.items():
            is_main = name == task.main
            values |= summary(f"personal_{name}", value_C, measured.noisy_C if is_main else None)
            values |= spread(f"personal_{name}", value_C, task.higher_is_better) if is_main else {}
        return values

    def module(self, state: Server, client: int | None) -> nn.Module:
        """The template with the server's weights in it, and one client's personal ones where asked."""
        if client is None:
            flat_P, states = self.model.whole(state.shared_P, state.states)
        elif self.runtime.simulation is None:
            raise UserError(ON_ITS_DEVICE)
        else:
            flat_P, states = self.runtime.simulation.own_model(client, self.asked(state, 0))
        module, unit = filled(self.template, self.model.layout, flat_P, states), self.enrolment.standardised
        return module if unit is None else Predictor(module, unit).eval()

    def memory(self) -> dict[str, int]:
        algorithm, shared = self.algorithm, self.model.layout.shared
        first = (self.server.members, 0, self.experiment.seed, self.server.selection)
        at_once = (getattr(algorithm.closing, "concurrency", None) or 0) + (algorithm.closing.buffer or 1) - 1
        cohort = min(self.clients, max(at_once, len(algorithm.selection.choose(*first))))
        ever = min(self.clients, cohort * self.experiment.rounds)
        return self.runtime.memory(cohort, ever) | {
            "records": record_bytes(cohort),
            "stand-ins": algorithm.substitution.memory(ever, shared),
            "models": algorithm.mixing.memory(ever, shared),
            "noise": 0 if algorithm.privacy is None else 4 * shared * algorithm.privacy.vectors,
        }


def tested(server: Server) -> dict[str, Members]:
    """Whose test data a model is measured on, by the name of the metric.

    global    those the objective is over
    former    those it was over before it last shifted
    members   those who are still there, where the objective is over more
    """
    groups = {"global": server.objective}
    if server.roster.former is not None:
        groups["former"] = server.roster.former
    if len(server.members) < len(server.objective):
        groups["members"] = server.members
    return groups
