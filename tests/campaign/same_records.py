"""Are results the same to the bit after a change of the code? Records of two checkouts, compared.

    python tests/campaign/same_records.py write before.json --root ../before
    python tests/campaign/same_records.py write after.json
    python tests/campaign/same_records.py compare before.json after.json

`write` plays a few rounds of every recipe that needs no download, and of random combinations of parts
(combinations.py), with the code and the tests of a checkout, and writes every number of their records as it is, and a
hash of the weights after the last round. `compare` lists what differs. Names that were changed on purpose are in
`RENAMED`. Both files must come from one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROUNDS = 4
RENAMED = {
    "nobody was asked": "no client was asked",
    "nobody answered": "no client answered",
    "nobody who answered counts": "no client's work counts",
    "no update of those who count is a number": "no update that counts is finite",
}  # texts of records: before → after
METHODS = {"000": "flexible", "001": "EFL", "003": "FDMS", "004": "MTFL"}  # variants of `together`: before → after
NOT_COMPARED = ("seconds", "epoch_seconds", "inference_seconds")


def found(*places: str) -> Any:
    """The first of these names ("module:name") that the checkout has."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"none of {', '.join(places)} is in this checkout")


def exact(value: Any) -> Any:
    """A value of a record as JSON that loses no bit."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): exact(inner) for name, inner in sorted(value.items()) if name not in NOT_COMPARED}
    if isinstance(value, list | tuple):
        return [exact(inner) for inner in value]
    return RENAMED.get(value, value) if isinstance(value, str) else value


def tensors_of(thing: Any) -> list[Any]:
    """The tensors of a state, in the order of their names."""
    if hasattr(thing, "numpy"):
        return [thing]
    if isinstance(thing, dict):
        return [tensor for _, inner in sorted(thing.items()) for tensor in tensors_of(inner)]
    return []


def played(experiment: Any) -> Any:
    """Records and weights after a few rounds; a sentence where the experiment is refused."""
    mistake = found("turnout.errors:UserError", "turnout.errors:Mistake")
    try:
        track = found("turnout.running.tracks.prepare:prepare", "turnout.tracks.prepare:prepare")(experiment)
        state, rows = track.begin(), []
        for t in range(min(ROUNDS, experiment.rounds)):
            state, record = track.round(state, t)
            rows.append({field.name: getattr(record, field.name) for field in fields(record)})
            rows[-1]["evaluation"] = dict(track.evaluate(state, t).values)
        packed = track.pack(state)
        weights = packed.get("shared_P", packed.get("table", {}))
        digest = hashlib.sha256(b"".join(v.detach().cpu().numpy().tobytes() for v in tensors_of(weights))).hexdigest()
        track.runtime.close()
    except mistake:
        return "refused"
    return {"rounds": [exact(row) for row in rows], "weights": digest}


def experiments(combinations: int) -> Any:
    """Every recipe that needs no download, and random combinations, by name."""
    parity = importlib.import_module("parity")
    cook, recipes = found("turnout.recipes:cook"), found("turnout.recipes:recipes")
    for recipe in sorted(recipes()):
        if not recipe.startswith(parity.OTHER_DATA):
            for variant, experiment in cook(recipe).items():
                yield f"{recipe}/{variant}", parity.shrunk(experiment)
    drawn = importlib.import_module("combinations")
    mistake = found("turnout.errors:UserError", "turnout.errors:Mistake")
    for seed in range(combinations):
        try:
            yield f"combination {seed}", drawn.combination(seed).experiment()
        except mistake:
            continue


def write(path: Path, root: Path, combinations: int) -> None:
    sys.path[:0] = [str(root / place) for place in ("src", "papers", "tests", "tests/support")]
    import torch

    torch.set_num_threads(1)
    rows = {}
    for name, experiment in experiments(combinations):
        assert is_dataclass(experiment)
        rows[name] = played(experiment.but(**{"runtime.threads": 1, "runtime.device": "cpu"}))
        print(name, rows[name] if rows[name] == "refused" else rows[name]["weights"][:12], flush=True)
        path.write_text(json.dumps(rows, indent=1))


def differences(before: Any, after: Any, place: str) -> list[str]:
    """Where two values differ, by path."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [d for k in {**before, **after} for d in differences(before.get(k), after.get(k), f"{place}.{k}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{place}[{i}]")]
    return [] if before == after else [f"{place}: {str(before)[:60]} → {str(after)[:60]}"]


def compare(one: Path, other: Path) -> None:
    before, after = json.loads(one.read_text()), json.loads(other.read_text())
    for name in [name for name in before if name.startswith("together/") and name not in after]:
        words = [METHODS.get(word, word) for word in name.removeprefix("together/").split("+")]
        before["together/" + "+".join(words)] = before.pop(name)
    both = [name for name in before if name in after]
    wrong = {name: d for name in both if (d := differences(before[name], after[name], name))}
    for found_here in wrong.values():
        print("\n".join(found_here[:5]))
    refused = sum(before[name] == "refused" for name in both)
    print(f"{len(both)} compared ({refused} of them refused), {len(wrong)} differ")
    print(f"only before: {sorted(set(before) - set(after))}; only after: {sorted(set(after) - set(before))}")
    sys.exit(bool(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    writing = steps.add_parser("write")
    writing.add_argument("path", type=Path)
    writing.add_argument("--root", type=Path, default=ROOT)
    writing.add_argument("--combinations", type=int, default=150)
    comparing = steps.add_parser("compare")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    options = parser.parse_args()
    if options.step == "write":
        write(options.path, options.root.resolve(), options.combinations)
    else:
        compare(options.one, options.other)


if __name__ == "__main__":
    main()
