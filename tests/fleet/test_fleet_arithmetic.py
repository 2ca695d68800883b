"""The arithmetic of fleets' logs by hand: members, stretches, outages, the fitted chain, what a diagnosis counts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from turnout.fleet.blocks import STAND_INS, Blocks, Sources, block_length
from turnout.fleet.diagnosis import Diagnosis, diagnose, parts_to_try
from turnout.fleet.diagnosis_page import _map
from turnout.fleet.fleet_model import EVERYONE, FleetModel, Outages, chain_of, fit, out_rounds
from turnout.fleet.groups import LIKE, Groups, _assigned, _sums, away_together
from turnout.fleet.log_statistics import statistics
from turnout.fleet.participation_log import ParticipationLog

HOUR, DAY = 3600.0, 86400.0


def log_of(
    work_TM: np.ndarray, every: float | None = None, first: float = 0.0, missing: str = "absent"
) -> ParticipationLog:
    """A log in which who has work has a row; where no row means not asked, the absent have one too (NaN: none)."""
    rows_TM = ~np.isnan(work_TM) if missing == "not-asked" else np.nan_to_num(work_TM) > 0
    t_N, m_N = np.nonzero(rows_TM)
    start_T = None if every is None else first + every * np.arange(len(work_TM))
    names = tuple(f"c{i}" for i in range(work_TM.shape[1]))
    rows = (t_N.astype(np.int32), m_N.astype(np.int32), work_TM[t_N, m_N])
    times = {"start_T": start_T, "is_calendar": every is not None, "every": every}
    return ParticipationLog("log", names, len(work_TM), *rows, missing=missing, **times)  # type: ignore[arg-type]


def test_a_silence_that_does_not_fit_the_visits_is_not_being_a_member() -> None:
    """Of 40 rounds, k visits leave the first (or last) f empty with probability (1 - f / 40)^k; below 1 in 1,000 the
    client had not joined (or had left). Rounds in a row are one visit."""
    work_TM = np.zeros((40, 5))
    work_TM[20:40:2, 0] = 1.0  # joins at 20: (1/2)^10 = 0.00098
    work_TM[0:20:2, 1] = 1.0  # last seen at 18: 21 silent rounds, 10 visits
    work_TM[22:40:2, 2] = 1.0  # 9 visits, 22 silent: (18/40)^9 = 0.00076, joins; with 8 visits it would not
    work_TM[20:40, 3] = 1.0  # one long visit: was absent
    work_TM[2:22:2, 4] = 1.0  # last seen at 20: 19 silent rounds, (21/40)^10 = 0.0016; with one more it had left
    log = log_of(work_TM)
    assert log.joined_M.tolist() == [20, 0, 22, 0, 0]
    assert log.left_M.tolist() == [40, 19, 40, 40, 40]
    assert log.asked_M.tolist() == [20, 19, 18, 40, 40]
    assert (1 - 21 / 40) ** 10 < 1e-3 < (1 - 19 / 40) ** 10
    work_TM[20, 1] = 1.0  # 11 visits, last seen at 20: 19 silent rounds, (21/40)^11 = 0.00083
    work_TM[24, 2] = 0.0  # 8 visits: (18/40)^8 = 0.0017
    again = log_of(work_TM)
    assert (int(again.left_M[1]), int(again.joined_M[2])) == (21, 0)


def test_a_client_is_drawn_from_when_it_joined_until_it_left() -> None:
    """`a` is a member of rounds 20 to 39, `b` of 0 to 18: a round of the log gives each only while it is one."""
    work_TM = np.zeros((40, 2))
    work_TM[20:40:2, 0], work_TM[0:20:2, 1] = 0.25, 0.75
    log = log_of(work_TM)
    blocks = Blocks(log, Sources(2), 1)
    sources = np.array([0, 1])
    for t, expected in ((20, 0), (19, -2), (18, 1), (0, 1), (39, 0)):
        found = blocks._members(torch.arange(2), sources.copy(), np.array([t, t]), 0, seed=0)
        assert expected == -2 or (found[expected] == expected and found[1 - expected] in (expected, -1))
    assert blocks._members(torch.arange(2), sources.copy(), np.array([19, 19]), 0, seed=0).tolist() == [-1, -1]


def test_a_client_that_is_not_a_member_is_replaced_by_one_of_twelve_others() -> None:
    """One of the log's two clients is a member in round 30: each of the tries finds it with probability 1/2."""
    work_TM = np.zeros((40, 2))
    work_TM[20:40:2, 0], work_TM[0:20:2, 1] = 0.25, 0.75
    clients, chance = 40_000, 0.5**12
    assert STAND_INS == 12
    blocks = Blocks(log_of(work_TM), Sources(2), 1)
    found_C = blocks._members(torch.arange(clients), np.ones(clients, np.int64), np.full(clients, 30), 0, seed=0)
    assert set(found_C.tolist()) == {0, -1}
    assert (found_C < 0).sum() == pytest.approx(clients * chance, abs=4 * (clients * chance) ** 0.5)


