"""What turnout.testing must catch: parts that would pass a run or two and be wrong all the same; and right ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

import turnout as to
from turnout import testing
from turnout.clients.state import _hearing
from turnout.errors import UserError
from turnout.parts.mixing import SharedStart
from turnout.parts.terms.base import LocalTerm
from turnout.types import Message
from turnout.world.events import PlannedEvents
from worlds import ready, world


class AddsInPlace:
    linear = False

    def combine(self, arrived, weight_R):
        return weight_R.float() @ arrived.update_RP.nan_to_num_().mul_(2.0)


class PlainMean:
    linear = False

    def combine(self, arrived, weight_R):
        return arrived.update_RP.nanmean(0)


class MedianThatSaysSum:
    linear = True

    def combine(self, arrived, weight_R):
        return arrived.update_RP[weight_R > 0].median(0).values


@dataclass(frozen=True)
class TellsEach(LocalTerm):
    """Everybody is told its own part of the sum: a message a client."""

    name: ClassVar[str] = "tells-each"

    def mine(self, start_P):
        return {"last": torch.zeros_like(start_P)}

    def tell(self, down, arrived):
        return {"own": arrived.update_RP}

    def hear(self, outbox, mine):
        return {"last": mine["last"] + outbox["own"]}


@dataclass(frozen=True)
class OwnButNotPersonal(LocalTerm):
    name: ClassVar[str] = "own"

    def own(self, x_cP, mine):
        return x_cP + 1


@dataclass(frozen=True)
class SlashInMine(LocalTerm):
    name: ClassVar[str] = "slash"

    def mine(self, start_P):
        return {"old/new": torch.zeros_like(start_P)}


@dataclass(frozen=True)
class ListState(to.server.ServerSGD):
    def begin(self, width):
        return {"last": [torch.zeros(width)]}


@dataclass(frozen=True)
class SlashState(to.server.ServerSGD):
    def begin(self, width):
        return {"first": torch.zeros(width), "first/moment": torch.zeros(width)}

    def step(self, update_P, state, arrived):
        return update_P, state


@dataclass(frozen=True)
class Loses(to.compression.TopK):
    """Keeps only half of what it does not send."""

    def encode(self, update_CP, kept, sending):
        message, after = super().encode(update_CP, kept, sending)
        return message, after | {"left": after["left"] / 2}


@dataclass(frozen=True)
class Smuggles(to.compression.Dense):
    def encode(self, update_CP, kept, sending):
        tensors = {"update": update_CP, "more": update_CP * 2}
        return Message(tensors, torch.full((len(update_CP),), 4 * update_CP.shape[1])), {}


@dataclass(frozen=True)
class MissesTheLast(to.compression.TopK):
    def missed(self, state, since, slots):
        messages = super().missed(state, since, slots)
        return messages and messages[:-1]


@dataclass(frozen=True)
class RemembersTheDead(to.substitution.Stale):
    def forget(self, state, client_L):
        return state


@dataclass(frozen=True)
class ByPosition:
    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.linspace(0, 1, len(client_C), dtype=torch.float64)


@dataclass(frozen=True)
class Single:
    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.ones(len(client_C))


@dataclass(frozen=True)
class ScaledByTheRest(to.weighting.Weighting):
    def client_scale(self, turnout):
        return turnout.work_C / turnout.work_C.sum().clamp(min=1)


@dataclass(frozen=True)
class TakesAnybody:
    drawn: ClassVar[bool] = True

    def events(self, setting):
        return PlannedEvents((to.Leave(3, 5),))


@dataclass(frozen=True)
class Averaged(to.SGD):
    moments: ClassVar[str] = "averaged"


@dataclass(frozen=True)
class LeftOpen(to.SGD):
    moments: ClassVar[str] = "auto"


class ToZero:
    def rate(self, lr, clock):
        return lr * max(0.0, 1 - clock / 1000)


class Twice:
    def split(self, label_S, owner_S, clients, seed, want_C=None):
        return [torch.arange(c, c + 3) for c in range(clients)]


class BatchMean:
    main, higher_is_better, metrics = "loss", False, {}

    def check_output(self, output_shape, target):
        return None

    def loss(self, output, target):
        return torch.nn.functional.cross_entropy(output, target).expand(len(output))


@pytest.mark.parametrize(
    ("check", "broken", "promise"),
    [
        (testing.check_aggregation, AddsInPlace(), "written on"),
        (testing.check_aggregation, PlainMean(), "row of weight 0 must not matter"),
        (testing.check_aggregation, MedianThatSaysSum(), "`linear` says"),
        (testing.check_term, TellsEach(), "one message"),
        (testing.check_term, OwnButNotPersonal(), "personal = True"),
        (testing.check_term, SlashInMine(), "old/new"),
        (testing.check_server_step, ListState(), "a list under 'last'"),
        (testing.check_server_step, SlashState(), "first/moment"),
        (testing.check_compression, Loses(0.2), r"message \+ residual"),
        (testing.check_compression, Smuggles(), "counts 60 bytes"),
        (testing.check_compression, MissesTheLast(0.2), "missed messages"),
        (testing.check_substitution, RemembersTheDead(), "forget"),
        (testing.check_participation, ByPosition(), "company"),
        (testing.check_participation, Single(), "float64"),
        (testing.check_weighting, ScaledByTheRest(), "company"),
        (testing.check_events, TakesAnybody(), "other entries name"),
        (testing.check_optimizer, Averaged(), "moments"),
        (testing.check_schedule, ToZero(), "above 0"),
        (testing.check_partition, Twice(), "two clients"),
        (testing.check_task, BatchMean(), "company"),
    ],
)
def test_a_broken_part_is_caught(check, broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check(broken)


@dataclass(frozen=True)
class MeanOfAll(SharedStart):
    """A right mixing: everybody, also a stranger, starts from the mean of all last models, by their parts."""

    personal: ClassVar[bool] = True
    rate: float = field(default=0.5)

    def begin(self, clients, width):
        return {"mean": torch.zeros(width)}

    def starts(self, state, client_C, shared_P):
        return (shared_P + state["mean"]).expand(len(client_C), -1)

    def own(self, state, client_C, shared_P):
        return self.starts(state, client_C, shared_P)

    def observe(self, state, arrived):
        mean_P = arrived.part_R.to(arrived.update_RP) @ arrived.models()
        return {"mean": (1 - self.rate) * state["mean"] + self.rate * mean_P}


@dataclass(frozen=True)
class TellsAtTimes(LocalTerm):
    """A right term: it tells nothing in the first round, and `hear` needs what is told."""

    name: ClassVar[str] = "at-times"

    def mine(self, start_P):
        return {"last": torch.zeros_like(start_P)}

    def tell(self, down, arrived):
        return {"sum": arrived.sum_P} if arrived.t else {}

    def hear(self, outbox, mine):
        return {"last": mine["last"] + outbox["sum"]}


class HearsTheSame(TellsAtTimes):
    """What is told takes the place of what was kept: one row for all."""

    def hear(self, outbox, mine):
        return {"last": outbox["sum"]}


@pytest.mark.parametrize("place", [[0, 1, 2], [0, 2]], ids=["everybody", "some"])
def test_a_row_for_all_who_hear_is_one_for_each(place):
    mine, outbox = {"last": torch.zeros(3, 2)}, {"sum": torch.tensor([1.0, 2.0])}
    heard = _hearing(HearsTheSame(), outbox, mine, torch.tensor(place))["last"]
    assert heard.tolist() == [[1.0, 2.0] if i in place else [0.0, 0.0] for i in range(3)]


@pytest.mark.parametrize(("check", "part"), [(testing.check_mixing, MeanOfAll()), (testing.check_term, TellsAtTimes())])
def test_a_right_part_passes(check, part):
    check(part)


@pytest.mark.parametrize("optimizer", [Averaged(), LeftOpen()])
def test_moments_that_nobody_knows_are_refused_with_a_sentence(optimizer):
    with pytest.raises(
        UserError, match=r"algorithm.local.optimizer.*moments is 'a.*'federated', 'local'|federated, fresh"
    ):
        to.Local(optimizer)


@pytest.mark.parametrize("part", [{"terms": [SlashInMine()]}, {"server": SlashState()}, {"server": ListState()}])
def test_a_state_that_cannot_be_resumed_is_refused_before_the_first_round(part):
    with pytest.raises(UserError, match=r"algorithm\.(terms|server): a state .*(rename it|checkpoint cannot hold)"):
        ready(world([4, 4, 4], **part))
