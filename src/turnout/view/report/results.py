"""The results table, the same in a terminal and on a page: a row per variant, mean ± deviation over seeds.

A variant is set in bold only where all others are shown to be behind it (comparison.py); `difference` is to the one
with the best mean, with its interval, and ≈ marks those that cannot be told from it. Turnout counts clients (the share
of those asked that answered), work what they did (the share of what was asked for).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from turnout.running.charts.units import Unit, duration, show, sparkline, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report.clock import has_clock, time_to
from turnout.view.report.comparison import comparison, gap_text

SAME = 0.005  # shares closer than this are shown as one, and a sum of weights this close to 1 is not shown
# What a narrow terminal leaves out, the first first; metrics beside the main one go before the last three.
LEFT_OUT = ("best", "time", "seeds", "curve", "down", "up", "simulated")
LEFT_OUT_LAST = ("work", "turnout", "sum of weights", "difference")


@dataclass(frozen=True)
class Results:
    """Cells as text; `leading` is the row that all others are shown to be behind, None if none is; `said` in words."""

    header: list[str]
    rows: list[list[str]]
    leading: int | None
    said: str = ""


def results(runs: Runs, target: float | None = None) -> Results:
    """The table of a folder of runs."""
    target = runs.target if target is None else target
    main = runs.metrics[0] if runs.metrics else None
    several = len({len(found) for found in runs.variants.values()}) > 1  # else the title says how many
    header = ["variant", *(["seeds"] if several else [])]
    found = comparison(runs, target) if main and len(runs.variants) > 1 else None
    if main:
        header += [main, *(["difference"] if found else []), "best"]
    header += runs.metrics[1:]
    if target is not None and main:
        goal = show(target, runs.glossary.unit(main)).replace(".0 ", " ")
        header += [f"rounds to {goal}", *([f"time to {goal}"] if has_clock(runs) else [])]
    totals = _totals(runs)
    header += totals
    rows = [_row(runs, name, several, target, totals) for name in runs.variants]
    if found is None:
        return Results(header, rows, None)
    for row, standing in zip(rows, found.ranking.standings, strict=True):
        row.insert(header.index("difference"), gap_text(standing, found.unit))
    best = found.ranking.best
    leading = None if best is None else list(runs.variants).index(best)
    return Results(header, rows, leading, found.ranking.sentence())


def results_table(folder: str | Path, target: float | None = None, width: int | None = None) -> Table:
    """The results of a run folder, or a folder of runs, for a terminal of some width (default: this one's).

    Where the terminal is narrow, columns are left out, the least important first; a line below says which.
    """
    runs = find_runs(folder)
    found = results(runs, target)
    names, rows = list(found.header), [list(row) for row in found.rows]
    if runs.metrics:
        names.append("curve")
        for variant, row in zip(runs.variants, rows, strict=True):
            row.append(sparkline(runs.curve(variant, runs.metrics[0])[1], width=16))
    need = _widths(names, rows, width := width or shutil.get_terminal_size().columns)
    table = Table(
        title=Text(f"{runs.title} ({seeds_of(runs)})" if len(runs.runs) > len(runs.variants) else runs.title),
        title_justify="left",
    )
    kept = _fitting(names, need, width)
    out = [name for i, name in enumerate(names) if i not in kept]
    below = [found.said, f"not shown at this width: {', '.join(out)}" if out else ""]
    if any(below):
        table.caption, table.caption_justify = Text("\n".join(filter(None, below))), "left"
    for i in kept:
        side: JustifyMethod = "left" if names[i] in ("variant", "curve") else "right"
        table.add_column(Text(names[i]), justify=side, width=need[i])
    for i, row in enumerate(rows):
        cells = (Text(row[k], no_wrap=k > 0, overflow="ellipsis" if k else "fold") for k in kept)
        table.add_row(*cells, style="bold" if i == found.leading else None)
    return table


def _widths(names: list[str], rows: list[list[str]], width: int) -> list[int]:
    """What each column needs, its head one word to a line; a long variant is folded."""
    need = [max([len(row[i]) for row in rows] + [len(w) for w in names[i].split()]) for i in range(len(names))]
    return [min(need[0], max(12, width // 4)), *need[1:]]


def _fitting(names: list[str], need: list[int], width: int) -> list[int]:
    """The columns that fit side by side, each with a rule and two blanks; the main metric always stays."""
    main = 2 if "seeds" in names else 1
    others = [i for i in range(main + 1, len(names)) if names[i] not in (*LEFT_OUT, *LEFT_OUT_LAST)]
    others.sort(key=lambda i: not names[i].startswith(("rounds to", "time to")))
    first, last = ([names.index(n) for n in listed if n in names] for listed in (LEFT_OUT, LEFT_OUT_LAST))
    kept = list(range(len(names)))
    for i in [*first, *reversed(others), *last]:
        if sum(need[k] + 3 for k in kept) + 1 > width:
            kept.remove(i)
    return kept


def seeds_of(runs: Runs) -> str:
    """How many seeds the rows average over, where all have as many: "5 seeds", or just "seeds"."""
    counts = {len(found) for found in runs.variants.values()}
    return f"{counts.pop()} seeds" if len(counts) == 1 else "seeds"


Total = tuple[Callable[[RunRecords], float], Unit]


def _totals(runs: Runs) -> dict[str, Total]:
    """What whole runs had and cost, by column; work and the sum of weights only where they say something of their own.

    A mean over those who replied has weights that sum to 1; below that a part of the old model is kept.
    """
    found: dict[str, Total] = {"turnout": (RunRecords.attendance, "percent")}
    if _differ(run.mean("work") - run.attendance() for run in runs.runs):
        found["work"] = (lambda run: run.mean("work"), "percent")
    if _differ(weight - 1 for run in runs.runs for weight in run.weight_sums().tolist()):
        found["sum of weights"] = (_mean_weight, "number")
    costs: dict[str, Total] = {
        "up": (lambda run: run.total("bytes_up"), "bytes"),
        "down": (lambda run: run.total("bytes_down"), "bytes"),
        "time": (lambda run: run.total("seconds"), "seconds"),
    }
    if has_clock(runs):
        costs["simulated"] = (lambda run: run.total("simulated_seconds"), "seconds")
    return found | costs


def _mean_weight(run: RunRecords) -> float:
    known_T = run.weight_sums()[~np.isnan(run.weight_sums())]
    return float(known_T.mean()) if len(known_T) else float("nan")


def _differ(gaps: Iterable[float]) -> bool:
    return any(abs(gap) > SAME for gap in gaps)


def _row(runs: Runs, name: str, several: bool, target: float | None, totals: dict[str, Total]) -> list[str]:
    found, unit = runs.variants[name], runs.glossary.unit
    cells = [name, *([str(len(found))] if several else [])]
    for i, metric in enumerate(runs.metrics):
        cells.append(spread([run.final(metric) for run in found], unit(metric)))
        if i == 0:
            cells.append(spread([run.best(metric) for run in found], unit(metric)))
    if target is not None and runs.metrics:
        main = runs.metrics[0]
        cells.append(_reached([run.rounds_to(main, target) for run in found]))
        if has_clock(runs):
            cells.append(_reached([time_to(run, main, target) for run in found], "seconds"))
    return cells + [show(float(np.mean([total(run) for run in found])), shown) for total, shown in totals.values()]


def _reached(found: Sequence[float | None], unit: Unit = "number") -> str:
    """Mean rounds or seconds to a target over the seeds that reached it, and how many did if not all."""
    reached = [float(n) for n in found if n is not None]
    if not reached:
        return "not reached"
    words = duration(float(np.mean(reached))) if unit == "seconds" else spread(reached)
    return words if len(reached) == len(found) else f"{words} ({len(reached)} of {len(found)})"
