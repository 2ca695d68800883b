"""How far rounding grows: rounds of small recipes on other machines, and here from a start changed by one last bit.

    python tests/campaign/rounding.py --out rounding-out

A kernel that is wrong differs in the first step, in double precision too, and at any learning rate. Rounding that
training amplifies begins at the precision's last bit (1e-7 or 1e-16), grows at the rate at which a changed start grows,
and hardly grows at a tenth of the learning rate. The table has the largest difference of the shared parameters after
each round, relative to the largest parameter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from machines import HERE, MACHINES, surroundings
from safetensors.torch import load_file, save_file

RECIPES = ("participation/C", "multitask/MT-FedAdam", "elastic/EFL", "baselines/SCAFFOLD")
OTHERS = ("kernels for SSE2", "torch without vector instructions")
CHANGED = "one last bit of the start"
RATES, PRECISIONS, ROUNDS = (1.0, 0.1), ("float32", "float64"), 4


def rounds(path: Path, changed: bool) -> None:
    """The shared parameters after each round of each recipe, in each precision, at each learning rate."""
    from parity import small_recipes
    from turnout.recipes import cook
    from turnout.running.tracks.prepare import prepare
    from turnout.settings import InProcess

    small = small_recipes({name: cook(name) for name in {name.partition("/")[0] for name in RECIPES}})
    found = {}
    for name in RECIPES:
        for precision in PRECISIONS:
            for rate in RATES:
                lr = small[name].algorithm.local.optimizer.lr * rate
                here = InProcess(device="cpu", threads=1, precision=precision)
                track = prepare(small[name].but(runtime=here, **{"algorithm.local.optimizer.lr": lr}))
                state = track.begin()
                if changed:
                    infinite_P = torch.full_like(state.shared_P, torch.inf)
                    state = replace(state, shared_P=state.shared_P.nextafter(infinite_P))
                for t in range(ROUNDS):
                    state, _ = track.round(state, t)
                    found[f"{name}|{precision}|{rate:g}|{t}"] = state.shared_P.clone()
                track.runtime.close()
    save_file(found, path)


def table(here: Path, others: dict[str, Path]) -> str:
    lines = ["| recipe, precision, learning rate | compared with | round 0 | 1 | 2 | 3 |", "|---|---|---|---|---|---|"]
    one = load_file(here)
    for name in RECIPES:
        for precision in PRECISIONS:
            for rate in RATES:
                for other, path in others.items():
                    two, cells = load_file(path), []
                    for t in range(ROUNDS):
                        key = f"{name}|{precision}|{rate:g}|{t}"
                        cells.append(float((one[key] - two[key]).abs().max() / one[key].abs().max()))
                    words = " | ".join(f"{cell:.0e}" for cell in cells)
                    lines.append(f"| {name}, {precision}, {rate:g} | {other} | {words} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("rounding-out"))
    parser.add_argument("--rounds", type=Path)
    parser.add_argument("--changed", action="store_true")
    options = parser.parse_args()
    if options.rounds:
        rounds(options.rounds, options.changed)
        return
    options.out.mkdir(exist_ok=True)
    own = [sys.executable, str(HERE / "rounding.py"), "--rounds"]
    for name in ("as it is", CHANGED, *OTHERS):
        folder = options.out.absolute() / name.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        machine = MACHINES.get(name, MACHINES["as it is"])
        _, environment = surroundings(machine, folder)
        more = ["--changed"] if name == CHANGED else []
        subprocess.run([*own, str(folder / "rounds"), *more], env=environment, check=True)
    paths = {name: options.out / name.replace(" ", "-") / "rounds" for name in (CHANGED, *OTHERS)}
    print(table(options.out / "as-it-is" / "rounds", paths))


if __name__ == "__main__":
    main()
