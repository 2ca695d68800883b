"""The pictures of study `labels`."""

from __future__ import annotations

from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.svg import sheet
from turnout_papers.recipes.labels import READINGS, USERS
from turnout_papers.studies.drawing import band, over_rounds, picture
from turnout_papers.studies.label_numbers import DIPS, DISTILLED, GLOBAL, LOCAL, TAUGHT, dipped
from turnout_papers.studies.study import Curves


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Figure 2: each user's local and global accuracy; Figure 3: all four labels; the dips; distillation."""
    if not curves.has("average"):
        return {}
    two = [_chart(f"{name}, {user}", _lines(curves, name, user)) for name in ("average", "literal") for user in USERS]
    three = [("global accuracy over all four labels", "round", over_rounds(curves, {n: n for n in READINGS}))]
    dips = [_chart(dipped(user), _dip_lines(curves, user)) for user in DIPS]
    taught = [_chart(f"distilled, {user}", _taught(curves, user)) for user in USERS]
    return {
        "figure2.svg": sheet(two),
        "figure3.svg": picture(three, "percent"),
        "dips.svg": sheet(dips),
        "distilled.svg": sheet(taught),
    }


def _chart(title: str, series: list[Series]) -> str:
    return line_chart(series, title, "round", "percent")


def _line(curves: Curves, variant: str, name: str, user: str, label: str, colour: int) -> Series:
    by_seed = {seed: look[f"{name} {user}"] for seed, look in curves.looks[variant].items()}
    rounds = range(1, min(map(len, by_seed.values())) + 1)
    return band(label, list(rounds), [{s: float(v[t - 1]) for s, v in by_seed.items()} for t in rounds], colour)


def _lines(curves: Curves, variant: str, user: str, colour: int = 0, word: str = "") -> list[Series]:
    names = {"local": LOCAL, "global": GLOBAL}
    return [
        _line(curves, variant, name, user, f"{label} {word}".strip(), colour + i)
        for i, (label, name) in enumerate(names.items())
    ]


def _dip_lines(curves: Curves, user: str) -> list[Series]:
    plain, dip = _lines(curves, "average", user, 0, "without"), _lines(curves, dipped(user), user, 2, "with the dip")
    return [*plain, *dip]


def _taught(curves: Curves, user: str) -> list[Series]:
    return [
        _line(curves, "average", LOCAL, user, "model alone", 0),
        _line(curves, DISTILLED, TAUGHT, user, "model after distillation", 1),
        _line(curves, DISTILLED, GLOBAL, user, "global scores", 2),
    ]
