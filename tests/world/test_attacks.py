"""Hostile clients: what each attack sends and claims, by hand; who they are; where they are refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

import turnout as to
from same_rows import same
from turnout.errors import UserError
from turnout.parts.compression.base import Sending
from turnout.running.config.read import from_table
from turnout.running.config.write import to_table
from turnout.running.tracks.building import refuse_simulation_only
from turnout.running.tracks.prepare import prepare
from turnout.runtimes import border, wire
from turnout.runtimes.border import Refused
from turnout.types import Message, Replies
from turnout.world.attacks import Attackers, hostile_clients
from worlds import folder_run, kept_rows, local_updates, play, ready, stopped_and_resumed, world

COUNTS, FRACTIONS = [8, 12, 4, 16], (1.0, 0.5, 0.0, 1.0)  # four epochs: 4, 2, 0 and 4 of them
HOSTILE = (1, 3)


def attacked(*attacks, fractions=FRACTIONS, **algorithm) -> to.Experiment:
    experiment = world(COUNTS, *fractions, **algorithm)
    return experiment.but(world=replace(experiment.world, attack=attacks, attackers=HOSTILE))


def sent(experiment: to.Experiment, t: int = 0) -> Tensor:
    """What clients 0, 1 and 3 send in the first round, by client."""
    prepared = ready(experiment)
    server = prepared.begin()
    found: dict[str, Tensor] = {}

    class Spy(to.aggregation.WeightedSum):
        def combine(self, updates, weight_R):
            found["sent"] = updates.update_RP[updates.client_R.argsort()].clone()
            return super().combine(updates, weight_R)

    prepared = ready(experiment.but(**{"algorithm.aggregation": Spy()}))
    prepared.round(server, t)
    return found["sent"]


@pytest.fixture(scope="module")
def honest() -> Tensor:
    return local_updates(ready(world(COUNTS, *FRACTIONS)))[[0, 1, 3]]


def test_a_sign_flip_is_the_opposite_of_what_was_learned(honest: Tensor):
    found = sent(attacked(to.attacks.SignFlip(3.0), weighting=to.weighting.FedAvg()))
    torch.testing.assert_close(found, honest * torch.tensor([1.0, -3.0, -3.0]).double()[:, None])


def test_it_is_what_would_be_sent_that_is_flipped_so_work_scales_it(honest: Tensor):
    found = sent(attacked(to.attacks.SignFlip(), weighting=to.weighting.ByWork()))
    torch.testing.assert_close(found, honest * torch.tensor([1.0, -2.0, -1.0]).double()[:, None])


def test_inner_product_manipulation_sends_the_opposite_of_the_honest_mean(honest: Tensor):
    found = sent(attacked(to.attacks.InnerProduct(0.5), weighting=to.weighting.FedAvg()))
    torch.testing.assert_close(found, torch.stack([honest[0], -0.5 * honest[0], -0.5 * honest[0]]))


def test_opposed_is_the_honest_mean_less_deviations_towards_the_other_side():
    """Clients 0 and 2 are honest here: μ − z σ sign(μ), parameter by parameter."""
    experiment = attacked(to.attacks.Opposed(1.5), fractions=(1.0, 1.0, 1.0, 1.0), weighting=to.weighting.FedAvg())
    honest, found = local_updates(ready(experiment))[[0, 2]], sent(experiment)
    forged = honest.mean(0) - 1.5 * (honest[0] - honest[1]).abs() / 2 * honest.mean(0).sign()
    torch.testing.assert_close(found[[0, 2]], honest)
    torch.testing.assert_close(found[[1, 3]], torch.stack([forged, forged]))


def test_a_false_friend_sends_the_honest_mean_and_strikes_in_every_second_round(honest: Tensor):
    experiment = attacked(to.attacks.FalseFriend(4.0), weighting=to.weighting.FedAvg())
    torch.testing.assert_close(sent(experiment, 0), torch.stack([honest[0]] * 3))
    later = sent(experiment, 1)
    torch.testing.assert_close(later[1:], torch.stack([-4.0 * later[0]] * 2))


def test_beside_an_honest_update_anything_may_be_false_and_what_clients_keep_is_not(honest: Tensor):
    """SCAFFOLD's c is Σ p_k (c_k⁺ − c_k): -3 times as much of clients 1 and 3, whose own c_k is as ever."""
    experiment = attacked(to.attacks.Beside(-3.0), weighting=to.weighting.FedAvg(), terms=(to.terms.Scaffold(),))
    torch.testing.assert_close(sent(experiment), honest)
    prepared = ready(experiment)
    server, _ = play(prepared)
    own_CP = kept_rows(prepared, server, torch.tensor([0, 1, 3]))["term/scaffold/c"]
    part_C = torch.tensor([8.0, -3 * 12, -3 * 16]).double() / sum(COUNTS)
    torch.testing.assert_close(server.term_states["scaffold"]["c"], part_C @ own_CP)


