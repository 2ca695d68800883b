"""What crosses the runtime seam: how much, and what of it is refused.

That clients which share nothing with the server but bytes give the results of one process is in test_parity.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from bytes_runtime import BytesOnly, Process
from example_experiments import scaffold, ternary
from parity import shrunk
from turnout.parts.compression.base import Sending
from turnout.parts.compression.codec.sparse import Ternary
from turnout.running.tracks.prepare import prepare
from turnout.runtimes import border, wire
from turnout.runtimes.border import Refused
from turnout.types import Message, Replies
from worlds import download_for


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Process, ...]]:
    started = (Process(), Process())
    yield started
    for process in started:
        process.close()


def test_what_crosses_is_the_download_and_the_replies(processes):
    """A round costs about a model a process down, an update a participant up; kept rows never travel."""
    experiment = shrunk(scaffold())
    track = prepare(experiment.but(runtime=BytesOnly(processes)))
    before = [process.received for process in processes]
    _, record = track.round(track.begin(), 0)
    received = sum(process.received for process in processes) - sum(before)
    update = 4 * track.model.layout.shared * 2 * record.counted  # an update and a control variate each
    assert update < received < 1.1 * update + 2_000 * len(processes)


def test_rows_of_bytes_travel_no_longer_than_the_longest(a_reply, monkeypatch):
    """A GPU writes into rows as wide as a message can be, and does not wait for its length."""
    write = Ternary.write

    def wide(self: Ternary, *given):
        message = write(self, *given)
        return replace(message, tensors={"byte": torch.nn.functional.pad(message.tensors["byte"], (0, 99))})

    monkeypatch.setattr(Ternary, "write", wide)
    found = made_reply()[0]
    assert found.message.tensors["byte"].shape[1] == int(found.message.bytes_C.max())
    assert torch.equal(found.message.tensors["byte"], a_reply[0].message.tensors["byte"])


@pytest.fixture(scope="module")
def a_reply():
    return made_reply()


def made_reply():
    """One client's reply as a device would send it, and what it is held against."""
    track = prepare(shrunk(ternary()))
    runtime = track.runtime
    download = download_for(torch.arange(3), track)
    asked = runtime.full_work(torch.tensor([1]), 0)
    replies, _ = runtime.clients.work(download, asked)
    sending = Sending(0, track.experiment.seed, asked.client_R, runtime.layout.shared_slots)
    return replies, (replies, track.algorithm, sending)


def spoilt(replies: Replies, kind: str) -> Replies:
    message, report = replies.message, replies.report
    byte = message.tensors["byte"]
    changed = {
        "another's": {"client_R": replies.client_R + 1},
        "cut": {"message": Message(message.tensors | {"byte": byte[:, : byte.shape[1] // 2]}, message.bytes_C // 2)},
        "noise": {"message": Message(message.tensors | {"byte": 255 - byte}, message.bytes_C)},
        "no loss": {"report": {name: value for name, value in report.items() if name != "loss"}},
        "bytes": {"report": report | {"bytes_up": -report["bytes_up"]}},
        "more states": {"states": {"extra": torch.zeros(1, 3)}},
        "nan": {"hints": {"sketch": torch.full((1, 4), torch.nan)}},
    }
    return replace(replies, **changed[kind])


@pytest.mark.parametrize("kind", ["another's", "cut", "noise", "no loss", "bytes", "more states", "nan"])
def test_a_reply_that_cannot_be_used_is_found_at_the_border(kind, a_reply):
    replies, against = a_reply
    border.work(wire.pack(wire.replies_tree(replies)), *against)
    with pytest.raises(Refused, match=r"^it"):
        border.work(wire.pack(wire.replies_tree(spoilt(replies, kind))), *against)


def test_rows_of_numbers_are_never_padded(a_reply):
    """An update that is too short must not be taken for one that ends in zeros."""
    whole = Replies(torch.tensor([0]), Message({"update": torch.ones(1, 5)}, torch.tensor([20])))
    short = Replies(torch.tensor([1]), Message({"update": torch.ones(1, 4)}, torch.tensor([16])))
    with pytest.raises(RuntimeError):
        Replies.join([whole, short])