def test_a_stretch_holds_five_stays_and_absences_in_whole_days_and_at_most_half_the_log() -> None:
    cycle = np.tile(np.array([1.0] * 3 + [0.0] * 4), 60)[:, None]  # three rounds up, four down: 5 x 7 = 35 rounds
    assert block_length(log_of(np.repeat(cycle, 3, axis=1))) == 35
    assert block_length(log_of(np.repeat(cycle, 3, axis=1), every=HOUR)) == 48  # whole days
    assert block_length(log_of(np.repeat(cycle[:63], 3, axis=1))) == 31  # half of 63
    alternating = np.tile(np.array([[1.0], [0.0]]), (864, 1))  # 5 x 2 = 10, but 1728^(1/3) = 12
    assert block_length(log_of(alternating)) == 12


def test_stretches_begin_at_every_round_of_the_hour_they_continue() -> None:
    """Days have 4 rounds and stretches 6: every other stretch continues at the third round of a day."""
    t_N = np.arange(10, dtype=np.int32)
    every = DAY / 4
    rows = t_N, np.zeros(10, np.int32), (t_N + 1) / 100
    log = ParticipationLog("log", ("a",), 10, *rows, start_T=every * t_N, every=every)
    assert log.season == 4
    blocks = Blocks(log, Sources(1), 6)
    at = {k: {round(100 * float(blocks.fraction(torch.tensor([0]), 6 * s, seed)[0])) - 1 for seed in range(60)
              for s in (k, k + 2, k + 4)} for k in (0, 1)}  # fmt: skip
    assert at == {0: {0, 4, 8}, 1: {2, 6}}
    first = [round(100 * float(blocks.fraction(torch.tensor([0]), 0, seed)[0])) - 1 for seed in range(600)]
    assert [first.count(begin) for begin in (0, 4, 8)] == pytest.approx([200] * 3, abs=45)  # four deviations of 11.5


def test_a_season_is_a_day_of_two_or_a_week_of_four() -> None:
    def of(rounds: int, every: float) -> ParticipationLog:
        return log_of(np.ones((rounds, 1)), every)

    assert [of(n, HOUR).rounds_a_day for n in (47, 48)] == [None, 24]
    assert [of(n, HOUR).season for n in (4 * 168 - 1, 4 * 168)] == [24, 168]
    assert [of(n, DAY).season for n in (27, 28)] == [1, 7]
    assert of(100, 7000.0).season == 1  # no whole number of rounds a day


@pytest.mark.parametrize(("asked", "out"), [(8, False), (12, True)])  # (1/2)^8 > 1 in 1,000 > (1/2)^12
def test_nobody_there_is_an_outage_where_chance_would_hardly_do_it(asked: int, out: bool) -> None:
    """Half of those asked should come, and in the second round nobody does."""
    half = asked / 2
    assert out_rounds(np.array([half, 0, half]), np.full(3, half), np.full(3, asked)).tolist() == [False, out, False]


def test_the_chain_of_outages_has_their_frequency_and_length() -> None:
    """Out in rounds 0, 1 and 5, 6, 7 of 15: two outages, of 2.5 rounds, after 10 rounds that are well."""
    out_T = np.isin(np.arange(15), (0, 1, 5, 6, 7))
    came_T, expected_T = np.where(out_T, 1.0, 8.0), np.full(15, 10.0)
    chain = chain_of(out_T, came_T, expected_T)
    assert chain is not None
    assert (chain.episodes, chain.rounds) == (2, 5)
    assert (chain.begin, chain.end, chain.left) == pytest.approx((2 / 10, 2 / 5, 5 / 50))
    assert chain.share == pytest.approx(0.2 / (0.2 + 0.4))
    assert chain_of(np.zeros(15, bool), came_T, expected_T) is None


