"""Charts over rounds, bytes or simulated time: a line for each variant, its mean over seeds with a band of one standard
deviation; and chosen curves of several folders as a picture file.

Rounds are marked in which the objective shifted, and in which clients joined or left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from turnout.errors import UserError, nearest
from turnout.machine.files import write_whole
from turnout.running.charts.axes import Floats
from turnout.running.charts.lines import Mark, Series, line_chart
from turnout.running.charts.svg import sheet
from turnout.running.charts.units import title_of
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords, Runs
from turnout.running.records.schema import Column

MOST_SHIFTS = 40  # more lines than that would hide the curves
MOST_MEMBERS = 120  # rounds with joins or leaves; more triangles than that are a stripe
NAMED = 4  # clients of a round
VERBS = {"join": "joined", "leave": "left", "drop": "dropped out"}

Line = tuple[Floats, Floats, Floats]  # x, mean, deviation (NaN for one seed)


def metric_charts(runs: Runs) -> list[str]:
    """One chart for each evaluated metric, and one of the training loss, with marks.

    The charts of one metric, measured of several things (the global model, personal ones), have the same scale.
    """
    charts, plain = [], runs.glossary.plain
    for metric in runs.metrics:
        alike = [other for other in runs.metrics if other != metric and plain(other) == plain(metric)]
        charts.append(metric_chart(runs, metric, alike))
    return [*charts, column_chart(runs, "train_loss", "Training loss", marks=marks_of(runs, -0.5))]


def metric_chart(runs: Runs, metric: str, beside: Sequence[str] = ()) -> str:
    """A chart of one evaluated metric, or of a column of the rounds, with marks; on the same scale as `beside`."""
    if metric not in runs.metrics:
        return column_chart(runs, metric, title_of(metric), marks=marks_of(runs, -0.5))
    lines, title = _joint(runs, series_of(runs, metric), title_of(metric))
    others = [s for other in beside for s in series_of(runs, other)]
    unit, marks = runs.glossary.unit(metric), marks_of(runs, 0.5)
    return line_chart(lines, title, "rounds trained", unit, marks=marks, beside=others)


def series_of(runs: Runs, metric: str) -> list[Series]:
    """A line for each variant: a metric over the rounds trained, or a column over the rounds."""
    read = runs.curve if metric in runs.metrics else runs.column
    return _series(runs, lambda variant: read(variant, metric))


def check_metrics(runs: Runs, names: Sequence[str]) -> list[str]:
    """Metrics or columns of the rounds by name, by default the main metric; an unknown one is an error."""
    columns = [item for run in runs.runs for item in run.rounds.items() if item[1].dtype != object]
    known = [*runs.metrics, *sorted({name for name, column in columns if np.isfinite(column).any()} - {"round"})]
    for name in names:
        if name not in known:
            raise UserError(f"nothing called {name!r} was measured here: {nearest(name, known)}")
    return list(names) or runs.metrics[:1]


def column_chart(
    runs: Runs, name: str, title: str, total: bool = False, marks: Sequence[Mark] = (), beside: str | None = None
) -> str:
    """A column of the rounds, or its running total; on the same scale as the column `beside`."""

    def lines_of(column: str) -> list[Series]:
        def line(variant: str) -> Line:
            x, mean, deviation = runs.column(variant, column)
            return (x, np.cumsum(mean), np.full_like(mean, np.nan)) if total else (x, mean, deviation)

        return [s for s in _series(runs, line) if np.any(s.y != 0)]

    series, others = lines_of(name), lines_of(beside) if beside else []
    ends = [float(s.y[-1]) for s in [*series, *others]] or [1.0]
    apart = total and min(ends) > 0 and max(ends) / min(ends) > 20
    lines, title = _joint(runs, series, title)
    unit, log_y = runs.glossary.unit(name), apart if total else None
    return line_chart(lines, title, "round", unit, log_y=log_y, marks=marks, beside=others)


def metric_by_bytes(runs: Runs, metric: str) -> str:
    """A metric over the bytes that were spent until it was measured."""

    def line(variant: str) -> Line:
        rounds, mean, deviation = runs.curve(variant, metric)
        x, up, _ = runs.column(variant, "bytes_up")
        spent = np.cumsum(up + runs.column(variant, "bytes_down")[1])
        done = np.searchsorted(x + 1, rounds, side="right")  # an evaluation after n rounds has paid for n
        return np.concatenate([[0.0], spent])[done], mean, deviation

    series = _series(runs, line)
    ends = [s.x[-1] for s in series if len(s.x) and s.x[-1] > 0]
    wide = bool(ends) and max(ends) / min(ends) > 10
    title = f"{title_of(metric)} for bytes spent, both ways"
    return line_chart(series, title, "bytes", runs.glossary.unit(metric), "bytes", log_x=wide)


def time_after(run: RunRecords, done: Column) -> Floats:
    """The simulated seconds after so many rounds; a round in which no client was asked takes none."""
    time_T = np.nan_to_num(run.rounds["simulated_time"].astype(np.float64))
    return np.concatenate([[0.0], np.maximum.accumulate(time_T)])[np.asarray(done, np.int64)]


def metric_by_time(runs: Runs, metric: str) -> str:
    """A metric against simulated time.

    Seeds end their rounds at different times: each is read where the others were measured, with its value at that time.
    """

    def line(variant: str) -> Line:
        timed = [run for run in runs.variants[variant] if metric in run.curves and "simulated_time" in run.rounds]
        pairs = [(time_after(run, t + 1), y.astype(np.float64)) for run in timed for t, y in [run.curves[metric]]]
        last = min((float(x[-1]) for x, _ in pairs if len(x)), default=0.0)
        x = np.unique(np.concatenate([np.zeros(0), *(x[x <= last] for x, _ in pairs)]))
        values = [y[np.searchsorted(own, x, side="right") - 1] for own, y in pairs if len(own)]
        if not values:
            return x, x, x
        deviation = np.std(values, 0, ddof=1) if len(values) > 1 else np.full(len(x), np.nan)
        return x, np.mean(values, 0), deviation

    title = f"{title_of(metric)} for simulated time"
    return line_chart(_series(runs, line), title, "seconds", runs.glossary.unit(metric), "seconds")


def _series(runs: Runs, line: Callable[[str], Line]) -> list[Series]:
    """A line for each variant, in the variant's colour, with a band where there are several seeds."""
    found = []
    for i, variant in enumerate(runs.variants):
        x, mean, deviation = line(variant)
        band = np.isfinite(deviation).any()
        low, high = (mean - deviation, mean + deviation) if band else (None, None)
        found.append(Series(variant, x, mean, i, low, high, str(i) if len(runs.variants) > 1 else ""))
    return found


