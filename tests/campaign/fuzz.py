"""Messages and files of nonsense for every reader: what is read is right, or there is one sentence."""

from __future__ import annotations

import json
import math
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from answers import answers
from faults import Counts
from torch import Tensor

import turnout as to
from turnout.errors import UserError
from turnout.fleet.read_log import read_fleet
from turnout.running.config.read import from_table, load, read_file
from turnout.running.config.write import to_toml
from turnout.running.records.finding import read_run_list
from turnout.running.records.records import Records
from turnout.runtimes.border import Refused
from turnout.runtimes.wire import pack, unpack
from turnout.types import flatten, unflatten

Reader = Callable[[Path], object]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A few changes of a message: bytes flipped, cut, put in, doubled, numbers made huge."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        at = draw.randrange(len(made)) if made else 0
        match draw.randrange(6):
            case 0 | 1 if made:
                made[at] ^= 1 << draw.randrange(8)
            case 2:
                del made[at : at + draw.randrange(1, 40)]
            case 3:
                made[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 4:
                made[at : at + 8] = draw.choice((b"\xff" * 8, b"\x00" * 8, b"99999999", b"-1", b"null", b'""', b"[]"))
            case _:
                made[at:at] = made[at : at + 30]
    return bytes(made)


def changed(message: bytes, draw: random.Random) -> bytes:
    """A well-formed message with another content: values of another size, type, shape or name, or missing."""
    tensors, plain = flatten(unpack(message))
    both = {**plain, **tensors}
    for name in draw.sample(sorted(both), min(len(both), draw.choice((1, 1, 2)))):
        value = both.pop(name)
        match draw.randrange(9):
            case 0 | 1 | 2 if isinstance(value, Tensor) and value.numel():
                flat = value.clone().reshape(-1)
                flat[draw.randrange(len(flat))] = _odd_number(value.dtype, draw)
                both[name] = flat.reshape(value.shape)
            case 3 if isinstance(value, Tensor):
                both[name] = value.to(draw.choice((torch.float64, torch.int64, torch.uint8, torch.bool)))
            case 4 if isinstance(value, Tensor):
                both[name] = value.reshape(-1)[: draw.randrange(value.numel() + 1)]
            case 5 if isinstance(value, Tensor) and value.dim():
                both[name] = value[None] if draw.random() < 0.5 else torch.cat([value, value])
            case 6:
                both[draw.choice((name + "x", "more " + name, ""))] = value
            case 7:
                both[name] = draw.choice(ODD)
            case _ if not isinstance(value, Tensor):
                both[name] = draw.choice(ODD)
            case _:
                pass
    tensors = {name: value for name, value in both.items() if isinstance(value, Tensor)}
    return pack(unflatten(tensors, {name: value for name, value in both.items() if name not in tensors}))


ODD = (None, -1, 0, 7, 2**62, 10**400, 1.5, -0.5, math.inf, math.nan, True, "", "x", "\ud800", "\x1b[2J", [], [1], {})


def _odd_number(dtype: torch.dtype, draw: random.Random) -> float | int:
    if dtype.is_floating_point:
        return draw.choice((math.nan, math.inf, -math.inf, 3e38, -0.0, 1e30))
    return draw.randrange(256) if dtype == torch.uint8 else draw.choice((-1, 0, 1, 2**31, 2**62, -(2**62)))


def messages(counts: Counts, seed: int, most: int) -> None:
    """So many answers of each kind: bytes of one that is right changed, or one in eight well formed with other content.

    Each is read at the border; what passes is used as the server does.
    """
    draw = random.Random(seed)
    for kind, cases in answers().items():
        for i in range(most):
            honest, use = cases[i % len(cases)]
            wrong = None
            try:
                use((changed if draw.randrange(8) == 0 else mutated)(honest, draw))
            except Refused:
                pass
            except Exception:
                wrong = f"{kind}: {traceback.format_exc()[-800:]}"
            counts.add(f"fuzzed answers: {kind}", wrong)
            if counts.over:
                return


def readers(folder: Path) -> Iterator[tuple[str, bytes, Reader]]:
    """Every kind of file that is read: its name, one that is right, and its reader."""
    experiment = to.Experiment(to.World(to.data.Synthetic(clients=4)), rounds=1)
    run = to.run(experiment, folder / "run", quiet=True)
    yield "experiment.toml", to_toml(experiment).encode(), load
    for name in ("environment.json", "data.json", "state.json", "checkpoint.safetensors", "records.sqlite"):
        yield name, (run.folder / name).read_bytes(), _READ[name]
    yield "runs.json", b'{"title": "a", "runs": [{"variant": "a", "seed": 0, "path": "a/seed-0"}]}', _run_list
    yield (
        "log.csv",
        b"round,client,work\n" + b"".join(b"%d,%d,0.5\n" % (t, c) for t in range(3) for c in range(3)),
        _log,
    )
    table = "\n".join(["a,b,label,owner", *(f"{i},{i * 2},{i % 2},{i % 3}" for i in range(12))])
    yield "table.csv", table.encode(), _table
    np.savez(folder / "one.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
    yield "one.npz", (folder / "one.npz").read_bytes(), _arrays


def _checkpoint(path: Path) -> object:
    from turnout.machine.checksums import load_tensors

    return load_tensors(path, "")


def _json(path: Path) -> object:
    from turnout.machine.checksums import read_json

    return read_json(path, "")


def _records(path: Path) -> object:
    with Records.read(path) as records:
        records.check()
        return records.rounds(), records.clients(), records.events(), [records.curve(m) for m in records.metrics()]


def _run_list(path: Path) -> object:
    return read_run_list(path.parent)


def _log(path: Path) -> object:
    return read_fleet(path)


def _table(path: Path) -> object:
    return to.data.Table(path, label="label", owner="owner").load(0)


def _arrays(path: Path) -> object:
    return to.data.ClientFiles(path.parent, pattern="one.npz", classes=2).load(0).train(torch.tensor([0]), 0)


_READ: dict[str, Reader] = {
    "environment.json": _json, "data.json": _json, "state.json": _json, "checkpoint.safetensors": _checkpoint,
    "records.sqlite": _records,
}  # fmt: skip


def files(counts: Counts, seed: int, each: int) -> None:
    """Each reader with files of nonsense: what it raises is a UserError, or nothing."""
    draw = random.Random(seed)
    with TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content, read in list(readers(Path(home))):
            path = Path(home) / "fuzzed" / name
            path.parent.mkdir(exist_ok=True)
            for _ in range(each):
                path.write_bytes(mutated(content, draw))
                wrong = None
                try:
                    read(path)
                except UserError:
                    pass
                except Exception:
                    wrong = f"{name}: {traceback.format_exc()[-800:]}"
                counts.add(f"fuzzed {name}", wrong)
                if counts.over:
                    return
            for left in path.parent.iterdir():
                left.unlink()


def tables(counts: Counts, seed: int, most: int) -> None:
    """Experiments of well-formed nonsense: settings of other kinds, missing, doubled."""
    draw = random.Random(seed)
    good = read_file_text(to_toml(to.Experiment()))
    for _ in range(most):
        table = json.loads(json.dumps(good))
        node = table
        for _ in range(draw.randrange(1, 4)):
            inner = [value for value in node.values() if isinstance(value, dict) and value]
            node = draw.choice(inner) if inner else node
        name = draw.choice([*node, "kind", "unknown"])
        node[name] = draw.choice((None, -1, 10**30, 1e400, "", "x:y", "os:system", [], {}, [[]], True, {"kind": "x"}))
        wrong = None
        try:
            from_table(table)
        except UserError:
            pass
        except Exception:
            wrong = traceback.format_exc()[-800:]
        counts.add("experiments of nonsense", wrong)
        if counts.over:
            return


def read_file_text(text: str) -> dict[str, object]:
    with TemporaryDirectory() as home:
        path = Path(home) / "e.toml"
        path.write_text(text)
        return read_file(path)
