"""Variants compared by their records, paired by seed: how each stands to the best, and what reaching a target took.

The arithmetic is that of turnout.statistics: intervals that hold for all pairs at once, and "not
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
from turnout.running.charts.page import render
from turnout.running.charts.units import Unit, show, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import SPENT, RunRecords, Runs
from turnout.statistics import ALIKE, BEST, LEADS, Ranking, Reached, Standing, compare_reached
from turnout.statistics import compare as rank
from turnout.view.report.lines import check_metrics

UNITS: dict[str, Unit] = {"rounds": "number", "bytes": "bytes", "seconds": "seconds"}


class HasFolder(Protocol):
    """A run, or several in a folder."""

    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True, repr=False)
class Comparison:
    """How variants stand by one metric.

    title      of the runs
    metric     what they are compared by
    unit       of the metric
    ranking    how each variant stands to the best
    target     a value of the metric to reach
    to_target  what each variant took to reach it: rounds, bytes, seconds
    """

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
        for i in self.order():
            s = self.ranking.standings[i]
            row = [s.name, spread(list(s.value.values()), self.unit), gap_text(s, self.unit, mark=False), s.verdict]
            for what, found in spent.items():
                took, mark = found[i].reached, " ≈" if found[i].verdict in (ALIKE, LEADS) else ""
                some = "" if len(took) == len(found[i].value) else f" ({len(took)} of {len(found[i].value)})"
                row.append(show(math.fsum(took) / len(took), UNITS[what]) + some + mark if took else "not reached")
            rows.append(row)
        return header, rows

    def heading(self) -> str:
        """The title, and how many seeds there are of each variant."""
        counts = [s.seeds for s in self.ranking.standings]
        low, high = min(counts), max(counts)
        return f"{self.title} ({low} seed{'s' * (low > 1)})" if low == high else f"{self.title} ({low} to {high} seeds)"

    def order(self) -> list[int]:
        """The variants from the best mean on; those without a number last."""
        top = next((s.mean for s in self.ranking.standings if s.verdict in (BEST, LEADS)), math.nan)
        means = [s.mean for s in self.ranking.standings]
        highest = math.isnan(top) or top >= max((m for m in means if not math.isnan(m)), default=top)
        key = [math.inf if math.isnan(m) else (-m if highest else m) for m in means]
        return sorted(range(len(means)), key=lambda i: key[i])

    def table(self) -> Table:
        """The table for a terminal; bold is only a variant that all others are behind."""
        header, rows = self.cells()
        table = Table(title=Text(self.heading()), title_justify="left", caption_justify="left")
        table.caption = Text(self.ranking.sentence())
        for i, name in enumerate(header):
            table.add_column(Text(name), justify="left" if i in (0, 3) else "right", no_wrap=i in (1, 2, 3))
        for row in rows:
            table.add_row(*map(Text, row), style="bold" if row[0] == self.best else None)
        return table

    def data(self) -> dict[str, Any]:
        """The same for programs, as JSON can hold it."""
        rows = []
        for i in self.order():
            s = self.ranking.standings[i]
            numbers = {"mean": s.mean, "difference": s.gap, "low": s.low, "high": s.high}
            reached = {
                what: {"verdict": found[i].verdict, "by_seed": {str(n): took for n, took in found[i].value.items()}}
                for what, found in (self.to_target or {}).items()
            }
            rows.append(
                {"variant": s.name, "verdict": s.verdict, "seeds": s.seeds}
                | {name: _finite(value) for name, value in numbers.items()}
                | {"by_seed": {str(seed): _finite(value) for seed, value in s.value.items()}, "to_target": reached}
            )
        return {
            "title": self.title,
            "metric": self.metric,
            "target": self.target,
            "best": self.best,
            "level": 0.95,
            "corrected_for": self.ranking.pairs,
            "sentence": self.ranking.sentence(),
            "variants": rows,
        }

    def __repr__(self) -> str:
        """The table as `turnout compare` prints it."""
        return as_printed(self.table())

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        header, rows = self.cells()
        words = {"title": self.heading(), "sentence": self.ranking.sentence(), "best": self.best}
        return render("comparison.html", header=header, rows=rows, **words)


def compare(
    *runs: str | Path | HasFolder | Iterable[HasFolder], target: float | None = None, metric: str | None = None
) -> Comparison:
    """Compare runs, paired by seed: run objects, groups of runs or folders.

    Runs that differ in the seed only are one variant.

    target  also report the rounds, bytes and seconds until the metric reached it
    metric  what to compare by, such as "personal_accuracy"; default: the main one
    """
    folders: list[Path] = []
    for given in runs:
        if isinstance(given, str | Path):
            folders.append(Path(given))
        else:
            folders += [given.folder] if hasattr(given, "folder") else [run.folder for run in given]
    return comparison(gathered(folders), target, metric)


def comparison(runs: Runs, target: float | None = None, metric: str | None = None) -> Comparison:
    """How the variants of some runs stand to the best of them."""
    if not runs.metrics:
        raise UserError(f"nothing was measured yet in {runs.title}: there is nothing to compare")
    (main,) = check_metrics(runs, [metric] if metric else [])
    if main not in runs.metrics:
        raise UserError(
            f"runs are compared by what was measured of a model, not by {main}: {nearest(main, runs.metrics)}"
        )
    target = runs.target if target is None else target
    values = {name: {run.seed_number: run.final(main) for run in found} for name, found in runs.variants.items()}
    found = Comparison(
        runs.title, main, runs.glossary.unit(main), rank(values, runs.glossary.higher_is_better(main)), target
    )
    if target is None:
        return found
    spent = {n: {run.seed_number: run.spent_to(main, target) for run in some} for n, some in runs.variants.items()}
    took = {what: {n: {seed: s[what] for seed, s in by_seed.items()} for n, by_seed in spent.items()} for what in SPENT}
    return replace(found, to_target={what: compare_reached(values) for what, values in took.items()})


def gathered(folders: list[Path]) -> Runs:
    """The runs of several folders as one; single runs that differ in nothing but the seed are one variant."""
    if not folders:
        raise UserError("there is nothing to compare: give the folders of runs")
    names: dict[str, str] = {}  # variant and settings -> name
    seen: dict[tuple[str, int], RunRecords] = {}
    groups = []
    for folder in folders:
        group, place = find_runs(folder), folder.absolute()
        if len(group.runs) == 1 and group.runs[0].seed is None:  # `C/seed-0` is named by the folder above it
            title = str(group.runs[0].settings().get("title") or place.name)
            name = place.parent.name if place.name.startswith("seed-") else title
            group = replace(group, runs=(replace(group.runs[0], variant=name),))
        groups.append(group)
    for run in [run for group in groups for run in group.runs]:
        settings = {k: v for k, v in run.settings().items() if k not in ("seed", "title", "track")}
        mark = f"{run.variant} {settings}"
        if mark not in names and run.variant in names.values():
            names[mark] = next(n for i in range(2, 10_000) if (n := f"{run.variant} ({i})") not in names.values())
        run = replace(run, variant=names.setdefault(mark, run.variant))
        other = seen.setdefault((run.variant, run.seed_number), run)
        if other.path.resolve() != run.path.resolve():
            raise UserError(
                f"{other.path} and {run.path} are the same experiment with the same seed: leave one of them out"
            )
    title = groups[0].title if len(folders) == 1 else ", ".join(dict.fromkeys(variant for variant, _ in seen))
    return Runs(title, tuple(seen.values()), target=groups[0].target, metric=groups[0].metric)


def gap_text(standing: Standing, unit: Unit, mark: bool = True) -> str:
    """The difference to the best with its interval; with a mark ≈ where it is not distinguishable.

    >>> gap_text(Standing("B", ALIKE, {}, -0.012, -0.03, 0.006), "percent")
    '-1.2 (-3.0 to +0.6) ≈'
    """
    if standing.gap is None:
        return {BEST: "best", LEADS: "leads ≈"}.get(standing.verdict, "–") if mark else "–"
    scale, form = (100, "+.1f") if unit == "percent" else (1, "+.3g")
    gap = f"{scale * standing.gap:{form}}"
    if standing.low is None or standing.high is None:
        return f"{gap} ({standing.verdict})" if mark else gap
    ends = f" ({scale * standing.low:{form}} to {scale * standing.high:{form}})"
    return gap + ends + (" ≈" if mark and standing.verdict == ALIKE else "")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
