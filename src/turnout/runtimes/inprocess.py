"""The default runtime: every client of a cohort simulated in this process, vectorised.

It draws the turnout, trains only clients whose work counts (`ClientPool`), and keeps their rows.

Shape letters: C clients of the cohort, R participants.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from turnout.clients.work import assign_work
from turnout.data import Federation
from turnout.errors import UserError
from turnout.exchange import Assignment, Download, Measure, Simulation
from turnout.experiment import Experiment
from turnout.machine.profiling import stage
from turnout.parts.local import turn_out
from turnout.parts.privacy.discrete import sum_rule
from turnout.runtimes.client_pool import ClientPool
from turnout.runtimes.secure_sum import KEY, SumLost, simulated_noise_key, sum_in_process, weights_of
from turnout.runtimes.setup import Setup
from turnout.runtimes.timing import Timing
from turnout.types import Extra, Replies, Tensors, Turnout
from turnout.world.attacks import attackers_of
from turnout.world.events import Calendar, Event
from turnout.world.members import Members
from turnout.world.participation import finished


class SimulatedWorld:
    """What every simulation draws and counts, on any track: sample counts, events, turnout."""

    def __init__(self, experiment: Experiment, federation: Federation, calendar: Calendar):
        self.experiment, self.federation, self.calendar = experiment, federation, calendar
        self.seed, self.groups = experiment.seed, getattr(federation, "groups", None)
        self._total: int | None = None
        world = experiment.world
        self.attackers = attackers_of(world.attack, world.attackers, federation.clients, experiment.seed)

    def examples(self, client_C: Tensor) -> Tensor:
        """Training samples that each client claims to have."""
        held_C = self.held(client_C)
        return held_C if self.attackers is None else self.attackers.claimed_examples(client_C, held_C)

    def held(self, client_C: Tensor) -> Tensor:
        """Training samples that each client really has."""
        return self.federation.examples(client_C).cpu()

    def mean_examples(self, members: Members) -> float:
        """The members' mean sample count. The population is counted once, later only clients added or removed."""
        if self._total is None:
            self._total = int(self.examples(torch.arange(members.population)).sum())
        moved = int(self.examples(members.added_J).sum()) - int(self.examples(members.removed_L).sum())
        return (self._total + moved) / max(1, len(members))

    def names(self) -> tuple[str, ...] | None:
        return self.federation.names

    def events(self, t: int) -> Sequence[Event]:
        return self.calendar.by_round.get(t, ())

    def noted(self) -> Extra:
        """A simulation has no further entries."""
        return {}

    def fractions(self, client_C: Tensor, t: int) -> Tensor:
        """Fraction of the work that each client finishes; 0: it does not turn up."""
        participation, full_work = self.experiment.world.participation, self.experiment.algorithm.local.full_work
        return finished(participation, client_C, t, full_work, self.seed, self.groups)


class Simulated(SimulatedWorld):
    """What every simulated runtime of the weight track draws: the turnout, and the work that counts.

    unfinished  reports of clients about their download, made by the runtime
    """

    unfinished: Callable[[Tensor, Download], Replies]

    def __init__(self, setup: Setup):
        super().__init__(setup.experiment, setup.data, setup.calendar)
        self.setup, self.algorithm, self.layout = setup, setup.algorithm, setup.model.layout
        self.drop_single = setup.model.batch_statistics
        devices = setup.experiment.world.devices
        self.timing = None if devices is None else Timing.of(setup, devices)

    def plan(self, client_C: Tensor, download: Download) -> tuple[Turnout, Assignment | None]:
        """Draw the turnout (with devices, within the time limit), and assign the work that counts, most steps first;
        None: no work counts."""
        turnout, steps_C = self.turn_out(client_C, download.t)
        if self.timing is not None:
            with stage("devices"):
                held = self.unfinished(client_C, download)
                turnout, steps_C = self.timing.turn_out(client_C, steps_C, self.held(client_C), download, held)
        if self.attackers is not None:
            turnout = self.attackers.claimed_work(turnout)
        return turnout, assign_work(self.algorithm, turnout, steps_C)

    def turn_out(self, client_C: Tensor, t: int) -> tuple[Turnout, Tensor]:
        """The turnout, and the local steps of each client."""
        finished_C, local = self.fractions(client_C, t), self.algorithm.local
        return turn_out(client_C, finished_C, self.held(client_C), local, self.drop_single)

    def full_work(self, client_C: Tensor, t: int) -> Assignment:
        """Complete work for all clients that have samples."""
        everything_C = torch.ones(len(client_C), dtype=torch.float64)
        examples_C = self.held(client_C)
        _, steps_C = turn_out(client_C, everything_C, examples_C, self.algorithm.local, self.drop_single)
        row_R = torch.sort(steps_C, descending=True, stable=True).indices
        row_R = row_R[steps_C[row_R] > 0]
        return Assignment(client_C[row_R], steps_C[row_R])


