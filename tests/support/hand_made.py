"""Answers made by hand that no working device sends: each is an honest answer with one thing changed.

`Forger` is a device that sends one of them whenever it is asked that kind of question, and honest answers otherwise.
All forgers of a test may share one honest device, which costs a single model.

    python tests/support/hand_made.py DEVICE.toml ...

runs these devices: all but the last two share 200 answers, and those two send bad introductions. Each answer is a line
of the output.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from forgers import GONE, Forger, HandMade
from turnout.deploy.device import open_device, read_device
from turnout.deploy.shortcuts import stay
from turnout.runtimes import wire
from turnout.runtimes.remote import HEAD, OWN, REPLY, Parts

HUGE, LONE = 10**400, "\ud800"
Change = Callable[[Any], Any]


# -- changes of a value


def flat(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)


def scalar(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[0].clone()


def twice(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value, value])


def nothing(value: torch.Tensor) -> torch.Tensor:
    return value[:0]


def deeper(value: torch.Tensor) -> torch.Tensor:
    return value[None]


def float8(value: torch.Tensor) -> torch.Tensor:
    return value.float().to(torch.float8_e4m3fn)


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.int64)


def flags(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bool)


def complex64(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex64)


def nan(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, torch.nan)


def infinite(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, torch.inf)


def long(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, 3e38)


def minus(value: torch.Tensor) -> torch.Tensor:
    return -value - 1


def largest(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, 2**63 - 1)


def many_names(content: bytes) -> bytes:
    tree = wire.unpack(content)
    tree["common"] |= {f"metric {i}": torch.ones(1, dtype=torch.float64) for i in range(50_000)}
    return wire.pack(tree)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


def text(content: bytes) -> bytes:
    return b"no tensors at all" * 10


def a_list(content: bytes) -> bytes:
    return header({"__metadata__": {wire.PLAIN: "[1, 2]"}})


def no_table(content: bytes) -> bytes:
    return header([1])


def deep(content: bytes) -> bytes:
    return header({"__metadata__": {wire.PLAIN: "[" * 20_000}})


def header(table: object) -> bytes:
    said = json.dumps(table).encode()
    return len(said).to_bytes(8, "little") + said


ODD_BYTES = (cut, empty, text, a_list, no_table, deep)
NO_TENSOR = (GONE, 5, "x", [1.0], None, HUGE)
ODD_TENSORS = (*NO_TENSOR, scalar, twice, nothing, deeper, float8, complex64)

HEADS: dict[str, tuple[Any, ...]] = {
    "error": (5, [1], HUGE, True),
    "client": (GONE, "0", 1.5, True, None, HUGE, [0]),
    "leaving": (GONE, 1, "yes", None),
    "holds": (GONE, "x", 1.5, None, HUGE),
    "next": (GONE, 1, "yes", None),
    "why": (GONE, 5, None, ["x"], "x" * 30_000),
    "lost": (1, "yes", [True]),
    "name": (GONE, "", LONE, "a\x1b[2Jb", "two\nlines", "x" * 201, 5, None, ["a"]),
}
INTRODUCTION: dict[str, tuple[Any, ...]] = {
    "examples": (GONE, 0, -1, "9", 1.5, True, 2**62, HUGE, None),
    "data": (GONE, 5, "", "{}", "[]", LONE, "[" * 20_000, '{"clients": "x"}'),
    "digest": (GONE, 5, "another", LONE),
    "values": (GONE, 5, "another", LONE, ["x"]),
    "key": (GONE, 5, LONE, "ssh-rsa AAAA", "x"),
    "labels": (5, "ab", [[]], [None], [HUGE], [-1], [True]),
}
WORKED: dict[str, tuple[Any, ...]] = {
    "steps": ("4", 1.5, True, -1, 10**6, HUGE, [4]),
    "training": (HUGE, "soon", [1], True, -1.0, float("inf")),
    "download": (HUGE, "soon"),
    "upload": (HUGE, -1),
}
UPDATE: dict[str, tuple[Any, ...]] = {
    "client_R": (*ODD_TENSORS, minus, largest),
    "message/bytes": (*ODD_TENSORS, minus, largest, flags),
    "message/tensors/update": (*ODD_TENSORS, whole, nan, infinite, long, flat),
    "message/tensors": (5, {}),
    "states/extra": (torch.ones(1, 3), 5),
    "uploads/scaffold/c": (torch.ones(1, 3), 5),
    "hints/sketch": (torch.ones(1, 3), "x"),
    "report/loss": (*ODD_TENSORS, whole, nan, infinite, long),
    "report/finite": (*ODD_TENSORS, torch.tensor([7]), torch.tensor([False]), torch.tensor([0.5])),
    "report/bytes_up": (*ODD_TENSORS, minus, largest, flags),
    "report/bytes_down": (*ODD_TENSORS, minus, largest, flags),
    "report": (5,),
}
MEASURED: dict[str, tuple[Any, ...]] = {
    "common/loss": (*ODD_TENSORS, whole),
    "common/accuracy": (*ODD_TENSORS, torch.tensor([7.0]), torch.tensor([-0.5])),
    "common/another": (torch.ones(1), "x"),
    "own/loss": (torch.ones(1), "x"),
    "common": (5, []),
}
GRADIENT: dict[str, tuple[Any, ...]] = {"gradient": (*ODD_TENSORS, whole, nan, infinite, long)}


def listed(question: str, part: str, table: dict[str, tuple[Any, ...]]) -> list[HandMade]:
    return [HandMade(question, part, name, value) for name, values in table.items() for value in values]


def odd_bytes(question: str, part: str) -> list[HandMade]:
    return [HandMade(question, part, "", change) for change in ODD_BYTES]


HELLO = [*listed("hello", HEAD, HEADS | INTRODUCTION), *odd_bytes("hello", HEAD)]
REQUEST = [*listed("request", HEAD, HEADS), *odd_bytes("request", HEAD)]
WORK = [
    *listed("work", HEAD, HEADS | WORKED), *listed("work", REPLY, UPDATE), *odd_bytes("work", HEAD),
    *odd_bytes("work", REPLY),
]  # fmt: skip
MEASURE = [
    *listed("measure", HEAD, {"tested": (GONE, "3", 1.5, True, -1, 0, HUGE)}), *listed("measure", REPLY, MEASURED),
    *odd_bytes("measure", REPLY), HandMade("measure", REPLY, "", many_names),
]  # fmt: skip
SLOPE = [*listed("gradient", REPLY, GRADIENT), *odd_bytes("gradient", REPLY)]
UNFINISHED = listed(
    "unfinished", REPLY, {
        "client_R": (*ODD_TENSORS, minus), "message/bytes": (*ODD_TENSORS, minus, largest),
        "message/tensors/since": ODD_TENSORS, "message/tensors/update": (torch.ones(1, 9), 5),
        "report/bytes_down": (*ODD_TENSORS, minus, largest), "uploads/a/b": (torch.ones(1), 5), "states/x": (5,),
    },
)  # fmt: skip
LEAVE = [
    *listed("leave", OWN, dict.fromkeys(("rows/term/scaffold/c",), (*ODD_TENSORS, whole, nan, infinite, long))),
    *odd_bytes("leave", OWN),
]  # fmt: skip

BUILT: dict[str, tuple[Any, ...]] = {
    "turnout/client_C": (*ODD_TENSORS, minus),
    "turnout/work_C": (*ODD_TENSORS, minus, nan, infinite),
    "turnout/full_work": (GONE, 5, "x", HUGE, None),
    "turnout/progress_C": (*ODD_TENSORS, minus, nan),
    "turnout/full_progress_C": (GONE, 5, nan),
    "turnout/times": (5, [1], torch.ones(1)),
    "turnout/more": (5,),
    "CLIENT/training": (GONE, "x", HUGE, -1.0, float("nan"), None),
    "CLIENT/scoring": (GONE, "x", HUGE, [1]),
    "CLIENT/set_l": (*ODD_TENSORS, minus),
    "CLIENT/f_Rl": (*ODD_TENSORS, whole, nan, infinite, minus, twice),
    "CLIENT/examples": (GONE, "x", HUGE, 0, -1, 2**39, True),
    "CLIENT/loss": (GONE, "x", HUGE, None, float("nan")),
    "CLIENT/epochs": (GONE, "x", HUGE, -1.0),
    "CLIENT/finite": (GONE, 1, False, None),
    "CLIENT/weight_bytes": (GONE, "x", HUGE, -1, 2**62),
    "CLIENT/client": (GONE, "x", 99),
    "CLIENT/more": (5,),
}
TAUGHT: dict[str, tuple[Any, ...]] = {
    "CLIENT/output_Tl": (5, "x", scalar, twice, nothing, deeper, float8, whole, nan, infinite),
    "CLIENT/set_l": (*ODD_TENSORS, minus, largest),
    "CLIENT/weights/more": (torch.ones(2), 5),
    "99/output_Tl": (torch.ones(2, 2),),
}
LATEST: dict[str, tuple[Any, ...]] = {
    "CLIENT/set_l": (*ODD_TENSORS, minus, largest),
    "CLIENT/output_Tl": (*ODD_TENSORS, whole, nan),
    "99/output_Tl": (torch.ones(2, 2),),
}

# -- over a real SuperLink

TWO_HUNDRED = [*WORK[:166], *REQUEST[:24], *MEASURE[:10]]  # devices measure every few rounds
BAD_HELLOS = [HandMade("hello", HEAD, "error", 5), HandMade("hello", HEAD, "name", LONE)]


class Reporting(Forger):
    """Prints what it has sent."""

    def answer(self, parts: Parts) -> Parts:
        made, before = self.answers[self.given % len(self.answers)], self.given
        said = super().answer(parts)
        if self.given > before:
            print(f"sent {str(made)!a}", flush=True)
        return said


def be_forgers(files: list[Path]) -> None:
    """Send the answers, a few from each of these devices, until their connections are lost."""
    several = len(files) - len(BAD_HELLOS)
    tasks = [*(TWO_HUNDRED[i::several] for i in range(several)), *([hello] for hello in BAD_HELLOS)]
    threads = []
    for path, answers in zip(files, tasks, strict=True):
        said = read_device(path)
        forger = Reporting(open_device(path), said.client, answers)
        threads.append(threading.Thread(target=stay, args=(forger, said), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    be_forgers([Path(word) for word in sys.argv[1:]])