def _joint(runs: Runs, series: list[Series], title: str) -> tuple[list[Series], str]:
    """The lines that differ; where only one is left, the title says whose it is."""
    known = [s for s in series if np.isfinite(s.y).any()]
    lines = merged(known)
    if len(lines) == 1 and len(runs.variants) > 1:
        title += ", all variants" if len(known) == len(runs.variants) else f", {lines[0].name}"
    return lines, title


def merged(series: list[Series]) -> list[Series]:
    """Lines that coincide are drawn once under a joint name: paired variants often see the same turnout.

    They coincide if they are equal but for rounding: weights may be summed in another order.
    """
    groups: list[list[Series]] = []
    for s in series:
        for group in groups:
            first = group[0]
            if np.array_equal(first.x, s.x) and np.allclose(first.y, s.y, rtol=1e-6, atol=0, equal_nan=True):
                group.append(s)
                break
        else:
            groups.append([s])
    return [replace(g[0], name=" = ".join(s.name for s in g), of=" ".join(s.of for s in g)) for g in groups]


def marks_of(runs: Runs, beside: float) -> list[Mark]:
    """Marks for a chart over rounds; `beside` places them between the values before and after."""
    shifts = runs.shifts if len(runs.shifts) <= MOST_SHIFTS else {}
    marks = [Mark(t + beside, f"round {t}: {words}") for t, words in shifts.items()]
    changes = _membership_changes(runs)
    if len(changes) > MOST_MEMBERS:
        return marks
    for t, kinds in changes.items():
        words = []
        for kind, clients in kinds.items():
            listed = ", ".join([*clients][:NAMED]) + (", …" if len(clients) > NAMED else "")
            several = f"{len(clients)} clients {VERBS[kind]}: {listed}"
            words.append(several if len(clients) > 1 else f"client {listed} {VERBS[kind]}")
        shape = "join" if set(kinds) == {"join"} else "both" if "join" in kinds else "leave"
        marks.append(Mark(t + beside, f"round {t}: {'; '.join(words)}", shape))
    return marks


def _membership_changes(runs: Runs) -> dict[int, dict[str, dict[str, None]]]:
    """By round and kind of event ("join", "leave", "drop"): the clients of all runs, each once."""
    found: dict[int, dict[str, dict[str, None]]] = {}
    for run in runs.runs:
        for t, client, kind, _ in run.events:
            if kind in VERBS:
                found.setdefault(t, {}).setdefault(kind, {})[run.client(client)] = None
    return dict(sorted(found.items()))


def explain_marks(runs: Runs) -> str:
    """What the marks mean, and what is not marked because there is too much of it."""
    words = []
    if len(runs.shifts) > MOST_SHIFTS:
        words.append(f"The objective shifted {len(runs.shifts)} times, too often to mark in the curves.")
    elif runs.shifts:
        words.append("A thin line marks a round in which the objective shifted: global metrics before and after it may "
                     "be of other test samples.")  # fmt: skip
    changes = _membership_changes(runs)
    if len(changes) > MOST_MEMBERS:
        words.append(f"Clients joined or left in {len(changes)} rounds, too many to mark.")
    elif changes:
        words.append("A triangle on the axis marks clients that joined (pointing up) or left (pointing down).")
    return " ".join(words)


def write_figure(folders: Sequence[Path], metrics: Sequence[str], path: Path) -> list[str]:
    """Draw metrics (default: the main one) into an SVG file, a chart each; returns those drawn.

    Of several folders, variants are named after their folders too.
    """
    if path.suffix != ".svg":
        raise UserError(f"{path}: a picture's file ends in .svg")
    found = [find_runs(folder) for folder in folders]
    runs = found[0]
    if len(found) > 1:
        names = [folder.absolute().name for folder in folders]
        names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
        every: list[RunRecords] = []
        for name, group in zip(names, found, strict=True):
            single = len(group.runs) == 1 and group.runs[0].seed is None
            every += [replace(run, variant=name if single else f"{name} {run.variant}") for run in group.runs]
        runs = Runs(", ".join(names), tuple(every), metric=runs.metric)
    charts = {metric: metric_chart(runs, metric) for metric in check_metrics(runs, metrics)}
    if not any(charts.values()):
        raise UserError(f"nothing was measured yet in {', '.join(map(str, folders))}: there is no curve to draw")
    write_whole(path, sheet(list(charts.values())))
    return [title for title, chart in charts.items() if chart]
