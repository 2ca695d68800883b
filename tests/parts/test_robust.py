"""Robust aggregation: the papers' formulas by hand, breakdown points, order, and what a stand-in's vote is worth."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import turnout as to
from turnout.errors import UserError
from turnout.parts.aggregation import Combined, combined_of
from turnout.parts.robust import Votes, coordinate_median, geometric_median, in_buckets, mixed, trimmed_mean
from turnout.parts.substitution.base import Substitutes
from turnout.parts.updates import Updates
from turnout.types import Turnout
from worlds import local_updates, play, ready, world

ROBUST = [
    to.aggregation.CoordinateMedian(),
    to.aggregation.TrimmedMean(0.4),
    to.aggregation.GeometricMedian(),
    to.aggregation.Krum(0.4),
    to.aggregation.MultiKrum(0.4),
    to.aggregation.NormClip(),
    to.aggregation.CentredClip(),
    to.aggregation.NearestMixing(share=0.4, bucket=1),
]
WHOLE = [
    part for part in ROBUST if not isinstance(part, to.aggregation.NormClip)
]  # those that undo what the hostile do


def updates_of(rows: list[list[float]] | Tensor, clients: list[int] | None = None) -> Updates:
    update_RP = torch.as_tensor(rows, dtype=torch.float64)
    client_R = torch.arange(len(update_RP)) if clients is None else torch.tensor(clients)
    one_C = torch.ones(int(client_R.max()) + 1, dtype=torch.float64)
    turnout = Turnout(torch.arange(len(one_C)), one_C, 1.0, one_C, one_C)
    return Updates(0, 0, client_R, update_RP, torch.zeros(update_RP.shape[1], dtype=torch.float64), turnout, client_R)


def combine(part, rows, weights: list[float], clients: list[int] | None = None) -> Combined:
    return combined_of(part.combine(updates_of(rows, clients), torch.tensor(weights, dtype=torch.float64)))


def centre(part, rows, weights: list[float] | None = None) -> Tensor:
    weights = weights or [1 / len(rows)] * len(rows)
    return combine(part, rows, weights).update_P / sum(weights)


# -- the formulas, with mixed signs


def test_the_coordinate_median_is_yins_with_equal_weights_and_halfway_where_their_number_is_even():
    rows = [[-3.0, 2.0], [1.0, -8.0], [4.0, 5.0]]
    assert centre(to.aggregation.CoordinateMedian(), rows).tolist() == [1.0, 2.0]
    assert centre(to.aggregation.CoordinateMedian(), [*rows, [2.0, 6.0]]).tolist() == [1.5, 3.5]


def test_a_weight_is_that_many_votes():
    """What is lent to a stand-in counts like a second reply that says the same, for all that vote."""
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    twice = torch.cat([rows, rows[2:3]])
    for part in (
        to.aggregation.CoordinateMedian(),
        to.aggregation.TrimmedMean(0.2),
        to.aggregation.GeometricMedian(),
        to.aggregation.NormClip(),
        to.aggregation.NormClip(1.0),
    ):
        lent, said_twice = centre(part, rows, [1.0, 1.0, 2.0, 1.0]), centre(part, twice, [1.0] * 5)
        torch.testing.assert_close(lent, said_twice, msg=str(part))
    assert coordinate_median(torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([0.2, 0.2, 0.6])) == 9.0


@pytest.mark.parametrize("replies", [1, 2, 7, 100])
@pytest.mark.parametrize("kind", ["alike", "lent"])
def test_both_by_column_are_those_of_replies_said_as_often_as_they_weigh(replies: int, kind: str) -> None:
    """Whole weights are votes; many columns, ties and both signs, so that no fast way around sorting differs."""
    generator = torch.Generator().manual_seed(replies)
    update_rP = (torch.randn(replies, 9000, generator=generator) * 4).round() / 4
    vote_r = torch.randint(1, 4, (replies,), generator=generator) if kind == "lent" else torch.full((replies,), 2)
    said_nP = update_rP.double().repeat_interleave(vote_r, 0)
    weight_r = vote_r.double() / vote_r.sum()
    median_P = torch.from_numpy(np.median(said_nP.numpy(), 0))
    torch.testing.assert_close(coordinate_median(update_rP, weight_r).double(), median_P, rtol=0, atol=1e-6)
    count, share = len(said_nP), 0.2
    place_n = torch.arange(count, dtype=torch.float64)
    kept_n = ((place_n + 1).clamp(max=(1 - share) * count) - place_n.clamp(min=share * count)).clamp(min=0)
    mean_P = (kept_n[:, None] * said_nP.sort(0)[0]).sum(0) / kept_n.sum()
    torch.testing.assert_close(trimmed_mean(update_rP, weight_r, share).double(), mean_P, rtol=1e-6, atol=1e-6)


def test_the_trimmed_mean_leaves_out_the_share_at_either_end():
    rows = [[-90.0], [1.0], [2.0], [6.0], [70.0]]
    assert float(centre(to.aggregation.TrimmedMean(0.2), rows)) == pytest.approx(3.0)
    # β = 0.3 of five: one and a half from either end, so that half of 1 and of 6 remain: (0.5 + 2 + 3) / 2
    assert float(centre(to.aggregation.TrimmedMean(0.3), rows)) == pytest.approx(2.75)
    assert float(centre(to.aggregation.TrimmedMean(0.0), rows)) == pytest.approx(-11 / 5)
    # by weight: 0.4 of the weight is at -90, of which β = 0.2 is cut; at the other end the 0.2 of 5
    found = trimmed_mean(torch.tensor([[-90.0], [1.0], [5.0]]), torch.tensor([0.4, 0.4, 0.2]).double(), 0.2)
    assert float(found) == pytest.approx((0.2 * -90 + 0.4 * 1) / 0.6)


def test_the_geometric_median_has_no_pull_left():
    """At z the unit vectors towards the updates, by weight, sum to nothing: that is what a minimum is."""
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weight = torch.tensor([0.1, 0.2, 0.1, 0.15, 0.15, 0.2, 0.1], dtype=torch.float64)
    z = geometric_median(rows, weight, steps=500)
    away = (rows - z) / (rows - z).norm(dim=1, keepdim=True)
    assert float((weight @ away).norm()) < 1e-3
    torch.testing.assert_close(geometric_median(rows, weight), z, atol=1e-2, rtol=0)  # the default steps come near


def test_krum_is_blanchards():
    """m = 6, f = 1: the m − f − 2 = 3 nearest. Scores by hand on a line: 0, 1, 2, 3, 8 and 100."""
    rows = [[0.0], [1.0], [2.0], [3.0], [8.0], [100.0]]
    # 1: 1 + 1 + 4 = 6; 2: 1 + 1 + 4 = 6; 0: 1 + 4 + 9 = 14; 3: 1 + 4 + 9 = 14: the tie goes to the first client
    found = combine(to.aggregation.Krum(1 / 6), rows, [0.1] * 6)
    assert found.used_R.tolist() == [False, True, False, False, False, False]
    assert float(found.update_P) == pytest.approx(0.6 * 1.0)
    assert found.extra == {"left_out": 5.0}
    kept = combine(to.aggregation.MultiKrum(1 / 6), rows, [0.1] * 6)
    assert kept.used_R.tolist() == [True] * 5 + [False]
    assert float(kept.update_P) == pytest.approx(0.6 * (0 + 1 + 2 + 3 + 8) / 5)
    some = combine(to.aggregation.MultiKrum(1 / 6, keep=0.5), rows, [0.1, 0.2, 0.1, 0.2, 0.2, 0.2])
    assert int(some.used_R.sum()) == 3


def test_what_a_stand_in_lends_is_a_vote_for_it_in_krum_too():
    """0 and 1 are near each other, 5 and 5.5 too: whose pair has more votes is chosen."""
    rows = [[0.0], [1.0], [5.0], [5.6]]
    assert float(combine(to.aggregation.Krum(0.0), rows, [0.4, 0.4, 0.1, 0.1]).update_P) in (0.0, 1.0)
    assert float(combine(to.aggregation.Krum(0.0), rows, [0.1, 0.1, 0.4, 0.4]).update_P) in (5.0, 5.6)


def test_norm_clipping_cuts_to_the_limit_and_leaves_shorter_ones_alone():
    rows = [[3.0, 4.0], [0.0, -1.0]]
    torch.testing.assert_close(
        combine(to.aggregation.NormClip(2.0), rows, [0.25, 0.5]).update_P,
        torch.tensor([0.25 * 1.2, 0.25 * 1.6 - 0.5]).double(),
    )
    assert combine(to.aggregation.NormClip(2.0), rows, [0.5, 0.5]).extra == {"clipped": 1.0}
    # without a limit, the median length: of 1, 2 and 50 that is 2
    by_median = centre(to.aggregation.NormClip(), [[1.0, 0.0], [0.0, -2.0], [50.0, 0.0]])
    torch.testing.assert_close(by_median, torch.tensor([1.0, -2 / 3]).double())


def test_centred_clipping_is_the_papers_step_from_the_median():
    """v0 = (1, 0): distances 1, 0 and 9; with τ = 3 one step is v0 + ((-1, 0) + (0, 0) + (0, 3)) / 3."""
    rows = [[0.0, 0.0], [1.0, 0.0], [1.0, 9.0]]
    found = centre(to.aggregation.CentredClip(3.0, steps=1), rows)
    torch.testing.assert_close(found, torch.tensor([1 - 1 / 3, 1.0]).double())


def test_centred_clipping_steps_as_often_as_asked():
    """0, 0 and 10 with τ = 2: v0 = 0, v1 = (0 + 0 + 2) / 3 and v2 = v1 + (-2/3 - 2/3 + 2) / 3 = 8/9."""
    rows = [[0.0], [0.0], [10.0]]
    assert float(centre(to.aggregation.CentredClip(2.0, steps=1), rows)) == pytest.approx(2 / 3)
    assert float(centre(to.aggregation.CentredClip(2.0, steps=2), rows)) == pytest.approx(8 / 9)


def test_nearest_mixing_is_the_papers_mean_of_the_nearest():
    """m = 4, f = 1: each is the mean of its three nearest, itself included: 1, 1, 1 and 31, of which the rule takes the
    median. Where the second reply has two votes of five, three votes are 0, 1, 1; 1, 1, 0; 2, 1, 1 and 90, 2, 1."""
    rows = [[0.0], [1.0], [2.0], [90.0]]
    assert float(centre(to.aggregation.NearestMixing(share=0.25, bucket=1), rows)) == pytest.approx(1.0)
    found = mixed(torch.tensor(rows, dtype=torch.float64), torch.tensor([1.0, 2.0, 1.0, 1.0]).double(), 0.4)
    torch.testing.assert_close(found.squeeze(1), torch.tensor([2 / 3, 2 / 3, 4 / 3, 31.0]).double())


def test_buckets_are_means_of_some_replies_each_in_one_of_them_and_drawn_anew():
    rows, weight = torch.randn(7, 3, dtype=torch.float64), torch.arange(1.0, 8.0, dtype=torch.float64)
    votes = [Votes(rows, weight, torch.arange(7), torch.arange(7), (0, t)) for t in range(2)]
    first, second = (in_buckets(v, 2) for v in votes)
    assert len(first.weight_r) == 4
    torch.testing.assert_close(first.weight_r @ first.update_rP, weight @ rows)
    assert float(first.weight_r.sum()) == 28
    assert not torch.equal(first.update_rP, second.update_rP)
    other = torch.tensor([3, 0, 6, 2, 1, 5, 4])
    moved = in_buckets(replace(votes[0], update_rP=rows[other], weight_r=weight[other], client_r=other), 2)
    torch.testing.assert_close(moved.update_rP, first.update_rP)


def test_nearest_mixing_of_unlike_clients_is_nearer_their_mean_than_its_rule():
    """Each of 20 clients changes a fifth of the columns, as with labels of its own: the median of most columns is 0."""
    generator = torch.Generator().manual_seed(6)
    rows = 1.0 + 0.3 * torch.randn(20, 200, generator=generator, dtype=torch.float64)
    rows *= torch.rand(20, 200, generator=generator) < 0.2
    away = [
        float((centre(part, rows) - rows.mean(0)).norm())
        for part in (to.aggregation.NearestMixing(), to.aggregation.CoordinateMedian())
    ]
    assert away[0] < 0.7 * away[1]


# -- promises of all of them


@pytest.mark.parametrize("part", ROBUST, ids=str)
def test_the_order_of_the_replies_does_not_matter(part):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows[4] = rows[3]  # equal scores
    weight = [0.1, 0.3, 0.2, 0.2, 0.2]
    first = combine(part, rows, weight)
    for order in list(permutations(range(5)))[::17]:
        again = combine(part, rows[list(order)], [weight[i] for i in order], list(order))
        torch.testing.assert_close(again.update_P, first.update_P)
        if first.used_R is not None:
            assert again.used_R.tolist() == [first.used_R.tolist()[i] for i in order]


@pytest.mark.parametrize("part", ROBUST, ids=str)
def test_a_single_reply_is_believed_and_nobody_is_no_update(part):
    assert centre(part, [[2.0, -3.0]]).tolist() == pytest.approx([2.0, -3.0])
    assert combine(part, [[2.0, -3.0]], [0.0]).update_P.tolist() == [0.0, 0.0]


HONEST = 1.0 + 0.1 * torch.randn(6, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def with_hostile(count: int, size: float) -> Tensor:
    return torch.cat([HONEST, torch.full((count, 4), -size, dtype=torch.float64)])


@pytest.mark.parametrize("part", ROBUST, ids=str)
@pytest.mark.parametrize("size", [1e3, 1e12, 1e30])
def test_below_the_breakdown_point_a_minority_is_bounded_however_large_its_updates(part, size: float):
    """Three hostile of nine (a third): nothing of their size is left; the stated bounds hold."""
    found = centre(part, with_hostile(3, size))
    longest = float(HONEST.norm(dim=1).max())
    assert float(found.norm()) <= 2 * (1 - 1 / 3) / (1 - 2 / 3) * longest
    if isinstance(part, to.aggregation.CoordinateMedian | to.aggregation.TrimmedMean):
        assert bool((found >= HONEST.min(0).values - 1e-9).all() and (found <= HONEST.max(0).values + 1e-9).all())
    if part in WHOLE:
        assert bool((found > 0.5).all()), "the direction is that of the honest"


@pytest.mark.parametrize("part", ROBUST, ids=str)
def test_above_the_breakdown_point_it_follows_the_majority(part):
    """Seven hostile of thirteen, all saying the same."""
    assert float(centre(part, with_hostile(7, 1e6)).norm()) > 1e4


def test_the_breakdown_point_of_the_trimmed_mean_is_its_share():
    """A fifth is cut at either end: two of eight are more than that, one of seven is less."""
    assert float(centre(to.aggregation.TrimmedMean(0.2), with_hostile(1, 1e9)).min()) > 0.5
    assert float(centre(to.aggregation.TrimmedMean(0.2), with_hostile(2, 1e9)).max()) < -1e6


def test_the_breakdown_point_of_nearest_mixing_is_its_share_with_and_without_buckets():
    """Two hostile of ten are a fifth, three are more; in which bucket each is is drawn anew in every round."""
    honest = 1.0 + 0.1 * cloud(7, 8, 4)
    for bucket in (1, 2):
        part, found = to.aggregation.NearestMixing(share=0.2, bucket=bucket), dict[int, list[Tensor]]()
        for hostile in (2, 3):
            rows = torch.cat([honest[: 10 - hostile], torch.full((hostile, 4), -1e9, dtype=torch.float64)])
            weight_R = torch.full((10,), 0.1, dtype=torch.float64)
            rounds = [replace(updates_of(rows), t=t) for t in range(8)]
            found[hostile] = [combined_of(part.combine(updates, weight_R)).update_P for updates in rounds]
        assert min(float(update_P.min()) for update_P in found[2]) > 0.5
        assert min(float(update_P.max()) for update_P in found[3]) < -1e6


def test_norm_clipping_with_a_limit_has_no_breakdown_point_but_moves_by_the_hostile_share():
    for hostile in (1, 6, 60):
        found, share = centre(to.aggregation.NormClip(0.5), with_hostile(hostile, 1e9)), hostile / (6 + hostile)
        assert float(found.norm()) <= 0.5 + 1e-9
        honest = (1 - share) * (0.5 * HONEST / HONEST.norm(dim=1, keepdim=True)).mean(0)
        assert float((found - honest).norm()) == pytest.approx(0.5 * share)


@pytest.mark.parametrize("part", ROBUST, ids=str)
def test_in_single_precision_and_over_many_columns_it_is_the_same(part, monkeypatch: pytest.MonkeyPatch):
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    whole = centre(part, rows)
    monkeypatch.setattr("turnout.parts.robust.BLOCK", 35)  # seven columns at a time
    torch.testing.assert_close(centre(part, rows), whole)
    single = combined_of(part.combine(updates_of(rows.float()), torch.full((5,), 0.2, dtype=torch.float64))).update_P
    torch.testing.assert_close(single.double(), whole, atol=1e-5, rtol=1e-4)


# -- in a round: one absent, one partial client, unequal sizes

COUNTS, FRACTIONS = [8, 12, 4, 16], (1.0, 0.5, 0.0, 1.0)


def moved(**algorithm) -> tuple[Tensor, Tensor, object]:
    experiment = world(COUNTS, *FRACTIONS, **algorithm)
    prepared = ready(experiment)
    server, records = play(prepared)
    return server.shared_P - prepared.server.shared_P, local_updates(prepared), records[0]


def test_a_median_of_scheme_c_sees_updates_scaled_by_work_and_leaves_the_missing_share_unused():
    change_P, own_CP, record = moved(aggregation=to.aggregation.CoordinateMedian())
    sent_RP = own_CP[[0, 1, 3]] * torch.tensor([1.0, 2.0, 1.0]).double()[:, None]
    weight = torch.tensor([8.0, 12.0, 16.0]).double() / 40
    torch.testing.assert_close(change_P, 0.9 * coordinate_median(sent_RP, weight))
    assert record.weight_sum == pytest.approx(0.9)
    literal_P, _, _ = moved(aggregation=to.aggregation.CoordinateMedian(), scale_at="server")
    torch.testing.assert_close(literal_P, change_P)


def test_a_friends_vote_is_the_missing_clients_too():
    """Without history the missing share is spread: votes in proportion, and all of the weight is there."""
    change_P, own_CP, record = moved(
        aggregation=to.aggregation.CoordinateMedian(), substitution=to.substitution.Friends()
    )
    sent_RP = own_CP[[0, 1, 3]] * torch.tensor([1.0, 2.0, 1.0]).double()[:, None]
    torch.testing.assert_close(change_P, coordinate_median(sent_RP, torch.tensor([8.0, 12.0, 16.0]).double() / 36))
    assert record.weight_sum == pytest.approx(1.0)


class LentToTheFirst(to.substitution.Friends):
    """All missing shares go to the first client."""

    def lend(self, state, share_C, counts_C, updates):
        return Substitutes(torch.zeros_like(share_C).index_fill(0, torch.tensor([0]), float(share_C[~counts_C].sum())))


@pytest.mark.parametrize("part", [to.aggregation.CoordinateMedian(), to.aggregation.WeightedSum()], ids=str)
def test_a_friend_of_many_has_one_vote_more_and_the_others_go_to_all(part):
    """Six equal clients, three missing: of 3/6 lent to one, 1/6 stays with it and 2/6 are spread over three."""
    given = world([8] * 6, 1.0, 0, 0, 0, 1.0, 1.0, substitution=LentToTheFirst(), aggregation=part)
    _, (record,) = play(ready(given))
    expected = [4 / 6, 1 / 6, 1 / 6] if part.linear else [2 / 6 + 1 / 9, 1 / 6 + 1 / 9, 1 / 6 + 1 / 9]
    assert record.clients["weight"][[0, 4, 5]].tolist() == pytest.approx(expected)


def test_whom_krum_does_not_choose_leaves_no_trace():
    change_P, own_CP, record = moved(aggregation=to.aggregation.Krum(0.2), weighting=to.weighting.FedAvg())
    weight_C = record.clients["weight"]
    chosen = int(weight_C.argmax())
    assert record.counted == 1
    assert int((weight_C > 0).sum()) == 1
    assert record.extra["left_out"] == 2
    torch.testing.assert_close(change_P, own_CP[chosen])


def test_absent_clients_are_invisible_to_all_of_them():
    for part in ROBUST:
        _, _, record = moved(aggregation=part)
        assert math.isnan(float(record.clients["loss"][2]))
        assert float(record.clients["weight"][2]) == 0


# -- what makes no sense


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"aggregation": to.aggregation.CoordinateMedian(), "compression": to.compression.SparseTernary(0.01)},
            "hardly anything",
        ),
        (
            {"aggregation": to.aggregation.TrimmedMean(), "compression": to.compression.TopK(0.1)},
            "use GeometricMedian, MultiKrum or NormClip",
        ),
        ({"aggregation": to.aggregation.Krum(), "mixing": to.mixing.FedAMP()}, "leave one of them out"),
        (
            {"aggregation": to.aggregation.Krum(), "terms": (to.terms.Elastic(fisher_keep=0.1),)},
            "leave fisher_keep out",
        ),
        ({"aggregation": to.aggregation.Krum(), "terms": (to.terms.Elastic(memory=True),)}, "leave memory out"),
        ({"aggregation": to.aggregation.NormClip(), "substitution": to.substitution.Stale()}, "use Friends or Spread"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(settings, says: str):
    with pytest.raises(UserError, match=says):
        to.Algorithm(**settings)


@pytest.mark.parametrize(
    "make",
    [
        lambda: to.aggregation.TrimmedMean(0.5),
        lambda: to.aggregation.Krum(-0.1),
        lambda: to.aggregation.MultiKrum(keep=0.0),
        lambda: to.aggregation.NormClip(0.0),
        lambda: to.aggregation.NearestMixing(bucket=0),
        lambda: to.aggregation.NearestMixing(to.aggregation.WeightedSum()),
        lambda: to.aggregation.CentredClip(steps=0),
        lambda: to.aggregation.GeometricMedian(smoothing=0.0),
    ],
)
def test_settings_that_cannot_be_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_ternary_messages_can_be_judged_whole():
    change_P, _, record = moved(aggregation=to.aggregation.MultiKrum(), compression=to.compression.SparseTernary(0.3))
    assert bool(change_P.any())
    assert record.extra["left_out"] == 1


# -- the geometric median, against another minimiser


def sum_of_distances(z, rows: Tensor, weight: Tensor) -> float:
    return float((weight * (rows - torch.as_tensor(z)).norm(dim=1)).sum())


def least_sum(rows: Tensor, weight: Tensor) -> float:
    """The least Σ α_c ‖z − D_c‖: at a reply, or where a general minimiser ends from several beginnings."""
    at_replies = [sum_of_distances(row, rows, weight) for row in rows]
    starts = [*rows.numpy(), (weight / weight.sum() @ rows).numpy()]
    found = [minimize(sum_of_distances, z, (rows, weight), "Nelder-Mead", options=PRECISE) for z in starts]
    return min(at_replies + [float(end.fun) for end in found])


PRECISE = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000}


def cloud(seed: int, replies: int, columns: int = 3) -> Tensor:
    return torch.randn(replies, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES = {
    "sparse and zero": (torch.tensor([[1.0, 0, 0], [1.0, 0, 0.1], [0, 1.0, 0], [0, 0, 1.0], [0, 0, 0]]), [1.0] * 5),
    "pulled off a reply": (torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 0.2, 0], [-0.1, 1, 0], [-0.1, -1, 0]]), [1.0] * 5),
    "weights": (cloud(1, 6), [0.1, 0.4, 0.1, 0.2, 0.1, 0.1]),
    "most weight at one": (cloud(2, 5), [0.1, 0.6, 0.1, 0.1, 0.1]),
    "said twice": (torch.cat([cloud(3, 4), cloud(3, 4)[1:3]]), [0.2, 0.1, 0.1, 0.2, 0.2, 0.2]),
    "said twice, the majority": (torch.cat([cloud(4, 3), cloud(4, 3)[:1].expand(2, 3)]), [0.2] * 5),
    "all the same": (torch.ones(4, 3), [0.1, 0.2, 0.3, 0.4]),
    "on a line": (torch.tensor([[0.0, 0, 0], [1, 1, 1], [2, 2, 2], [5, 5, 5]]), [1.0] * 4),
}


@pytest.mark.parametrize("case", CASES)
def test_the_geometric_median_has_the_least_sum_of_distances(case: str):
    rows, weight = CASES[case][0].double(), torch.tensor(CASES[case][1], dtype=torch.float64)
    least = least_sum(rows, weight)
    assert sum_of_distances(geometric_median(rows, weight, steps=2000), rows, weight) <= least * (1 + 1e-6) + 1e-12
    assert sum_of_distances(geometric_median(rows, weight), rows, weight) <= least * (1 + 2e-3) + 1e-12


def test_the_geometric_median_leaves_a_reply_that_it_begins_at():
    """Four sparse updates and a zero one: the coordinate median is the zero one, the geometric median is not."""
    rows = torch.zeros(5, 4, dtype=torch.float64)
    rows[:4] = torch.tensor([[9.0, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9]])
    z = geometric_median(rows, torch.ones(5), steps=500)
    # On the diagonal z = (x, x, x, x): 2 |x| + 4 sqrt((9 - x)² + 3 x²): its derivative is 0.
    slope = 2 + 4 * (4 * z[0] - 9) / math.sqrt(float((9 - z[0]) ** 2 + 3 * z[0] ** 2))
    assert float(z[0]) > 0.5
    assert float(z.max() - z.min()) < 1e-9
    assert abs(float(slope)) < 1e-2
