"""What is drawn from a log is like the log: turnout, run lengths, joint absences, the day's profile."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from turnout.errors import UserError
from turnout.fleet import ParticipationLog, Reading, check_like_log, read_fleet
from turnout.fleet.blocks import Blocks, Sources, Whose
from turnout.fleet.example import ExampleFleet
from turnout.fleet.fleet_model import EVERYONE, fit
from turnout.fleet.fleet_participation import FleetLog
from turnout.fleet.groups import Groups, away_together
from turnout.fleet.log_statistics import presence, statistics
from turnout.testing import check_participation
from turnout.world.participation import Dropout, OnOff

HOURLY = Reading(every="1h")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fleet") / "checkins.csv"
    ExampleFleet(devices=60, days=21).write(path)
    return str(path)


@pytest.fixture(scope="module")
def fleet(path: str) -> ParticipationLog:
    return read_fleet(path, HOURLY)


def table_fleet(came_TM: np.ndarray, every: float | None = None) -> ParticipationLog:
    """A log of those who came."""
    t_N, m_N = np.nonzero(came_TM)
    start_T = None if every is None else every * np.arange(len(came_TM))
    names = tuple(map(str, range(came_TM.shape[1])))
    rows = (t_N.astype(np.int32), m_N.astype(np.int32), np.ones(len(t_N)))
    return ParticipationLog("log", names, len(came_TM), *rows, start_T=start_T, is_calendar=True, every=every)


def test_the_example_is_read_as_it_was_made(fleet: ParticipationLog) -> None:
    """Nothing but the log is known, yet turnout, work and lengths are nearly those of the example's own table."""
    example = ExampleFleet(devices=60, days=21)
    truth, read = statistics(example.work(), 24), statistics(presence(fleet), 24)
    for name in ("turnout", "work", "stay", "away"):
        assert getattr(read, name) == pytest.approx(getattr(truth, name), rel=0.05)
    members = {fleet.names[i]: (int(fleet.joined_M[i]), int(fleet.left_M[i])) for i in range(fleet.clients)}
    late = {i for i, name in enumerate(example.names) if members[name][0] > 0}
    gone = {i for i, name in enumerate(example.names) if members[name][1] < fleet.rounds}
    joined, left = set(range(3, 60, 10)), set(range(7, 60, 10))
    assert late <= joined  # nobody is taken for a newcomer who is none
    assert gone <= left
    assert len(late | gone) >= 10  # of twelve; one with few visits cannot be told from one that was away


@pytest.mark.parametrize(("settings", "within"), [({"mode": "blocks"}, 0.1), ({"mode": "fitted"}, 0.2)])
def test_what_is_drawn_is_like_the_log(
    path: str, fleet: ParticipationLog, settings: dict[str, str], within: float
) -> None:
    log = FleetLog(path, reading=HOURLY, **settings)  # type: ignore[arg-type]
    check_participation(log)
    check_like_log(log, fleet, within, clients=60, seeds=3)


def test_a_larger_fleet_is_like_the_log(path: str, fleet: ParticipationLog) -> None:
    check_like_log(FleetLog(path, mode="blocks", reading=HOURLY), fleet, within=0.1, clients=150, seeds=1)


def test_a_clients_own_stretches_keep_its_habits_and_lose_the_outages(path: str, fleet: ParticipationLog) -> None:
    log = FleetLog(path, mode="blocks", of="client", reading=HOURLY)
    work_TC = np.stack([log.fraction(torch.arange(60), t, 1, seed=0).numpy() for t in range(fleet.rounds)])
    drawn, logged = statistics(work_TC, 24), statistics(presence(fleet), 24)
    assert drawn.stay == pytest.approx(logged.stay, rel=0.06)
    assert drawn.together < 0.93 * logged.together


def test_the_check_finds_what_forgets(fleet: ParticipationLog) -> None:
    """Dropping out at random has the turnout, but neither stays nor nights."""
    with pytest.raises(AssertionError, match=r"work|stay: the log has"):
        check_like_log(Dropout(rate=0.65), fleet, within=0.2, seeds=1)


