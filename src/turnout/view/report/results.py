"""The results table, the same in a terminal and on a page: a row per variant, mean ± deviation over seeds.

A variant is in bold only where all others are shown to be behind it (comparison.py); `difference` is to the one with
the best mean, with its interval, and ≈ marks those that cannot be distinguished from it. Turnout is the share of the
clients asked that answered, work the share of the asked work that was done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from turnout.running.charts.units import Unit, duration, show, sparkline, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords, Runs, mean_of
from turnout.view.report.comparison import comparison, gap_text
from turnout.view.report.lines import time_after

SAME = 0.005  # shares closer than this are shown as one, and a sum of weights this close to 1 is not shown
# What a narrow terminal leaves out, the first first; metrics beside the main one go before the last three.
LEFT_OUT = ("best", "time", "seeds", "curve", "down", "up", "simulated")
LEFT_OUT_LAST = ("work", "turnout", "sum of weights", "difference")

Cell = Callable[[list[RunRecords]], str]


@dataclass(frozen=True)
class Results:
    """The table as text.

    header, rows  the cells
    leading       number of the row that all others are shown to be behind; None if there is none
    verdict       the comparison in a sentence; empty for a single variant
    """

    header: list[str]
    rows: list[list[str]]
    leading: int | None
    verdict: str = ""


def results(runs: Runs, target: float | None = None) -> Results:
    """The table of a folder of runs."""
    target, unit = runs.target if target is None else target, runs.glossary.unit

    def over_seeds(read: Callable[[RunRecords, str], float], metric: str) -> Cell:
        return lambda found: spread([read(run, metric) for run in found], unit(metric))

    columns: list[tuple[str, Cell]] = [("variant", lambda found: found[0].variant)]
    if len({len(found) for found in runs.variants.values()}) > 1:  # else the title says how many
        columns.append(("seeds", lambda found: str(len(found))))
    compared = comparison(runs, target) if runs.metrics and len(runs.variants) > 1 else None
    if runs.metrics:
        main = runs.metrics[0]
        columns.append((main, over_seeds(RunRecords.final, main)))
        if compared is not None:
            gaps = {s.name: gap_text(s, compared.unit) for s in compared.ranking.standings}
            columns.append(("difference", lambda found: gaps[found[0].variant]))
        columns.append(("best", over_seeds(RunRecords.best, main)))
        columns += [(metric, over_seeds(RunRecords.final, metric)) for metric in runs.metrics[1:]]
        if target is not None:
            goal = show(target, unit(main)).replace(".0 ", " ")
            columns.append((f"rounds to {goal}", lambda found: _reached([r.rounds_to(main, target) for r in found])))
        if target is not None and has_times(runs):
            columns.append((f"time to {goal}", lambda found: _reached([time_to(r, main, target) for r in found], True)))
    columns += _totals(runs)
    rows = [[cell(found) for _, cell in columns] for found in runs.variants.values()]
    best = compared.ranking.best if compared is not None else None
    leading = None if best is None else list(runs.variants).index(best)
    return Results([name for name, _ in columns], rows, leading, compared.ranking.sentence() if compared else "")


def has_times(runs: Runs) -> bool:
    """Whether any of the runs simulated time."""
    return any("simulated_time" in run.rounds for run in runs.runs)


def time_to(run: RunRecords, metric: str, target: float) -> float | None:
    """Simulated seconds until a metric first reached a target; None if it never did."""
    rounds = run.rounds_to(metric, target)
    known = rounds is not None and "simulated_time" in run.rounds
    return float(time_after(run, np.array([rounds]))[0]) if known else None


def _totals(runs: Runs) -> list[tuple[str, Cell]]:
    """What whole runs had and cost; work and the sum of weights only where they say something of their own.

    A mean over the replies has weights that sum to 1; below that a part of the old model is kept.
    """

    def mean(of: Callable[[RunRecords], float], unit: Unit) -> Cell:
        return lambda found: show(float(np.mean([of(run) for run in found])), unit)

    found = [("turnout", mean(RunRecords.attendance, "percent"))]
    if any(abs(run.mean("work") - run.attendance()) > SAME for run in runs.runs):
        found.append(("work", mean(lambda run: run.mean("work"), "percent")))
    if any((np.abs(run.weight_sums() - 1) > SAME).any() for run in runs.runs):
        found.append(("sum of weights", mean(lambda run: mean_of(run.weight_sums()), "number")))
    found.append(("up", mean(lambda run: run.total("bytes_up"), "bytes")))
    found.append(("down", mean(lambda run: run.total("bytes_down"), "bytes")))
    found.append(("time", mean(lambda run: run.total("seconds"), "seconds")))
    if has_times(runs):
        found.append(("simulated", mean(lambda run: run.total("simulated_seconds"), "seconds")))
    return found


def _reached(found: Sequence[float | None], is_time: bool = False) -> str:
    """Mean rounds or seconds to a target over the seeds that reached it, and how many did if not all."""
    reached = [float(n) for n in found if n is not None]
    if not reached:
        return "not reached"
    words = duration(float(np.mean(reached))) if is_time else spread(reached)
    return words if len(reached) == len(found) else f"{words} ({len(reached)} of {len(found)})"


def results_table(folder: str | Path, target: float | None = None, width: int | None = None) -> Table:
    """The results of a run folder, or a folder of runs, for a terminal of some width (default: this one's).

    Where the terminal is narrow, columns are left out, the least important first; a line below names them.
    """
    runs = find_runs(folder)
    found = results(runs, target)
    names, rows = list(found.header), [list(row) for row in found.rows]
    if runs.metrics:
        names.append("curve")
        for variant, row in zip(runs.variants, rows, strict=True):
            row.append(sparkline(runs.curve(variant, runs.metrics[0])[1], width=16))
    width = width or shutil.get_terminal_size().columns
    need = [max([len(row[i]) for row in rows] + [len(w) for w in name.split()]) for i, name in enumerate(names)]
    need[0] = min(need[0], max(12, width // 4))  # a long variant is folded
    title = f"{runs.title} ({seeds_of(runs)})" if len(runs.runs) > len(runs.variants) else runs.title
    table = Table(title=Text(title), title_justify="left")
    main = 2 if "seeds" in names else 1  # which always stays
    others = [i for i in range(main + 1, len(names)) if names[i] not in (*LEFT_OUT, *LEFT_OUT_LAST)]
    others.sort(key=lambda i: not names[i].startswith(("rounds to", "time to")))
    first, last = ([names.index(n) for n in listed if n in names] for listed in (LEFT_OUT, LEFT_OUT_LAST))
    kept = list(range(len(names)))
    for i in [*first, *reversed(others), *last]:
        if sum(need[k] + 3 for k in kept) + 1 > width:  # each has a rule and two blanks
            kept.remove(i)
    out = [name for i, name in enumerate(names) if i not in kept]
    below = [found.verdict, f"not shown at this width: {', '.join(out)}" if out else ""]
    if any(below):
        table.caption, table.caption_justify = Text("\n".join(filter(None, below))), "left"
    for i in kept:
        side: JustifyMethod = "left" if names[i] in ("variant", "curve") else "right"
        table.add_column(Text(names[i]), justify=side, width=need[i])
    for i, row in enumerate(rows):
        cells = (Text(row[k], no_wrap=k > 0, overflow="ellipsis" if k else "fold") for k in kept)
        table.add_row(*cells, style="bold" if i == found.leading else None)
    return table


def seeds_of(runs: Runs) -> str:
    """How many seeds the rows average over, where all have as many: "5 seeds", or just "seeds"."""
    counts = {len(found) for found in runs.variants.values()}
    return f"{counts.pop()} seeds" if len(counts) == 1 else "seeds"
