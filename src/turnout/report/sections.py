"""The parts of the report: each takes the runs and gives HTML, or nothing where there is no data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import numpy as np

from turnout.report import charts
from turnout.report.axes import Floats
from turnout.report.charts import Series, text
from turnout.report.results import results, seeds_of
from turnout.report.runs import RunRecords, Runs
from turnout.report.units import Unit, show, title_of
from turnout.round_log import RoundRecord
from turnout.task import MetricInfo

_ROUND_NAMES = frozenset(f.name for f in fields(RoundRecord))


def section(title: str, body: str, note: str = "") -> str:
    """A headed part of the page; nothing if it is empty."""
    words = f'<p class="soft">{text(note)}</p>' if note else ""
    return f"<section><h2>{text(title)}</h2>{words}{body}</section>" if body else ""


def grid(figures: list[str]) -> str:
    """Charts side by side where the page is wide enough."""
    shown = "".join(f"<figure>{chart}</figure>" for chart in figures if chart)
    return f'<div class="grid">{shown}</div>' if shown else ""


def table_section(runs: Runs, target: float | None) -> str:
    """Results of each variant, the leading one in bold, with its curve."""
    found = results(runs, target)
    head = "".join(f"<th>{text(name)}</th>" for name in found.header)
    main = runs.metrics[0] if runs.metrics else None
    rows = []
    for i, (variant, row) in enumerate(zip(runs.variants, found.rows, strict=True)):
        curve = charts.spark(runs.curve(variant, main)[1], i) if main else ""
        swatch = f'<i class="s{i % charts.COLOURS}"></i>' if len(found.rows) > 1 else ""
        cells = "".join(f"<td>{text(cell)}</td>" for cell in row[1:])
        kind = ' class="leading"' if i == found.leading else ""
        rows.append(f"<tr{kind}><td>{swatch}<b>{text(row[0])}</b></td>{cells}<td>{curve}</td></tr>")
    body = f'<div class="scroll"><table><tr>{head}<th></th></tr>{"".join(rows)}</table></div>'
    several = any(len(found) > 1 for found in runs.variants.values())
    note = f"Mean ± standard deviation over {seeds_of(runs)}, after the last round. " if several else ""
    return section("Results", body, note + "Turnout is the mean fraction of the asked work that was done.")


def curves_section(runs: Runs) -> str:
    """Every evaluated metric and the training loss, over rounds."""
    several = any(len(found) > 1 for found in runs.variants.values())
    note = "Lines are means over seeds, bands one standard deviation." if several else ""
    return section("Curves", grid(metric_charts(runs)), note)


def metric_charts(runs: Runs) -> list[str]:
    """One chart per evaluated metric, and one of the training loss."""
    shown = []
    for metric in runs.metrics:
        lines, title = _joint(runs, _series(runs, partial(runs.curve, metric=metric)), title_of(metric))
        shown.append(charts.line_chart(lines, title, "rounds trained", runs.legend.unit(metric)))
    return [*shown, column_chart(runs, "train_loss", "Training loss")]


def column_chart(runs: Runs, name: str, title: str, unit: Unit = "number", total: bool = False) -> str:
    """A column of the rounds, or its running total."""

    def line(variant: str) -> tuple[Floats, Floats, Floats]:
        x, mean, deviation = runs.column(variant, name)
        return (x, np.cumsum(mean), np.full_like(mean, np.nan)) if total else (x, mean, deviation)

    series = [s for s in _series(runs, line) if np.any(s.y != 0)]
    ends = [float(s.y[-1]) for s in series] or [1.0]
    apart = total and min(ends) > 0 and max(ends) / min(ends) > 20
    lines, title = _joint(runs, series, title)
    return charts.line_chart(lines, title, "round", unit, log_y=apart if total else None)


def spending_section(runs: Runs) -> str:
    """Bytes up and down, and the main metric against bytes spent."""
    shown = [
        column_chart(runs, "bytes_up", "Sent up by clients, in total", "bytes", total=True),
        column_chart(runs, "bytes_down", "Sent down to clients, in total", "bytes", total=True),
    ]
    if any(shown) and runs.metrics and len(runs.variants) > 1:
        shown.append(_metric_by_bytes(runs, runs.metrics[0]))
    return section("Bytes", grid(shown))


def _metric_by_bytes(runs: Runs, metric: str) -> str:
    def line(variant: str) -> tuple[Floats, Floats, Floats]:
        rounds, mean, deviation = runs.curve(variant, metric)
        x, up, _ = runs.column(variant, "bytes_up")
        spent = np.cumsum(up + runs.column(variant, "bytes_down")[1])
        done = np.searchsorted(x + 1, rounds, side="right")  # an evaluation after n rounds has paid for n
        return np.concatenate([[0.0], spent])[done], mean, deviation

    series = _series(runs, line)
    ends = [s.x[-1] for s in series if len(s.x) and s.x[-1] > 0]
    wide = bool(ends) and max(ends) / min(ends) > 10
    title = f"{title_of(metric)} for bytes spent, both ways"
    return charts.line_chart(series, title, "bytes", runs.legend.unit(metric), "bytes", log_x=wide)


def weights_section(runs: Runs) -> str:
    """The sum and the largest of the weights: a sum far from 1 moves the model by more or less than a mean."""
    shown = [column_chart(runs, "weight_sum", "Sum of weights"), column_chart(runs, "weight_max", "Largest weight")]
    return section(
        "Weights", grid(shown), "A sum below 1 keeps a part of the old model; above 1 it overshoots the mean."
    )


def parts_section(runs: Runs) -> str:
    """Numbers that the parts of the algorithm added, the learning rate and the members."""
    names = {n for run in runs.runs for n, c in run.rounds.items() if c.dtype != object} - _ROUND_NAMES
    changing = [n for n in ("lr", "members") if any(len(set(run.rounds[n].tolist())) > 1 for run in runs.runs)]
    shown = [column_chart(runs, n, title_of(n), runs.legend.unit(n)) for n in [*changing, *runs.legend.in_order(names)]]
    return section("What the parts reported", grid(shown))


def clients_section(runs: Runs) -> str:
    """How metrics are spread over clients at the end, the worst tenth marked."""
    names = runs.legend.in_order({name for run in runs.runs for name in run.client_values})
    variants = list(runs.variants)
    if len(variants) == 1:
        return _clients("Each client", [(title_of(name), variants[0], name) for name in names], runs)
    plain = {name: title_of(name.removeprefix("client_")) for name in names}
    return "".join(_clients(f"{plain[n]} of each client", [(v, v, n) for v in variants], runs) for n in names)


def _clients(title: str, shown: list[tuple[str, str, str]], runs: Runs) -> str:
    """A chart and a row of numbers for each (label, variant, metric); charts of one metric have the same axis."""
    spreads = [(label, name, _client_values(runs, variant, name)) for label, variant, name in shown]
    spreads = [item for item in spreads if len(item[2])]
    figures, rows = [], []
    for label, name, values in spreads:
        alike = np.concatenate([v for _, other, v in spreads if other == name])
        figures.append(_spread_of(values, label, runs.legend.info(name), (float(alike.min()), float(alike.max()))))
        tenth, unit = max(1, len(values) // 10), runs.legend.unit(name)
        numbers = (values[:tenth].mean(), np.median(values), values.mean(), values[-tenth:].mean())
        cells = "".join(f"<td>{show(float(v), unit)}</td>" for v in numbers)
        rows.append(f"<tr><td>{text(label)}</td><td>{len(values):,}</td>{cells}</tr>")
    head = "<th></th><th>values</th><th>worst tenth</th><th>median</th><th>mean</th><th>best tenth</th>"
    table = f'<div class="scroll below"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    note = "The last time each client was measured, all seeds together; the worst tenth is marked."
    return section(title, grid(figures) + table if figures else "", note)


def _client_values(runs: Runs, variant: str, name: str) -> Floats:
    """What was last measured on each client, all seeds together, from worst to best."""
    found = [run.client_values[name][1] for run in runs.variants[variant] if name in run.client_values]
    values = np.concatenate([np.asarray(v, np.float64) for v in [[], *found]])
    values = np.sort(values[np.isfinite(values)])
    return values if runs.legend.higher_is_better(name) else values[::-1]


def _spread_of(values: Floats, title: str, info: MetricInfo, ends: tuple[float, float]) -> str:
    if len(values) <= 200:
        words = f"{len(values)} values, from worst to best"
        return charts.bars(values, title, max(1, len(values) // 10), info.unit, words)
    return charts.histogram(values, title, info.unit, f"{len(values):,} values", ends, info.higher_is_better)


def events_section(runs: Runs) -> str:
    """Who joined and left, and what was decided; the runs of a folder that agree are listed once."""
    lists: dict[tuple[tuple[int, int, str, str], ...], list[RunRecords]] = {}
    for run in runs.runs:
        if run.events:
            lists.setdefault(tuple(run.events), []).append(run)
    body = ""
    for events, found in lists.items():
        rows = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in event)}</tr>" for event in events[:200])
        more = f"<p class='soft'>and {len(events) - 200} more in the records</p>" if len(events) > 200 else ""
        head = "<tr><th>round</th><th>client</th><th>event</th><th>detail</th></tr>"
        table = f'<div class="scroll"><table class="words">{head}{rows}</table></div>{more}'
        names = _names(found, runs)
        body += f"<details><summary>{len(events)} events{names}</summary>{table}</details>" if len(lists) > 1 else table
    return section("Joined and left", body)


def _names(found: list[RunRecords], runs: Runs) -> str:
    if len(found) == len(runs.runs):
        return ""
    names = [r.variant if r.seed is None else f"{r.variant}, seed {r.seed}" for r in found]
    return text(" in " + "; ".join(names[:6]) + (" and others" if len(names) > 6 else ""))


def _series(runs: Runs, line: Callable[[str], tuple[Floats, Floats, Floats]]) -> list[Series]:
    """A line per variant, in the variant's colour, with a band where there are several seeds."""
    found = []
    for i, variant in enumerate(runs.variants):
        x, mean, deviation = line(variant)
        band = np.isfinite(deviation).any()
        low, high = (mean - deviation, mean + deviation) if band else (None, None)
        found.append(Series(variant, x, mean, i, low, high))
    return found


def _joint(runs: Runs, series: list[Series], title: str) -> tuple[list[Series], str]:
    """The lines that differ; where there is but one, the title says whose it is."""
    known = [s for s in series if np.isfinite(s.y).any()]
    lines = _merged(known)
    if len(lines) == 1 and len(runs.variants) > 1:
        title += ", all variants" if len(known) == len(runs.variants) else f", {lines[0].name}"
    return lines, title


def _merged(series: list[Series]) -> list[Series]:
    """Lines that coincide drawn once under a joint name: paired variants often see the same turnout."""
    found: dict[tuple[bytes, bytes], list[Series]] = {}
    for s in series:
        found.setdefault((s.x.tobytes(), s.y.tobytes()), []).append(s)
    joint = [(" = ".join(s.name for s in group), group[0]) for group in found.values()]
    return [Series(name, s.x, s.y, s.colour, s.low, s.high) for name, s in joint]
