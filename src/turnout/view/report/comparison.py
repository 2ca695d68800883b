"""Variants compared by their records, paired by seed: how each stands to the best, and what reaching a target took.

The arithmetic is that of turnout.statistics.comparison: intervals that hold for all pairs at once, and "not
distinguishable" where that is so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table
from rich.text import Text

from turnout.errors import UserError, nearest
from turnout.machine.terminal import as_printed
from turnout.running.charts.units import Unit, show, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import SPENT, RunRecords, Runs
from turnout.statistics.comparison import ALIKE, BEST, LEADS, Ranking, Reached, Standing, compare_reached
from turnout.statistics.comparison import compare as ranked
from turnout.view.report import render
from turnout.view.report.lines import metric_named

UNITS: dict[str, Unit] = {"rounds": "number", "bytes": "bytes", "seconds": "seconds"}


class HasFolder(Protocol):
    """A run, or several in a folder."""

    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True, repr=False)
class Comparison:
    """How variants stand by one metric; `to_target` is what each took to reach a target: rounds, bytes, seconds."""

    title: str
    metric: str
    unit: Unit
    ranking: Ranking
    target: float | None = None
    to_target: Mapping[str, list[Reached]] | None = None

    @property
    def best(self) -> str | None:
        """The variant that all others are behind; None where that is not shown."""
        return self.ranking.best

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The table as text: header and rows, the best mean first."""
        spent, goal = self.to_target or {}, show(self.target or 0, self.unit).replace(".0 ", " ")
        header = ["variant", self.metric, "difference", "verdict", *(f"{w} to {goal}" for w in spent)]
        rows = []
        for i, s in enumerate(self.ranking.standings):
            row = [s.name, spread(list(s.value.values()), self.unit), gap_text(s, self.unit, mark=False), s.verdict]
            rows.append(row + [_reached_text(found[i], UNITS[what]) for what, found in spent.items()])
        return header, [rows[i] for i in self.order()]

    def seeds(self) -> str:
        """How many seeds there are of each variant."""
        counts = [s.seeds for s in self.ranking.standings]
        low, high = min(counts), max(counts)
        return f"{low} seed{'s' * (low > 1)}" if low == high else f"{low} to {high} seeds"

    def order(self) -> list[int]:
        """The variants from the best mean on; those without a number last."""
        top = next((s.mean for s in self.ranking.standings if s.verdict in (BEST, LEADS)), math.nan)
        means = [s.mean for s in self.ranking.standings]
        highest = math.isnan(top) or top >= max((m for m in means if not math.isnan(m)), default=top)
        key = [math.inf if math.isnan(m) else (-m if highest else m) for m in means]
        return sorted(range(len(means)), key=lambda i: key[i])

    def table(self) -> Table:
        """The table for a terminal; bold is only what all others are behind."""
        header, rows = self.cells()
        table = Table(title=Text(f"{self.title} ({self.seeds()})"), title_justify="left", caption_justify="left")
        table.caption = Text(self.ranking.sentence())
        for i, name in enumerate(header):
            table.add_column(Text(name), justify="left" if i in (0, 3) else "right", no_wrap=i in (1, 2, 3))
        for row in rows:
            table.add_row(*map(Text, row), style="bold" if row[0] == self.best else None)
        return table

    def data(self) -> dict[str, Any]:
        """The same for programs: only what JSON can write."""
        spent = {what: {r.name: r for r in found} for what, found in (self.to_target or {}).items()}
        rows = [
            _standing_data(self.ranking.standings[i])
            | {"to_target": {w: _reached_data(r[self.ranking.standings[i].name]) for w, r in spent.items()}}
            for i in self.order()
        ]
        said = {"level": 0.95, "corrected_for": self.ranking.pairs, "said": self.ranking.sentence()}
        return {
            "title": self.title,
            "metric": self.metric,
            "target": self.target,
            "best": self.best,
            **said,
            "variants": rows,
        }

    def __repr__(self) -> str:
        """The table as `turnout compare` prints it."""
        return as_printed(self.table())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        header, rows = self.cells()
        said = {"title": f"{self.title} ({self.seeds()})", "said": self.ranking.sentence(), "best": self.best}
        return render("comparison.html", header=header, rows=rows, **said)


def compare(
    *runs: str | Path | HasFolder | Iterable[HasFolder], target: float | None = None, metric: str | None = None
) -> Comparison:
    """Compare runs, paired by seed: run objects, groups of runs or folders; those that differ in the seed only are one
    variant.

    target  also say the rounds, bytes and seconds until the metric got there
    metric  what to compare by, such as "personal_accuracy"; the main one where none is named
    """
    found = gathered([path for given in runs for path in _folders(given)])
    return comparison(found, target, metric)


