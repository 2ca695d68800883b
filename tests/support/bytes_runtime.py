"""A runtime whose clients live in other processes and which shares nothing with the server but bytes.

`python bytes_runtime.py` is such a process: it reads messages from its standard input and writes answers to its
standard output, each as its length and its bytes (runtimes/wire.py). The first message of a run is the experiment and
the ids of the clients that live there: it loads their data itself, as a device would have it.

Shape letters: C clients of the cohort, R replies, r replies of one process.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

import turnout as to
from turnout.engine.trainers import place_of
from turnout.exchange import Assignment, Departure, Download, Measure, Measured, Outbox, Simulation
from turnout.parts.compression.base import Sending
from turnout.running.config.read import from_table
from turnout.running.config.write import to_toml
from turnout.running.tracks.building import enrolment_of
from turnout.running.tracks.prepare import settled
from turnout.runtimes import border, wire
from turnout.runtimes.client_pool import ClientPool
from turnout.runtimes.inprocess import Simulated
from turnout.runtimes.setup import Setup
from turnout.types import Replies, State, Tensors, Turnout
from turnout.world.events import Calendar


@dataclass(frozen=True)
class BytesOnly:
    """Clients in other processes, reached by bytes."""

    kind: ClassVar[str] = "bytes-only"
    processes: tuple[Process, ...]
    compute: to.runtime.InProcess = to.runtime.InProcess(device="cpu", threads=1)  # noqa: RUF009 (frozen)
    shares_the_machine: ClassVar[bool] = False

    def on_threads(self, threads: int) -> BytesOnly:
        return self

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> BytesOnly:
        return self

    def open(self, setup: Setup) -> BytesRuntime:
        return BytesRuntime(setup, self.processes, self.compute)


class Process:
    """One process with some clients: a message goes there, its answer comes back."""

    def __init__(self, script: str = __file__) -> None:
        command = [sys.executable, script]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.sent = self.received = 0

    def send(self, what: str, **tree: Any) -> None:
        message = wire.pack({"what": what, **tree})
        self.sent += len(message)
        write(self.popen.stdin, message)

    def answer(self) -> State:
        message = read(self.popen.stdout)
        assert message is not None, "the process is gone"
        self.received += len(message)
        return wire.unpack(message)

    def ask(self, what: str, **tree: Any) -> State:
        self.send(what, **tree)
        return self.answer()

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.wait()
        self.popen.stdout.close()


def living_at(processes: Sequence[Process], client_I: Tensor) -> list[tuple[Process, Tensor]]:
    """Which of these clients live where: their places in the list."""
    home_I = client_I % len(processes)
    found = [(process, (home_I == i).nonzero().squeeze(1)) for i, process in enumerate(processes)]
    return [(process, place) for process, place in found if len(place)]


class BytesRuntime(Simulated):
    """The server's side: it draws the turnout and knows sample counts, and has neither data nor rows of clients."""

    def __init__(self, setup: Setup, processes: Sequence[Process], compute: to.runtime.InProcess):
        super().__init__(setup)
        self.processes, self.working = processes, list[int]()
        text = to_toml(setup.experiment.but(runtime=compute))
        for i, process in enumerate(processes):
            process.ask("open", experiment=text, residue=i, processes=len(processes))

    @property
    def simulation(self) -> Simulation:
        return self

    def _at(self, client_I: Tensor) -> list[tuple[Process, Tensor]]:
        return living_at(self.processes, client_I)

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        turnout, asked = self.plan(client_C, download)
        return turnout, None if asked is None else self._work("work", asked, download)

    def _work(self, what: str, asked: Assignment, download: Download) -> Replies:
        parts = self._at(asked.client_R)
        for process, place in parts:
            part = asked.take(place)
            own = download.among(part.client_R.sort().values)
            process.send(what, download=wire.download_tree(own), asked=wire.assignment_tree(part))
        answers = [wire.replies_of(process.answer()) for process, _ in parts]
        if what == "work":
            self._check(answers, [asked.take(place) for _, place in parts], download)
        replies = Replies.join(answers)
        return replies.take(torch.cat([place for _, place in parts]).argsort())

    def _check(self, answers: list[Replies], parts: list[Assignment], download: Download) -> None:
        """What comes from elsewhere is read as a device's reply would be."""
        for replies, part in zip(answers, parts, strict=True):
            sending = Sending(download.t, self.seed, part.client_R, self.layout.shared_slots)
            border.work(wire.pack(wire.replies_tree(replies)), replies, self.algorithm, sending)

    def unfinished(self, client_I: Tensor, download: Download) -> Replies:
        parts = self._at(client_I)
        for process, place in parts:
            own = wire.download_tree(download.among(client_I[place]))
            process.send("unfinished", download=own, client=client_I[place])
        replies = Replies.join([wire.replies_of(process.answer()) for process, _ in parts])
        return replies.take(torch.cat([place for _, place in parts]).argsort())

    def commit(self, t: int, client_R: Tensor) -> None:
        for process in self.processes:
            process.ask("commit", client=client_R)

    def depart(self, client_I: Tensor, outbox: Outbox) -> Departure:
        found = [
            process.ask("depart", client=client_I[place], outbox=outbox.to_state())
            for process, place in self._at(client_I)
        ]
        client_H = torch.cat([f["client"] for f in found])
        order = torch.searchsorted(client_I.sort().values, client_H).argsort()

        def joined(rows: list[dict[str, Tensors]]) -> dict[str, Tensors]:
            return {t: {n: torch.cat([r[t][n] for r in rows])[order] for n in rows[0][t]} for t in rows[0]}

        to_forget, to_remember = (joined([f[name] for f in found]) for name in ("to_forget", "to_remember"))
        return Departure(client_H[order], to_forget, to_remember)

    def forget(self, client_I: Tensor) -> None:
        for process, place in self._at(client_I):
            process.ask("forget", client=client_I[place])

    def gradient(self, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int) -> Tensor | None:
        here_C = self.turn_out(client_C, t)[0].present_C
        client_C, share_C = client_C[here_C], share_C[here_C]
        total_P, mass = torch.zeros_like(shared_P), float(share_C.sum())
        for process, place in self._at(client_C):
            own_C = share_C[place]
            asked = {"shared": shared_P, "states": states, "client": client_C[place], "share": own_C, "t": t}
            total_P += process.ask("gradient", **asked)["gradient"] * (float(own_C.sum()) / mass)
        return total_P if len(client_C) else None

    def measure(self, asked: Measure) -> Measured:
        one = wire.measured_of(self.processes[0].ask("measure", **wire.measure_tree(asked, asked.client_C[:0])))
        if not (asked.common or asked.own):
            return one
        parts, found, rest = self._at(asked.client_C), [], replace(asked, central={})
        for process, place in parts:
            tree = wire.measure_tree(rest, asked.client_C[place])
            found.append(wire.measured_of(process.ask("measure", **tree)))
        order = torch.cat([place for _, place in parts]).argsort()
        common, own = ({n: torch.cat([v[n] for v in values])[order] for n in values[0]}
                       for values in ([f.common for f in found], [f.own for f in found]))  # fmt: skip
        noisy = None if found[0].noisy_C is None else torch.cat([f.noisy_C for f in found])[order]
        return Measured(one.central, common, own, noisy)

    def save(self, folder: Path, mark: str, files: list[str]) -> list[str]:
        named = [[f for f in files if f"-p{i}." in f] for i in range(len(self.processes))]
        asks = zip(range(len(self.processes)), self.processes, named, strict=True)
        found = [p.ask("save", folder=str(folder), mark=f"{mark}-p{i}", files=own)["files"] for i, p, own in asks]
        return [name for names in found for name in names]

    def durable(self, t: int) -> None:
        """Files are all that is kept."""

    def close(self) -> None:
        """The processes serve the next run."""

    def load(self, run: str, folder: Path, files: list[str]) -> None:
        for i, process in enumerate(self.processes):
            process.ask("load", folder=str(folder), files=[f for f in files if f"-p{i}." in f])

    def describe(self) -> dict[str, Any]:
        return self.processes[0].ask("describe")

    def memory(self, cohort: int, ever: int) -> dict[str, int]:
        return self.processes[0].ask("memory", cohort=cohort, ever=ever)

    def would_send(self, client_C: Tensor, download: Download) -> tuple[Tensor, Tensor]:
        asked = self.full_work(client_C, download.t)
        if not len(asked.client_R):
            return asked.client_R, download.shared_P.new_empty(0, len(download.shared_P))
        return asked.client_R, self._work("would send", asked, download).message.tensors["update"]

    def own_model(self, client: int, asked: Measure) -> tuple[Tensor, Tensors]:
        raise to.UserError("a client's own model stays where the client is")


