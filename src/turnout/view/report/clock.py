"""Simulated time in a report: metrics against it, what devices spent, and a Gantt picture of the first rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from turnout.running.charts.axes import Axis, Floats, make_axis
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import render, trusted
from turnout.running.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame, grid, text
from turnout.running.charts.units import duration, shortened, show, title_of
from turnout.running.records.records import Records
from turnout.running.records.runs import FILE, RunRecords, Runs
from turnout.running.records.schema import Column

PARTS = (("download", "s5"), ("train", "s2"), ("upload", "s1"))
SHOWN_ROUNDS, SHOWN_CLIENTS = 3, 12
TOP = 46
NAME_LETTERS = 7  # of a client beside its bars


def has_clock(runs: Runs) -> bool:
    """Whether any of the runs simulated time."""
    return any("simulated_time" in run.rounds for run in runs.runs)


def times_of(run: RunRecords, metric: str) -> tuple[Floats, Floats]:
    """A metric of one run as (simulated seconds, values)."""
    rounds, values = run.curves[metric]
    return clock_after(run, rounds + 1), values.astype(np.float64)


def clock_after(run: RunRecords, done: Column) -> Floats:
    """The simulated seconds after so many rounds; a round in which nobody was asked takes none."""
    clock_T = np.nan_to_num(run.rounds["simulated_time"].astype(np.float64))
    return np.concatenate([[0.0], np.maximum.accumulate(clock_T)])[np.asarray(done, np.int64)]


def time_to(run: RunRecords, metric: str, target: float) -> float | None:
    """Simulated seconds until a metric first reached a target; None if it never did."""
    rounds = run.rounds_to(metric, target)
    if rounds is None or "simulated_time" not in run.rounds:
        return None
    return float(clock_after(run, np.array([rounds]))[0])


def metric_by_time(runs: Runs, metric: str) -> str:
    """A metric against simulated time: a line for each variant, the mean over seeds at equal times."""
    lines = [line_by_time(found, variant, i, metric) for i, (variant, found) in enumerate(runs.variants.items())]
    title = f"{title_of(metric)} for simulated time"
    return line_chart([line for line in lines if line], title, "seconds", runs.glossary.unit(metric), "seconds")


def line_by_time(runs: Iterable[RunRecords], variant: str, colour: int, metric: str) -> Series | None:
    """Seeds end their rounds at different times: each is read where the others were measured, as it was then."""
    pairs = [times_of(run, metric) for run in runs if metric in run.curves and "simulated_time" in run.rounds]
    pairs = [(x, y) for x, y in pairs if len(x)]
    if not pairs:
        return None
    last = min(float(x[-1]) for x, _ in pairs)
    x = np.unique(np.concatenate([x[x <= last] for x, _ in pairs]))
    values = np.stack([y[np.searchsorted(own, x, side="right") - 1] for own, y in pairs])
    mean = values.mean(0)
    if len(pairs) == 1:
        return Series(variant, x, mean, colour)
    deviation = values.std(0, ddof=1)
    return Series(variant, x, mean, colour, mean - deviation, mean + deviation)


def spent(runs: Runs, target: float | None) -> str:
    """What each variant took: simulated time, wasted device time, and time to the target."""
    words = []
    for variant, found in runs.variants.items():
        timed = [run for run in found if "simulated_time" in run.rounds]
        if not timed:
            continue
        total = np.mean([run.total("simulated_seconds") for run in timed])
        busy = sum(run.total("device_seconds") for run in timed)
        wasted = sum(run.total("wasted_device_seconds") for run in timed) / busy if busy else 0.0
        said = f"{variant}: {duration(float(total))}, {show(wasted, 'percent')} of the device time wasted"
        if target is not None and runs.metrics:
            reached = [time_to(run, runs.metrics[0], target) for run in timed]
            known = [seconds for seconds in reached if seconds is not None]
            goal = show(target, runs.glossary.unit(runs.metrics[0]))
            when = duration(float(np.mean(known))) if len(known) == len(reached) else f"by {len(known)} of {len(timed)}"
            said += f", {goal} reached {'after ' if len(known) == len(reached) else ''}{when}"
        words.append(said)
    return "; ".join(words) + "." if words else ""


def fastest(runs: Runs, target: float | None) -> str:
    """Which variant reaches the target first in simulated time, in a sentence; empty where there is nothing to say.

    Only variants that reach it with every seed are compared, by their mean.
    """
    target = runs.target if target is None else target
    if target is None or not runs.metrics or not has_clock(runs) or len(runs.variants) < 2:
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
class Bar:
    """One client in one round, in seconds since the run began."""

    client: int
    begin: float
    parts: tuple[float, ...]
    late: bool


def gantt(run: RunRecords, first: int = 0, rounds: int = SHOWN_ROUNDS, clients: int = SHOWN_CLIENTS) -> str:
    """A few rounds of a few clients: download, training, upload, and where each round was closed.

    The clients shown are the slowest, the fastest and those evenly between, by the first round; late ones are pale.
    """
    bars, closings = gantt_rows(run, first, rounds)
    if not bars:
        return ""
    shown = chosen(bars, clients)
    x = make_axis(min(0.0, *(bar.begin for bar in bars)), closings[-1], LEFT, WIDTH - RIGHT, "seconds", about=6)
    row = (HEIGHT - BOTTOM - TOP) / len(shown)
    y = Axis(0, 1, HEIGHT - BOTTOM, TOP, (), ())
    body = grid(x, y, "simulated seconds") + _key()
    for place, client in enumerate(shown):
        at = TOP + place * row
        name = run.client(client)
        body += (f'<text class="tick" x="{LEFT - 7}" y="{at + row / 2 + 4:.1f}" text-anchor="end">'
                 f'{text(shortened(name, NAME_LETTERS))}</text>')  # fmt: skip
        body += "".join(_bar(bar, name, x, at, row) for bar in bars if bar.client == client)
    for closes in closings:
        end = float(x.place(closes))
        body += f'<line class="mean" x1="{end:.1f}" x2="{end:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    name = f", {run.variant}" if run.variant else ""
    return frame(f"Rounds {first} to {first + len(closings) - 1} in time{name}", body)


def gantt_rows(run: RunRecords, first: int, rounds: int) -> tuple[list[Bar], list[float]]:
    """The bars of some rounds, and when each of them was closed."""
    bars, closings = list[Bar](), list[float]()
    if "simulated_time" not in run.rounds:
        return bars, closings
    clock = clock_after(run, np.arange(len(run.rounds["round"]) + 1))
    with Records.read(run.path / FILE) as records:
        for t in range(first, min(first + rounds, len(clock) - 1)):
            found = records.clients(t)
            closings.append(float(clock[t + 1]))
            if "download_time" not in found:
                continue
            columns = [found[f"{name}_time"].astype(np.float64) for name, _ in PARTS]
            begins = found["begin_time"].astype(np.float64)
            for i in np.flatnonzero(np.isfinite(begins)):
                parts = tuple(float(column[i]) for column in columns)
                bars.append(Bar(int(found["client"][i]), float(clock[t] + begins[i]), parts, bool(found["late"][i])))
    return bars, closings


def chosen(bars: list[Bar], count: int) -> list[int]:
    """Which clients are shown: evenly from the fastest to the slowest by what their first round took."""
    length: dict[int, float] = {}
    for bar in bars:
        length.setdefault(bar.client, float(np.nansum(bar.parts)) + (1e9 if bar.late else 0.0))
    order = sorted(length, key=lambda client: (length[client], client))
    places = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))
    return [order[i] for i in places]


def _bar(bar: Bar, client: str, x: Axis, top: float, row: float) -> str:
    """Three boxes, one after another; what is not finite goes on to the edge of the picture."""
    boxes, at = "", bar.begin
    pale = ' opacity="0.4"' if bar.late else ""
    for (name, colour), seconds in zip(PARTS, bar.parts, strict=True):
        end = min(at + (seconds if np.isfinite(seconds) else x.high), x.high)
        left, right = float(x.place(max(at, x.low))), float(x.place(end))
        box = f'x="{left:.1f}" y="{top + 1:.1f}" width="{max(right - left, 0.3):.1f}" height="{max(row - 2, 1):.1f}"'
        words = text(f"client {client}{', late' if bar.late else ''}: {name} {duration(max(end - at, 0.0))}")
        boxes += f'<rect class="dot {colour}" {box}{pale}><title>{words}</title></rect>'
        at = end
    return boxes


def _key() -> str:
    """What the colours mean."""
    parts, x = [], 8.0
    for name, colour in PARTS:
        parts.append(f'<rect class="dot {colour}" x="{x:.0f}" y="28" width="14" height="10"/>')
        parts.append(f'<text class="name" x="{x + 19:.0f}" y="37">{name}</text>')
        x += 34 + 6.9 * len(name)
    parts.append(f'<text class="name" x="{x:.0f}" y="37">late: pale; dashed: the round is closed</text>')
    return "".join(parts)


def clock_section(runs: Runs) -> list[Markup]:
    """Simulated time: the main metrics against it, what was wasted, and the first rounds of the first variants."""
    if not has_clock(runs):
        return []
    target = runs.target
    shown = [metric_by_time(runs, metric) for metric in runs.metrics[:2]]
    shown += [gantt(found[0]) for found in list(runs.variants.values())[:4]]
    note = f"{spent(runs, target)} {fastest(runs, target)}".strip()
    return [render("charts.html", title="Simulated time", note=note, charts=trusted(shown))]
