"""Simulated time: devices by address, timelines computed by hand, how rounds are closed, and what arrives late."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import flower_grid
import turnout as to
from same_rows import same
from turnout.cli import main
from turnout.deploy.apps import GridLink
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.fleet.observed_times import Observation, devices_of, observations, write_observed_devices
from turnout.parts.compression.lossy import BroadcastLog
from turnout.round_record import RoundRecord
from turnout.running.records.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from turnout.running.records.finding import find_runs
from turnout.running.records.records import Records
from turnout.runtimes.timing import buffered
from turnout.server.state import Server
from turnout.view.report.lines import time_after
from turnout.view.report.page import write_report
from turnout.view.report.results import time_to
from turnout.world.devices.device_draw import Passes
from turnout.world.devices.device_file import DeviceRow, read_devices, write_devices
from worlds import EXACT, blobs, play, ready, walk, world

DENSE = 72  # bytes of the 18 parameters of a logistic regression on blobs
LOCAL = to.Local(to.SGD(lr=0.1), epochs=4, batch_size=4)  # 8 samples: 8 steps, 32 samples

# Three devices with a latency of 0.5 s and a download of 2 s. Complete work takes them
#   0  0.5 + 2 + 32/16 + 0.5 + 4  =  9 s
#   1  0.5 + 2 + 32/2  + 0.5 + 4  = 23 s   slow
#   2  0.5 + 2 + 32/16 + 0.5 + 36 = 41 s   a thin uplink
MBIT = 8e-6
ROWS = (
    DeviceRow("0", 16.0, 36 * MBIT, 18 * MBIT, 0.5, "good"),
    DeviceRow("1", 2.0, 36 * MBIT, 18 * MBIT, 0.5, "slow"),
    DeviceRow("2", 16.0, 36 * MBIT, 2 * MBIT, 0.5, "thin"),
)


@pytest.fixture(scope="module")
def devices(tmp_path_factory) -> to.devices.DeviceFile:
    path = tmp_path_factory.mktemp("devices") / "devices.csv"
    write_devices(path, ROWS)
    return to.devices.DeviceFile(str(path))


def timed(devices: to.devices.DeviceFile, closing: object, *fractions: float, **algorithm: object) -> to.Experiment:
    parts = {"local": LOCAL, "weighting": to.weighting.FedAvg(), "closing": closing} | algorithm
    return world([8, 8, 8], *fractions, **parts).but(**{"world.devices": devices})


def column(record: RoundRecord, name: str) -> list[float]:
    return [round(value, 9) for value in record.clients[name].tolist()]


# -- timelines by hand


def test_a_round_waits_for_the_slowest_link_where_there_is_no_deadline(devices):
    _, (record,) = play(ready(timed(devices, to.closing.WaitForAll())))
    assert column(record, "download_time") == [2.5, 2.5, 2.5]
    assert column(record, "train_time") == [2.0, 16.0, 2.0]
    assert column(record, "upload_time") == [4.5, 4.5, 36.5]
    assert record.extra["simulated_seconds"] == record.extra["simulated_time"] == 41.0
    assert record.extra["device_seconds"] == 9 + 23 + 41
    assert record.extra["wasted_device_seconds"] == 0
    assert record.extra["tiers"] == "good slow thin"
    assert column(record, "tier") == [0, 1, 2]


def test_at_a_deadline_the_slow_send_what_they_have_and_the_late_nothing(devices):
    # The slow one has 15 - 2.5 - 4.5 = 8 s to train: 16 samples, 4 of its 8 steps. The third sends for 36.5 s.
    _, (record,) = play(ready(timed(devices, to.closing.Deadline(seconds=15.0))))
    assert column(record, "work") == [1.0, 0.5, 0.0]
    assert column(record, "train_time")[:2] == [2.0, 8.0]
    assert column(record, "late") == [0, 0, 1]
    assert record.extra["simulated_seconds"] == 15.0
    assert record.extra["device_seconds"] == 9 + 15 + 15
    assert record.extra["wasted_device_seconds"] == 15
    assert (record.answered, record.counted) == (2, 2)
    assert column(record, "bytes_down") == [72, 72, 72]  # the late one had downloaded, too


def test_a_deadline_without_partial_work_excludes_the_slow(devices):
    _, (record,) = play(ready(timed(devices, to.closing.Deadline(seconds=15.0, partial=False))))
    assert column(record, "work") == [1.0, 0.0, 0.0]
    assert column(record, "late") == [0, 1, 1]
    assert record.extra["wasted_device_seconds"] == 30
    # Stopped at 15 s: the slow one was training, the thin one uploading.
    assert column(record, "train_time") == [2.0, 12.5, 2.0]
    assert column(record, "upload_time") == [4.5, 0.0, 10.5]


def test_a_deadline_that_nobody_needs_ends_with_the_last_reply(devices):
    _, (record,) = play(ready(timed(devices, to.closing.Deadline(seconds=100.0))))
    assert record.extra["simulated_seconds"] == 41.0
    assert record.extra["late"] == 0


def test_who_is_absent_is_waited_for_until_the_deadline(devices):
    _, (record,) = play(ready(timed(devices, to.closing.Deadline(seconds=50.0), 1.0, 0.0, 1.0)))
    assert record.extra["simulated_seconds"] == 50.0
    assert record.extra["late"] == 0
    assert record.extra["device_seconds"] == 9 + 41


def test_the_first_replies_close_a_round(devices):
    experiment = timed(devices, to.closing.FirstReplies(count=2))
    _, (record,) = play(ready(experiment))
    assert record.extra["simulated_seconds"] == 23.0
    assert column(record, "late") == [0, 0, 1]
    _, (record,) = play(ready(experiment.but(**{"algorithm.closing": to.closing.FirstReplies(share=0.3)})))
    assert record.extra["simulated_seconds"] == 9.0
    early = to.closing.FirstReplies(count=2, seconds=10.0)
    _, (record,) = play(ready(experiment.but(**{"algorithm.closing": early})))
    assert record.extra["simulated_seconds"] == 10.0
    assert column(record, "late") == [0, 1, 1]


def test_a_client_that_was_away_downloads_what_it_missed():
    class Once:
        """Client 2 is away in round 1."""

        def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
            return torch.where((client_C == 2) & (t == 1), 0.0, 1.0).double()

    data = blobs([8, 8, 8], features=40)
    algorithm = to.Algorithm(local=LOCAL, compression=to.compression.SparseTernary(keep=0.1))
    speed = to.devices.Alike(samples_per_second=16.0, down_mbps=80 * MBIT, up_mbps=10 * MBIT, latency=0.5)
    experiment = to.Experiment(
        world=to.World(data, Once(), devices=speed), algorithm=algorithm, rounds=3, runtime=EXACT
    )
    prepared = ready(experiment)
    state, _ = play(prepared, rounds=2)
    log = BroadcastLog.from_state(state.compression)
    first, second = log.length_M.tolist()
    _, record = prepared.round(state, 2)
    assert column(record, "bytes_down") == [second, second, first + second]
    assert first > 0
    assert column(record, "download_time") == [0.5 + n / 80 for n in (second, second, first + second)]
    # Sparse messages are as long as the numbers make them: uploads take what was sent, not the longest there could be.
    assert column(record, "upload_time") == [round(0.5 + n / 10, 9) for n in column(record, "bytes_up")]
    assert max(column(record, "bytes_up")) <= prepared.runtime.timing.planned_bytes(2) < 4 * 123


def test_records_of_a_timed_run_have_the_bytes_of_a_run_without_time():
    plain = world(
        [9, 5, 8], 1.0, 0.5, 0.0, compression=to.compression.SparseTernary(keep=0.2), terms=(to.terms.Proximal(0.1),)
    )
    timed = plain.but(**{"world.devices": to.devices.Alike()})
    for one, other in zip(play(ready(plain), 3)[1], play(ready(timed), 3)[1], strict=True):
        assert (one.bytes_down, one.bytes_up, one.work) == (other.bytes_down, other.bytes_up, other.work)
        assert torch.equal(one.clients["weight"], other.clients["weight"])


# -- nothing that is discarded is trained


class Counting(to.terms.LocalTerm, to.terms.TermTraits):
    """Counts the clients that were trained."""

    name = "counting"
    sends = 0

    def __init__(self) -> None:
        self.trained = 0

    def finish(self, at, server_state, client_state):
        self.trained += len(at.examples_c)
        return {}, client_state


@pytest.mark.parametrize(
    ("closing", "trained"),
    [
        (to.closing.WaitForAll(), 3),
        (to.closing.Deadline(seconds=15.0), 2),
        (to.closing.Deadline(seconds=15.0, partial=False), 1),
        (to.closing.Deadline(seconds=15.0, partial=False, late="use"), 3),
        (to.closing.FirstReplies(count=2), 2),
    ],
)
def test_nothing_is_trained_for_a_reply_that_is_discarded(devices, closing, trained):
    counting = Counting()
    play(ready(timed(devices, closing, terms=(counting,))))
    assert counting.trained == trained


# -- late replies, and asynchronous rounds


def trained(prepared, client: int, t: int, start_P: Tensor) -> Tensor:
    return walk(prepared, client, t, start_P)[0] - start_P


def test_a_late_reply_counts_in_the_round_in_which_it_arrives(devices):
    closing = to.closing.Deadline(seconds=15.0, partial=False, late="use")
    prepared = ready(timed(devices, closing, 1.0, 1.0, 0.0))
    begin = prepared.begin().shared_P
    state, (first, second) = play(prepared, 2)
    after_first = begin + trained(prepared, 0, 0, begin)
    fresh, old = trained(prepared, 0, 1, after_first), trained(prepared, 1, 0, begin)
    # Round 1 is from 15 s to 30 s, as client 2 is waited for; client 1's reply is there at 23 s, aged 1.
    expected = after_first + 0.5 * fresh + 0.5 / math.sqrt(2) * old
    torch.testing.assert_close(state.shared_P, expected)
    assert column(first, "client") == [0, 1, 2]
    assert column(first, "late") == [0, 1, 0]
    assert second.extra["simulated_time"] == 30.0
    assert column(second, "age")[:2] == [0, 1]
    assert column(second, "begin_time")[:2] == [0.0, -15.0]
    assert first.extra["device_seconds"] == 9
    assert second.extra["device_seconds"] == 9 + 23


def test_the_buffer_steps_after_every_reply_and_discounts_old_ones(devices):
    closing = to.closing.Buffered(size=1, concurrency=2)
    prepared = ready(timed(devices, closing, 1.0, 1.0, 0.0))
    at = [prepared.begin().shared_P]
    state, records = play(prepared, 3)
    at.append(at[0] + trained(prepared, 0, 0, at[0]))  # at 9 s
    at.append(at[1] + trained(prepared, 0, 1, at[1]))  # client 0 again, at 18 s
    at.append(at[2] + trained(prepared, 1, 0, at[0]) / math.sqrt(3))  # client 1, two steps old, at 23 s
    torch.testing.assert_close(state.shared_P, at[3])
    assert [record.extra["simulated_time"] for record in records] == [9.0, 18.0, 23.0]
    assert [column(record, "client") for record in records] == [[0], [0], [1]]
    assert [column(record, "age") for record in records] == [[0], [0], [2]]


def test_a_seat_that_is_free_is_taken_at_once():
    # Two at work, four replies: 0 (3 s), then 2 begins; 1 (5 s), then 3; 2 (3 + 3 = 6 s), then 4; 3 at 5 + 2 = 7 s.
    begin, arrived, closes = buffered([], [(0, 3.0), (1, 5.0), (2, 3.0), (3, 2.0), (4, 9.0)], seats=2, size=4)
    assert begin == {0: 0.0, 1: 0.0, 2: 3.0, 3: 5.0, 4: 6.0}
    assert arrived == [0, 1, 2, 3]
    assert closes == 7.0


def test_a_run_with_replies_in_flight_goes_on_from_its_checkpoint(devices, tmp_path):
    experiment = timed(devices, to.closing.Buffered(size=2, concurrency=3)).but(rounds=6)
    whole, records = play(ready(experiment), 6)
    prepared = ready(experiment)
    half, _ = play(prepared, 3)
    assert len(half.time.in_flight.client_L)
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, Checkpoint(2, half.to_state(), "mark", []))
    state = Server.from_state(read_checkpoint(path, "mark", prepared.begin().to_state()).state)
    for t in range(3, 6):
        state, record = prepared.round(state, t)
        assert record.extra == records[t].extra
    assert torch.equal(state.shared_P, whole.shared_P)


def test_hindsight_takes_a_late_reply_for_what_it_is(devices):
    """It is not what its client would have sent in the round in which it arrives."""
    closing = to.closing.Deadline(seconds=15.0, partial=False, late="use")
    prepared = ready(timed(devices, closing, 1.0, 1.0, 0.0).but(**{"evaluate.substitution": True}))
    begin = prepared.begin().shared_P
    state, (_, second) = play(prepared, 2)
    after_first = begin + trained(prepared, 0, 0, begin)
    there = ready(timed(devices, closing, 1.0, 1.0, 1.0))
    complete = sum(trained(there, client, 1, after_first) for client in range(3)) / 3
    error = float((state.shared_P - after_first - complete).square().sum())
    assert second.extra["substitution_error"] == pytest.approx(error, rel=1e-9)


def test_what_makes_no_sense_with_late_replies_is_refused():
    late = to.closing.Deadline(seconds=9.0, partial=False, late="use")
    with pytest.raises(to.UserError, match="no client is missing"):
        to.Algorithm(closing=to.closing.Buffered(size=2), substitution=to.substitution.Friends())
    with pytest.raises(to.UserError, match="stand in for themselves"):
        to.Algorithm(closing=late, substitution=to.substitution.Stale())
    with pytest.raises(to.UserError, match="the term 'scaffold' combines"):
        to.Algorithm(closing=late, terms=[to.terms.Scaffold()])
    with pytest.raises(to.UserError, match="would never fill"):
        to.closing.Buffered(size=10, concurrency=5)
    with pytest.raises(to.UserError, match=r"world\.devices"):
        ready(world([8, 8], closing=to.closing.Deadline(seconds=5.0)))


# -- devices


def test_every_algorithm_meets_the_same_devices_in_the_same_weather():
    fleet = to.devices.Tiers(noise=0.3, slow_chance=0.2)
    one = ready(world([8, 8, 8]).but(**{"world.devices": fleet}))
    other = ready(
        world([8, 8, 8], weighting=to.weighting.FedAvg(), terms=(to.terms.Proximal(1.0),)).but(
            **{"world.devices": fleet}
        )
    )
    for a, b in zip(play(one, 3)[1], play(other, 3)[1], strict=True):
        for name in ("download_time", "train_time", "upload_time", "tier"):
            assert torch.equal(a.clients[name], b.clients[name])


def test_devices_are_drawn_by_address_for_a_million_clients():
    fleet = to.devices.SpreadDevices(law="pareto", up_spread=0.7, noise=0.2, slow_chance=0.1)
    alone = fleet.draw(torch.tensor([999_999]), t=7, seed=3)
    among = fleet.draw(torch.arange(0, 1_000_000, 9), t=7, seed=3)
    assert torch.equal(alone.up_C[0], among.up_C[-1])
    assert torch.equal(alone.compute_C[0], among.compute_C[-1])
    third = [float((among.tier_C == tier).double().mean()) for tier in range(3)]
    assert all(abs(share - 1 / 3) < 0.01 for share in third)
    assert among.up_C[among.tier_C == 2].median() < among.up_C[among.tier_C == 0].median()


def test_clusters_of_clients_share_a_tier_and_no_spread_makes_all_alike():
    """Four clusters, tiers of a quarter and three quarters: the first cluster has the first tier."""
    tiers = to.devices.Tiers(names=("laptop", "phone-2015"), shares=(1, 3), by="cluster", clusters=(3, 0, 1, 2, 0))
    for seed in range(3):
        assert tiers.tier_of(torch.arange(5), seed).tolist() == [1, 0, 1, 1, 0]
    with pytest.raises(to.UserError, match="no clusters"):
        replace(tiers, clusters=None).tier_of(torch.arange(5), 0)
    for law in ("log-normal", "pareto"):
        alike = to.devices.SpreadDevices(law=law, compute_spread=0.0, down_spread=0.0, up_spread=0.0)
        draw = alike.draw(torch.arange(50), 0, seed=1)
        assert all(len(getattr(draw, name).unique()) == 1 for name in ("compute_C", "down_C", "up_C"))
        with pytest.raises(to.UserError, match="up_spread"):
            replace(alike, up_spread=-0.1)


def test_a_device_is_slow_for_a_share_of_its_rounds_and_its_links_are_not():
    alike = to.devices.Alike(gflops=8.0, slow_chance=0.25, slow_factor=4.0)
    client_C = torch.arange(10_000)
    usual = replace(alike, slow_chance=0.0).draw(client_C, 0, seed=2)
    draws = [alike.draw(client_C, t, seed=2) for t in (0, 1)]
    slow_TC = torch.stack([draw.compute_C < usual.compute_C for draw in draws])
    assert slow_TC.double().mean(1).tolist() == pytest.approx([0.25, 0.25], abs=0.02)
    assert float((slow_TC[0] & slow_TC[1]).double().mean()) == pytest.approx(0.25**2, abs=0.01)  # drawn for each round
    for draw, slow_C in zip(draws, slow_TC, strict=True):
        torch.testing.assert_close(draw.compute_C, torch.where(slow_C, usual.compute_C / 4, usual.compute_C))
        assert torch.equal(draw.up_C, usual.up_C)


def test_steps_and_samples_of_passes_agree():
    passes = Passes.of(torch.tensor([45, 40, 41, 1]), 20, drop_single=True)
    assert passes.steps_C.tolist() == [3, 2, 2, 0]
    assert passes.samples_C.tolist() == [45, 40, 40, 0]
    for steps in range(1, 9):
        samples_C = passes.samples_of(torch.full((4,), steps))
        assert passes.steps_for(samples_C.double())[:3].tolist() == [steps] * 3
        assert passes.steps_for(samples_C.double() - 0.5)[:3].tolist() == [steps - 1] * 3


def test_a_file_of_devices_that_cannot_be_right_is_refused(tmp_path):
    path: Path = tmp_path / "devices.csv"
    path.write_text("client,samples_per_second,down_mbps,up_mbps,latency\n0,10,1,1,0\n1,0,1,1,0\n")
    with pytest.raises(to.UserError, match="line 3: samples_per_second must be above 0"):
        ready(world([8, 8]).but(**{"world.devices": to.devices.DeviceFile(str(path))}))
    path.write_text("client,samples_per_second,down_mbps,up_mbps,latency\n0,10,1,1,0\n")
    with pytest.raises(to.UserError, match="no device for client 1"):
        ready(world([8, 8]).but(**{"world.devices": to.devices.DeviceFile(str(path))}))
    ready(world([8, 8]).but(**{"world.devices": to.devices.DeviceFile(str(path), mode="resample")}))
    with pytest.raises(to.UserError, match="did you mean 'phone-2015'"):
        to.devices.Tiers(names=("phone-2014",))


# -- stop rules


def hours(seconds: float) -> to.Stop:
    return to.Stop(simulated_hours=seconds / 3600)


def test_a_run_stops_when_its_simulated_hours_are_spent(devices, tmp_path):
    """Rounds end at 41, 82 and 123 s. At 100 s the third is cut: nothing of it is in the model."""
    experiment = timed(devices, to.closing.WaitForAll()).but(rounds=50, stop=hours(100), **{"evaluate.every": 5})
    run = to.run(experiment, out=tmp_path / "run", quiet=True)
    with run.records() as records:
        assert records.column("simulated_time").tolist() == [41.0, 82.0, 100.0]
        assert records.column("simulated_seconds").tolist() == [41.0, 41.0, 18.0]
        assert records.column("skipped").tolist() == [None, None, "the simulated hours ended before the round did"]
        assert records.column("counted").tolist() == [3, 3, 0]
        assert records.column("wasted_device_seconds").tolist() == [0.0, 0.0, 9.0 + 18.0 + 18.0]
        assert set(records.clients()["round"].tolist()) == {0, 1}
    assert run.stopped() == "the budget of 0.0277778 simulated hours is spent"
    two = to.run(experiment.but(rounds=2), out=tmp_path / "two", quiet=True)
    assert torch.equal(run.model().output.weight, two.model().output.weight)
    assert run.final("global_loss") == two.final("global_loss")
    assert "Simulated time" in run.report().read_text()


def test_a_round_that_ends_with_the_simulated_hours_counts(devices, tmp_path):
    run = to.run(
        timed(devices, to.closing.WaitForAll()).but(rounds=50, stop=hours(82)), out=tmp_path / "run", quiet=True
    )
    with run.records() as records:
        assert records.column("simulated_time").tolist() == [41.0, 82.0]
        assert records.column("counted").tolist() == [3, 3]
    assert run.stopped() is not None


def test_a_run_that_is_given_more_simulated_hours_is_as_if_it_had_had_them_at_first(devices, tmp_path):
    """Clients keep residuals, and replies are in flight: nothing of the round that was cut is left."""
    ternary = to.compression.SparseTernary(keep=0.3)
    experiment = timed(devices, to.closing.Buffered(size=2, concurrency=3), compression=ternary).but(
        rounds=50, stop=hours(100)
    )
    for first in (30, 5):  # in the second round, and in the first
        out = tmp_path / str(first)
        to.run(experiment.but(stop=hours(first)), out=out, quiet=True)
        to.run(experiment, out=out, quiet=True, resume=True)
        to.run(experiment, out=tmp_path / f"{first} at once", quiet=True)
        assert same(out / "records.sqlite", tmp_path / f"{first} at once" / "records.sqlite") == []


@pytest.mark.parametrize(
    "closing",
    [to.closing.WaitForAll(), to.closing.Buffered(size=2, concurrency=3)],
)
def test_a_run_in_simulated_time_hands_out_its_model(devices, tmp_path, closing):
    experiment = timed(devices, closing).but(rounds=3, stop=to.Stop(simulated_hours=1.0))
    run = to.run(experiment, out=tmp_path / "run", quiet=True)
    state, _ = play(ready(experiment), 3)
    weights = torch.cat([value.flatten() for value in run.model().state_dict().values()])
    torch.testing.assert_close(weights.double(), state.shared_P)


# -- from observed times back to devices


def test_observed_times_make_devices_whose_rounds_take_as_long(devices, tmp_path):
    weather = replace(devices, noise=0.1)
    experiment = timed(weather, to.closing.WaitForAll()).but(rounds=5)
    run = to.run(experiment, out=tmp_path / "run", quiet=True)
    found = write_observed_devices(tmp_path / "run", tmp_path / "observed.csv")
    assert [row.tier for row in found.rows] == ["good", "slow", "thin"]
    assert 0.02 < found.noise < 0.2
    again = to.devices.DeviceFile(str(tmp_path / "observed.csv"))
    _, (record,) = play(ready(experiment.but(**{"world.devices": again})))
    with run.records() as records:
        observed = float(np.median(records.column("simulated_seconds")))
    assert record.extra["simulated_seconds"] == pytest.approx(observed, rel=0.2)


def test_a_deployment_that_records_whole_and_training_seconds_makes_devices(tmp_path):
    # 32 samples in 2 s, 144 bytes in 6 - 2 = 4 s; one round stalled.
    experiment = world([8, 8]).but(rounds=3)
    (tmp_path / "run").mkdir()
    with Records.open(tmp_path / "records.sqlite") as records:
        for t, seconds in enumerate((6.0, 6.0, 60.0)):
            columns = {"work": [1.0, 0.0], "examples": [8, 8], "bytes_up": [72, math.nan], "bytes_down": [72, math.nan]}
            columns |= {"reply_seconds": [seconds, math.nan], "training_seconds": [2.0, math.nan], "client": [0, 1]}
            clients = {name: torch.tensor(values) for name, values in columns.items()}
            records.add_round(RoundRecord(t, asked=2, answered=1, clients=clients))
        (row,) = devices_of(observations(records, experiment, None)).rows
    assert (row.client, row.speed, row.latency) == ("0", 16.0, 0.0)
    assert row.down_mbps * 125_000 == row.up_mbps * 125_000 == 36.0
    with (
        Records.open(tmp_path / "plain.sqlite") as records,
        pytest.raises(to.UserError, match="has no times of clients"),
    ):
        devices_of(observations(records, experiment, None))


def test_devices_that_send_nothing_have_a_latency(tmp_path):
    """Independent clients: 2 s of training, 4 s until their answers are there, no byte of a model either way."""
    seen = Observation("0", samples=32, bytes_down=0, bytes_up=0, train_seconds=2.0, link_seconds=4.0)
    write_devices(tmp_path / "fleet.csv", devices_of([seen]).rows)
    draw = to.devices.DeviceFile(str(tmp_path / "fleet.csv")).draw(torch.tensor([0]), 0, 0)
    assert 2 * float(draw.latency_C[0]) == 4.0
    assert float(draw.up_C[0]) > 0


def test_links_that_were_timed_apart_have_a_rate_each():
    """Rates are medians over a client's rounds; the noise is the deviation of log(seconds) around each client's own."""
    rounds = ((2.0, 1.0, 4.0), (4.0, 2.0, 5.0), (1.0, 8.0, 10.0))  # seconds of training, download, upload
    seen = [
        Observation("ada", 8, 250_000, 500_000, train, down + up, download_seconds=down, upload_seconds=up, tier="slow")
        for train, down, up in rounds
    ]
    found = devices_of([*seen, Observation("bob", 6, 125_000, 250_000, train_seconds=2.0, link_seconds=3.0)])
    ada, bob = found.rows  # 250 000 bytes are 2 megabits
    assert (ada.client, ada.tier, ada.speed, ada.latency) == ("ada", "slow", 8 / 2.0, 0.0)
    assert (ada.down_mbps, ada.up_mbps) == (2 / 2.0, 4 / 5.0)
    assert (bob.client, bob.speed, bob.down_mbps, bob.up_mbps) == ("bob", 6 / 2.0, (1 + 2) / 3.0, (1 + 2) / 3.0)
    whole = [math.log(train + down + up) for train, down, up in rounds]
    assert found.noise == pytest.approx(statistics.pstdev(seconds - statistics.median(whole) for seconds in whole))


def test_a_file_of_devices_reads_back_as_written(tmp_path):
    rows = tuple(DeviceRow(name, 16.0, 4.0, 2.0, 0.5, "slow") for name in ("ada", 'b, "c"', "two\r\nlines", "äöü"))
    write_devices(tmp_path / "fleet.csv", rows)
    assert read_devices(tmp_path / "fleet.csv").rows == rows


def test_a_deployment_through_flower_reads_back_as_devices(tmp_path):
    """Devices that take 0.02 s a step and more: a simulated round takes what the slowest reply was seen to take."""
    flower = Flower(clients=3, start_with=3, round_seconds=20.0, request_seconds=5.0, server_data=True)
    experiment = to.Experiment(
        world=to.World(to.data.Digits(clients=3)),
        model=to.models.MLP(8),
        algorithm=to.Algorithm(local=to.Local(to.SGD(0.1), steps=4, batch_size=10)),
        rounds=3,
        runtime=flower,
    )
    devices = flower_grid.devices_of(experiment, "012", tmp_path / "devices")
    for i, device in enumerate(devices):
        device.step_seconds = 0.02 * (i + 1)
    serve_experiment(GridLink(flower_grid.HereGrid(devices)), experiment, tmp_path / "run")
    assert main(["fleet", str(tmp_path / "run"), "--devices", str(tmp_path / "fleet.csv")]) == 0
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        found = records.clients()
    slowest = [np.nanmax(found["reply_seconds"][found["round"] == t]) for t in range(3)]
    again = to.devices.DeviceFile(str(tmp_path / "fleet.csv"))
    simulated = experiment.but(runtime=to.runtime.InProcess(device="cpu", threads=1), **{"world.devices": again})
    _, records = play(ready(simulated), 3)
    took = float(np.median([record.extra["simulated_seconds"] for record in records]))
    assert took == pytest.approx(float(np.median(slowest)), rel=0.2)


# -- reports and the command line


def test_a_report_shows_simulated_time(devices, tmp_path):
    experiment = timed(devices, to.closing.Deadline(15.0), 1.0, 1.0, 1.0).but(**{"stop.target": 0.1, "rounds": 2})
    whole = experiment.but(**{"algorithm.closing": to.closing.WaitForAll()})
    to.run({"cut": experiment, "whole": whole}, out=tmp_path / "both", quiet=True, jobs=1)
    runs = find_runs(tmp_path / "both")
    run = runs.variants["whole"][0]
    assert time_after(run, np.arange(2)).tolist() == [0.0, 41.0]
    assert time_to(run, "global_accuracy", 0.0) == 0.0
    page = write_report(tmp_path / "both").read_text()
    for words in ("Simulated time", "Global accuracy for simulated time", "of the device time wasted"):
        assert words in page
