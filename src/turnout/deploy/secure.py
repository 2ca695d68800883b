"""Secure sums on devices: the stages of runtimes/secure_sum.py as questions to devices, and as a device answers them.

A device keeps the secrets of the round at hand in a file of its own that no other user can read, because Flower's own
node starts a process for each message. The file goes when the next round begins.

Shape letters: C clients asked, R replies, V entries of a vector that is summed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_bytes
from typing import TypeVar

import torch
from torch import Tensor

from turnout.machine.files import write_whole
from turnout.parts.privacy.private import Private
from turnout.parts.secure import SecureSum
from turnout.runtimes import border, wire
from turnout.runtimes.border import Kind, Maybe, Refused, RowSchema
from turnout.runtimes.remote import OWN, REPLY, ClientStanding, DeviceTask, DoTask, Parts, RemoteAnswer
from turnout.runtimes.secure_sum import (
    BOX,
    KEY,
    PUBLIC,
    SHARE,
    SecureClient,
    SecureServer,
    SumLost,
    bytes_up,
    mean_replies,
    vectors_of,
    whole_numbers,
)
from turnout.types import Message, Replies, State

SECURE = "secure"  # the part of a question about work that has the boxes
MASKED = "masked"  # a masked vector
Found = TypeVar("Found")
Survey = Callable[[Tensor, DeviceTask[dict[int, bytes]]], dict[int, dict[int, bytes]]]


def _bytes_of(value: Tensor) -> bytes:
    return bytes(value.tolist())


def _tensor_of(value: bytes) -> Tensor:
    return torch.tensor(list(value), dtype=torch.uint8)


def _tree(entries: Mapping[int, bytes]) -> State:
    return {str(c): _tensor_of(value) for c, value in entries.items()}


def _entries(tree: State) -> dict[int, bytes]:
    return {int(name): _bytes_of(value) for name, value in tree.items()}


# -- the server's side


class SecureExchange:
    """A secure sum with devices.

    rule      the settings
    client_C  the clients that are asked, sorted
    weight_C  what each multiplies its vector with
    t         the round
    survey    asks some clients, and waits for those that answer in time
    """

    def __init__(self, rule: SecureSum, client_C: Tensor, weight_C: Tensor, t: int, survey: Survey):
        self.rule, self.client_C, self.weight_C, self.t, self.survey = rule, client_C, weight_C, t, survey
        self.server = SecureServer(rule, len(client_C))

    def begin(self) -> Tensor:
        """Exchange keys and shares; the clients that have shared their secrets."""
        announced = self._ask("keys", self.client_C, lambda client: {"t": self.t}, lambda client: {client: PUBLIC})
        self.server.announce({c: found[c] for c, found in announced.items()})

        def keys(client: int) -> State:
            return {"threshold": self.server.threshold, "entries": _tree(self.server.keys_for(client))}

        client_C = torch.tensor(sorted(announced))
        self.server.boxes = self._ask("shares", client_C, keys, lambda c: dict.fromkeys(self.server.neighbours[c], BOX))
        return torch.tensor(sorted(self.server.boxes), dtype=torch.int64)

    def part_for(self, client: int) -> bytes:
        """What a client needs to mask its vector, beside the model."""
        weight = float(self.weight_C[torch.searchsorted(self.client_C, client)])
        about = {"clients": len(self.client_C), "weight": weight}
        return wire.pack({**about, "entries": _tree(self.server.boxes_for(client))})

    def read(self, client_1: Tensor, message: bytes, entries: int) -> Replies:
        """A masked vector."""
        schema: dict[str, Kind] = {MASKED: RowSchema((entries,), (torch.int32,))}
        masked_1V = border.read(message, schema)[MASKED][None]
        return Replies(client_1, Message({MASKED: masked_1V}, torch.tensor([4 * entries])), report={
            "finite": torch.tensor([True]), "bytes_down": torch.zeros(1, dtype=torch.int64)})  # fmt: skip

    def finish(self, replies: Replies, like_P: Tensor) -> Replies:
        """Unmask the sum of the vectors that arrived; the mean in place of each update."""
        arrived = replies.client_R.sort().values
        rows = dict(zip(replies.client_R.tolist(), replies.message.tensors[MASKED], strict=True))

        def question(client: int) -> State:
            here = [c for c in self.server.neighbours[client] if c in rows]
            return {"arrived": torch.tensor(here, dtype=torch.int64), "total": len(rows)}

        revealed = self._ask("reveal", arrived, question, lambda c: dict.fromkeys(self.server.neighbours[c], SHARE))
        sum_V = self.rule.decode(self.server.total(rows, revealed), len(self.client_C))
        weight = float(self.weight_C[torch.searchsorted(self.client_C, arrived)].sum())
        each = bytes_up(len(self.server.neighbours[int(arrived[0])]), len(sum_V))
        return mean_replies(sum_V, weight, replies, each, like_P)

    def _ask(
        self, what: str, client_C: Tensor, question: Callable[[int], State], sizes: Callable[[int], dict[int, int]]
    ) -> dict[int, dict[int, bytes]]:
        """One stage: entries of these sizes from each client that answers."""

        def read(client: int, answer: RemoteAnswer) -> dict[int, bytes]:
            kinds = {f"entries/{c}": Maybe(RowSchema((size,), (torch.uint8,))) for c, size in sizes(client).items()}
            found = border.read(answer.parts[REPLY], kinds)
            if what != "reveal" and len(found) < len(kinds):  # a share that cannot be revealed is one share less
                raise Refused(f"its answer to {what!r} is not complete")
            return {int(name.removeprefix("entries/")): _bytes_of(value) for name, value in found.items()}

        def message(client: int, seconds: float) -> tuple[State, Parts]:
            return {}, {OWN: wire.pack(question(client))}

        return self.survey(client_C, DeviceTask(what, message, read))


# -- a device's side


class SecureDevice:
    """Answers the stages for one client.

    rule     the settings, which are the device's own: a server cannot lower them
    folder   the device's folder
    private  how often it takes part in private sums. It counts each vector that it has masked, used or not: a server
             that was killed before it stored a round cannot have the round again from the same devices
    """

    def __init__(self, rule: SecureSum, folder: Path, private: Private | None = None):
        self.rule, self.private = rule, private
        self.path, self.rounds = folder / "secure-sum.json", folder / "private-rounds.json"
        self.tasks: dict[str, DoTask] = {"keys": self._keys, "shares": self._shares, "reveal": self._reveal}

    def _keys(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        t, client = int(wire.unpack(parts[OWN])["t"]), SecureClient(standing.client, least=self.rule.least)
        if self.private is not None and (before := self._rounds_of(standing)):
            most, separation = self.private.most or len(before) + 1, self.private.min_separation
            if len(before) >= most or t - before[-1] < separation:
                often = f"{len(before)} times, last in round {before[-1]}"
                raise SumLost(f"it took part {often}: privacy allows {most}, at least {separation} rounds apart")
        self._write(standing, t, client)
        return {}, {"entries": _tree({standing.client: client.announce()})}

    def _shares(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        asked, (t, client) = wire.unpack(parts[OWN]), self._read(standing)
        boxes = client.share(_entries(asked["entries"]), int(asked["threshold"]))
        self._write(standing, t, client)
        return {}, {"entries": _tree(boxes)}

    def _reveal(self, head: State, standing: ClientStanding, parts: Parts) -> tuple[State, State | None]:
        asked, (t, client) = wire.unpack(parts[OWN]), self._read(standing)
        shares = client.reveal(asked["arrived"].tolist(), int(asked["total"]))
        self._write(standing, t, client)  # before the answer: the same secrets are never used for another one
        return {}, {"entries": _tree(shares)}

    def masked(self, standing: ClientStanding, part: bytes, replies: Replies, t: int) -> State:
        """The reply to work: the client's update, weighted and masked."""
        asked, (begun, client) = wire.unpack(part), self._read(standing)
        if begun != t:
            raise SumLost(f"its secrets are of round {begun}, not of round {t}")
        weight_1 = torch.tensor([float(asked["weight"])], dtype=torch.float64)
        vector_1V = vectors_of(self.rule, replies.message.tensors["update"], replies.report["loss"], weight_1)
        if cut := self.rule.beyond(vector_1V):
            print(f"{cut} entries of the update are cut to algorithm.secure.limit = {self.rule.limit:g}", flush=True)
        whole_1V = whole_numbers(self.rule, vector_1V, int(asked["clients"]), [token_bytes(KEY)])
        masked_V = client.mask(whole_1V[0], _entries(asked["entries"]))
        self._write(standing, t, client)
        if self.private is not None:  # before the answer
            write_whole(self.rounds, json.dumps([standing.run, [*self._rounds_of(standing), t]]))
        return {MASKED: masked_V}

    def _rounds_of(self, standing: ClientStanding) -> list[int]:
        """The rounds of this run in which it has masked a private vector."""
        try:
            run, masked = json.loads(self.rounds.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise SumLost(f"{self.rounds.name} is damaged, so it does not know how often it took part") from error
        return [int(t) for t in masked] if run == standing.run else []

    def _read(self, standing: ClientStanding) -> tuple[int, SecureClient]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept.pop("run") != standing.run or kept["number"] != standing.client:
                raise SumLost("its secrets are of another run")
            t = int(kept.pop("t"))
            by_name = {n: {int(c): bytes.fromhex(v) for c, v in kept[n].items()} for n in ("neighbours", "boxes")}
            secrets = {n: bytes.fromhex(kept[n]) for n in ("mask_secret", "box_secret", "seed")}
            return t, SecureClient(**(kept | by_name | secrets))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SumLost("it has no secrets of this round") from error

    def _write(self, standing: ClientStanding, t: int, client: SecureClient) -> None:
        def plain(value: object) -> object:
            if isinstance(value, dict):
                return {str(c): entry.hex() for c, entry in value.items()}
            return value.hex() if isinstance(value, bytes) else value

        text = json.dumps({"run": standing.run, "t": t} | {name: plain(value) for name, value in vars(client).items()})
        new = self.path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