def test_alie_is_the_attackers_mean_less_z_deviations(honest: Tensor):
    found = sent(attacked(to.attacks.ALIE(1.5), weighting=to.weighting.FedAvg()))
    mu, sigma = honest[1:].mean(0), (honest[1] - honest[2]).abs() / 2
    torch.testing.assert_close(found, torch.stack([honest[0], mu - 1.5 * sigma, mu - 1.5 * sigma]))


def test_z_of_alie_is_the_papers():
    """m = 50, f = 24: s = 26 − 24 = 2, Φ(z) = (26 − 2) / 26; m = 10, f = 2: s = 4, Φ(z) = (8 − 4) / 8."""
    from turnout.world.attacks import z_max

    assert z_max(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))
    assert z_max(10, 2) == pytest.approx(0.0)
    assert z_max(5, 2) == pytest.approx(NormalDist().inv_cdf(2 / 3))  # s = 1
    assert (z_max(2, 1), z_max(3, 2), z_max(3, 3)) == (0.0, 3.0, 3.0)  # s = 1 of 1 honest; 0 and -1: a majority


def test_noise_has_the_length_asked_for_and_is_addressed(honest: Tensor):
    found = sent(attacked(to.attacks.Noise(4.0), weighting=to.weighting.FedAvg()))
    torch.testing.assert_close(found[0], honest[0])
    ratio = found[1:].norm(dim=1) / honest[1:].norm(dim=1)
    assert bool(((ratio > 2) & (ratio < 6)).all())
    assert torch.equal(found, sent(attacked(to.attacks.Noise(4.0), weighting=to.weighting.FedAvg())))


def test_a_free_rider_sends_nothing_and_claims_everything(honest: Tensor):
    experiment = attacked(to.attacks.FreeRider(), weighting=to.weighting.CompleteOnly())
    found = sent(experiment)
    assert len(found) == 3, "client 1 did half of the work and counts as complete"
    assert torch.equal(found[1:], torch.zeros_like(found[1:]))
    assert play(ready(experiment))[1][0].clients["work"].tolist() == [1.0, 1.0, 0.0, 1.0]


def test_who_claims_little_work_is_scaled_up_under_scheme_c(honest: Tensor):
    """E = 4 epochs; a claim of a quarter makes E / s = 4 of whatever was done."""
    found = sent(attacked(to.attacks.ClaimWork(0.25), weighting=to.weighting.ByWork()))
    torch.testing.assert_close(found, honest * torch.tensor([1.0, 4.0, 4.0]).double()[:, None])
    at_server = attacked(to.attacks.ClaimWork(0.25), weighting=to.weighting.ByWork(), scale_at="server")
    torch.testing.assert_close(
        play(ready(at_server))[0].shared_P,
        play(ready(attacked(to.attacks.ClaimWork(0.25), weighting=to.weighting.ByWork())))[0].shared_P,
    )


def test_who_claims_many_samples_has_their_share_and_does_no_more_work(honest: Tensor):
    experiment = attacked(to.attacks.ClaimExamples(10.0), weighting=to.weighting.FedAvg(), shares=to.weighting.Shares())
    record = play(ready(experiment))[1][0]
    weights = torch.tensor([8.0, 120.0, 0.0, 160.0]).double() / 288
    torch.testing.assert_close(record.clients["weight"], weights)
    torch.testing.assert_close(sent(experiment), honest)
    even = play(ready(experiment.but(**{"algorithm.shares.by": "uniform"})))[1][0]
    torch.testing.assert_close(even.clients["weight"], torch.tensor([1, 1, 0, 1]).double() / 3)
    capped = play(ready(experiment.but(**{"algorithm.max_weight": 0.4})))[1][0]
    assert float(capped.clients["weight"].max()) == pytest.approx(0.4)


def test_attacks_follow_one_another(honest: Tensor):
    both = attacked(to.attacks.ClaimExamples(10.0), to.attacks.SignFlip(2.0), weighting=to.weighting.FedAvg())
    torch.testing.assert_close(sent(both), honest * torch.tensor([1.0, -2.0, -2.0]).double()[:, None])


class NoNumber(to.attacks.Attack):
    def update(self, scene):
        return torch.full_like(scene.own_hP, torch.nan)


def test_a_forged_update_that_is_no_number_is_treated_like_any_other():
    server, (record,) = play(ready(attacked(NoNumber(), nonfinite="absent")))
    assert sorted(record.extra["nonfinite_clients"].split()) == ["1", "3"]
    assert torch.isfinite(server.shared_P).all()
    with pytest.raises(UserError, match="is not finite"):
        play(ready(attacked(NoNumber())))


