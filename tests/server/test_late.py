"""Who is in time, who is late, and what is in flight: ties, seats, caps, late replies, clients that leave meanwhile."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import turnout as to
from turnout.layout import lay_out
from turnout.parts.closing import IDLE, close
from turnout.parts.robust import coordinate_median
from turnout.runtimes.setup import Model
from turnout.runtimes.timing import buffered, flops_of_sample
from turnout.times import Times
from worlds import blobs, local_updates, play, ready, walk, world

# The devices of test_clock.py: 72 bytes down in 2 s, 32 samples in 2 s, 72 bytes up in 4 s, latency 0.5 s: 9 s in all.
MBIT = 8e-6
LOCAL = to.Local(to.SGD(lr=0.1), epochs=4, batch_size=4)
EQUAL = to.devices.Alike(samples_per_second=16.0, down_mbps=36 * MBIT, up_mbps=18 * MBIT, latency=0.5)


def equal_clients(count: int, closing: object, *fractions: float, **algorithm: object) -> to.Experiment:
    """Clients with the same samples and the same devices: every reply takes 9 s."""
    parts = {"local": LOCAL, "weighting": to.weighting.FedAvg(), "closing": closing} | algorithm
    return world([8] * count, *fractions, **parts).but(**{"world.devices": EQUAL})


def trained(prepared, client: int, t: int, start_P: Tensor) -> Tensor:
    return walk(prepared, client, t, start_P)[0] - start_P


def replied(record) -> list[int]:
    return record.clients["client"][record.clients["work"] > 0].tolist()


def column(record, name: str) -> list[float]:
    return [round(value, 9) for value in record.clients[name].tolist()]


# -- ties


def test_exactly_count_of_equal_replies_close_a_round():
    prepared = ready(equal_clients(12, to.closing.FirstReplies(count=3)))
    begin = prepared.begin().shared_P
    state, (record,) = play(prepared)
    assert record.counted == 3
    assert replied(record) == [0, 1, 2]
    assert column(record, "late") == [0] * 3 + [1] * 9
    assert record.extra["simulated_seconds"] == 9.0
    expected = begin + sum(trained(prepared, client, 0, begin) for client in range(3)) / 3
    torch.testing.assert_close(state.shared_P, expected)


def test_who_loses_a_tie_is_late_and_arrives_in_the_next_round():
    _, (first, second) = play(ready(equal_clients(4, to.closing.FirstReplies(count=3, late="use"))), 2)
    assert replied(first) == [0, 1, 2]
    # Round 1 asks clients 0, 1 and 2 again, and closes with the third of them; client 3's reply is there at once.
    assert replied(second) == [0, 1, 2, 3]
    assert column(second, "age") == [0, 0, 0, 1]
    assert second.extra["simulated_time"] == 18.0


def test_a_buffer_of_one_steps_once_for_every_equal_reply():
    prepared = ready(equal_clients(12, to.closing.Buffered(size=1, concurrency=12)))
    at = [prepared.begin().shared_P]
    state, records = play(prepared, 13)
    assert [replied(record) for record in records] == [[k] for k in range(12)] + [[0]]
    assert [record.counted for record in records] == [1] * 13
    assert [column(record, "age") for record in records] == [[k] for k in range(12)] + [[11]]
    assert [record.extra["simulated_time"] for record in records] == [9.0] * 12 + [18.0]
    for k in range(12):  # all began with the first model
        at.append(at[k] + trained(prepared, k, 0, at[0]) / math.sqrt(1 + k))
    at.append(at[12] + trained(prepared, 0, 1, at[1]) / math.sqrt(12))  # began again in step 1
    torch.testing.assert_close(state.shared_P, at[13])


def test_equal_arrivals_are_taken_by_client_whether_they_began_before_or_now():
    # Client 4 is in flight until 3 s; 2 and 7 need 3 s, too. Of the three, 2 and 4 make the step.
    begin, arrived, closes = buffered([(4, 3.0)], [(7, 3.0), (2, 3.0)], seats=2, size=2)
    assert begin == {7: 0.0, 2: 0.0}
    assert arrived == [2, 4]
    assert closes == 3.0


def test_a_reply_at_the_deadline_is_in_time():
    closes, in_time_C = close(torch.tensor([9.0, 9.0, 10.0]), limit=9.0, enough=3)
    assert (closes, in_time_C.tolist()) == (9.0, [True, True, False])
    _, (record,) = play(ready(equal_clients(2, to.closing.Deadline(seconds=9.0, partial=False))))
    assert record.counted == 2


def test_a_round_without_enough_replies_is_closed_at_its_limit_or_with_the_last_one():
    never, nobody = torch.inf, torch.tensor([])
    for arrivals, limit, enough, closes, in_time in (
        (torch.tensor([3.0, never, 5.0]), never, 3, 5.0, [True, False, True]),
        (torch.tensor([3.0, never, 5.0]), 8.0, 3, 8.0, [True, False, True]),
        (torch.tensor([3.0, 9.0, 5.0]), 8.0, 3, 8.0, [True, False, True]),
        (torch.tensor([3.0, 7.0, 5.0]), 8.0, 3, 7.0, [True, True, True]),
        (torch.tensor([never]), never, 1, IDLE, [False]),
        (nobody, never, 0, IDLE, []),
        (nobody, 8.0, 0, 8.0, []),
    ):
        found, in_time_C = close(arrivals, limit, enough)
        assert (found, in_time_C.tolist()) == (closes, in_time)
    assert to.closing.FirstReplies(count=5).enough(3) == 3


def test_a_reply_in_flight_that_arrives_when_the_round_is_closed_is_in_time(tmp_path):
    """Client 1 needs 30 s and rounds take 15 s, because client 2 is absent: it arrives at the end of round 1."""
    devices = device_file(tmp_path / "devices.csv", [16.0, 32 / 23, 16.0])
    closing = to.closing.Deadline(seconds=15.0, partial=False, late="use")
    _, records = play(ready(equal_clients(3, closing, 1.0, 1.0, 0.0).but(**{"world.devices": devices})), 2)
    assert [record.extra["simulated_time"] for record in records] == [15.0, 30.0]
    assert [replied(record) for record in records] == [[0], [0, 1]]


def test_an_asynchronous_step_may_end_with_a_reply_that_began_before_it(tmp_path):
    """9, 16 and 30 s: step 0 ends with 0 and 1, at 16 s. Then 0 arrives 9 s later, 2 after 14 s, 1 after 16 s."""
    devices = device_file(tmp_path / "devices.csv", [16.0, 32 / 9, 32 / 23])
    prepared = ready(equal_clients(3, to.closing.Buffered(size=2)).but(**{"world.devices": devices}))
    state, records = play(prepared, 2)
    assert [replied(record) for record in records] == [[0, 1], [0, 2]]
    assert [record.extra["simulated_time"] for record in records] == pytest.approx([16.0, 30.0])
    assert state.time.in_flight.client_L.tolist() == [1]


def test_a_round_that_ends_with_its_last_reply_takes_what_was_really_sent():
    """Sparse messages are shorter than the longest there can be, which the devices planned with."""
    ternary, wide = (
        {"compression": to.compression.SparseTernary(keep=0.1)},
        {"world.data": blobs([8, 8, 8], features=40)},
    )
    prepared = ready(equal_clients(3, to.closing.WaitForAll(), **ternary).but(**wide))
    _, (record,) = play(prepared)
    arrival_C = sum(record.clients[f"{part}_time"] for part in ("download", "train", "upload"))
    assert float(record.clients["bytes_up"].max()) < prepared.runtime.timing.planned_bytes(0)
    assert record.clients["upload_time"].tolist() == pytest.approx((0.5 + record.clients["bytes_up"] / 18).tolist())
    assert record.extra["simulated_seconds"] == pytest.approx(float(arrival_C.max()))
    # with an absent client it is the deadline that ends the round
    _, (record,) = play(
        ready(equal_clients(3, to.closing.Deadline(seconds=50.0), 1.0, 1.0, 0.0, **ternary).but(**wide))
    )
    assert record.counted == 2
    assert record.extra["simulated_seconds"] == 50.0


def test_devices_stopped_in_a_round_have_done_what_fits():
    """Stopped after 5 s: one began at once and is 3 s into its training, one began at 4 s and has half its download."""
    two = {"download_C": 2.0, "train_C": 10.0, "upload_C": 3.0, "bytes_down_C": 8.0, "up_C": 1.0}
    columns = {name: torch.full((2,), value).double() for name, value in two.items()}
    whose = {"late_C": torch.ones(2, dtype=torch.bool), "tier_C": torch.zeros(2, dtype=torch.int64)}
    times = Times(begin_C=torch.tensor([0.0, 4.0]).double(), closes=5.0, **columns, **whose)
    cut = times.cut(5.0, torch.ones(2, dtype=torch.bool))
    assert (cut.download_C.tolist(), cut.train_C.tolist(), cut.upload_C.tolist()) == ([2, 1], [3, 0], [0, 0])
    assert cut.bytes_down_C.tolist() == [8, 4]
    assert (times.spent_C.tolist(), cut.spent_C.tolist()) == ([15, 15], [5, 1])


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"terms": (to.terms.Scaffold(),)},
        {"substitution": to.substitution.Friends(client_sketch=5)},
        {"local": to.Local(to.Adam(moments="federated"), epochs=4, batch_size=4)},
    ],
    ids=["update", "what terms send", "sketch", "moments"],
)
def test_devices_plan_with_all_that_they_send_and_download(algorithm: dict):
    """Without compression that is known: the plan is what was sent, and the download takes what was downloaded."""
    prepared = ready(equal_clients(2, to.closing.WaitForAll(), **algorithm))
    _, (record,) = play(prepared)
    assert column(record, "bytes_up") == [prepared.runtime.timing.planned_bytes(0)] * 2
    assert column(record, "download_time") == [round(0.5 + n / 36, 9) for n in column(record, "bytes_down")]
    assert column(record, "upload_time") == [round(0.5 + n / 18, 9) for n in column(record, "bytes_up")]
    assert (column(record, "bytes_up")[0] > 72) == bool(algorithm)


def test_a_model_whose_operations_are_not_counted_takes_two_a_parameter():
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones(7))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    scaled = Scaled()
    assert flops_of_sample(Model(scaled, lay_out(scaled, None), torch.ones(7), {}), torch.ones(1, 7)) == 3 * 2 * 7


# -- seats of an asynchronous server


def test_a_reply_that_is_there_already_frees_its_seat_now_and_not_before():
    begin, arrived, closes = buffered([(4, -1.0)], [(7, 3.0)], seats=0, size=2)
    assert (begin, arrived, closes) == ({7: 0.0}, [4, 7], 3.0)
    assert buffered([(4, -1.0)], [], seats=0, size=1) == ({}, [4], 0.0)


def test_a_buffer_of_one_reply_of_one_client_is_the_smallest():
    assert to.closing.Buffered(size=1, concurrency=1).buffer == 1
    for size, concurrency in ((0, 1), (1, -1), (2, 1)):
        with pytest.raises(to.UserError, match=r"size|concurrency"):
            to.closing.Buffered(size=size, concurrency=concurrency)


def test_as_many_clients_at_work_as_make_a_step_are_enough():
    assert to.closing.Buffered(size=3, concurrency=3).buffer == 3


class Noting(to.selection.Count):
    """Notes what it is asked."""

    def choose(self, members, t, seed, state=None):
        self.__dict__.setdefault("asked", []).append((t, seed))
        return super().choose(members, t, seed)


def test_a_selection_that_draws_again_draws_something_else():
    selection = Noting(2)
    prepared = ready(equal_clients(12, to.closing.Buffered(size=1, concurrency=8), selection=selection))
    selection.__dict__["asked"] = []
    play(prepared)
    asked = prepared.algorithm.selection.__dict__["asked"]
    assert [t for t, _ in asked] == [0] * 4
    assert asked[0] == (0, prepared.experiment.seed)
    assert len({seed for _, seed in asked}) == 4


def test_clients_that_left_but_stay_in_the_objective_take_no_seat():
    """Eight of twelve remain, and eight are to be at work: the selection draws until it has found them."""
    closing, membership = to.closing.Buffered(size=1, concurrency=8), to.Membership(leave="include")
    experiment = equal_clients(12, closing, selection=to.selection.Count(3), membership=membership)
    prepared = ready(experiment.but(**{"world.events": tuple(to.Leave(client, 1) for client in range(4))}))
    state, records = play(prepared, 12)
    assert len(state.time.in_flight.client_L) == 7
    assert min(int(client) for record in records[2:] for client in replied(record)) >= 4


def test_a_buffer_keeps_its_concurrency_whatever_the_selection_draws():
    """Count(4) draws half of the 8 clients that are to be at work: the selection draws again among those free."""
    experiment = equal_clients(12, to.closing.Buffered(size=4, concurrency=8), selection=to.selection.Count(4))
    prepared = ready(experiment)
    state = prepared.begin()
    ages = []
    for t in range(6):
        state, record = prepared.round(state, t)
        assert record.counted == 4
        assert len(state.time.in_flight.client_L.unique()) == 7  # the eighth has just replied
        ages.append(column(record, "age"))
    assert ages[:2] == [[0] * 4, [1] * 4]


def device_file(path, speeds: list[float]) -> to.devices.DeviceFile:
    """Samples a second of each client: a round takes 7 s and 32 samples."""
    rows = "".join(f"{c},{speed},{36 * MBIT},{18 * MBIT},0.5\n" for c, speed in enumerate(speeds))
    path.write_text("client,samples_per_second,down_mbps,up_mbps,latency\n" + rows)
    return to.devices.DeviceFile(str(path))


def test_a_seat_that_becomes_free_within_a_step_is_taken_at_once(tmp_path):
    """Of the three that are drawn one needs 9 s and two need 71 s: others begin at 9 s and at 18 s."""
    selection = to.selection.Count(3)
    experiment = equal_clients(12, to.closing.Buffered(size=3), selection=selection)
    drawn = selection.choose(ready(experiment).begin().members, 0, 0).tolist()
    speeds = [0.5 if client in drawn[1:] else 16.0 for client in range(12)]
    prepared = ready(experiment.but(**{"world.devices": device_file(tmp_path / "devices.csv", speeds)}))
    state, (record,) = play(prepared)
    assert record.extra["simulated_seconds"] == 27.0
    assert sorted(column(record, "begin_time")) == [0.0, 9.0, 18.0]
    assert drawn[0] in replied(record)
    assert sorted(state.time.in_flight.client_L.tolist()) == drawn[1:]


def test_a_client_at_work_is_not_asked_again():
    """Of four equal clients two make a step; the two in flight are not asked, though the selection draws them."""
    prepared = ready(equal_clients(4, to.closing.Buffered(size=2)))
    state, _ = play(prepared)
    assert state.time.in_flight.client_L.tolist() == [2, 3]
    for closing in (to.closing.Buffered(size=2), to.closing.FirstReplies(count=2, late="use")):
        asked: list[list[int]] = []
        prepared = ready(equal_clients(4, closing))
        ask = prepared.runtime.ask
        prepared.runtime.ask = lambda client_C, download, ask=ask, asked=asked: (
            asked.append(client_C.tolist()) or ask(client_C, download)
        )
        play(prepared, 2)
        assert asked == [[0, 1, 2, 3], [0, 1]]


def test_seats_are_those_that_replies_in_flight_leave():
    """Three of six at work, steps of one: in step 1 two are in flight, so one client begins, not three."""
    state, _ = play(ready(equal_clients(6, to.closing.Buffered(size=1, concurrency=3))), 2)
    in_flight = state.time.in_flight
    assert len(in_flight.client_L) == 2
    assert sorted(in_flight.round_L.tolist()) == [0, 1]


# -- the cap of a coefficient

COUNTS, FRACTIONS = [8, 12, 4, 16], (1.0, 0.5, 0.0, 1.0)  # one absent, one partial client


@pytest.mark.parametrize("scale_at", ["client", "server"])
@pytest.mark.parametrize("cap", [0.2, 0.5])
def test_the_cap_is_of_share_and_scale_together(scale_at: str, cap: float):
    """Scheme C: a_k = min(cap, p_k E/s_k), wherever E/s is applied; 0.6 of the partial client is above both caps."""
    experiment = world(COUNTS, *FRACTIONS, max_weight=cap, scale_at=scale_at)
    prepared = ready(experiment)
    own_CP = local_updates(prepared)
    state, (record,) = play(prepared)
    coefficient = torch.tensor([min(cap, 8 / 40), min(cap, 2 * 12 / 40), 0.0, min(cap, 16 / 40)]).double()
    torch.testing.assert_close(state.shared_P - prepared.begin().shared_P, coefficient @ own_CP)
    scale = torch.tensor([1.0, 2.0 if scale_at == "client" else 1.0, 1.0, 1.0]).double()
    torch.testing.assert_close(record.clients["weight"] * scale, coefficient)


@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_the_cap_of_fednova_is_of_the_coefficient_of_an_update(scale_at: str):
    """p_k τ_eff / a_k on D_k, shares over those who replied: a = 8, 6, 16 steps of 8, 12, 16 samples."""
    prepared = ready(world(COUNTS, *FRACTIONS, weighting=to.weighting.FedNova(), max_weight=0.4, scale_at=scale_at))
    p, a = torch.tensor([8.0, 12.0, 16.0]).double() / 36, torch.tensor([8.0, 6.0, 16.0]).double()
    coefficient = (p * (p * a).sum() / a).clamp(max=0.4)
    assert coefficient.tolist().count(0.4) == 1
    state, _ = play(prepared)
    moved_P = state.shared_P - prepared.begin().shared_P
    torch.testing.assert_close(moved_P, coefficient @ local_updates(prepared)[[0, 1, 3]])


@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_the_cap_is_of_a_median_too(scale_at: str):
    """Votes are what is left of the weights: min(cap / (E/s), p) on updates that are scaled by E/s."""
    aggregation = to.aggregation.CoordinateMedian()
    prepared = ready(world(COUNTS, *FRACTIONS, max_weight=0.3, scale_at=scale_at, aggregation=aggregation))
    scale = torch.tensor([1.0, 2.0, 1.0]).double()
    weight = torch.minimum(torch.tensor([8.0, 12.0, 16.0]).double() / 40, 0.3 / scale)
    sent_RP = local_updates(prepared)[[0, 1, 3]] * scale[:, None]
    state, _ = play(prepared)
    moved_P = state.shared_P - prepared.begin().shared_P
    torch.testing.assert_close(moved_P, weight.sum() * coordinate_median(sent_RP, weight))


def test_the_cap_is_of_a_late_reply_after_its_discount(tmp_path):
    """Client 1 needs 23 s, rounds 15 s: in round 1 it counts min(cap, 1/2 / sqrt(2)), not min(cap, 1/2) / sqrt(2)."""
    devices = device_file(tmp_path / "devices.csv", [16.0, 2.0, 16.0])
    closing = to.closing.Deadline(seconds=15.0, partial=False, late="use")
    experiment = equal_clients(3, closing, 1.0, 1.0, 0.0, max_weight=0.4).but(**{"world.devices": devices})
    _, (_, second) = play(ready(experiment), 2)
    torch.testing.assert_close(second.clients["weight"][:2], torch.tensor([0.4, 0.5 / math.sqrt(2)]).double())


def test_the_cap_is_of_boost_and_borrowed_shares_too():
    """Client 3 joins in round 1: boost 3 on 16 / 40, and its part of what client 2 lends."""
    experiment = world(
        COUNTS, *FRACTIONS, weighting=to.weighting.ByShare(), substitution=to.substitution.Spread(), max_weight=0.5
    )
    experiment = experiment.but(**{"world.events": (to.Join(3, 1),)})
    _, (first, second) = play(ready(experiment), 2)
    torch.testing.assert_close(first.clients["weight"], torch.tensor([0.4, 0.5, 0.0]).double())
    lent = 4 / 40 * torch.tensor([8.0, 12.0, 0.0, 16.0]).double() / 36
    own = torch.tensor([8.0, 12.0, 0.0, 3 * 16.0]).double() / 40
    torch.testing.assert_close(second.clients["weight"], (own + lent).clamp(max=0.5))


# -- late replies


def test_late_replies_that_cannot_be_are_refused():
    """With partial work all send what they have by the deadline: no late reply would ever be used."""
    closing = to.closing.Deadline
    with pytest.raises(to.UserError, match="set partial = false"):
        closing(late="use")
    assert closing(late="use", partial=False).uses_late
    assert not closing().uses_late
    ageless = closing(late="use", partial=False, power=0.0)
    assert ageless.discount(torch.tensor([0, 3])).tolist() == [1.0, 1.0]
    with pytest.raises(to.UserError, match="power"):
        closing(power=-0.5)


def test_a_late_reply_that_is_not_finite_stops_the_run_or_is_dropped(tmp_path):
    devices = device_file(tmp_path / "devices.csv", [16.0, 2.0, 16.0])
    closing = to.closing.Deadline(seconds=15.0, partial=False, late="use")
    experiment = equal_clients(3, closing)
    hostile = replace(experiment.world, devices=devices, attack=(NotFinite(),), attackers=(1,))
    experiment = replace(experiment, world=hostile)
    with pytest.raises(to.UserError, match="client 1 in round 0 is not finite"):
        play(ready(experiment))
    state, records = play(ready(experiment.but(**{"algorithm.nonfinite": "absent"})), 3)
    assert [replied(record) for record in records] == [[0, 2]] * 3
    assert len(state.time.in_flight.client_L) == 0
    assert bool(torch.isfinite(state.shared_P).all())
    assert records[0].extra["wasted_device_seconds"] == 15.0


class NotFinite(to.attacks.Attack):
    def update(self, scene):
        return torch.full_like(scene.own_hP, torch.nan)


# -- clients that leave while their reply is in flight


@pytest.mark.parametrize("leave", ["exclude", "include"])
def test_a_client_that_has_left_contributes_nothing_though_its_reply_was_in_flight(tmp_path, leave: str):
    """Client 1 leaves in round 1, its reply would arrive at 23 s, in that round. Included, its share stays unused."""
    devices = device_file(tmp_path / "devices.csv", [16.0, 2.0, 16.0])
    closing = to.closing.Deadline(seconds=15.0, partial=False, late="use")
    parts = {"weighting": to.weighting.ByShare(), "membership": to.Membership(leave=leave)}
    experiment = equal_clients(3, closing, 1.0, 1.0, 1.0, **parts)
    prepared = ready(experiment.but(**{"world.devices": devices, "world.events": (to.Leave(1, 1),)}))
    state, _ = play(prepared)
    assert state.time.in_flight.client_L.tolist() == [1]
    after, record = prepared.round(state, 1)
    assert replied(record) == [0, 2]
    assert len(after.time.in_flight.client_L) == 0
    share = 1 / 2 if leave == "exclude" else 1 / 3
    expected = state.shared_P + share * sum(trained(prepared, client, 1, state.shared_P) for client in (0, 2))
    torch.testing.assert_close(after.shared_P, expected)


def test_replies_in_flight_lose_those_of_clients_that_left_and_keep_their_rounds():
    """Buffers of 1: one reply of round 0 and one of round 1 are in flight, each with its own round."""
    prepared = ready(equal_clients(3, to.closing.Buffered(size=1, concurrency=3)))
    state, _ = play(prepared, 2)
    in_flight = state.time.in_flight
    assert dict(zip(in_flight.client_L.tolist(), in_flight.round_L.tolist(), strict=True)) == {2: 0, 0: 1}
    left = in_flight.without(torch.tensor([2]))
    assert (left.client_L.tolist(), left.round_L.tolist()) == ([0], [1])
    assert (left.arrival_L.tolist(), left.turnout.client_C.tolist()) == ([18.0], [0])
    assert in_flight.without(torch.tensor([0, 2])).replies is None
    again = left.plus(in_flight.without(torch.tensor([0])))
    assert dict(zip(again.client_L.tolist(), again.round_L.tolist(), strict=True)) == {2: 0, 0: 1}
    assert dict(zip(again.client_L.tolist(), again.arrival_L.tolist(), strict=True)) == {2: 9.0, 0: 18.0}
