"""The score track's seam is real: clients that share nothing with the server but bytes give the results of one process.

To the bit, in float64 and one client at a time (in larger chunks a client's sums are rounded differently with its
company).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import turnout as to
from bytes_runtime import Process
from bytes_scores import ScoresByBytes, score_process
from example_experiments import three_users
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.tracks.prepare import prepare
from turnout.runtimes.crew import WORKERS
from turnout.scores.round import ScoreServer
from turnout.scores.track import ScoreTrack
from turnout.types import flatten

ROUNDS = 5
HERE = to.runtime.InProcess(device="cpu", threads=1, precision="float64", chunk=1)
TIMES = ("epoch_seconds", "inference_seconds")


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Process, ...]]:
    started = (score_process(), score_process())
    yield started
    for process in started:
        process.close()


def world(**algorithm) -> to.Experiment:
    """Labels that overlap and differ in number, a model that changes, absences, one who joins and leaves again."""
    settings = {
        "local": to.Local(to.Adam(0.01, 0.9, 0.999), epochs=2, batch_size=5),
        "models": {1: {0: to.models.MLP(6, batch_norm=True), 3: to.models.MLP(5, activation="softmax")}},
    }
    sets = (("3", "5"), ("5", "8"), ("8", "9"), ("3", "5", "9"))
    return to.Experiment(
        world=to.World(
            to.data.Arriving(to.data.Digits(), sets, per_label=6, public=12, mix=2.0),
            to.participation.Dropout(0.3),
            [to.Join(2, 1), to.Leave(2, 3)],
        ),
        model=to.models.MLP(8),
        algorithm=to.scores.Scores(**(settings | algorithm)),
        rounds=ROUNDS,
        seed=1,
        runtime=HERE,
    )


def elsewhere(experiment: to.Experiment, processes: tuple[Process, ...]) -> to.Experiment:
    return experiment.but(runtime=ScoresByBytes(processes, HERE))


def played(track: ScoreTrack) -> tuple[ScoreServer, list[RoundRecord], list[Evaluation]]:
    server, records, evaluations = track.begin(), [], []
    for t in range(ROUNDS):
        server, record = track.round(server, t)
        records.append(record)
        evaluations.append(track.evaluate(server, t))
    return server, records, evaluations


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def check_parity(experiment: to.Experiment, processes: tuple[Process, ...]) -> list[RoundRecord]:
    return check_same(experiment, elsewhere(experiment, processes))


def check_same(experiment: to.Experiment, other: to.Experiment) -> list[RoundRecord]:
    (server, records, values), (other_server, other_records, other_values) = (
        played(prepare(e)) for e in (experiment, other)
    )
    for a, b in zip(records, other_records, strict=True):
        plain = [name for name in vars(a) if name not in ("extra", "clients")]
        assert [getattr(a, name) for name in plain] == [getattr(b, name) for name in plain]
        assert a.extra.keys() == b.extra.keys()
        assert {n: v for n, v in a.extra.items() if n not in TIMES} == {n: b.extra[n] for n in a.extra.keys() - TIMES}
        assert a.clients.keys() == b.clients.keys()
        for name in a.clients:
            same(a.clients[name], b.clients[name])
    for one, other in zip(values, other_values, strict=True):
        assert one.values == other.values
        for name, (client_C, value_C) in one.per_client.items():
            same(client_C, other.per_client[name][0])
            same(value_C, other.per_client[name][1])
    tensors, others = (flatten(state.to_state())[0] for state in (server, other_server))
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        same(value, others[name])
    return records


NOISY = to.Private(clip=2.0, n0=2, delta=1e-3, noise_multiplier=0.5, noise_at="client", most=3)
WAYS = [
    {"start": "fresh", "distil": to.scores.Distil(epochs=1)},
    {"start": "carried", "distil": to.scores.Distil(epochs=2, batch_size=7), "scores": "logits"},
    {"start": "carried"},
    {
        "start": "fresh",
        "distil": to.scores.Distil(epochs=1),
        "early": to.scores.EarlyStopping(1, share=0.3),
        "rows": "labelled",
    },
    {"start": "carried", "distil": to.scores.Distil(epochs=1), "beta": "equal", "privacy": NOISY},
]


@pytest.mark.parametrize("algorithm", WAYS)
def test_every_way_to_start(algorithm, processes):
    records = check_parity(world(**algorithm), processes)
    assert any(record.answered < record.asked for record in records)  # somebody was absent
    assert [(e.client, e.kind) for record in records for e in record.events] == [(2, "join"), (2, "leave")]
    assert {record.members for record in records} == {3, 4}


@pytest.mark.slow
def test_every_way_to_start_in_processes_that_hold_no_models():
    with WORKERS.reused():
        for algorithm in WAYS:
            check_same(world(**algorithm), world(**algorithm).but(runtime=to.runtime.Processes(2, HERE)))


@pytest.mark.slow
@pytest.mark.parametrize("distil", [False, True])
def test_three_users_with_models_that_change(distil, processes):
    check_parity(three_users(distil).but(rounds=ROUNDS, seed=1, runtime=HERE), processes)


def test_processes_go_back_to_what_their_files_say(processes, tmp_path: Path):
    track = prepare(elsewhere(world(start="carried"), processes))
    state, files = track.begin(), list[str]()
    for t in range(2):
        state, _ = track.round(state, t)
        files = track.runtime.save(tmp_path, str(t), files)
    _, wanted = track.round(state, 2)
    track = prepare(elsewhere(world(start="carried"), processes))
    track.runtime.load("", tmp_path, files)
    _, found = track.round(track.unpack(track.pack(state)), 2)
    for name in wanted.clients:
        same(wanted.clients[name], found.clients[name])


def test_models_stay_where_the_clients_are(processes):
    """What crosses are scores, not weights."""
    track = prepare(elsewhere(world(start="carried").but(model=to.models.MLP(400)), processes))
    before = sum(process.received for process in processes)
    _, record = track.round(track.begin(), 0)
    scores = sum(process.received for process in processes) - before
    assert 2 * record.bytes_up < scores < 2 * record.bytes_up + 2_000 * record.answered + 2_000  # in eight bytes each
    with pytest.raises(to.UserError, match="on its device"):
        track.module(track.begin(), 0)