def model_of(
    there_MH: list[list[float]], kept: float, groups: Groups | None = None, outages: dict | None = None
) -> FleetModel:  # type: ignore[type-arg]
    clients = len(there_MH)
    groups = groups or Groups(np.full(clients, -1))
    work_N, from_M = np.tile([0.25, 0.75], clients), 2 * np.arange(clients + 1)
    return FleetModel(np.array(there_MH), np.full(clients, kept), groups, outages or {}, work_N, from_M)


def drawn(model: FleetModel, clients: int, rounds: int) -> np.ndarray:
    sources = Sources(len(model.there_MH))
    return np.stack([model.fraction(torch.arange(clients), t, 1, sources).numpy() for t in range(rounds)])


def test_the_share_that_is_there_is_that_of_the_hour_however_persistent_clients_are() -> None:
    """q = 0.9, 0.2, 0.6 by the hour and r = 0.8, which the fall to 0.2 does not allow: r_h = min(0.8, 0.2 / 0.9)."""
    work_TC = drawn(model_of([[0.9, 0.2, 0.6]], 0.8), clients=3000, rounds=12)
    share_TH = (work_TC > 0).mean(1).reshape(4, 3)
    assert share_TH.mean(0) == pytest.approx([0.9, 0.2, 0.6], abs=0.015)
    up_TC = work_TC > 0
    both = [(up_TC[t] & up_TC[t + 1]).mean() for t in (0, 3, 6, 9)]  # from 0.9 to 0.2: as many stay as may
    keep = min(0.8, 0.2 / 0.9, (1 - 0.2) / (1 - 0.9))
    assert np.mean(both) == pytest.approx(0.9 * (keep + (1 - keep) * (0.2 - keep * 0.9) / (1 - keep)), abs=0.02)
    rise = [(up_TC[t] & up_TC[t + 1]).mean() for t in (1, 4, 7, 10)]  # from 0.2 to 0.6: r = min(0.8, 0.4 / 0.8)
    keep = min(0.8, 0.6 / 0.2, (1 - 0.6) / (1 - 0.2))
    assert np.mean(rise) == pytest.approx(0.2 * (keep + (1 - keep) * (0.6 - keep * 0.2) / (1 - keep)), abs=0.02)


def test_what_was_drawn_from_a_model_is_fitted_as_that_model() -> None:
    """Two rounds a day, there with 0.8 and 0.3, and persistence 0.25 (both changes of q allow it)."""
    work_TC = drawn(model_of([[0.8, 0.3]], 0.25), clients=150, rounds=300)
    up_TC = work_TC > 0
    assert [up_TC[hour::2].mean() for hour in (0, 1)] == pytest.approx([0.8, 0.3], abs=0.01)
    model = fit(log_of(work_TC, every=DAY / 2), Groups(np.full(150, -1)))
    assert model.there_MH.mean(0).reshape(7, 2).mean(0) == pytest.approx([0.8, 0.3], abs=0.02)  # of a week
    assert model.persistence_M == pytest.approx(0.25, abs=0.03)


def test_work_is_that_of_one_of_the_visits() -> None:
    work_TC = drawn(model_of([[0.999]], 0.0), clients=400, rounds=5)
    assert set(np.unique(work_TC[work_TC > 0])) == {0.25, 0.75}
    assert (work_TC == 0.75).mean() == pytest.approx(0.5, abs=0.05)


def test_a_fitted_model_has_the_work_of_each_clients_own_visits() -> None:
    """`c0` does a quarter and three quarters in turn, `c1` a half in every other round, `c2` never comes."""
    work_TM = np.tile([[0.25, 0.5, 0.0], [0.75, 0.0, 0.0]], (10, 1))
    model = fit(log_of(work_TM, missing="not-asked"), Groups(np.full(3, -1)))
    works = [model.work_N[begin:end].tolist() for begin, end in pairwise(model.from_M)]
    assert works == [[0.25, 0.75] * 10, [0.5] * 10, []]