def test_a_chain_is_fitted_as_it_was_made() -> None:
    """Up for 6 rounds and down for 3: there 2/3 of the time, persistence 1 - 1/6 - 1/3 = 1/2, no groups, no outages."""
    made = OnOff(mean_up=6, mean_down=3)
    log = table_fleet(np.stack([made.fraction(torch.arange(100), t, 1, seed=0).numpy() for t in range(400)]))
    model = fit(log)
    assert model.outages == {}
    assert model.groups.count == 0
    assert float(model.there_MH.mean()) == pytest.approx(2 / 3, abs=0.01)
    assert model.persistence_M == pytest.approx(0.5, abs=0.02)


def test_groups_and_outages_are_found(path: str) -> None:
    """Four groups of 30 clients, each out for ten rounds now and then; the whole fleet is out twice."""
    rng = np.random.default_rng(3)
    group_M = np.arange(120) % 4
    out_TG = np.repeat(rng.random((60, 4)) < 0.2, 10, axis=0)
    came_TM = (rng.random((600, 120)) < 0.8) & ~out_TG[:, group_M]
    came_TM[200:215] = came_TM[440:450] = False
    log = table_fleet(came_TM)
    groups = away_together(log)
    assert [set(group_M[groups.members(g)]) for g in range(groups.count)].count(set()) == 0
    assert sorted(g for k in range(groups.count) for g in set(group_M[groups.members(k)])) == [0, 1, 2, 3]
    model = fit(log, groups)
    assert model.outages[EVERYONE].rounds == pytest.approx(25, abs=2)
    assert len(model.outages) == 5
    shares = [model.outages[g].share for g in range(4)]
    assert np.mean(shares) == pytest.approx(out_TG.mean(), abs=0.04)
    assert all(outages.left < 0.02 for outages in model.outages.values())
    work_TC = np.stack([model.fraction(torch.arange(120), t, 1, Sources(120)).numpy() for t in range(600)])
    assert statistics(work_TC).together == pytest.approx(statistics(presence(log)).together, abs=0.06)


def test_clients_that_are_alone_are_no_group() -> None:
    made = OnOff(mean_up=8, mean_down=12)
    log = table_fleet(np.stack([made.fraction(torch.arange(90), t, 1, seed=1).numpy() for t in range(300)]))
    assert away_together(log).count == 0


def test_a_cohort_that_was_sampled_is_fitted_from_its_rows(tmp_path: Path) -> None:
    """Each round a fifth is asked, and rows say who was absent: the model does not take the others for absent."""
    made, rng = OnOff(mean_up=6, mean_down=3), np.random.default_rng(0)
    lines = []
    for t in range(400):
        asked = torch.from_numpy(np.sort(rng.permutation(100)[:20]))
        work = made.fraction(asked, t, 1, seed=0).tolist()
        lines += [f"{t},{c},{w}\n" for c, w in zip(asked.tolist(), work, strict=True)]
    (tmp_path / "log.csv").write_text("round,client,work\n" + "".join(lines))
    model = fit(read_fleet(tmp_path / "log.csv"))
    assert float(model.there_MH.mean()) == pytest.approx(2 / 3, abs=0.02)
    assert model.persistence_M == pytest.approx(0.5, abs=0.1)
    log = FleetLog(str(tmp_path / "log.csv"), mode="blocks")
    work_TC = np.stack([log.fraction(torch.arange(100), t, 1, seed=0).numpy() for t in range(200)])
    assert work_TC.mean() == pytest.approx(2 / 3, abs=0.05)


def test_clients_that_are_alike_are_fitted_alike_however_long_they_stay() -> None:
    """Up for 20 rounds and down for 20: persistence 0.9, so in 400 rounds a client's share of rounds varies by
    sqrt(1/4 / 400 x 1.9 / 0.1) = 0.11 by chance alone. That is no difference between clients, and is taken back."""
    made = OnOff(mean_up=20, mean_down=20)
    came_TM = np.stack([made.fraction(torch.arange(150), t, 1, seed=0).numpy() for t in range(400)])
    assert float(came_TM.mean(0).std()) == pytest.approx(0.11, abs=0.02)
    model = fit(table_fleet(came_TM), Groups(np.full(150, -1)))
    assert model.persistence_M == pytest.approx(0.9, abs=0.02)
    assert float(model.there_MH.std()) < 0.035


