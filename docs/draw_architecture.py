"""Draws docs/architecture.svg: the rooms in the order in which they may import, and a real round's way through them.

    python docs/draw_architecture.py

The rooms and their order are those of the import contract (pyproject.toml), their titles the first sentence of each
package's docstring. The way is traced: one round of a small experiment runs under `sys.setprofile`, and every call from
the round or a runtime into another room is written down the first time it happens.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from html import escape
from pathlib import Path
from types import FrameType

import turnout as to
from turnout.running.tracks.prepare import prepare

ROOT = Path(__file__).parent.parent
SOURCE = str(ROOT / "src" / "turnout")
FOLLOWED = ("ask", "plan", "work")  # of a runtime: what it does while the round waits for replies
WIDTH, ROW, LEFT, STEP = 1240, 34, 20, 19


def rooms() -> list[list[str]]:
    """The layers of the contract, top first; names without the package."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [layer.replace("|", ":").split(":") for layer in contract["layers"]]
    return [[name.strip().removeprefix("turnout.") for name in layer] for layer in layers]


def title(room: str) -> str:
    text = inspect.getdoc(importlib.import_module(f"turnout.{room}")) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def room_of(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    return path.removeprefix(SOURCE).strip("/").split("/")[0].removesuffix(".py") if path.startswith(SOURCE) else None


def followed(frame: FrameType) -> bool:
    """Whether calls from here are the round's way: from round.py, and from a runtime that is asked for replies."""
    return room_of(frame) == "round" or (room_of(frame) == "runtimes" and frame.f_code.co_name in FOLLOWED)


def way() -> list[tuple[str, str]]:
    """(room, function) in the order in which a round of all parts enters them."""
    experiment = to.Experiment(
        world=to.World(to.data.Digits(clients=6), to.participation.Dropout(0.3)),
        algorithm=to.Algorithm(
            terms=[to.terms.Elastic()],
            compression=to.compression.SparseTernary(0.1),
            substitution=to.substitution.Friends(),
        ),
        rounds=3,
        runtime=to.runtime.InProcess(device="cpu", threads=1),
    )
    track = prepare(experiment)
    server, _ = track.round(track.begin(), 0)
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event != "call" or caller is None or not followed(caller):
            return
        room, name = room_of(frame), frame.f_code.co_qualname.split(".<locals>")[0]
        if room and room != room_of(caller) and "<" not in name and not name.split(".")[-1].startswith("_"):
            found.setdefault((room, name))

    sys.setprofile(note)
    try:
        server, _ = track.round(server, 1)
    finally:
        sys.setprofile(None)
    return [step for step in found if step[0] not in ("types", "rng", "errors", "layout")]


def draw() -> str:
    layers, steps = rooms(), way()
    height = max(ROW * len(layers), STEP * len(steps)) + 80
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">',
        "<style>text{fill:#1c2733;font-size:13px}.head{font-size:16px;font-weight:600}.small{font-size:11px;"
        "fill:#5b6b7b}.box{fill:#eef3f8;stroke:#9fb3c8}.here{fill:#dcebdd;stroke:#7fae85}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="head" x="{LEFT}" y="30">Rooms: each imports only from those below it</text>',
        '<text class="head" x="700" y="30">A round’s way through them, traced</text>',
    ]
    entered = {room for room, _ in steps}
    for i, layer in enumerate(layers):
        y, x, each = 50 + ROW * i, LEFT, 640 / len(layer)
        for name in layer:
            kind = "here" if name in entered or name == "round" else "box"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{each - 6:.0f}" height="{ROW - 6}" rx="5"/>')
            parts.append(f'<text x="{x + 8}" y="{y + 18}" font-weight="600">{escape(name)}</text>')
            if len(layer) == 1:
                parts.append(f'<text class="small" x="{x + 96}" y="{y + 18}">{escape(title(name)[:88])}</text>')
            x += int(each)
    for i, (room, name) in enumerate(steps):
        y = 50 + STEP * i
        parts.append(f'<text class="small" x="700" y="{y + 14}">{i + 1}</text>')
        parts.append(f'<text x="724" y="{y + 14}" font-weight="600">{escape(room)}</text>')
        parts.append(f'<text x="816" y="{y + 14}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    path = Path(__file__).with_name("architecture.svg")
    path.write_text(draw(), encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}")
