"""The diagnosis of a fleet's log: as text for a terminal, and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from turnout import __version__
from turnout.machine.files import write_whole
from turnout.report.charts import Series, bars, histogram, line_chart
from turnout.report.maps import turnout_map
from turnout.report.sections import charts_section
from turnout.report.svg import packaged, sheet
from turnout.report.templates import render, trusted
from turnout.report.units import duration, show, sparkline
from turnout.world.fleet.diagnosis import WEEKDAYS, Diagnosis, OutageNote
from turnout.world.fleet.fleet import Fleet
from turnout.world.fleet.groups import Groups
from turnout.world.fleet.likeness import Likeness
from turnout.world.fleet.speaks_for import PartToTry

NAMED = 6  # clients of a list
NAMES = {
    "turnout": ("turnout", "percent"),
    "work": ("work of those who came", "percent"),
    "stay": ("a stay, in rounds", "number"),
    "away": ("an absence, in rounds", "number"),
    "uneven": ("spread of clients' own turnouts", "number"),
    "together": ("how alike absences are (correlation)", "number"),
    "by_round": ("spread of the turnout over rounds", "number"),
}


def facts(found: Diagnosis) -> list[tuple[str, str]]:
    """(name, value) of the key numbers."""
    shown = [("clients", f"{found.clients:,}"), ("rounds", f"{found.rounds:,}")]
    if found.every is not None:
        shown.append(("a round is", duration(found.every)))
    shown += [("turnout", show(found.turnout, "percent")), ("work of those who came", show(found.work, "percent"))]
    shown.append(("finish all of it", show(found.complete, "percent")))
    if found.mass is not None:
        shown.append(("examples that turn up", show(found.mass, "percent")))
    return shown


def sentences(found: Diagnosis) -> Iterator[str]:
    """What the log shows, in words."""
    unit = "" if found.every is None else f" ({duration(found.stay.mean * found.every)})"
    yield (
        f"A stay lasts {found.stay.mean:.1f} rounds on average{unit}, half of them {found.stay.median:.0f} or less; an "
        f"absence {found.away.mean:.1f}, half of them {found.away.median:.0f} or less, a tenth more than "
        f"{found.away.longest_tenth:.0f}."
    )
    for i, group in enumerate(found.groups, 1):
        out = "" if group.outages is None else f"; {_times(group.outages)}"
        yield (
            f"Group {i}: {len(group.clients):,} clients are away together ({_names(group.clients)}), each "
            f"{group.like:.2f} like the others, turnout {group.turnout:.0%}{out}."
        )
    if not found.groups:
        yield "No group of clients is away together more than chance and the hour explain."
    if found.outages is not None:
        yield f"The whole fleet: {_times(found.outages)}."
    if found.hardly_there:
        held = "" if found.hardly_mass is None else f", with {found.hardly_mass:.0%} of the examples"
        yield (
            f"{len(found.hardly_there):,} clients come to fewer than 5 % of their rounds{held}: "
            f"{_names(found.hardly_there)}."
        )
    for words, listed in (("joined", found.joined), ("left", found.left)):
        if listed:
            named = _names(tuple(f"{name} in round {t}" for name, t in listed))
            yield f"{len(listed):,} clients {words} while the log was written: {named}."


def _times(outages: OutageNote) -> str:
    often = "out once" if outages.times == 1 else f"out {outages.times} times"
    return f"{often}, {outages.rounds} rounds in all"


def _names(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def likeness_rows(like: Likeness) -> list[tuple[str, list[str]]]:
    """(statistic, [log, blocks, fitted]), as shown."""
    rows = []
    for field, (name, unit) in NAMES.items():
        values = [getattr(one, field) for one in (like.log, like.blocks, like.fitted)]
        rows.append((name, [show(value, "percent") if unit == "percent" else f"{value:.3g}" for value in values]))
    if like.log.by_hour:
        hours = np.array(like.log.by_hour)
        apart = [float(np.abs(np.array(one.by_hour) - hours).max()) for one in (like.blocks, like.fitted)]
        rows.append(("farthest hour of the day", ["", *(show(value, "percent") for value in apart)]))
    return rows


def as_text(found: Diagnosis, parts: list[PartToTry], like: Likeness | None) -> Iterator[Text | Table]:
    """The diagnosis for a terminal, piece by piece."""
    for words in found.assumed:
        yield Text(f"assumed: {words}", style="dim")
    yield Text("  ".join(f"{name}: {value}" for name, value in facts(found)))
    yield Text()
    for name, values in _curves(found):
        yield Text.assemble((f"{name}: ", "dim"), (sparkline(np.array(values), 48), "blue"), _ends(values))
    yield Text()
    yield from (Text(words) for words in sentences(found))
    yield Text()
    table = Table(box=None, padding=(0, 2, 0, 0), title="parts to try", title_justify="left", title_style="bold")
    table.add_column("setting")
    table.add_column("because")
    for part in parts:
        table.add_row(part.setting, part.why)
    yield table
    if like is not None:
        yield Text()
        yield _likeness_table(like)


def _likeness_table(like: Likeness) -> Table:
    title = f"what is drawn from the log, beside it (stretches of {like.stretch} rounds)"
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    for name in ("", "log", "blocks", "fitted"):
        table.add_column(name, justify="left" if not name else "right")
    for name, values in likeness_rows(like):
        table.add_row(name, *values)
    return table


def _curves(found: Diagnosis) -> Iterator[tuple[str, tuple[float, ...]]]:
    yield "turnout by round", found.turnout_by_round
    if found.turnout_by_hour:
        yield "turnout by hour, 0 to 23", found.turnout_by_hour
    if found.turnout_by_weekday:
        yield "turnout by day, Monday to Sunday", found.turnout_by_weekday


def _ends(values: tuple[float, ...]) -> str:
    return f" {show(float(np.nanmin(values)), 'percent')} to {show(float(np.nanmax(values)), 'percent')}"


def write_fleet_page(
    path: Path, fleet: Fleet, found: Diagnosis, groups: Groups, parts: list[PartToTry], like: Likeness | None
) -> None:
    """The diagnosis as a page."""
    page = render(
        "page.html",
        title=f"The fleet of {Path(found.path).name}",
        warnings=[],
        notes=[f"Assumed: {words}." for words in found.assumed],
        kinds=[],
        facts=facts(found),
        sections=_sections(fleet, found, groups, parts, like),
        version=__version__,
        source="a fleet's log",
        style=Markup(packaged("charts.css") + packaged("page.css")),
        script=Markup(packaged("page.js")),
    )
    write_whole(path, page + "\n")


def write_fleet_picture(path: Path, fleet: Fleet, found: Diagnosis, like: Likeness | None) -> None:
    """The charts of the diagnosis as one SVG."""
    charts = [*_turnout_charts(found), *_client_charts(fleet, found), *([] if like is None else [_hours_chart(like)])]
    write_whole(path, sheet([chart for chart in charts if chart]))


def _sections(
    fleet: Fleet, found: Diagnosis, groups: Groups, parts: list[PartToTry], like: Likeness | None
) -> list[Markup]:
    sections = [
        render("fleet.html", title="What it shows", note="", sentences=list(sentences(found)), parts=parts),
        render(
            "maps.html", title="Who turned up when", note="", maps=[_map(fleet, groups)], charts=[], side_by_side=False
        ),
        *charts_section("Turnout", _turnout_charts(found)),
        *charts_section("Clients", _client_charts(fleet, found)),
    ]
    if like is not None:
        note = (
            f"Statistics of the log, and of what participation draws from it: stretches of {like.stretch} rounds "
            "(blocks) and the fitted model (fitted), means over three seeds."
        )
        columns = ("log", "blocks", "fitted")
        values = {"columns": columns, "rows": likeness_rows(like), "charts": trusted([_hours_chart(like)])}
        sections.append(render("likeness.html", title="Drawn from the log", note=note, **values))
    return sections


def _map(fleet: Fleet, groups: Groups) -> object:
    """Clients by group and then by how often they come; those asked and absent are shown as such."""
    came_M = np.bincount(fleet.client_N, fleet.work_N > 0, fleet.clients) / np.maximum(fleet.asked_M, 1)
    rank_M = np.empty(fleet.clients, np.int64)
    rank_M[np.lexsort((-came_M, groups.group_M % (groups.count + 1)))] = np.arange(fleet.clients)
    absent_T = [np.setdiff1d(fleet.asked(t), fleet.row(t)[0]) for t in range(fleet.rounds)]
    absent_A = np.concatenate(absent_T) if absent_T else np.empty(0, np.int64)
    round_A = np.repeat(np.arange(fleet.rounds), [len(one) for one in absent_T])
    client_N = np.concatenate([fleet.client_N, absent_A]).astype(np.int64)
    turnout = (
        np.concatenate([fleet.round_N, round_A]).astype(np.int64),
        rank_M[client_N],
        np.concatenate([fleet.work_N, np.zeros(len(absent_A))]),
    )
    return turnout_map(turnout, "Work done, by group and then by turnout")


def _turnout_charts(found: Diagnosis) -> list[str]:
    t_T = np.arange(found.rounds, dtype=np.float64)
    series = [Series("clients", t_T, np.array(found.turnout_by_round))]
    if found.mass_by_round:
        series.append(Series("examples", t_T, np.array(found.mass_by_round), 1))
    charts = [line_chart(series, "Share that turns up", unit="percent")]
    if found.turnout_by_hour:
        hours = Series("turnout", np.arange(24.0), np.array(found.turnout_by_hour))
        charts.append(line_chart([hours], "Turnout by hour of the day", x_label="hour", unit="percent"))
    if found.turnout_by_weekday:
        days = f"{WEEKDAYS[0]} to {WEEKDAYS[-1]}"
        charts.append(bars(np.array(found.turnout_by_weekday), "Turnout by weekday", unit="percent", x_label=days))
    charts.append(line_chart([Series("asked", t_T, np.array(found.asked_by_round, float))], "Clients asked"))
    return charts


def _client_charts(fleet: Fleet, found: Diagnosis) -> list[str]:
    own = np.array(found.turnout_by_client)
    charts = [histogram(own, "Clients by their own turnout", "percent", "share of its rounds that a client came")]
    kinds = [("stays", found.stay), ("absences", found.away)]
    lasting = [
        Series(name, np.arange(1.0, len(one.at_least) + 1), np.array(one.at_least), i)
        for i, (name, one) in enumerate(kinds)
    ]
    charts.append(line_chart(lasting, "Stays and absences that last so long", "rounds, at least", unit="percent"))
    work = fleet.work_N[fleet.work_N > 0]
    if found.complete < 1:
        charts.append(histogram(work, "Visits by work done", "percent", "share of the work", ends=(0.0, 1.0)))
    return charts


def _hours_chart(like: Likeness) -> str:
    if not like.log.by_hour:
        return ""
    modes = [("log", like.log), ("blocks", like.blocks), ("fitted", like.fitted)]
    hours = np.arange(float(len(like.log.by_hour)))
    series = [Series(name, hours, np.array(one.by_hour), i) for i, (name, one) in enumerate(modes)]
    return line_chart(series, "Turnout by round of the day", x_label="round of the day", unit="percent")