def test_forged_updates_are_encoded_like_any_other():
    found = sent(attacked(to.attacks.SignFlip(100.0), compression=to.compression.SparseTernary(0.2)))
    assert all(len(row.unique()) <= 3 * 2 for row in found), "two magnitudes and zero, for each of two tensors"
    assert float(found[2].abs().max()) > 20 * float(found[0].abs().max())


def test_the_absent_do_not_attack():
    experiment = attacked(to.attacks.SignFlip(), weighting=to.weighting.FedAvg(), fractions=(1.0, 0.0, 1.0, 0.0))
    quiet = world(COUNTS, 1.0, 0.0, 1.0, 0.0, weighting=to.weighting.FedAvg())
    assert torch.equal(play(ready(experiment), 2)[0].shared_P, play(ready(quiet), 2)[0].shared_P)


@pytest.mark.parametrize("attack", [to.attacks.ClaimWork(0.5), to.attacks.FreeRider()])
def test_the_absent_claim_no_work(attack):
    """Clients 1 and 3 are hostile, and 1 is absent: it stays absent, and the round is that of the attacker 3 alone."""
    away = attacked(attack, weighting=to.weighting.ByWork(), fractions=(1.0, 0.0, 1.0, 1.0))
    server, (record,) = play(ready(away))
    claimed = 0.5 if isinstance(attack, to.attacks.ClaimWork) else 1.0
    assert record.clients["work"].tolist() == [1.0, 0.0, 1.0, claimed]
    assert record.answered == 3
    alone = away.but(world=replace(away.world, attackers=(3,)))
    assert torch.equal(server.shared_P, play(ready(alone))[0].shared_P)


def test_who_attacks_is_drawn_from_the_seed_and_nothing_else():
    assert len(hostile_clients(0.3, 20, seed=1)) == 6
    assert torch.equal(hostile_clients(0.3, 20, seed=1), hostile_clients(0.3, 20, seed=1))
    assert not torch.equal(hostile_clients(0.3, 20, seed=1), hostile_clients(0.3, 20, seed=2))
    more = hostile_clients(0.5, 20, seed=1)
    assert bool(torch.isin(hostile_clients(0.3, 20, seed=1), more).all()), "a larger share has the smaller one in it"
    with pytest.raises(UserError, match="there is no client 20"):
        hostile_clients((3, 20), 20, seed=0)


# -- data


def test_flipped_labels_are_the_attackers_training_labels_only():
    clean = to.data.Digits(clients=10).load(3, None)
    flipped = to.data.LabelFlip(to.data.Digits(clients=10), 0.3).load(3, None)
    hostile = hostile_clients(0.3, 10, seed=3)
    rows = clean.train_rows.take(hostile)[0]
    assert torch.equal(flipped.y[rows], 9 - clean.y[rows])
    changed = (flipped.y != clean.y).nonzero().squeeze(1)
    assert bool(torch.isin(changed, rows).all())
    assert torch.equal(flipped.central_test()[1], clean.central_test()[1])
    assert torch.equal(flipped.noisy.nonzero().squeeze(1), hostile)


def test_a_backdoor_marks_some_of_the_attackers_samples():
    data = to.data.Backdoor(to.data.Digits(clients=10), (2, 7), target=4, part=0.5, side=2)
    clean, marked = data.data.load(0, None), data.load(0, None)
    changed = (marked.x != clean.x).flatten(1).any(1) | (marked.y != clean.y)
    rows = clean.train_rows.take(torch.tensor([2, 7]))[0]
    assert bool(torch.isin(changed.nonzero().squeeze(1), rows).all())
    at = changed.nonzero().squeeze(1)
    assert 0.3 < len(at) / len(rows) < 0.7
    assert bool((marked.y[at] == 4).all() and (marked.x[at][..., -2:, -2:] == 1.0).all())
    assert bool((data.marked_test()[..., -2:, -2:] == 1.0).all())


def test_data_made_on_demand_and_targets_that_are_numbers_cannot_be_poisoned():
    x, owner = torch.randn(20, 3), torch.arange(4).repeat_interleave(5)
    for data, says in (
        (to.data.LabelFlip(to.data.Synthetic(clients=1001)), "in one pool"),
        (to.data.LabelFlip(to.data.Own(x, torch.randn(20), owner)), "one label a sample"),
        (to.data.Backdoor(to.data.Digits(clients=5), target=11), "labels up to its target"),
    ):
        with pytest.raises(UserError, match=says):
            data.load(0, None)


# -- settings


