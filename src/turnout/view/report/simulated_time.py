"""Simulated time in a report: metrics against it, the time devices spent, and a Gantt picture of the first rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from turnout.running.charts.axes import Axis, Floats, make_axis
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import charts_section
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame, grid, text
from turnout.running.charts.units import duration, shortened, show, title_of
from turnout.running.records.records import FILE, Records
from turnout.running.records.runs import RunRecords, Runs
from turnout.running.records.schema import Column

PARTS = (("download", "s5"), ("train", "s2"), ("upload", "s1"))
SHOWN_ROUNDS, SHOWN_CLIENTS = 3, 12
TOP = 46
NAME_LETTERS = 7  # of a client beside its bars


def has_times(runs: Runs) -> bool:
    """Whether any of the runs simulated time."""
    return any("simulated_time" in run.rounds for run in runs.runs)


def times_of(run: RunRecords, metric: str) -> tuple[Floats, Floats]:
    """A metric of one run as (simulated seconds, values)."""
    rounds, values = run.curves[metric]
    return time_after(run, rounds + 1), values.astype(np.float64)


def time_after(run: RunRecords, done: Column) -> Floats:
    """The simulated seconds after so many rounds; a round in which no client was asked takes none."""
    time_T = np.nan_to_num(run.rounds["simulated_time"].astype(np.float64))
    return np.concatenate([[0.0], np.maximum.accumulate(time_T)])[np.asarray(done, np.int64)]


def time_to(run: RunRecords, metric: str, target: float) -> float | None:
    """Simulated seconds until a metric first reached a target; None if it never did."""
    rounds = run.rounds_to(metric, target)
    if rounds is None or "simulated_time" not in run.rounds:
        return None
    return float(time_after(run, np.array([rounds]))[0])


def time_section(runs: Runs) -> list[Markup]:
    """Simulated time: the main metrics against it, time wasted, and the first rounds of the first variants."""
    if not has_times(runs):
        return []
    shown = [metric_by_time(runs, metric) for metric in runs.metrics[:2]]
    shown += [gantt(found[0]) for found in list(runs.variants.values())[:4]]
    return charts_section("Simulated time", shown, f"{_spent(runs)} {fastest(runs, runs.target)}".strip())


def metric_by_time(runs: Runs, metric: str) -> str:
    """A metric against simulated time: a line for each variant, the mean over seeds at equal times.

    Seeds end their rounds at different times: each is read where the others were measured, with its value at that time.
    """
    lines = []
    for i, (variant, found) in enumerate(runs.variants.items()):
        pairs = [times_of(run, metric) for run in found if metric in run.curves and "simulated_time" in run.rounds]
        pairs = [(x, y) for x, y in pairs if len(x)]
        if not pairs:
            continue
        last = min(float(x[-1]) for x, _ in pairs)
        x = np.unique(np.concatenate([x[x <= last] for x, _ in pairs]))
        values = np.stack([y[np.searchsorted(own, x, side="right") - 1] for own, y in pairs])
        mean, deviation = values.mean(0), values.std(0, ddof=1) if len(pairs) > 1 else None
        band = (None, None) if deviation is None else (mean - deviation, mean + deviation)
        lines.append(Series(variant, x, mean, i, *band))
    title = f"{title_of(metric)} for simulated time"
    return line_chart(lines, title, "seconds", runs.glossary.unit(metric), "seconds")


def _spent(runs: Runs) -> str:
    """What each variant took: simulated time, wasted device time, and time to the target."""
    words = []
    for variant, found in runs.variants.items():
        timed = [run for run in found if "simulated_time" in run.rounds]
        if not timed:
            continue
        total = np.mean([run.total("simulated_seconds") for run in timed])
        busy = sum(run.total("device_seconds") for run in timed)
        wasted = sum(run.total("wasted_device_seconds") for run in timed) / busy if busy else 0.0
        sentence = f"{variant}: {duration(float(total))}, {show(wasted, 'percent')} of the device time wasted"
        if runs.target is not None and runs.metrics:
            times = [time_to(run, runs.metrics[0], runs.target) for run in timed]
            known = [seconds for seconds in times if seconds is not None]
            goal, every = show(runs.target, runs.glossary.unit(runs.metrics[0])), len(known) == len(times)
            reached = f"after {duration(float(np.mean(known)))}" if every else f"by {len(known)} of {len(timed)}"
            sentence += f", {goal} reached {reached}"
        words.append(sentence)
    return "; ".join(words) + "." if words else ""


def fastest(runs: Runs, target: float | None) -> str:
    """Which variant reaches the target first in simulated time, in a sentence; empty where there is nothing to say.

    Only variants that reach it with every seed are compared, by their mean.
    """
    target = runs.target if target is None else target
    if target is None or not runs.metrics or not has_times(runs) or len(runs.variants) < 2:
        return ""
    goal, found = show(target, runs.glossary.unit(runs.metrics[0])).replace(".0 ", " "), dict[str, float]()
    for variant, listed in runs.variants.items():
        times = [time_to(run, runs.metrics[0], target) for run in listed]
        known = [seconds for seconds in times if seconds is not None]
        if len(known) == len(times):
            found[variant] = float(np.mean(known))
    if not found:
        return f"No variant reaches {goal} with every seed."
    order = sorted(found, key=lambda variant: found[variant])
    words = f"{goal} is reached first by {order[0]}: after {duration(found[order[0]])} of simulated time"
    return words + (f", next {order[1]} after {duration(found[order[1]])}." if len(order) > 1 else ".")


@dataclass(frozen=True)
class GanttBar:
    """One client in one round.

    client   its number
    begin    when it began, in seconds since the run began
    parts    seconds of download, training and upload
    is_late  whether it missed the end of the round
    """

    client: int
    begin: float
    parts: tuple[float, ...]
    is_late: bool


def gantt(run: RunRecords) -> str:
    """The first rounds of a few clients: download, training, upload, and where each round was closed.

    The clients shown are the slowest, the fastest and those evenly between, by the first round; late ones are pale.
    """
    bars, closings = gantt_rows(run, 0, SHOWN_ROUNDS)
    if not bars:
        return ""
    length: dict[int, float] = {}
    for bar in bars:
        length.setdefault(bar.client, float(np.nansum(bar.parts)) + (1e9 if bar.is_late else 0.0))
    order = sorted(length, key=lambda client: (length[client], client))
    shown = [
        order[i] for i in np.unique(np.linspace(0, len(order) - 1, min(SHOWN_CLIENTS, len(order))).round().astype(int))
    ]
    x = make_axis(min(0.0, *(bar.begin for bar in bars)), closings[-1], LEFT, WIDTH - RIGHT, "seconds", about=6)
    row = (HEIGHT - BOTTOM - TOP) / len(shown)
    body, at = grid(x, Axis(0, 1, HEIGHT - BOTTOM, TOP, (), ()), "simulated seconds"), 8.0
    for part, colour in PARTS:
        body += f'<rect class="dot {colour}" x="{at:.0f}" y="28" width="14" height="10"/>'
        body += f'<text class="name" x="{at + 19:.0f}" y="37">{part}</text>'
        at += 34 + 6.9 * len(part)
    body += f'<text class="name" x="{at:.0f}" y="37">late: pale; dashed: the round is closed</text>'
    for place, client in enumerate(shown):
        top, name = TOP + place * row, run.client(client)
        body += (f'<text class="tick" x="{LEFT - 7}" y="{top + row / 2 + 4:.1f}" text-anchor="end">'
                 f'{text(shortened(name, NAME_LETTERS))}</text>')  # fmt: skip
        for bar in (bar for bar in bars if bar.client == client):
            at, (pale, late) = bar.begin, (' opacity="0.4"', ", late") if bar.is_late else ("", "")
            for (part, colour), seconds in zip(PARTS, bar.parts, strict=True):
                end = min(at + (seconds if np.isfinite(seconds) else x.high), x.high)  # to the edge of the picture
                left, right = float(x.place(max(at, x.low))), float(x.place(end))
                sides = f'width="{max(right - left, 0.3):.1f}" height="{max(row - 2, 1):.1f}"'
                words = text(f"client {name}{late}: {part} {duration(max(end - at, 0.0))}")
                body += f'<rect class="dot {colour}" x="{left:.1f}" y="{top + 1:.1f}" {sides}{pale}>'
                body += f"<title>{words}</title></rect>"
                at = end
    for closes in closings:
        end = float(x.place(closes))
        body += f'<line class="mean" x1="{end:.1f}" x2="{end:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    variant = f", {run.variant}" if run.variant else ""
    return frame(f"Rounds 0 to {len(closings) - 1} in time{variant}", body)


def gantt_rows(run: RunRecords, first: int, rounds: int) -> tuple[list[GanttBar], list[float]]:
    """The bars of some rounds, and when each of them was closed."""
    bars, closings = list[GanttBar](), list[float]()
    if "simulated_time" not in run.rounds:
        return bars, closings
    time = time_after(run, np.arange(len(run.rounds["round"]) + 1))
    with Records.read(run.path / FILE) as records:
        for t in range(first, min(first + rounds, len(time) - 1)):
            found = records.clients(t)
            closings.append(float(time[t + 1]))
            if "download_time" not in found:
                continue
            columns = [found[f"{name}_time"].astype(np.float64) for name, _ in PARTS]
            begins = found["begin_time"].astype(np.float64)
            for i in np.flatnonzero(np.isfinite(begins)):
                client, parts = int(found["client"][i]), tuple(float(column[i]) for column in columns)
                bars.append(GanttBar(client, float(time[t] + begins[i]), parts, bool(found["late"][i])))
    return bars, closings
