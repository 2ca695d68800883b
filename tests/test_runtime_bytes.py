"""The runtime seam is real: clients that share nothing with the server but bytes give the results of one process.

To the bit: where clients train in C as they are, otherwise one client at a time (in larger chunks a client's sums are
rounded differently with its company, so that chunks have to be equal).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import turnout as to
from bytes_runtime import BytesOnly, Process
from turnout.parts.compression.base import Sending
from turnout.recipes import cook, recipes
from turnout.round import download_for
from turnout.round_log import RoundRecord
from turnout.runtimes.border import fault
from turnout.server.state import Server
from turnout.tracks.prepare import prepare
from turnout.tracks.weights import Weights
from turnout.types import Message, Replies, flatten

ROUNDS = 4
ONE_PER_PART = (
    "participation/A", "participation/C", "baselines/FedNova", "baselines/SCAFFOLD", "baselines/VRL-SGD",
    "baselines/MimeLite", "baselines/APFL", "baselines/FedAMP", "compression/8 bits", "compression/ternary",
    "elastic/EFL", "multitask/MT-FedAdam", "friends/Friends", "friends/Stale", "arrival/fast-reboot",
    "departure/include", "together/all", "deadlines/ternary", "deadlines/FedBuff",
)  # fmt: skip
OTHER_DATA = ("mnist", "emnist", "cifar", "animals")  # recipes whose data is not in the package


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Process, ...]]:
    started = (Process(), Process())
    yield started
    for process in started:
        process.close()


def variants() -> dict[str, to.Experiment]:
    """Every recipe of the weight track that needs no other data, a few rounds of it."""
    found = {}
    for recipe in recipes():
        if not recipe.startswith(OTHER_DATA):
            found |= {f"{recipe}/{variant}": shrunk(e) for variant, e in cook(recipe).items()}
    return {name: e for name, e in found.items() if isinstance(e.algorithm, to.Algorithm)}


def shrunk(experiment: to.Experiment) -> to.Experiment:
    """The same with few rounds, in which whoever joins or leaves does so."""
    moved = [replace(e, round=min(e.round, 2)) if isinstance(e, to.Join | to.Leave) else e
             for e in experiment.world.events]  # fmt: skip
    moved = [e for e in moved if not isinstance(e, to.RandomEvents)]
    return experiment.but(rounds=ROUNDS, seed=3, **{"world.events": tuple(moved)})


def played(track: Weights) -> tuple[Server, list[RoundRecord], list[dict[str, float]]]:
    server, records, values = track.begin(), [], []
    for t in range(ROUNDS):
        server, record = track.round(server, t)
        records.append(record)
        values.append(dict(track.evaluate(server, t).values))
    return server, records, values


def check_parity(experiment: to.Experiment, processes: tuple[Process, ...]) -> None:
    here = to.InProcess(device="cpu", threads=1)
    native = prepare(experiment.but(runtime=here)).about()["engine"] == "native"
    here = here if native else replace(here, precision="float64", chunk=1)
    exact = {"rtol": 0.0, "atol": 0.0}
    one = played(prepare(experiment.but(runtime=here)))
    other = played(prepare(experiment.but(runtime=BytesOnly(processes, here))))
    for a, b in zip(one[1], other[1], strict=True):
        assert (a.asked, a.answered, a.counted, a.skipped) == (b.asked, b.answered, b.counted, b.skipped)
        assert (a.bytes_up, a.bytes_down, a.events) == (b.bytes_up, b.bytes_down, b.events)
        assert a.clients.keys() == b.clients.keys()
        for name in a.clients:
            torch.testing.assert_close(a.clients[name], b.clients[name], **exact, equal_nan=True)
    tensors, others = (flatten(server.to_state())[0] for server in (one[0], other[0]))
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        torch.testing.assert_close(value, others[name], **exact, msg=lambda text, name=name: f"{name}: {text}")
    for a, b in zip(one[2], other[2], strict=True):
        assert a == pytest.approx(b, rel=1e-9, nan_ok=True)  # models are measured several at a time


@pytest.mark.parametrize("name", ONE_PER_PART)
def test_one_recipe_per_part(name, processes):
    check_parity(variants()[name], processes)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(variants().keys() - set(ONE_PER_PART)))
def test_every_recipe(name, processes):
    check_parity(variants()[name], processes)


def test_what_crosses_is_the_download_and_the_replies(processes):
    """A round costs about a model a process down, an update a participant up; kept rows never travel."""
    experiment = variants()["baselines/SCAFFOLD"]
    track = prepare(experiment.but(runtime=BytesOnly(processes)))
    before = [process.received for process in processes]
    _, record = track.round(track.begin(), 0)
    received = sum(process.received for process in processes) - sum(before)
    update = 4 * track.model.layout.shared * 2 * record.counted  # an update and a control variate each
    assert update < received < 1.1 * update + 2_000 * len(processes)


@pytest.fixture(scope="module")
def a_reply():
    """One client's reply as a device would send it, and what it is held against."""
    track = prepare(shrunk(cook("compression")["ternary"]).but(runtime=to.InProcess(device="cpu", threads=1)))
    server, runtime = track.begin(), track.runtime
    download = download_for(torch.arange(3), server, 0, 0.1, track.algorithm, runtime.layout.shared_slots)
    asked = runtime.full_work(torch.tensor([1]), 0)
    replies, _ = runtime.clients.work(download, asked)
    sending = Sending(0, track.experiment.seed, asked.client_R, runtime.layout.shared_slots)
    return replies, (asked, track.algorithm, runtime.layout, server.states, sending)


def spoilt(replies: Replies, kind: str) -> Replies:
    message, report = replies.message, replies.report
    byte = message.tensors["byte"]
    changed = {
        "another's": {"client_C": replies.client_C + 1},
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
    assert fault(replies, *against) is None
    found = fault(spoilt(replies, kind), *against)
    assert found is not None
    assert found.startswith("it")


def test_rows_of_numbers_are_never_padded(a_reply):
    """An update that is too short must not be taken for one that ends in zeros."""
    whole = Replies(torch.tensor([0]), Message({"update": torch.ones(1, 5)}, torch.tensor([20])))
    short = Replies(torch.tensor([1]), Message({"update": torch.ones(1, 4)}, torch.tensor([16])))
    with pytest.raises(RuntimeError):
        Replies.join([whole, short])
