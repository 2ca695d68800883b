"""Disks, clocks and messages that fail: what the server and its devices keep, and questions that come again."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from test_flower import check_replay, weights, world

import turnout as to
from flower_grid import HereGrid, devices_of
from turnout.deploy.answering import ClientDevice, head_of
from turnout.deploy.apps import GridLink, answered, content_of
from turnout.deploy.enrolment import Enrolled
from turnout.deploy.server import serve_experiment
from turnout.errors import UserError
from turnout.machine.checksums import Damaged, load_tensors
from turnout.running.checking import checked_folder
from turnout.running.records.records import Records
from turnout.runtimes.remote import Parts

KEEPS = {"compression": to.compression.SparseTernary(keep=0.1)}


def served(experiment: to.Experiment, devices: list[Any], out: Path) -> Path:
    serve_experiment(GridLink(HereGrid(devices)), experiment, out)
    return out


def test_every_bit_of_what_the_server_keeps_of_devices_is_verified(tmp_path: Path) -> None:
    """A changed sample count would change every weight from then on."""
    experiment, disk = world().but(rounds=1), tmp_path / "devices"
    out = served(experiment, devices_of(experiment, "012", disk), tmp_path / "run")
    (path,) = (out / "clients").glob("enrolled-*.safetensors")
    content, kept = path.read_bytes(), load_tensors(path, "")
    assert kept[1]["0/examples"] > 0
    wrong = 0
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert load_tensors(path, "") == kept  # it was in a name that is not read
        except Damaged:
            wrong += 1
    assert wrong > 0.9 * 8 * len(content)
    path.write_bytes(content.replace(b'examples\\": 2', b'examples\\": 3'))
    assert path.read_bytes() != content
    assert [found.path.name for found in checked_folder(out) if found.wrong] == ["checkpoint.safetensors"]
    with pytest.raises(UserError, match=f"{path.name} is damaged"):
        served(experiment.but(rounds=2), devices_of(experiment, "012", disk), out)


def test_a_device_whose_rows_were_changed_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment, disk, out = world(**KEEPS), tmp_path / "devices", tmp_path / "run"
    served(experiment.but(rounds=2), devices_of(experiment, "012", disk), out)
    (path,) = (disk / "1" / "rows").rglob("0000001.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    served(experiment.but(rounds=5), devices_of(experiment, "012", disk), out)
    with Records.read(out / "records.sqlite") as records:
        assert [kind for t, client, kind, _ in records.events() if client == 1 and t > 0] == ["leave", "join"]
    assert f"{path.name} is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_device_with_a_full_or_failing_disk_is_absent(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends nothing that is not on its disk; when there is room again, it takes part."""
    experiment, disk = world(**KEEPS), tmp_path / "devices"
    full, write = {"0000001"}, os.fsync

    def failing(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").resolve()
        if "devices/1" in str(name) and name.name.split(".")[0] in full:
            raise OSError(number, "the disk says no")
        write(handle)

    monkeypatch.setattr("os.fsync", failing)
    out = served(experiment, devices_of(experiment, "012", disk), tmp_path / "run")
    with Records.read(out / "records.sqlite") as records:
        assert records.column("answered").tolist() == [3, 2, 3, 3]
        assert "1: its disk failed (the disk says no)" in str(records.rounds()["refused"][1])
    check_replay(out)


class Again:
    """A device that gets every question twice, and now and then one of an earlier round."""

    def __init__(self, device: ClientDevice):
        self.device, self.work = device, list[Parts]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def answer(self, parts: Parts) -> Parts:
        if head_of(parts)["what"] == "work":
            self.work.append(parts)
            for old in self.work[:-1][:1]:
                self.device.answer(old)
        self.device.answer(parts)
        return self.device.answer(parts)


def test_questions_that_come_again_cost_a_device_nothing(tmp_path: Path) -> None:
    experiment = world(**KEEPS)
    plain = served(experiment, devices_of(experiment, "012", tmp_path / "plain"), tmp_path / "run")
    devices = [Again(device) for device in devices_of(experiment, "012", tmp_path / "again")]
    out = served(experiment, devices, tmp_path / "run-again")
    for name, value in weights(plain).items():
        assert torch.equal(value, weights(out)[name]), name
    with Records.read(out / "records.sqlite") as records:
        assert {kind for _, _, kind, _ in records.events()} == {"join"}


def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = world().but(rounds=2)
    plain = served(experiment, devices_of(experiment, "012", tmp_path / "plain"), tmp_path / "run")
    now, year, jumps = time.time, 3.15e7, iter(range(10**9))
    monkeypatch.setattr("time.time", lambda: now() + year * (next(jumps) % 3 - 1))
    out = served(experiment, devices_of(experiment, "012", tmp_path / "jumping"), tmp_path / "run-jumping")
    for name, value in weights(plain).items():
        assert torch.equal(value, weights(out)[name]), name
    with Records.read(out / "records.sqlite") as records:
        assert (records.column("seconds") >= 0).all()


@pytest.mark.parametrize("ahead", [-1e6, 1e6])
def test_a_device_whose_clock_is_wrong_replies_in_time(ahead: float, tmp_path: Path) -> None:
    """Flower dates a reply by the device's clock, and a SuperLink refuses one that has expired by its own."""
    (device,) = devices_of(world(), "0", tmp_path)
    HereGrid([device])
    question = Message(content_of({}), 5, "query", ttl=60.0)
    question.metadata.__dict__["_created_at"] -= ahead
    device.answer = lambda parts: {"head": b"h"}
    reply = answered(device, question)
    assert (reply.metadata.created_at, reply.metadata.ttl) == (question.metadata.created_at, 60.0)


def test_03_is_not_client_3() -> None:
    enrolled = Enrolled(5)
    for node, name in enumerate(("03", "٣", "3", "+4", "4")):
        enrolled.enter(name, "", 10, node)
    numbers = {client.name: client.number for client in enrolled}
    assert (numbers["3"], numbers["4"]) == (3, 4)
