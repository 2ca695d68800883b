"""Client state by id, its incremental checkpoints, and checkpoint files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from turnout.clients.store import ClientStore
from turnout.errors import UserError
from turnout.running.records.checkpoint import NAME, Checkpoint, read_checkpoint, rounds_done, write_checkpoint


def store(**changes: object) -> ClientStore:
    return ClientStore({"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(0)}, **changes)  # type: ignore[arg-type]


def rows(*values: float) -> dict[str, torch.Tensor]:
    a = torch.tensor([[v, -v] for v in values])
    return {"a": a, "n": torch.arange(len(values))}


def test_rows_by_id_and_initial_values_for_strangers():
    s = store()
    s.scatter(torch.tensor([900_000, 7]), rows(5.0, 6.0))
    found = s.gather(torch.tensor([7, 3, 900_000]))
    assert found["a"].tolist() == [[6.0, -6.0], [1.0, 2.0], [5.0, -5.0]]
    assert found["n"].tolist() == [1, 0, 0]
    assert len(s) == 2
    s.forget(7)
    assert s.gather(torch.tensor([7]))["a"].tolist() == [[1.0, 2.0]]
    assert s.knows(torch.tensor([7, 900_000])).tolist() == [False, True]
    assert len(s) == 1


def test_a_forgotten_client_is_new_also_after_a_restart_and_its_room_is_used_again(tmp_path: Path):
    s = store()
    s.scatter(torch.arange(200), rows(*range(200)))
    files = s.save(tmp_path, "0", [])
    s.forget(1)
    s.forget(2)
    s.scatter(torch.tensor([900, 2]), rows(9.0, -2.0))  # 2 came back at once
    files = s.save(tmp_path, "1", files)
    again = store()
    again.load(tmp_path, files)
    for one in (s, again):
        assert one.knows(torch.tensor([0, 1, 2, 3, 900])).tolist() == [True, False, True, True, True]
        assert one.gather(torch.tensor([0, 1, 2, 3, 900]))["a"].tolist() == [
            [0.0, -0.0], [1.0, 2.0], [-2.0, 2.0], [3.0, -3.0], [9.0, -9.0]
        ]  # fmt: skip
    assert len(s) == len(again) == 200
    s.forget(900)
    assert len(s.save(tmp_path, "2", files)) == 3, "to have forgotten somebody is a change"


def test_rows_on_disk_are_the_same(tmp_path: Path):
    s = store(memory_limit=100, folder=tmp_path)
    for i in range(300):
        s.scatter(torch.tensor([i]), rows(float(i)))
    assert s.gather(torch.tensor([299, 0, 150]))["a"][:, 0].tolist() == [299.0, 0.0, 150.0]
    assert list(tmp_path.glob("*.rows"))


def test_checkpoints_write_what_changed(tmp_path: Path):
    s = store()
    s.scatter(torch.arange(50), rows(*range(50)))
    files = s.save(tmp_path, "0", [])
    s.scatter(torch.tensor([3]), rows(-3.0))
    files = s.save(tmp_path, "1", files)
    assert len(files) == 2
    assert (tmp_path / files[1]).stat().st_size < (tmp_path / files[0]).stat().st_size
    again = store()
    again.load(tmp_path, files)
    assert torch.equal(again.gather(torch.arange(60))["a"], s.gather(torch.arange(60))["a"])
    for i in range(2, 40):  # many small files are folded into one
        s.scatter(torch.arange(20), rows(*range(20)))
        files = s.save(tmp_path, str(i), files)
    assert len(files) < 10
    again.load(tmp_path, files)
    assert torch.equal(again.gather(torch.arange(60))["a"], s.gather(torch.arange(60))["a"])


def test_a_checkpoint_comes_back_and_a_damaged_or_foreign_one_is_refused(tmp_path: Path):
    path = tmp_path / "checkpoint.safetensors"
    state = {"w": torch.arange(4.0), "parts": {"x": {}, "y": {"count": 3, "m": torch.ones(2)}}, "origin": 7}
    write_checkpoint(path, Checkpoint(12, state, "abc", ["clients-0.safetensors"]))
    found = read_checkpoint(path, "abc", state)
    assert (found.round, found.client_files) == (12, ["clients-0.safetensors"])
    assert torch.equal(found.state["w"], state["w"])
    assert found.state["parts"]["x"] == {}
    assert found.state["parts"]["y"]["count"] == 3
    with pytest.raises(UserError, match="other data or another model"):
        read_checkpoint(path, "other", state)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="damaged"):
        read_checkpoint(path, "abc", state)
    path.write_bytes(b"not a checkpoint at all")
    with pytest.raises(UserError, match="damaged"):
        read_checkpoint(path, "abc", state)


def test_how_far_a_run_got_is_read_from_the_head_alone(tmp_path: Path):
    assert rounds_done(tmp_path) == 0
    path = tmp_path / NAME
    write_checkpoint(path, Checkpoint(6, {"w": torch.zeros(100_000)}, "f", []))
    assert rounds_done(tmp_path) == 7
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    assert rounds_done(tmp_path) == 7, "the numbers behind it do not matter"
    for damaged in (b"", whole[:40], b"\xff" * 40, whole[:8] + b"[]" * 200):
        path.write_bytes(damaged)
        assert rounds_done(tmp_path) == 0
