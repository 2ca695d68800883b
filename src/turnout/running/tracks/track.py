"""A track, which the loop of running/loop.py drives with a state that is passed from round to round."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from turnout.data.description import Description, described
from turnout.data.federation import Federation
from turnout.exchange import ClientKeeper
from turnout.experiment import Experiment
from turnout.layout import Layout
from turnout.parts.privacy.private import Private
from turnout.rng import draw
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.tracks.building import log_matches
from turnout.running.tracks.first_values import FirstValues
from turnout.runtimes.inprocess import SimulatedWorld
from turnout.runtimes.remote import ClientTasks
from turnout.types import State, Tensors
from turnout.world.enrolment import Enrolment
from turnout.world.members import Members

ON_ITS_DEVICE = "a client's own model is on its device: only a simulation can return it"
Store = Callable[[Any], None]
DATABASE = 2 << 20  # bytes of the cache of the database that has the records
ROW = 900  # bytes of a client's record of a round while it is written: about fifteen numbers as objects


class Track(ABC):
    """A way of federating, prepared for one experiment. Its state is private; `pack` makes a tree of it.

    experiment   as prepared
    enrolment    what is known of the clients
    runtime      where clients work, and what keeps their state
    fingerprint  a hash of data, settings and initial values: a checkpoint of another experiment is refused
    first        the model before the first round
    device       the device that computes
    warnings     sentences about settings that run but are probably not intended
    noise_key    the secret that noise is drawn from; None: a simulation draws it from the seed
    """

    experiment: Experiment
    enrolment: Enrolment
    runtime: ClientKeeper
    fingerprint: str
    first: FirstValues
    device: torch.device
    warnings: tuple[str, ...]
    noise_key: int | None

    @property
    def clients(self) -> int:
        """The size of the population."""
        names = self.names
        return self.enrolment.clients if names is None else len(names)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The clients' names, if the data has them."""
        return self.runtime.names()

    @property
    def data_note(self) -> str:
        """How files became samples, and how a log's clients match the data's; may be empty."""
        logs = [match.sentence() for match in log_matches(self.experiment) if not match.is_partial]
        return "; ".join(words for words in (self.enrolment.note, *logs) if words)

    def data(self) -> Description:
        """The description of the data in a run folder, so that the model can be used without the data."""
        return described(replace(self.enrolment, clients=self.clients, names=self.names), self.fingerprint)

    @abstractmethod
    def headline(self) -> str:
        """The size of the federation: "50 clients, 610 shared parameters"."""

    @abstractmethod
    def begin(self) -> Any:
        """The state before the first round."""

    @abstractmethod
    def round(self, state: Any, t: int, store: Store | None = None) -> tuple[Any, RoundRecord]:
        """One round: the next state, and its record.

        A track whose clients receive the result of a round within it calls `store` first with the state from which the
        round can end in the same way; None: nothing needs to be stored."""

    # -- privacy

    @property
    def privacy(self) -> Private | None:
        """The privacy of the algorithm."""
        found: Private | None = getattr(self.experiment.algorithm, "privacy", None)
        return found

    @property
    def stores_releases(self) -> bool:
        """Whether each round is stored before any client receives its result."""
        private, simulated = self.privacy, isinstance(self.runtime, SimulatedWorld)
        return private is not None and (private.secret if simulated else private.noise_at == "server")

    def with_noise_key(self, key: Callable[[], int]) -> Self:
        """The same with the secret key that its noise is drawn from, if it needs one: where that is asked for, and with
        real clients, unless they add the noise themselves."""
        if not self.stores_releases or getattr(self.experiment.algorithm, "secure", None) is not None:
            return self
        keyed: Self = replace(self, noise_key=key())  # type: ignore[type-var]  # tracks are dataclasses
        return keyed

    def reason_to_stop(self, state: Any, t: int) -> str | None:
        """Why round t must not run, in words; None: it may."""
        return None if self.privacy is None else self.privacy.reason_to_stop(state.privacy, t)

    @abstractmethod
    def evaluate(self, state: Any, t: int) -> Evaluation:
        """The metrics of the model after a round."""

    @abstractmethod
    def module(self, state: Any, client: int | None) -> nn.Module:
        """The trained model, or one client's own, as an ordinary module."""

    @abstractmethod
    def pack(self, state: Any) -> State:
        """The state as a tree for a checkpoint."""

    @abstractmethod
    def unpack(self, tree: State) -> Any:
        """The state from such a tree."""

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """An estimate of the bytes the run needs: the largest pieces by name."""


class TrackModule(Protocol):
    """The module of a track that an algorithm names (`AlgorithmSpec.track_module`)."""

    def prepare(self, given: Experiment, enrolment: Enrolment, federation: Federation | None) -> Track:
        """The track, ready for its first round."""

    def client_tasks(
        self, given: Experiment, enrolment: Enrolment, federation: Federation, folder: Path
    ) -> ClientTasks:
        """What one client does on a real device, which keeps its rows in a folder."""


def sample_of(members: Members, experiment: Experiment) -> Tensor:
    """The members that are measured one by one: all, or a fixed sample if there are many."""
    count = min(len(members), experiment.evaluate.clients)
    return members.at(draw(count, len(members), 0, experiment.seed, "evaluated"))


def filled(template: nn.Module, layout: Layout, flat_P: Tensor, states: Tensors) -> nn.Module:
    """A copy of a module with these weights and buffers."""
    module = copy.deepcopy(template)
    weights = layout.unpack(flat_P.cpu()) | {name: value.cpu() for name, value in states.items()}
    module.load_state_dict(weights, strict=False)
    return module.eval()


def record_bytes(cohort: int) -> int:
    """Bytes for the records of a round: rows of so many clients, and the database's cache."""
    return DATABASE + ROW * cohort


def fingerprint(*identity: Any) -> str:
    """A short hash of the data, the model and the lasting settings."""
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