def test_persistence_is_that_of_one_round_also_where_clients_are_asked_every_third() -> None:
    """Persistence 0.9 of a round is 0.729 of three: only pairs of rounds that are three apart are known."""
    made = OnOff(mean_up=20, mean_down=20)
    t_N = np.repeat(np.arange(0, 1200, 3), 80)
    m_N = np.tile(np.arange(80), 400)
    work_N = np.concatenate([made.fraction(torch.arange(80), t, 1, seed=0).numpy() for t in range(0, 1200, 3)])
    names = tuple(map(str, range(80)))
    log = ParticipationLog("log", names, 1200, t_N.astype(np.int32), m_N.astype(np.int32), work_N, missing="not-asked")
    assert fit(log, Groups(np.full(80, -1))).persistence_M == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("whose", ["fleet", "client"])
def test_a_stretch_that_passes_the_end_of_the_log_goes_on_whole_days_before(whose: Whose) -> None:
    """A log of 60 hours: after hour 59 comes hour 12, not hour 0, so that 13:00 on the clock stays 13:00."""
    t_N = np.arange(60, dtype=np.int32)
    rows = t_N, np.zeros(60, np.int32), (t_N + 1) / 100.0
    log = ParticipationLog("log", ("a",), 60, *rows, start_T=3600.0 * t_N, every=3600.0)
    blocks = Blocks(log, Sources(1), 36, whose)
    at_T = [round(100 * float(blocks.fraction(torch.tensor([0]), t, seed=2)[0])) - 1 for t in range(36 * 40)]
    assert [at % 24 for at in at_T] == [t % 24 for t in range(len(at_T))]
    steps = {now - before for i, (before, now) in enumerate(itertools.pairwise(at_T)) if (i + 1) % 36}
    assert steps == {1, 1 - 48}
    begins = [at_T[i] for i in range(0, len(at_T), 36)]
    assert set(begins) == {0, 24, 48, 12, 36}  # every round of the log at that hour


def test_a_bootstrap_log_is_stretches_of_the_log_at_the_same_hour_and_varies_as_another_log_would(
    tmp_path: Path,
) -> None:
    """Eight days of 24 rounds; in each day one share of the clients comes, the same at every hour."""
    shares = [0.1, 0.9, 0.3, 0.5, 0.7, 0.2, 0.8, 0.4]
    rows = [f"{3600 * (24 * day + hour)},{c},{hour / 24 if c < 20 * shares[day] else 0}"
            for day in range(8) for hour in range(24) for c in range(20)]  # fmt: skip
    (tmp_path / "log.csv").write_text("time,client,work\n" + "\n".join(rows) + "\n")
    base = FleetLog(str(tmp_path / "log.csv"), mode="blocks", length=24, reading=Reading(every="1h"))
    client_C = torch.arange(20)

    def work(again: int | None, t: int) -> torch.Tensor:
        return replace(base, again=again).fraction(client_C, t, 1, seed=3)

    for t in (5, 29, 77):  # an hour stays an hour: the work says which it is
        assert set(work(7, t).tolist()) <= {0.0, (t % 24) / 24}
    assert torch.equal(work(7, 5), work(7, 5))
    stretches = [Blocks(base.log, base.sources, 24, again=k)._resampled_T[::24] // 24 for k in range(400)]
    means = np.array([np.mean([shares[day] for day in days]) for days in stretches])
    assert means.var() == pytest.approx(np.var(shares) / 8, rel=0.25)  # of a mean over eight days
    assert means.mean() == pytest.approx(np.mean(shares), abs=0.03)
    with pytest.raises(UserError, match="about blocks"):
        FleetLog("log.csv", again=1)