def test_an_attack_is_written_in_files_and_read_back():
    table = {"world": {"attack": [{"kind": "sign-flip", "strength": 2.0}, {"kind": "alie"}], "attackers": 0.25}}
    experiment = from_table(table)
    assert experiment.world.attack == (to.attacks.SignFlip(2.0), to.attacks.ALIE())
    assert from_table(to_table(experiment)) == experiment
    listed = from_table({"world": {"attack": [{"kind": "free-rider"}], "attackers": [2, 5]}})
    assert listed.world.attackers == (2, 5)
    assert from_table(to_table(listed)) == listed
    data = from_table({"world": {"data": {"kind": "label-flip", "data": {"kind": "digits"}, "attackers": [1]}}})
    assert from_table(to_table(data)) == data


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"attack": (to.attacks.SignFlip(),)}, "no effect without world.attackers"),
        ({"attackers": 0.3}, "no effect without world.attack"),
        ({"attack": (to.attacks.SignFlip(),), "attackers": 1.5}, "a share from 0 to 1"),
        ({"attack": (3,), "attackers": 0.2}, "world.attack"),
    ],
)
def test_half_an_attack_is_refused(settings, says: str):
    with pytest.raises(UserError, match=says):
        to.World(**settings)


def test_fewer_samples_can_be_claimed_too_but_one_at_least():
    claimed = to.attacks.ClaimExamples(0.25).examples(
        torch.tensor([8, 8, 1, 0]), torch.tensor([True, False, True, True])
    )
    assert claimed.tolist() == [2, 8, 1, 0]


def test_lies_that_a_server_cannot_believe_are_refused():
    for make in (lambda: to.attacks.ClaimWork(1.5), lambda: to.attacks.ClaimExamples(0.0)):
        with pytest.raises(UserError):
            make()


def test_real_clients_are_not_made_hostile():
    experiment = attacked(to.attacks.SignFlip())
    experiment = experiment.but(**{"world.participation": to.participation.Always()})
    with pytest.raises(UserError, match="clients are real"):
        refuse_simulation_only(experiment)


class Elsewhere(to.runtime.InProcess):
    kind = "elsewhere"


def test_colluding_needs_all_updates_in_one_place_and_scores_have_none():
    away = attacked(to.attacks.ALIE()).but(runtime=Elsewhere())
    with pytest.raises(UserError, match="all updates of a round"):
        prepare(away)
    scores = to.Experiment(
        to.World(to.data.Digits(clients=4), attack=(to.attacks.SignFlip(),), attackers=0.5),
        algorithm=to.scores.Scores(),
    )
    with pytest.raises(UserError, match="scores are federated"):
        prepare(scores)


def test_a_resumed_run_is_attacked_the_same_way(tmp_path):
    experiment = attacked(to.attacks.Noise(), to.attacks.ClaimExamples(), aggregation=to.aggregation.CentredClip())
    whole = folder_run(experiment, tmp_path / "whole")
    again = stopped_and_resumed(experiment, tmp_path / "again", after=1)
    assert same(whole.folder / "records.sqlite", again.folder / "records.sqlite") == []


def test_nobody_hostile_is_an_ordinary_world():
    nobody = Attackers(torch.empty(0, dtype=torch.int64), (to.attacks.SignFlip(),), seed=0)
    update = torch.ones(3, 2)
    assert torch.equal(nobody.sent(update.clone(), torch.arange(3), 0), update)


@pytest.mark.parametrize(("value", "says"), [(1.0, None), (1e10, "longer than 1e[+]09"), (torch.nan, "finite")])
def test_an_update_that_no_device_can_have_made_is_refused_at_the_border(value: float, says: str | None):
    prepared = ready(world([8, 8]))
    layout, one = prepared.model.layout, torch.tensor([0])
    update_RP = torch.full((1, layout.shared), value)
    message = Message({"update": update_RP}, torch.tensor([4 * layout.shared]))
    report = {"loss": torch.ones(1), "finite": torch.ones(1, dtype=torch.bool)}
    report |= {"bytes_up": message.bytes_C, "bytes_down": torch.zeros(1, dtype=torch.int64)}
    replies = Replies(one, message, report=report)
    sent, sending = wire.pack(wire.replies_tree(replies)), Sending(0, 0, one, layout.shared_slots)
    with pytest.raises(Refused, match=says) if says else nullcontext():
        border.work(sent, replies, prepared.algorithm, sending)


@pytest.mark.slow
def test_in_several_processes_the_same_clients_do_the_same(tmp_path):
    given = to.World(
        to.data.Digits(clients=12), to.participation.Dropout(0.3), attackers=0.3,
        attack=(to.attacks.ClaimExamples(5.0), to.attacks.Noise()),
    )  # fmt: skip
    local, compute = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=10), to.runtime.InProcess(device="cpu", threads=1)
    one = to.Experiment(
        given, algorithm=to.Algorithm(local, aggregation=to.aggregation.MultiKrum(0.3)), rounds=3, runtime=compute
    )
    several = one.but(runtime=to.runtime.Processes(2, compute))
    first, second = (folder_run(e, tmp_path / name).model() for e, name in ((one, "one"), (several, "several")))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
