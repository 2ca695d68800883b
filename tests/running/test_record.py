"""Records: what goes in comes out, a round is whole or not there, a resumed file equals an unbroken one."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout as to
from same_rows import same
from turnout.errors import UserError
from turnout.rng import uniform
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.records.export import export_turnout
from turnout.running.records.glossary import Glossary
from turnout.running.records.records import Records
from turnout.tasks import MetricInfo


def a_round(t: int, clients: int = 4, **changes: object) -> RoundRecord:
    client_C = torch.arange(clients) * 3
    work_C = (uniform(0, "work", t, ids=client_C) * 5).floor() / 4
    loss_C = torch.where(work_C > 0, work_C + t, torch.nan)
    columns = {
        "client": client_C,
        "work": work_C,
        "share": torch.full((clients,), 1 / clients),
        "loss": loss_C,
    }
    record = {"asked": clients, "work": float(work_C.mean()), "train_loss": 1 / (t + 1), "clients": columns}
    return RoundRecord(round=t, **(record | changes))  # type: ignore[arg-type]


def an_evaluation(t: int) -> Evaluation:
    ids = torch.tensor([0, 3])
    return Evaluation(t, {"global_accuracy": t / 10}, {"personal_accuracy": (ids, ids / 10 + t)})


def write(path: Path, rounds: range) -> Path:
    with Records.open(path) as records:
        for t in rounds:
            records.add_round(a_round(t, seconds=time.perf_counter()), an_evaluation(t) if t % 2 else None)
    return path


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    with Records.open(tmp_path / "records.sqlite") as records:
        assert records.last_round() is None
        assert records.rounds()["round"].tolist() == []
        records.add_evaluation(Evaluation(-1, {"global_accuracy": 0.1}))
        events = [(3, "leave", "<said so>")]
        records.add_round(a_round(0, events=events, extra={"pairs": 6.0, "rule": "decide"}), an_evaluation(0))
        records.add_round(a_round(1, skipped="no client answered", train_loss=None))
        assert records.last_round() == 1
        assert records.column("skipped").tolist() == [None, "no client answered"]
        assert records.column("asked").tolist() == [4, 4]
        assert records.column("rule").tolist() == ["decide", None]
        assert records.column("pairs")[0] == 6.0
        assert np.isnan(records.column("pairs")[1])
        assert [c.tolist() for c in records.curve("global_accuracy")] == [[-1, 0], [0.1, 0.0]]
        assert [c.tolist() for c in records.curve("train_loss")] == [[0], [1.0]]
        assert records.events() == [(0, 3, "leave", "<said so>")]
        assert records.metrics() == ["global_accuracy"]
        assert records.client_metrics() == ["personal_accuracy"]
        ids, values = records.client_evaluation("personal_accuracy")
        assert ids.tolist() == [0, 3]
        assert values == pytest.approx([0, 0.3])


def test_client_columns_with_gaps_and_names_of_its_own(tmp_path: Path) -> None:
    columns = {
        "client": torch.tensor([5, 2]),  # any order
        "work": torch.tensor([0.0, 0.5]),
        "friend": torch.tensor([2, 2]),
        "gamma": torch.tensor([math.inf, math.nan]),
    }
    with Records.open(tmp_path / "records.sqlite") as records:
        records.add_round(RoundRecord(round=0, clients=columns))
        records.add_round(a_round(1))
        first = records.clients(0)
        assert sorted(first) == ["client", "friend", "gamma", "round", "work"]
        assert first["client"].tolist() == [2, 5]
        assert first["work"].tolist() == [0.5, 0.0]
        assert np.isnan(first["gamma"][0])
        assert first["gamma"][1] == math.inf
        everything = records.clients()
        assert everything["round"].tolist() == [0, 0, 1, 1, 1, 1]
        assert everything["share"][2:].tolist() == [0.25] * 4
        assert np.isnan(everything["share"][:2]).all()


@given(st.lists(st.floats(width=64) | st.none(), min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_every_number_survives(tmp_path_factory: pytest.TempPathFactory, values: list[float | None]) -> None:
    with Records.open(tmp_path_factory.mktemp("r") / "records.sqlite") as records:
        for t, value in enumerate(values):
            records.add_round(RoundRecord(round=t, train_loss=value))
        expected = np.array([math.nan if v is None else v for v in values])
        np.testing.assert_array_equal(records.column("train_loss"), expected)


def test_a_round_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    broken = Evaluation(1, {"global_accuracy": 0.5}, {"x": (torch.tensor([1, 1]), torch.tensor([0.0, 0.0]))})
    with Records.open(tmp_path / "records.sqlite") as records:
        records.add_round(a_round(0))
        with pytest.raises(UserError, match="round 1 is already in"):
            records.add_round(a_round(1), broken)
        assert records.last_round() == 0
        assert set(records.clients()["round"].tolist()) == {0}
        assert records.metrics() == []
        with pytest.raises(UserError, match="cuts the later rounds"):
            records.add_round(a_round(0))


def test_a_cut_and_continued_file_equals_an_unbroken_one(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.sqlite", range(6))
    part = write(tmp_path / "part.sqlite", range(5))
    differences = same(whole, part, show=1)
    assert differences[0] == f"rounds round 5: only in {whole}"
    assert "clients: and 3 more" in differences
    with Records.open(part) as records:
        records.cut(after=2)
        assert records.last_round() == 2
        assert records.curve("global_accuracy")[0].tolist() == [1]
    write(part, range(3, 6))
    assert same(whole, part) == []


def test_same_says_what_differs(tmp_path: Path) -> None:
    for name, loss, work, seconds in (("a", 0.5, 1.0, 1.0), ("b", 0.25, 0.5, 2.0)):
        columns = {
            "client": torch.tensor([7]),
            "work": torch.tensor([work]),
            "seconds": torch.tensor([seconds]),
        }
        record = RoundRecord(round=0, train_loss=loss, clients=columns, extra={"encode_seconds": seconds})
        with Records.open(tmp_path / name) as records:
            records.add_round(record)
    assert same(tmp_path / "a", tmp_path / "b") == [
        "rounds round 0: train_loss is 0.5 and 0.25",
        "clients round 0, client 7: work is 1.0 and 0.5",
    ]


def test_what_the_task_knows_of_its_metrics_is_kept_beside_the_rows(tmp_path: Path) -> None:
    infos = {"surprise": MetricInfo(False), "hits": MetricInfo(True, "percent")}
    path, old = write(tmp_path / "new.sqlite", range(3)), write(tmp_path / "old.sqlite", range(3))
    for _ in range(2):  # a resumed run says it again
        with Records.open(path) as records:
            records.describe(infos)
    with Records.read(path) as records:
        glossary = records.glossary()
    assert list(glossary.metrics.items()) == list(infos.items())
    assert same(path, old) == []
    with Records.read(old) as records:
        assert records.glossary() == Glossary()


def test_names_in_the_records_are_read_by_the_tasks_own_metrics() -> None:
    glossary = Glossary(
        {"hits": MetricInfo(True, "percent"), "lossless_error": MetricInfo(), "at_worst": MetricInfo(False)}
    )
    assert glossary.info("personal_hits_worst") == glossary.info("global_hits") == MetricInfo(True, "percent")
    assert glossary.info("personal_hits_spread") == MetricInfo(False, "percent")  # less apart is better
    assert glossary.higher_is_better("global_lossless_error")
    assert not glossary.higher_is_better("client_at_worst")  # a metric's own name, not the worst of "at"
    assert glossary.info("before_accuracy_noisy") == MetricInfo(True, "percent")  # well known
    assert glossary.info("glossy_hits") == glossary.info("hits_of_mine") == MetricInfo()  # no metric of the task
    assert glossary.info("bytes_up").unit == glossary.info("weight_bytes").unit == "bytes"
    assert glossary.info("epoch_seconds") == glossary.info("seconds") == MetricInfo(False, "seconds")
    names = ["personal_hits_worst", "global_loss", "former_hits", "personal_hits", "global_at_worst", "global_hits"]
    assert glossary.in_order(names) == [
        "global_hits", "personal_hits", "global_at_worst", "global_loss", "former_hits", "personal_hits_worst"
    ]  # fmt: skip


def test_turnout_is_exported_exactly(tmp_path: Path) -> None:
    columns = {"client": torch.tensor([0, 12]), "work": torch.tensor([0.0, 1 / 3], dtype=torch.float64)}
    with Records.open(tmp_path / "records.sqlite") as records:
        records.add_round(RoundRecord(round=0, clients=columns))
        path = export_turnout(records, tmp_path / "turnout.csv")
    head, first, second = path.read_text().splitlines()
    assert (head, first) == ("round,client,work", "0,0,0.0")
    assert float(second.removeprefix("0,12,")) == 1 / 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["records.sqlite", "turnout.csv"]


def _write_for_ever(path: Path) -> None:
    with Records.open(path) as records:
        t = 0
        while True:
            records.add_round(a_round(t), an_evaluation(t))
            t += 1


def test_a_reader_sees_whole_rounds_while_a_run_writes_and_after_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    Records.open(path).close()
    writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(path,))
    writer.start()
    seen = 0
    try:
        with Records.read(path) as records:
            for _ in range(3000):
                seen = records.last_round() or 0
                if seen >= 20:
                    break
                time.sleep(0.01)
            assert seen >= 20
            assert len(records.clients(seen)["client"]) == 4
    finally:
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
    with Records.open(path) as records:
        last = records.last_round()
        assert last is not None
        assert last >= seen
        assert len(records.clients()["client"]) == 4 * (last + 1)
        assert len(records.curve("global_accuracy")[0]) == last + 1
        records.sync()
        assert records.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_ten_thousand_clients_cost_little_more_than_their_bare_rows(tmp_path: Path) -> None:
    """Measured beside a table without keys or names, in turn: what else the machine does slows both."""
    names = ("work", "share", "weight", "loss", "examples", "bytes_up")
    columns = {"client": torch.arange(10_000)} | {name: torch.rand(10_000) for name in names}
    rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    bare = sqlite3.connect(tmp_path / "bare.sqlite")
    bare.execute("CREATE TABLE clients (client, work, share, weight, loss, examples, bytes_up)")
    ours, theirs = [], []
    with Records.open(tmp_path / "records.sqlite") as records:
        for t in range(8):
            start = time.process_time()
            records.add_round(RoundRecord(round=t, clients=columns))
            between = time.process_time()
            bare.executemany("INSERT INTO clients VALUES (?,?,?,?,?,?,?)", rows)
            bare.commit()
            ours.append(between - start)
            theirs.append(time.process_time() - between)
    bare.close()
    assert min(ours) < 8 * min(theirs)


def test_foreign_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("round,client,work\n" * 100)
    with pytest.raises(UserError, match="text"):
        Records.open(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE rounds (a)")
    db.close()
    for open_it in (Records.open, Records.read):
        with pytest.raises(UserError, match="not the records"):
            open_it(other)
    old = write(tmp_path / "old.sqlite", range(1))
    with sqlite3.connect(old) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UserError, match="version 99"):
        Records.read(old)


def test_a_reader_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path / "records.sqlite", range(2))
    with Records.read(tmp_path / "records.sqlite") as records:
        assert records.last_round() == 1
    assert [p.name for p in tmp_path.iterdir()] == ["records.sqlite"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no records at"):
        Records.read(tmp_path / "none.sqlite")
    with pytest.raises(UserError, match="no folder"):
        Records.open(tmp_path / "no" / "records.sqlite")
    write(tmp_path / "records.sqlite", range(2))
    with Records.read(tmp_path / "records.sqlite") as records:
        with pytest.raises(UserError, match="global_accuracy"):
            records.curve("global_acuracy")
        with pytest.raises(UserError, match="train_loss"):
            records.column("trainloss")
        with pytest.raises(UserError, match="personal_accuracy"):
            records.client_evaluation("accuracy")
        with pytest.raises(UserError, match="readonly"):
            records.cut(0)


def test_a_run_of_named_clients_replays_its_own_turnout(tmp_path: Path) -> None:
    """What a run exports names clients as its data does, so that the log can be read back for the same data."""
    owner = [name for name in ("anna", "ben", "7", "dora") for _ in range(6)]
    x, y = torch.arange(48.0).view(24, 2), torch.arange(24) % 2
    data = to.data.Own(x, y, owner, test_share=0.0, test=(x, y))
    world = to.World(data, to.participation.Dropout(0.5))
    first = to.Experiment(world, rounds=4, runtime=to.runtime.InProcess(device="cpu", threads=1))
    one_run = to.run(first, tmp_path / "first", quiet=True)
    log = to.participation.FleetLog(str(tmp_path / "first" / "turnout.csv"))
    assert "\n0,7," in (tmp_path / "first" / "turnout.csv").read_text()
    again = to.run(first.but(**{"world.participation": log}), tmp_path / "again", quiet=True)
    columns = ["round", "answered", "counted", "work", "weight_sum", "train_loss"]
    with one_run.records() as one, again.records() as two:
        for name in columns:
            assert one.rounds()[name].tolist() == two.rounds()[name].tolist()
