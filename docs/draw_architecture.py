"""Draws docs/architecture.svg: papers, satellites, the core in the order of its imports, and a real round's way.

    python docs/draw_architecture.py

The packages and their order are those of the import contract (pyproject.toml); a package's text is the first sentence
of its docstring. The way is traced: one round of a small experiment runs under `sys.setprofile`, and every call from
the round or a runtime into another package is written down the first time it happens.
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

ROOT = Path(__file__).absolute().parent.parent
SOURCE = str(ROOT / "src" / "turnout")
FOLLOWED = {"runtimes": ("ask", "plan", "work"), "clients": ("client_work", "train")}  # while the round waits
SMALL = (
    "context",
    "exchange",
    "types",
    "rng",
    "errors",
    "layout",
    "machine",
    "statistics",
    "suggestions",
    "summary",
    "times",
    "tasks",
)
LEFT_OUT = ("turnout.recipes", "turnout.round_record", "turnout.exchange")
WIDTH, LINE, LEFT, MIDDLE = 1180, 27, 20, 690
STYLE = (
    "text{fill:#1c2733;font-size:13px}.head{font-size:15px;font-weight:600}.small{font-size:11.5px;fill:#4b5b6b}"
    ".box{fill:#eef3f8;stroke:#9fb3c8}.here{fill:#dcebdd;stroke:#7fae85}.beside{fill:#fbf1dd;stroke:#d3b36f}"
    ".papers{fill:#f3e6f3;stroke:#b58fb5}"
)


def layers() -> list[list[str]]:
    """The layers of the contract, top first."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    found = [[name.strip() for name in layer.replace("|", ":").split(":")] for layer in contract["layers"]]
    return [shown for layer in found if (shown := [name for name in layer if name not in LEFT_OUT])]


def title(name: str) -> str:
    text = inspect.getdoc(importlib.import_module(name)) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0].split(": ")[-1].rstrip(".:").replace("`", "")
    return sentence if len(sentence) <= 82 else sentence[:82].rsplit(" ", 1)[0] + " …"


def room_of(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    return path.removeprefix(SOURCE).strip("/").split("/")[0].removesuffix(".py") if path.startswith(SOURCE) else None


def followed(frame: FrameType) -> bool:
    """Whether calls from here are the round's way: from round.py, and from what it waits for."""
    room = room_of(frame)
    return room == "round" or (room is not None and frame.f_code.co_name in FOLLOWED.get(room, ()))


def way() -> list[tuple[str, str]]:
    """(package, function) in the order in which a round of all parts enters them."""
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
        while caller is not None and room_of(caller) == "machine":  # a timer around a function
            caller = caller.f_back
        if event != "call" or caller is None or not followed(caller):
            return
        room, name = room_of(frame), frame.f_code.co_qualname.split(".<locals>")[0]
        own = room == "round" and name != "Round"
        if room and (room != room_of(caller) or own) and "<" not in name and not name.split(".")[-1].startswith("_"):
            found.setdefault((room, name))

    sys.setprofile(note)
    try:
        server, _ = track.round(server, 1)
    finally:
        sys.setprofile(None)
    return [step for step in found if step[0] not in SMALL]


def grouped(steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Steps that follow each other in one package, as one line each: (package, names)."""
    lines: list[tuple[str, list[str]]] = []
    for room, name in steps:
        if not lines or lines[-1][0] != room:
            lines.append((room, []))
        lines[-1][1].append(name)
    return [(room, text) for room, names in lines for text in wrapped(names, 62)]


def wrapped(names: list[str], width: int) -> list[str]:
    lines = [""]
    for name in dict.fromkeys(names):
        if lines[-1] and len(lines[-1]) + len(name) > width:
            lines.append("")
        lines[-1] += f", {name}" if lines[-1] else name
    return lines


def draw() -> str:
    steps = way()
    entered = {f"turnout.{room}" for room, _ in steps} | {"turnout.round"}
    shapes, y = [], 50
    for layer in layers():
        satellites = "turnout.view" in layer
        if satellites or "turnout.testing" in layer:
            label = "satellites: use the core, not each other" if satellites else "core: imports point down"
            shapes.append(f'<text class="small" x="{LEFT}" y="{y + 12}">{label}</text>')
            y += 18
        x, each = LEFT, 640 // len(layer)
        for name in layer:
            kind = "here" if name in entered else "beside" if satellites else "box"
            kind = "papers" if name == "turnout_papers" else kind
            shown = name.removeprefix("turnout.")
            shapes.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{each - 6}" height="{LINE - 5}" rx="4"/>')
            shapes.append(f'<text x="{x + 8}" y="{y + 15}" font-weight="600">{escape(shown)}</text>')
            if len(layer) == 1:
                shapes.append(f'<text class="small" x="{x + 112}" y="{y + 15}">{escape(title(name))}</text>')
            x += each
        y += LINE
    below = y
    y, lines = 50, grouped(steps)
    for number, (room, text) in enumerate(lines):
        repeated = number > 0 and lines[number - 1][0] == room
        if not repeated:
            shapes.append(f'<rect class="here" x="{MIDDLE}" y="{y}" width="84" height="{LINE - 8}" rx="4"/>')
            shapes.append(f'<text x="{MIDDLE + 8}" y="{y + 14}" font-weight="600">{escape(room)}</text>')
        shapes.append(f'<text class="small" x="{MIDDLE + 94}" y="{y + 14}">{escape(text)}</text>')
        y += 18 if number + 1 < len(lines) and lines[number + 1][0] == room else LINE - 4
    height = max(y, below) + 12
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="head" x="{LEFT}" y="30">Papers, satellites, core (green: entered by a round)</text>',
        f'<text class="head" x="{MIDDLE}" y="30">A round’s way, traced from round.py</text>',
    ]
    return "\n".join([*head, *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    path = Path(__file__).with_name("architecture.svg")
    path.write_text(draw(), encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else f"wrote {path}")
