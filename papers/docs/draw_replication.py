"""Draw replication.svg: numbers of the paper-scale pages that have a published counterpart, ours over theirs.

    python papers/docs/draw_replication.py

The numbers are read from the tables of studies/paper ("ours ± spread (published)"), so the picture shows what the pages
say. A point on the diagonal is a number that replicates; the upright line through it is the spread over seeds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.running.charts.axes import Axis, make_axis
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame, grid, legend, sheet, style, text

FOLDER = Path(__file__).parent / "studies" / "paper"
NUMBER = r"(-?[\d.]+(?:e-?\d+)?)"
CELL = re.compile(rf"{NUMBER}(?: ± {NUMBER})? \({NUMBER}\)")
GAINS, ARRIVALS = ("B over A", "C over B"), ("rounds, fast", "rounds, vanilla")
PANELS = {  # a table or figure: its pages, the columns
    "Flexible participation, Table 3, SYNTHETIC: points gained": ("participation", GAINS),
    "Flexible participation, Table 3, MNIST non-IID: points gained": ("participation-mnist", GAINS),
    "Flexible participation, Table 3, MNIST IID: points gained": ("participation-mnist-iid", GAINS),
    "Flexible participation, Table 3, EMNIST non-IID: points gained": ("participation-emnist", GAINS),
    "Flexible participation, EMNIST non-IID, 25 rounds: points gained": ("participation-emnist-short", GAINS),
    "Flexible participation, EMNIST IID, 25 rounds: points gained": ("participation-emnist-short-iid", GAINS),
    "Flexible participation, Table 4, SYNTHETIC: rounds to recover": ("arrivals", ARRIVALS),
    "Flexible participation, Table 4, MNIST: rounds to recover": (
        "arrivals-mnist",
        ("rounds, fast", "rounds, vanilla"),
    ),
    "Flexible participation, Table 4, EMNIST: rounds to recover": (
        "arrivals-emnist",
        ("rounds, fast", "rounds, vanilla"),
    ),
    "Flexible participation, Table 5: rounds until they meet": ("departures", ("rounds until they meet",)),
    "EFL, Table 2, MNIST: percent right": ("bmta", ("FedAvg", "FedGATE", "VRL-SGD", "APFL", "FedAMP", "EFL")),
    "EFL, Table 2, texts: percent right": ("bmta-text", ("FedAvg", "FedGATE", "VRL-SGD", "APFL", "FedAMP", "EFL")),
    "Labels and models, Table 3: percent right": ("labels", ("local", "global")),
    "MTFL, Figures 4 to 6: percent right": (
        "personal",
        ("personal MT-FedAdam", "personal FedAdam", "personal Independent", "central MT-FedAdam"),
    ),
    "MTFL, Table 1, MNIST: rounds to 95 %": ("adam-mnist", ("rounds FedAvg", "rounds FedAdam")),
    "MTFL, Table 1, CIFAR-10: rounds to 55 %": (
        "adam-cifar adam-cifar-noniid adam-cifar-all",
        ("rounds FedAvg", "rounds FedAdam"),
    ),
    "MTFL, Table 2, CIFAR-10: percent of a round": (
        "testbed-cifar",
        ("download, %", "training, %", "upload, %", "server, %"),
    ),
    "McMahan, Table 1, 2NN: rounds to 97 %": ("fedavg-five fedavg", ("rounds",)),
    "McMahan, Table 1, CNN: rounds to 99 %": ("fedavg-cnn-all fedavg-cnn fedavg-cnn-more fedavg-cnn-rest", ("rounds",)),
}


@dataclass(frozen=True)
class Point:
    """One number beside its published counterpart."""

    name: str
    ours: float
    spread: float | None  # of one seed there is none
    published: float

    @property
    def ends(self) -> tuple[float, float]:
        return self.ours - (self.spread or 0.0), self.ours + (self.spread or 0.0)


def points(page: str, column: str) -> list[Point]:
    """The cells of a column that have a published number."""
    lines = (FOLDER / f"{page}.md").read_text("utf-8").splitlines()
    head = next(line for line in lines if line.startswith("| case"))
    place = [word.strip() for word in head.split(" | ")].index(column)
    rows = [line.replace("\\|", "¦").split(" | ") for line in lines if line.startswith("| ") and "(" in line]
    found = [(row[0], CELL.search(row[place])) for row in rows if len(row) > place]
    return [Point(name.strip("| ").replace("¦", "|"), *_numbers(cell)) for name, cell in found if cell]


def _numbers(cell: re.Match[str]) -> tuple[float, float | None, float]:
    ours, spread, published = cell.groups()
    return float(ours), None if spread is None else float(spread), float(published)


def panel(title: str, pages: str, columns: tuple[str, ...]) -> str:
    """Ours over published, with the diagonal."""
    found = {}
    for column in columns:  # of a cell that is on several pages, that of the last
        by_name = {point.name: point for page in pages.split() for point in points(page, column)}
        found[column] = list(by_name.values())
    every = [v for own in found.values() for p in own for v in (p.published, *p.ends)]
    words, height = legend([(column, i, "") for i, column in enumerate(columns)]) if len(columns) > 1 else ("", 0)
    low, high = min(0.0, *every), max(every)
    x = make_axis(low, high, LEFT, WIDTH - RIGHT)
    y = make_axis(low, high, HEIGHT - BOTTOM, 36 + height)
    ends = np.array([max(x.low, y.low), min(x.high, y.high)])
    (x1, x2), (y1, y2) = x.place(ends), y.place(ends)
    body = f'<line class="axis" stroke-dasharray="4 4" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    for i, column in enumerate(columns):
        body += "".join(_dot(point, x, y, i) for point in found[column])
    return frame(title, words + grid(x, y, "published (across), ours (up)") + body)


def _dot(point: Point, x: Axis, y: Axis, colour: int) -> str:
    at = float(x.place(point.published))
    low, middle, high = (float(v) for v in y.place(np.array([point.ends[0], point.ours, point.ends[1]])))
    spread = ", one seed" if point.spread is None else f" ± {point.spread:g}"
    words = f"{point.name}: ours {point.ours:g}{spread}, published {point.published:g}"
    bar = f'<path class="line {style(colour)}" d="M{at:.1f},{low:.1f}V{high:.1f}"/>'
    dot = "stroke-width:7;stroke-linecap:round"
    end = f'<path class="line {style(colour)}" style="{dot}" d="M{at:.1f},{middle:.1f}h.1"/>'
    return f"<g><title>{text(words)}</title>{bar}{end}</g>"


def main() -> None:
    drawn = [panel(title, page, columns) for title, (page, columns) in PANELS.items()]
    Path(__file__).with_name("replication.svg").write_text(sheet(drawn), "utf-8")


if __name__ == "__main__":
    main()
