"""What turnout.testing must catch: parts that would pass a run or two and be wrong all the same; and right ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

import turnout as to
from turnout import testing
from turnout.clients.state import _deliver
from turnout.errors import UserError
from turnout.parts.mixing import SharedStart
from turnout.parts.terms.base import FusedStep, LocalTerm, Notifies, ServerShift
from turnout.types import Message
from turnout.world.events import PlannedEvents
from worlds import ready, world


class AddsInPlace:
    linear = False

    def combine(self, updates, weight_R):
        return weight_R.float() @ updates.update_RP.nan_to_num_().mul_(2.0)


class PlainMean:
    linear = False

    def combine(self, updates, weight_R):
        return updates.update_RP.nanmean(0)


class MedianThatSaysSum:
    linear = True

    def combine(self, updates, weight_R):
        return updates.update_RP[weight_R > 0].median(0).values


@dataclass(frozen=True)
class TellsEach(LocalTerm, Notifies):
    """Everybody is told its own part of the sum: a message a client."""

    name: ClassVar[str] = "tells-each"

    def client_state(self, initial_P):
        return {"last": torch.zeros_like(initial_P)}

    def notify(self, server_state, applied):
        return {"own": applied.update_RP}

    def on_notify(self, message, client_state):
        return {"last": client_state["last"] + message["own"]}


@dataclass(frozen=True)
class SlashInMine(LocalTerm):
    name: ClassVar[str] = "slash"

    def client_state(self, initial_P):
        return {"old/new": torch.zeros_like(initial_P)}


@dataclass(frozen=True)
class ListState(to.server.ServerSGD):
    def begin(self, width):
        return {"last": [torch.zeros(width)]}


@dataclass(frozen=True)
class SlashState(to.server.ServerSGD):
    def begin(self, width):
        return {"first": torch.zeros(width), "first/moment": torch.zeros(width)}

    def step(self, update_P, state, aggregate):
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

    def highest(self, target, classes):
        return torch.tensor(classes - 1)

    def loss(self, output, target):
        return torch.nn.functional.cross_entropy(output, target).expand(len(output))


@pytest.mark.parametrize(
    ("check", "broken", "promise"),
    [
        (testing.check_aggregation, AddsInPlace(), "must not change update_RP"),
        (testing.check_aggregation, PlainMean(), "rows of weight 0.*must not matter"),
        (testing.check_aggregation, MedianThatSaysSum(), "`linear` says"),
        (testing.check_term, TellsEach(), "one message"),
        (testing.check_term, SlashInMine(), "old/new"),
        (testing.check_server_step, ListState(), "a list under 'last'"),
        (testing.check_server_step, SlashState(), "first/moment"),
        (testing.check_compression, Loses(0.2), r"message \+ residual"),
        (testing.check_compression, Smuggles(), "counts 60 bytes"),
        (testing.check_compression, MissesTheLast(0.2), "missed messages"),
        (testing.check_substitution, RemembersTheDead(), "forget"),
        (testing.check_participation, ByPosition(), "other clients"),
        (testing.check_participation, Single(), "float64"),
        (testing.check_weighting, ScaledByTheRest(), "other clients"),
        (testing.check_events, TakesAnybody(), "other entries name"),
        (testing.check_optimizer, Averaged(), "moments"),
        (testing.check_schedule, ToZero(), "above 0"),
        (testing.check_partition, Twice(), "two clients"),
        (testing.check_task, BatchMean(), "other samples"),
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

    def observe(self, state, applied):
        mean_P = applied.objective_share_R.to(applied.update_RP) @ applied.models()
        return {"mean": (1 - self.rate) * state["mean"] + self.rate * mean_P}


@dataclass(frozen=True)
class TellsAtTimes(LocalTerm, Notifies):
    """A right term: it tells nothing in the first round, and `on_notify` needs the message."""

    name: ClassVar[str] = "at-times"

    def client_state(self, initial_P):
        return {"last": torch.zeros_like(initial_P)}

    def notify(self, server_state, applied):
        return {"sum": applied.sum_P} if applied.t else {}

    def on_notify(self, message, client_state):
        return {"last": client_state["last"] + message["sum"]}


class HearsTheSame(TellsAtTimes):
    """What is told takes the place of what was kept: one row for all."""

    def on_notify(self, message, client_state):
        return {"last": message["sum"]}


@pytest.mark.parametrize("place", [[0, 1, 2], [0, 2]], ids=["everybody", "some"])
def test_a_row_for_all_who_hear_is_one_for_each(place):
    mine, outbox = {"last": torch.zeros(3, 2)}, {"sum": torch.tensor([1.0, 2.0])}
    received = _deliver(HearsTheSame(), outbox, mine, torch.tensor(place))["last"]
    assert received.tolist() == [[1.0, 2.0] if i in place else [0.0, 0.0] for i in range(3)]


@pytest.mark.parametrize(("check", "part"), [(testing.check_mixing, MeanOfAll()), (testing.check_term, TellsAtTimes())])
def test_a_right_part_passes(check, part):
    check(part)


def test_moments_that_nobody_knows_are_refused_with_a_sentence():
    with pytest.raises(UserError, match=r"Averaged.moments is 'a.*federated, fresh"):
        to.Local(Averaged())


@pytest.mark.parametrize("part", [{"terms": [SlashInMine()]}, {"server": SlashState()}, {"server": ListState()}])
def test_a_state_that_cannot_be_resumed_is_refused_before_the_first_round(part):
    with pytest.raises(UserError, match=r"algorithm\.(terms|server): a state .*(rename it|checkpoint cannot hold)"):
        ready(world([4, 4, 4], **part))


# -- mistakes of a term's author


@dataclass(frozen=True)
class Misspelt(LocalTerm):
    name: str = "misspelt"

    def transform_gradient(self, grad_cP, at, server_state, client_state):
        return grad_cP / 2


@dataclass(frozen=True)
class ReadsTheStep(LocalTerm, FusedStep):
    """Decays its pull during local training, and declares that a GPU may repeat its first step."""

    cuda_graph_safe: ClassVar[bool] = True
    name: str = "reads-the-step"

    def transform_grad(self, grad_cP, at, server_state, client_state):
        return grad_cP + (at.x_cP - at.start_cP) / (1 + at.step)


@dataclass(frozen=True)
class FedDyn(LocalTerm, ServerShift):
    """FedDyn; `unscaled = False` takes the updates as they were sent, scaled by E/s under scheme C."""

    unscaled: bool = True
    alpha: float = 0.5
    name: str = "feddyn"

    def server_state(self, initial_P):
        return {"h": torch.zeros_like(initial_P)}

    def _next(self, server_state, aggregate):
        moved_RP = aggregate.models() - aggregate.start_P if self.unscaled else aggregate.update_RP
        return server_state["h"] - self.alpha * moved_RP.sum(0) / aggregate.objective_size

    def server_shift(self, server_state, aggregate):
        return -self._next(server_state, aggregate) / self.alpha

    def server_update(self, server_state, upload, applied):
        return {"h": self._next(server_state, applied)}, {}


class Nameless(LocalTerm):
    def transform_grad(self, grad_cP, at, server_state, client_state):
        return grad_cP / 2


@dataclass(frozen=True)
class CountsInANumber(LocalTerm):
    name: str = "counts"

    def client_state(self, initial_P):
        return {"steps": torch.tensor(0.0)}


@dataclass(frozen=True)
class SendsANumber(LocalTerm):
    name: str = "sends-a-number"

    def finish(self, at, server_state, client_state):
        return {"loss": torch.tensor(1.0)}, client_state


class DuckTyped:
    """A term without `LocalTerm`, whose `post_step` would never be called."""

    name = "duck"
    server_state = LocalTerm.server_state
    client_state = LocalTerm.client_state
    transform_grad = LocalTerm.transform_grad
    finish = LocalTerm.finish
    server_update = LocalTerm.server_update

    def post_step(self, at, server_state, client_state):
        at.x_cP.mul_(0.5)


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (Misspelt(), "transform_gradient.*did you mean transform_grad"),
        (ReadsTheStep(), "cuda_graph_safe.*at.step"),
        (FedDyn(unscaled=False), "server_update.*E/s.*models"),
        (CountsInANumber(), r"client_state: steps.*\[1\]"),
        (SendsANumber(), "finish: loss needs one row per client"),
        (DuckTyped(), "post_step.*derives from PostStep"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_mistake_of_a_term_s_author_is_named(term, words):
    with pytest.raises(AssertionError, match=words):
        testing.check_term(term)


def test_a_term_without_a_name_is_refused_when_it_is_made():
    with pytest.raises(TypeError, match=r"Nameless.*name"):
        Nameless()


def test_a_term_that_unscales_updates_passes():
    testing.check_term(FedDyn())


def test_an_optional_hook_without_its_class_is_refused_where_the_term_is_defined():
    with pytest.raises(UserError, match=r"Approaches defines post_step.*PostStep"):

        class Approaches(LocalTerm):
            def post_step(self, at, server_state, client_state):
                at.x_cP.mul_(0.5)

    with pytest.raises(UserError, match=r"Own defines own.*PersonalModel"):

        class Own(LocalTerm):
            def own(self, x_cP, client_state):
                return x_cP + 1


class NoBegin(to.roles.ServerStep):
    def step(self, update_P, state, updates):
        return update_P, state


@dataclass(frozen=True)
class ChangeAlone(to.server.ServerSGD):
    def step(self, update_P, state, updates):
        return update_P


@dataclass(frozen=True)
class EveryKth(to.roles.Participation):
    k: int = 0

    def fraction(self, client_C, t, full_work, seed, groups=None):
        return (client_C % (t // self.k) == 0).double()


@dataclass(frozen=True)
class NoGroups(to.roles.Participation):
    def fraction(self, client_C, t, full_work, seed):
        return torch.ones(len(client_C), dtype=torch.float64)


@dataclass(frozen=True)
class Percent(to.roles.Participation):
    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.full((len(client_C),), 50.0, dtype=torch.float64)


@dataclass(frozen=True)
class KeepsTheStart(LocalTerm):
    name: ClassVar[str] = "keeps"

    def client_state(self, initial_P):
        return {"last": torch.zeros_like(initial_P)}

    def finish(self, at, server_state, client_state):
        return {}, {"last": at.start_cP}


@pytest.mark.parametrize(
    ("check", "broken", "sentence"),
    [
        (testing.check_server_step, ChangeAlone, r"ChangeAlone is a class: give an object, ChangeAlone\(\)"),
        (testing.check_participation, EveryKth, "EveryKth is a class"),
        (testing.check_server_step, NoBegin(), r"NoBegin lacks begin: help\(turnout.roles.ServerStep\)"),
        (testing.check_server_step, ChangeAlone(), r"ChangeAlone.step returns \(change_P, state\), not a Tensor"),
        (testing.check_participation, EveryKth(), r"EveryKth.fraction raised ZeroDivision.*\(test_broken_parts.py:\d+"),
        (testing.check_participation, NoGroups(), r"called with \(client_C, t, full_work, seed, groups\)"),
        (testing.check_participation, Percent(), r"round 3 has 50, 50, 50, 50, 50$"),
        (testing.check_term, KeepsTheStart(), r"\(1, 6\) \(at.start_cP has a single row.*expand_as\(at.x_cP\)"),
    ],
)
def test_a_part_that_cannot_be_used_is_a_sentence(check, broken, sentence):
    with pytest.raises((AssertionError, UserError), match=sentence):
        check(broken)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            EveryKth(),
            r"^world.participation: EveryKth.fraction raised ZeroDivisionError: .*\(test_broken_parts.py:\d+\)",
        ),
        (NoGroups(), r"^world.participation: NoGroups.fraction is called with"),
    ],
)
def test_a_participation_that_raises_is_named_before_the_first_round(part, sentence, tmp_path):
    experiment = to.Experiment(to.World(to.data.Synthetic(clients=4), part), rounds=1)
    with pytest.raises(UserError, match=sentence):
        to.run(experiment, tmp_path / "run", quiet=True)


def test_a_server_step_of_another_library_is_suggested():
    for name, ours in (("FedAdam", "ServerAdam"), ("Adam", "ServerAdam"), ("Yogi", "ServerYogi")):
        with pytest.raises(AttributeError, match=f"did you mean '{ours}'"):
            getattr(to.server, name)