# -- the other side


class ClientsAtHome:
    """What a process that clients live in answers on either track."""

    clients: Any
    residue: int
    processes: int

    def _only_mine(self, client_I: Tensor) -> Tensor:
        assert bool((client_I % self.processes == self.residue).all()), "asked about somebody else's client"
        return client_I

    def forget(self, client: Tensor) -> State:
        self.clients.forget(self._only_mine(client))
        return {}

    def save(self, folder: str, mark: str, files: list[str]) -> State:
        return {"files": self.clients.save(Path(folder), mark, files)}

    def load(self, folder: str, files: list[str]) -> State:
        self.clients.load(Path(folder), files)
        return {}

    def describe(self) -> State:
        return self.clients.describe()

    def memory(self, cohort: int, ever: int) -> State:
        return dict(self.clients.memory(cohort, ever))


class Home(ClientsAtHome):
    """The process that clients live in."""

    def open(self, experiment: str, residue: int, processes: int) -> State:
        given = from_table(tomllib.loads(experiment))
        federation = given.world.data.load(given.seed, None)
        prepared, _, model = settled(given, enrolment_of(federation))
        place = place_of(prepared.runtime.compute)
        assert isinstance(prepared.algorithm, to.Algorithm)
        self.residue, self.processes, self.place = residue, processes, place
        self.clients = ClientPool(Setup(prepared, prepared.algorithm, federation, model, Calendar(), place))
        return {}

    def work(self, download: State, asked: State) -> State:
        work = wire.assignment_of(asked)
        self._only_mine(work.client_R)
        replies, rows = self.clients.work(wire.download_of(download), work)
        self.clients.pending = replies.client_R, rows
        return wire.replies_tree(replies)

    def unfinished(self, download: State, client: Tensor) -> State:
        return wire.replies_tree(self.clients.unfinished(self._only_mine(client), wire.download_of(download)))

    def would_send(self, download: State, asked: State) -> State:
        replies, _ = self.clients.work(wire.download_of(download), wire.assignment_of(asked), dense=True)
        return wire.replies_tree(replies)

    def commit(self, client: Tensor) -> State:
        self.clients.commit(client)
        return {}

    def depart(self, client: Tensor, outbox: State) -> State:
        found = self.clients.depart(self._only_mine(client), Outbox.from_state(outbox))
        return {"client": found.client_H, "to_forget": found.to_forget, "to_remember": found.to_remember}

    def gradient(self, shared: Tensor, states: State, client: Tensor, share: Tensor, t: int) -> State:
        flat_P, own = self.clients.model.with_first_values(shared, wire.flatten(states)[0])
        found_P = self.clients.mean_gradient(flat_P, own, self._only_mine(client), share, t)
        assert found_P is not None
        return {"gradient": found_P[: len(shared)]}

    def measure(self, **tree: Any) -> State:
        asked = wire.measure_of(tree)
        self._only_mine(asked.client_C)
        return wire.measured_tree(self.clients.measure(asked))


def write(stream: BinaryIO, message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "little") + message)
    stream.flush()


def read(stream: BinaryIO) -> bytes | None:
    head = stream.read(8)
    return stream.read(int.from_bytes(head, "little")) if len(head) == 8 else None


def serve(home: Any) -> None:
    """Answer messages, each by the function of that name, until there are no more."""
    torch.set_num_threads(1)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (message := read(source)) is not None:
        tree = wire.unpack(message)
        what = tree.pop("what").replace(" ", "_")
        write(sink, wire.pack(getattr(home, what)(**tree)))


if __name__ == "__main__":
    serve(Home())