def test_an_outage_strikes_its_group_and_spares_some() -> None:
    """Clients 0 to 2 of the log are a group that is always out; a tenth of those that would have come do."""
    groups = Groups(np.array([0, 0, 0, -1, -1, -1]), (0.5,))
    out = Outages(begin=1.0, end=1e-6, left=0.1, episodes=1, rounds=1)
    for outages, spared in (({0: out}, {0: 0.1, 1: 1.0}), ({EVERYONE: out}, {0: 0.1, 1: 0.1})):
        model = model_of([[0.999]] * 6, 0.0, groups, outages)
        sources = Sources(6)
        source_C = sources.of(torch.arange(1200), 1).numpy()
        up_TC = np.stack([model.fraction(torch.arange(1200), t, 1, sources).numpy() > 0 for t in range(10)])
        for half, share in spared.items():
            assert up_TC[:, source_C // 3 == half].mean() == pytest.approx(share, abs=0.02)


def test_clients_are_dealt_by_their_weight() -> None:
    """Every hand of four has each quarter of the weights once: over many hands, 1/8, 1/8, 1/4 and 1/2 of all."""
    dealt = Sources(4, weight_M=np.array([1.0, 1.0, 2.0, 4.0])).of(torch.arange(8000), seed=3)
    assert (torch.bincount(dealt, minlength=4) / 8000).tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 2], abs=0.01)
    assert sorted(Sources(4).of(torch.arange(4, 8), seed=3).tolist()) == [0, 1, 2, 3]


def test_how_alike_absences_are_is_the_mean_correlation_of_pairs() -> None:
    rng = np.random.default_rng(0)
    came_TC = (rng.random((50, 4)) < rng.random((50, 1))).astype(float)
    pairs = [np.corrcoef(came_TC[:, i], came_TC[:, j])[0, 1] for i in range(4) for j in range(i)]
    found = statistics(came_TC)
    assert found.together == pytest.approx(np.mean(pairs))
    assert found.uneven == pytest.approx(came_TC.mean(0).std())
    assert found.by_round == pytest.approx(came_TC.mean(1).std())
    hours = statistics(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), season=2)
    assert hours.by_hour == (0.75, 0.25)
    always, never = (statistics(np.full((4, 2), work)) for work in (1.0, 0.0))
    assert (always.stay, always.away, always.together) == (4.0, 0.0, 0.0)
    assert (never.stay, never.away, never.work) == (0.0, 4.0, 0.0)


def test_groups_are_judged_on_other_days_than_those_that_made_them() -> None:
    """Twelve clients in pairs of days: on even days halves are away together, on odd days by chance."""
    rng = np.random.default_rng(5)
    came_TM = rng.random((400, 12)) < 0.6
    length = 400 // 20
    for day in range(0, 20, 2):
        rows = slice(day * length, (day + 1) * length)
        half_T = rng.random(length) < 0.5
        came_TM[rows, :6], came_TM[rows, 6:] = half_T[:, None], ~half_T[:, None]
    assert away_together(log_of(came_TM.astype(float))).count == 0


def test_groups_are_found_beside_what_all_do_together() -> None:
    """All are away every other ten rounds, and nothing else is shared: there is no group in that."""
    rng = np.random.default_rng(6)
    night_T = np.arange(400) // 7 % 2 == 0
    came_TM = (rng.random((400, 20)) < 0.9) & night_T[:, None]
    assert away_together(log_of(came_TM.astype(float))).count == 0


def test_a_client_like_no_group_is_in_none() -> None:
    rng = np.random.default_rng(7)
    out_TG = np.repeat(rng.random((40, 2)) < 0.4, 10, axis=0)
    came_TM = (rng.random((400, 24)) < 0.9) & ~np.repeat(out_TG, 12, axis=1)
    came_TM[:, 5] = rng.random(400) < 0.5
    groups = away_together(log_of(came_TM.astype(float)))
    assert groups.count == 2
    assert groups.group_M[5] == -1
    others = [set(groups.group_M[[i for i in part if i != 5]].tolist()) for part in (range(12), range(12, 24))]
    assert sorted(map(len, others)) == [1, 1]
    assert others[0] != others[1]


def test_a_client_is_in_the_group_whose_mean_it_correlates_with_most() -> None:
    """A client that comes when s = 1, but for k rounds of each sign out of 40, has a correlation of 1 - k / 10 with s;
    what the means of the groups are on average does not matter."""
    sign_T, other_T = np.tile([1.0, -1.0], 20), np.tile([1.0, 1.0, -1.0, -1.0], 10)
    came_TM = np.repeat(sign_T[:, None] > 0, 3, axis=1)
    for m, k in enumerate((2, 9, 10)):
        wrong_T = np.concatenate([np.flatnonzero(sign_T == s)[:k] for s in (1, -1)])
        came_TM[wrong_T, m] ^= True
    came_TM = np.column_stack([came_TM, other_T > 0]).astype(float)
    assert np.corrcoef(came_TM.T, sign_T)[-1, :4] == pytest.approx([0.8, 0.1, 0.0, 0.0])
    assert LIKE / 2 < 0.1 < 2 * LIKE
    groups_M = _assigned(log_of(came_TM, missing="not-asked"), np.stack([other_T, 5 + sign_T], axis=1))
    assert groups_M.tolist() == [1, 1, -1, 0]