class InProcessRuntime(Simulated):
    """Simulated clients of a `ClientPool`, which may give part of the work to other processes."""

    def __init__(self, setup: Setup, clients: ClientPool | None = None):
        super().__init__(setup)
        self.secure, self._notes = sum_rule(self.algorithm), Extra()
        if self.secure is not None and self.secure.least > setup.data.clients:
            raise UserError(
                f"algorithm.secure.least = {self.secure.least} is more than the {setup.data.clients} clients there "
                "are: no sum would ever be unmasked; lower it"
            )
        pool = self.clients = ClientPool(setup) if clients is None else clients
        self.unfinished, self.depart, self.forget, self.measure = (
            pool.unfinished,
            pool.depart,
            pool.forget,
            pool.measure,
        )
        self.save, self.close, self.describe, self.memory = pool.save, pool.close, pool.describe, pool.memory

    @property
    def simulation(self) -> Simulation:
        return self

    def noted(self) -> Extra:
        notes, self._notes = self._notes, Extra()
        return notes

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        turnout, asked = self.plan(client_C, download)
        if asked is None:
            return turnout, None
        replies, rows = self.clients.work(download, asked)
        self.clients.pending = replies.client_R, rows
        if self.secure is None:
            return turnout, replies
        private = self.algorithm.privacy

        def noise_key(client: int) -> bytes:
            if private is not None and private.secret:
                return secrets.token_bytes(KEY)
            return simulated_noise_key(self.seed, download.t, client)

        with stage("secure sum"):
            weight_C = weights_of(self.algorithm.shares.by, self.examples(client_C))
            try:
                replies, cut = sum_in_process(self.secure, client_C, weight_C, replies.reported(), noise_key)
            except SumLost as why:
                self._notes = {"failed": f"the secure sum is lost: {why}"}
                return turnout, None
            self._notes = {"beyond_limit": float(cut)} if cut else {}
            return turnout, replies

    def commit(self, t: int, client_R: Tensor) -> None:
        self.clients.commit(client_R)

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        """Personal parameters have their initial values, as in the model that is evaluated."""
        clients, here_C = self.clients, self.turn_out(client_C, t)[0].present_C
        flat_P, own = clients.model.with_first_values(shared_P, states)
        gradient_P = clients.mean_gradient(flat_P, own, client_C[here_C], share_C[here_C], t)
        if gradient_P is not None and not bool(torch.isfinite(gradient_P).all()):
            # leave out clients whose loss is not finite
            here_C[here_C.clone()] = torch.isfinite(clients.losses(flat_P, own, client_C[here_C], t))
            gradient_P = clients.mean_gradient(flat_P, own, client_C[here_C], share_C[here_C], t)
        return None if gradient_P is None else gradient_P[: self.layout.shared]

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        self.clients.load(folder, files)

    def durable(self, t: int) -> None:
        """Nothing to do: the checkpoint names all files that a resumed run needs."""

    # -- questions that only a simulation can answer

    def would_send(self, client_C: Tensor, download: Download) -> tuple[Tensor, Tensor]:
        asked = self.full_work(client_C, download.t)
        if len(asked.client_R) == 0:
            return asked.client_R, download.shared_P.new_empty(0, len(download.shared_P))
        replies, _ = self.clients.work(download, asked, dense=True)
        return asked.client_R, replies.message.tensors["update"]

    def own_model(self, client: int, asked: Measure) -> tuple[Tensor, Tensors]:
        one = replace(asked, client_C=torch.tensor([client]))
        flat_cP, states = self.clients.own_models(one)(torch.tensor([0]))
        return flat_cP[0], {name: value[0] for name, value in states.items()}
