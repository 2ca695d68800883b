"""A robust aggregation and everything that goes beside an update: statistics, moments, uploads of terms, boosts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import turnout as to
from turnout.parts.compression.base import Sending
from turnout.runtimes import border, wire
from turnout.runtimes.border import Refused
from turnout.types import Message, Replies
from worlds import play, ready, world

MEDIAN, KRUM = to.aggregation.CoordinateMedian(), to.aggregation.MultiKrum(0.2)
PLAIN = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=10)
ADAM = to.Local(to.Adam(lr=0.003, moments="federated"), epochs=2, batch_size=10)
NORMED = to.models.MLP(20, batch_norm=True)
ONE_CORE = to.runtime.InProcess(device="cpu", threads=1)


def reached(attack: to.attacks.Attack | None, model=None, local=PLAIN, rounds: int = 5, **algorithm) -> float:
    """Percent of the test samples that are right, of digits; client 0 of five attacks."""
    data = to.data.Digits(clients=5, test_share=0.0)
    hostile = {} if attack is None else {"attack": (attack,), "attackers": (0,)}
    experiment = to.Experiment(
        to.World(data, **hostile), model or to.models.Logistic(), to.Algorithm(local, **algorithm), rounds=rounds,
        runtime=ONE_CORE,
    )  # fmt: skip
    prepared = ready(experiment)
    server, _ = play(prepared, rounds)
    return 100 * float(prepared.evaluate(server, rounds).values["global_accuracy"])


WAYS = {
    "SCAFFOLD": {"terms": (to.terms.Scaffold(),)},
    "MimeLite": {"terms": (to.terms.MimeLite(),), "rounds": 15},
    "elastic": {"terms": (to.terms.Elastic(1.0, reduce="mean", step="proximal"),)},
    "BatchNorm": {"model": NORMED},
    "federated Adam": {"local": ADAM},
}


@pytest.mark.parametrize("strength", [-100.0, 1000.0])
@pytest.mark.parametrize("aggregation", [MEDIAN, KRUM], ids=["median", "multi-Krum"])
@pytest.mark.parametrize("way", WAYS)
def test_one_hostile_client_of_five_does_not_reach_the_model_beside_its_update(way: str, aggregation, strength: float):
    """An honest update with hostile statistics, moments or uploads costs no more than five points."""
    attack, settings = to.attacks.Beside(strength), WAYS[way] | {"aggregation": aggregation, "nonfinite": "absent"}
    assert reached(attack, **settings) > reached(None, **settings) - 5


@pytest.mark.parametrize("aggregation", [MEDIAN, KRUM], ids=["median", "multi-Krum"])
def test_what_terms_make_of_the_updates_themselves_is_protected_too(aggregation):
    """VRL-SGD uploads nothing, but tells clients the mean of the updates."""
    settings = {"terms": (to.terms.VRLSGD(),), "aggregation": aggregation, "nonfinite": "absent"}
    assert reached(to.attacks.SignFlip(1000.0), **settings) > reached(None, **settings) - 5


ALL = [
    MEDIAN, KRUM, to.aggregation.TrimmedMean(0.2), to.aggregation.GeometricMedian(), to.aggregation.NormClip(1.0),
    to.aggregation.CentredClip(1.0),
]  # fmt: skip


@pytest.mark.parametrize("aggregation", ALL, ids=lambda part: type(part).__name__)
def test_all_of_them_protect_what_goes_beside_an_update(aggregation):
    """Control variates and statistics at once, in a small world: as far as without the attack, and not 1e6 away."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    given = world([16] * 5, terms=(to.terms.Scaffold(),), aggregation=aggregation).but(model=lambda: model)
    hostile = given.but(world=replace(given.world, attack=(to.attacks.Beside(1e6),), attackers=(2,)))
    quiet, attacked = (play(ready(experiment), 3)[0] for experiment in (given, hostile))
    for tensors in (lambda s: s.states, lambda s: s.term_states["scaffold"], lambda s: {"weights": s.shared_P}):
        for name, value in tensors(quiet).items():
            away = float((tensors(attacked)[name].double() - value.double()).norm())
            assert away <= 2 * float(value.double().norm()) + 1, name


class LyingOnLeave(to.terms.Scaffold):
    def on_leave(self, client_state):
        return {name: torch.full_like(value, 1e9) for name, value in client_state.items()}


def test_a_client_that_leaves_has_no_last_word():
    """SCAFFOLD takes c_k of a client that leaves out of c: nothing protects that message, so it is not asked for."""
    given = world([8, 12, 4, 16], terms=(LyingOnLeave(),), aggregation=MEDIAN)
    server, _ = play(ready(given.but(**{"world.events": (to.Leave(1, 1),)})), 3)
    assert float(server.shared_P.norm()) < 100


@pytest.mark.parametrize("aggregation", [to.aggregation.WeightedSum(), MEDIAN], ids=["sum", "median"])
def test_a_device_that_rejoins_in_every_round_is_boosted_once_and_never_in_a_vote(aggregation):
    events = (to.Leave(1, 1), to.Join(1, 2), to.Leave(1, 3), to.Join(1, 4))
    given = world([8, 12, 4, 16], aggregation=aggregation).but(**{"world.events": events}, rounds=5)
    _, records = play(ready(given), 5)
    factor = [float(r.clients["weight"][1] / r.clients["share"][1]) for r in records[::2]]
    assert factor == pytest.approx([1, 3, 1 + 2 / 9] if aggregation.linear else [1, 1, 1])


def test_three_of_ten_that_rejoin_in_every_round_do_not_break_the_median():
    """With three shares each they would be more than half of the votes."""
    data, hostile = to.data.Digits(clients=10, test_share=0.0), (1, 4, 7)
    events = tuple(e for t in (1, 3, 5) for c in hostile for e in (to.Leave(c, t), to.Join(c, t + 1)))
    given = to.World(data, attack=(to.attacks.SignFlip(4.0),), attackers=hostile, events=events)
    algorithm = to.Algorithm(PLAIN, aggregation=MEDIAN, weighting=to.weighting.FedAvg())
    prepared = ready(to.Experiment(given, to.models.Logistic(), algorithm, rounds=7, runtime=ONE_CORE))
    server, _ = play(prepared, 7)
    assert prepared.evaluate(server, 7).values["global_accuracy"] > 0.8


@pytest.mark.parametrize(("name", "value", "says"), [
    ("u", -1.0, "range"), ("z", -1.0, "range"), ("v", -1.0, None), ("u", 1e10, "longer"), ("v", 1e10, "longer"),
])  # fmt: skip
def test_fisher_information_below_0_and_uploads_without_measure_are_refused_at_the_border(name, value, says):
    prepared = ready(world([8, 8], terms=(to.terms.Elastic(),)))
    width, one = prepared.model.layout.shared, torch.tensor([0])
    upload = {"u": torch.ones(1, width), "v": torch.ones(1, width), "z": torch.ones(1, 1)}
    upload[name] = torch.full_like(upload[name], value)
    message = Message({"update": torch.ones(1, width)}, torch.tensor([4 * width]))
    report = {"loss": torch.ones(1), "finite": torch.ones(1, dtype=torch.bool)}
    report |= {"bytes_up": message.bytes_C + 4 * (2 * width + 1), "bytes_down": torch.zeros(1, dtype=torch.int64)}
    replies = Replies(one, message, uploads={"elastic": upload}, report=report)
    sent, sending = wire.pack(wire.replies_tree(replies)), Sending(0, 0, one, prepared.model.layout.shared_slots)
    with pytest.raises(Refused, match=says) if says else nullcontext():
        border.work(sent, replies, prepared.algorithm, sending)