@pytest.mark.parametrize("missing", ["absent", "not-asked"])
def test_a_series_is_summed_over_the_rounds_in_which_a_client_came_and_in_which_it_was_asked(missing: str) -> None:
    work_TM = np.zeros((40, 3))
    work_TM[20:40:2, 0], work_TM[0:20:2, 1], work_TM[1::3, 2] = 0.25, 0.75, 1.0  # joins, leaves, comes and goes
    log, value_T = log_of(work_TM, missing=missing), np.random.default_rng(3).random(40)
    came_M, asked_M = _sums(log, (log.client_N, log.round_N, (log.work_N > 0).astype(float)), value_T)
    assert came_M == pytest.approx([value_T[work_TM[:, m] > 0].sum() for m in range(3)])
    assert asked_M == pytest.approx([sum(value_T[t] for t in range(40) if m in log.asked(t)) for m in range(3)])


@pytest.mark.parametrize("missing", ["absent", "not-asked"])
def test_outages_are_set_aside_before_the_rest_is_fitted(missing: str) -> None:
    """Two groups of 30, there 0.8 of the time; group 0 is out for 100 of 400 rounds, the whole fleet for 20 others. At
    round 300 one group alone is out, and the others are well: that is no outage of everyone."""
    rng = np.random.default_rng(8)
    came_TM = rng.random((400, 60)) < 0.8
    came_TM[100:150, :30] = came_TM[300:350, :30] = False
    came_TM[200:220] = False
    groups = Groups(np.repeat([0, 1], 30), (0.5, 0.5))
    model = fit(log_of(came_TM.astype(float), missing=missing), groups)
    assert model.there_MH[:30].mean() == pytest.approx(0.8, abs=0.02)
    assert model.there_MH[30:].mean() == pytest.approx(0.8, abs=0.02)
    assert (model.outages[EVERYONE].rounds, model.outages[EVERYONE].episodes) == (20, 1)
    assert (model.outages[0].rounds, model.outages[0].episodes) == (100, 2)
    assert 1 not in model.outages


def test_each_group_has_its_own_persistence_and_each_hour_its_own_share() -> None:
    """Of 60 clients half keep their state with 0.9; the others draw anew each round: 0.7 by day, 0.3 by night."""
    rng = np.random.default_rng(9)
    up_TM = np.empty((480, 60), dtype=bool)
    hour_T = np.arange(480) % 24
    up_M = rng.random(60) < 0.5
    for t in range(480):
        anew = rng.random(60) < np.where(np.arange(60) < 30, 0.1, 1.0)
        chance = np.where(np.arange(60) < 30, 0.5, 0.7 if hour_T[t] < 12 else 0.3)
        up_M = np.where(anew, rng.random(60) < chance, up_M)
        up_TM[t] = up_M
    groups = Groups(np.repeat([0, 1], 30), (0.5, 0.5))
    model = fit(log_of(up_TM.astype(float), every=HOUR), groups)
    assert model.season == 24
    assert model.persistence_M[:30] == pytest.approx(0.9, abs=0.04)
    assert model.persistence_M[30:] == pytest.approx(0.0, abs=0.06)
    assert model.there_MH[30:, :12].mean() == pytest.approx(0.7, abs=0.03)
    assert model.there_MH[30:, 12:].mean() == pytest.approx(0.3, abs=0.03)


def test_clients_that_differ_stay_different() -> None:
    """Half come 0.2 of the time and half 0.8, in 400 rounds: chance explains sqrt(0.16 / 400) = 0.02 of that."""
    rng = np.random.default_rng(10)
    came_TM = rng.random((400, 40)) < np.repeat([0.2, 0.8], 20)
    model = fit(log_of(came_TM.astype(float)), Groups(np.full(40, -1)))
    assert model.there_MH[:20].mean() == pytest.approx(0.2, abs=0.02)
    assert model.there_MH[20:].mean() == pytest.approx(0.8, abs=0.02)