def comparison(runs: Runs, target: float | None = None, metric: str | None = None) -> Comparison:
    """How the variants of some runs stand to the best of them."""
    if not runs.metrics:
        raise UserError(f"nothing was measured yet in {runs.title}: there is nothing to compare")
    main = metric_named(runs, metric) if metric else runs.metrics[0]
    if main not in runs.metrics:
        raise UserError(
            f"runs are compared by what was measured of a model, not by {main}: {nearest(main, runs.metrics)}"
        )
    target = runs.target if target is None else target
    values = {name: {run.seed_number: run.final(main) for run in found} for name, found in runs.variants.items()}
    ranking = ranked(values, runs.glossary.higher_is_better(main))
    if target is None:
        return Comparison(runs.title, main, runs.glossary.unit(main), ranking)
    spent = {n: {run.seed_number: run.spent_to(main, target) for run in found} for n, found in runs.variants.items()}
    reached = {
        what: compare_reached(
            {name: {seed: took[what] for seed, took in by_seed.items()} for name, by_seed in spent.items()}
        )
        for what in SPENT
    }
    return Comparison(runs.title, main, runs.glossary.unit(main), ranking, target, reached)


def gathered(folders: list[Path]) -> Runs:
    """The runs of several folders as one; single runs that differ in nothing but the seed are one variant."""
    if not folders:
        raise UserError("there is nothing to compare: give the folders of runs")
    found = [run for folder in folders for run in _named(find_runs(folder), folder)]
    names: dict[str, str] = {}  # what tells variants apart -> what they are called
    runs: list[RunRecords] = []
    for run in found:
        settings = {k: v for k, v in run.settings().items() if k not in ("seed", "title", "track")}
        mark = f"{run.variant} {settings}"
        if mark not in names and run.variant in names.values():
            names[mark] = next(n for i in range(2, 10_000) if (n := f"{run.variant} ({i})") not in names.values())
        runs.append(replace(run, variant=names.setdefault(mark, run.variant)))
    first = find_runs(folders[0])
    title = first.title if len(folders) == 1 else ", ".join(dict.fromkeys(run.variant for run in runs))
    return Runs(title, _once(runs), target=first.target, metric=first.metric)


def _named(runs: Runs, folder: Path) -> list[RunRecords]:
    """A folder's runs; a single one is called by its title or folder (`C/seed-0`: by the folder above it)."""
    if len(runs.runs) != 1 or runs.runs[0].seed is not None:
        return list(runs.runs)
    place = folder.absolute()
    name = (
        place.parent.name if place.name.startswith("seed-") else str(runs.runs[0].settings().get("title") or place.name)
    )
    return [replace(runs.runs[0], variant=name)]


def _once(runs: list[RunRecords]) -> tuple[RunRecords, ...]:
    """Each run once, also where it is given twice; two of one variant and seed cannot be paired."""
    seen: dict[tuple[str, int], RunRecords] = {}
    for run in runs:
        other = seen.setdefault((run.variant, run.seed_number), run)
        if other.path.resolve() != run.path.resolve():
            raise UserError(
                f"{other.path} and {run.path} are the same experiment with the same seed: leave one of them out"
            )
    return tuple(seen.values())


def _folders(given: str | Path | HasFolder | Iterable[HasFolder]) -> list[Path]:
    if isinstance(given, str | Path):
        return [Path(given)]
    if hasattr(given, "folder"):
        return [given.folder]
    return [run.folder for run in given]


def gap_text(standing: Standing, unit: Unit, mark: bool = True) -> str:
    """The difference to the best with its interval; with a mark ≈ where it is not distinguishable.

    >>> gap_text(Standing("B", ALIKE, {}, -0.012, -0.03, 0.006), "percent")
    '-1.2 (-3.0 to +0.6) ≈'
    """
    if standing.gap is None:
        return {BEST: "best", LEADS: "leads ≈"}.get(standing.verdict, "–") if mark else "–"
    scale, form = (100, "+.1f") if unit == "percent" else (1, "+.3g")
    said = f"{scale * standing.gap:{form}}"
    if standing.low is None or standing.high is None:
        return f"{said} ({standing.verdict})" if mark else said
    ends = f" ({scale * standing.low:{form}} to {scale * standing.high:{form}})"
    return said + ends + (" ≈" if mark and standing.verdict == ALIKE else "")


def _reached_text(found: Reached, unit: Unit) -> str:
    if not found.reached:
        return "not reached"
    said = show(math.fsum(found.reached) / len(found.reached), unit)
    some = "" if len(found.reached) == len(found.value) else f" ({len(found.reached)} of {len(found.value)})"
    return said + some + (" ≈" if found.verdict in (ALIKE, LEADS) else "")


def _standing_data(standing: Standing) -> dict[str, Any]:
    numbers = {"mean": standing.mean, "difference": standing.gap, "low": standing.low, "high": standing.high}
    by_seed = {str(seed): _number(value) for seed, value in standing.value.items()}
    said = {"variant": standing.name, "verdict": standing.verdict, "seeds": standing.seeds}
    return said | {name: _number(value) for name, value in numbers.items()} | {"by_seed": by_seed}


def _reached_data(found: Reached) -> dict[str, Any]:
    return {"verdict": found.verdict, "by_seed": {str(seed): value for seed, value in found.value.items()}}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