def diagnosed(work_TM: np.ndarray, every: float | None = None, first: float = 0.0) -> Diagnosis:
    log = log_of(work_TM, every, first, missing="not-asked")
    return diagnose(log, Groups(np.full(log.clients, -1)))


def test_a_diagnosis_counts_hours_weekdays_visits_and_lengths() -> None:
    """From Monday 1970-01-05 on, two weeks of hours; `a` comes at 6:00, and all day on Saturdays; `b` always, half."""
    hour_T = np.arange(14 * 24)
    a_T = ((hour_T % 24 == 6) | (hour_T // 24 % 7 == 5)).astype(float)
    found = diagnosed(np.stack([a_T, np.full(len(hour_T), 0.5)], axis=1), HOUR, first=4 * DAY)
    by_day = [1 / 24] * 5 + [1.0, 1 / 24]  # Monday first
    assert found.turnout_by_weekday == pytest.approx([(1 + share) / 2 for share in by_day])
    by_hour = [1.0 if hour == 6 else 1 / 7 for hour in range(24)]
    assert found.turnout_by_hour == pytest.approx([(1 + share) / 2 for share in by_hour])
    assert found.begins == "1970-01-05 00:00"
    assert found.complete == pytest.approx(a_T.sum() / (a_T.sum() + len(hour_T)))
    lengths = diagnosed(np.array([1, 0, 1, 1, 0, 1, 1, 1, 0.0])[:, None])
    assert (lengths.stay.count, lengths.stay.mean, lengths.stay.at_least) == (3, 2.0, pytest.approx((1.0, 2 / 3)))
    assert (lengths.away.count, lengths.away.mean) == (3, 1.0)


def test_the_map_of_a_log_has_its_clients_by_group_and_then_by_how_often_they_come() -> None:
    """All are asked in every round; c0 comes to a quarter of them, c1 to three quarters, c2 and c3 to half."""
    came_TM = np.stack([np.arange(40) % 4 < k for k in (1, 3, 2, 2)], axis=1).astype(float)
    shown = _map(log_of(came_TM, missing="not-asked"), Groups(np.array([-1, -1, 1, 0]), (0.5, 0.5)))
    assert list(shown.row_names) == ["c3", "c2", "c1", "c0"]


def test_hardly_ever_there_is_below_one_round_in_twenty() -> None:
    work_TM = np.zeros((40, 3))
    work_TM[:, 0], work_TM[7, 1], work_TM[[3, 22], 2] = 1.0, 1.0, 1.0
    assert diagnosed(work_TM).hardly_there == ("c1",)  # 1 of 40; 2 of 40 are one in twenty


def test_parts_are_named_for_what_the_log_shows() -> None:
    def settings(work_TM: np.ndarray) -> set[str]:
        return {part.setting for part in parts_to_try(diagnosed(work_TM))}

    all_there = np.ones((60, 4))
    assert settings(all_there) == {'algorithm.weighting = "fedavg"'}
    short = np.tile(np.array([1.0, 1.0, 0.0]), 20)[:, None].repeat(4, 1)
    assert settings(short) == {'algorithm.substitution = "stale"', 'algorithm.substitution = "friends"'}
    long = np.tile(np.array([1.0] * 20 + [0.0] * 20), 3)[:, None].repeat(4, 1)  # absent for 20 rounds: no stale update
    assert settings(long) == {'algorithm.substitution = "friends"'}
    half = np.full((60, 4), 0.5)
    assert settings(half) == {'algorithm.weighting = "C"', 'algorithm.weighting = "fednova"'}
    tenth = np.ones((60, 10))
    tenth[:, 0] = 0.5  # nine visits in ten are complete: often enough
    assert settings(tenth) == {'algorithm.weighting = "fedavg"'}


def test_the_number_of_groups_is_the_one_that_holds_on_other_rounds() -> None:
    """Two groups of six in 60 rounds, few enough that more groups look better on the rounds that made them."""
    rng = np.random.default_rng(0)
    out_TG = np.repeat(rng.random((12, 2)) < 0.4, 5, axis=0)
    came_TM = (rng.random((60, 12)) < 0.8) & ~(np.repeat(out_TG, 6, axis=1) & (rng.random((60, 12)) < 0.8))
    groups = away_together(log_of(came_TM.astype(float)))
    assert groups.count == 2
    assert {tuple(groups.members(g).tolist()) for g in range(2)} == {tuple(range(6)), tuple(range(6, 12))}
