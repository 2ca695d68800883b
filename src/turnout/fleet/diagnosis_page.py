"""The diagnosis of a fleet's log for people: in words for a terminal, as a page, and its charts as one picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from turnout.fleet.diagnosis import Diagnosis, PartToTry
from turnout.fleet.fleet_model import Outages
from turnout.fleet.groups import Groups
from turnout.fleet.participation_log import ParticipationLog
from turnout.fleet.rhythm import WEEKDAYS
from turnout.machine.files import write_whole
from turnout.running.charts.heat import HeatMap, turnout_map
from turnout.running.charts.lines import Series, bars, line_chart
from turnout.running.charts.page import charts_section, renderer, whole_page
from turnout.running.charts.svg import sheet
from turnout.running.charts.units import duration, show, sparkline

NAMED = 6  # clients of a list


def facts(found: Diagnosis) -> list[tuple[str, str]]:
    """(name, value) of the key numbers."""
    every = [] if found.every is None else [("a round is", duration(found.every))]
    mass = [] if found.mass is None else [("examples that turn up", show(found.mass, "percent"))]
    return [
        ("clients", f"{found.clients:,}"),
        ("rounds", f"{found.rounds:,}"),
        *every,
        ("turnout", show(found.turnout, "percent")),
        ("work of those who came", show(found.work, "percent")),
        ("finish all of it", show(found.complete, "percent")),
        *mass,
    ]


NOTHING = "Clients come independently of each other, at every time alike, as far as the tests can tell."


def sentences(found: Diagnosis) -> Iterator[str]:
    """The diagnosis in words, what stands out first."""
    yield from (one.words for one in found.findings)
    yield from _described(found)


def _described(found: Diagnosis) -> Iterator[str]:
    """Stays, groups and clients in words."""
    for words, lasts in (("A stay", found.stay), ("An absence", found.away)):
        unit = "" if found.every is None else f" ({duration(lasts.mean * found.every)})"
        if lasts.count:
            yield (
                f"{words} lasts {lasts.mean:.1f} rounds on average{unit}, half of them {lasts.median:.0f} or less, a "
                f"tenth more than {lasts.longest_tenth:.0f}."
            )
        else:
            yield f"{words} never occurs."
    for i, group in enumerate(found.groups, 1):
        out = "" if group.outages is None else f"; {_times(group.outages)}"
        yield (
            f"Group {i}: {len(group.clients):,} clients are away together ({_names(group.clients)}), each "
            f"{group.like:.2f} like the others, turnout {group.turnout:.0%}{out}."
        )
    if not found.groups:
        yield "No group of clients is away together more than chance and the hour explain."
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


def summary(found: Diagnosis) -> list[str]:
    """The key numbers, the findings and the assumptions, a line each."""
    return ["; ".join(f"{name}: {value}" for name, value in facts(found)), *sentences(found), *found.assumed]


def _times(outages: Outages) -> str:
    often = "out once" if outages.episodes == 1 else f"out {outages.episodes} times"
    return f"{often}, {outages.rounds} rounds in all"


def _names(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def as_text(found: Diagnosis, parts: list[PartToTry]) -> Iterator[Text | Table]:
    """The diagnosis for a terminal, piece by piece."""
    for words in found.assumed:
        yield Text(f"assumed: {words}", style="dim")
    yield Text("  ".join(f"{name}: {value}" for name, value in facts(found)))
    yield Text()
    for name, values in (
        ("turnout by round", found.turnout_by_round),
        ("turnout by hour, 0 to 23", found.turnout_by_hour),
        ("turnout by day, Monday to Sunday", found.turnout_by_weekday),
    ):
        if values:
            ends = " to ".join(show(float(end(values)), "percent") for end in (np.nanmin, np.nanmax))
            yield Text.assemble((f"{name}: ", "dim"), (sparkline(np.array(values), 48), "blue"), f" {ends}")
    yield Text()
    yield Text("what stands out", style="bold")
    for one in found.findings:
        yield Text.assemble((f"{one.kind}: ", "bold yellow"), one.words)
    if not found.findings:
        yield Text(NOTHING)
    yield Text()
    yield from (Text(words) for words in _described(found))
    yield Text()
    table = Table("setting", "because", box=None, padding=(0, 2, 0, 0), title="parts to try", title_justify="left")
    for part in parts:
        table.add_row(part.setting, part.why)
    yield table


render = renderer("turnout.fleet")


def write_fleet_page(
    path: Path,
    log: ParticipationLog,
    found: Diagnosis,
    groups: Groups,
    parts: list[PartToTry],
) -> None:
    """Write the diagnosis as a page."""
    sections: list[Markup] = [
        render(
            "fleet.html",
            title="What stands out",
            note="" if found.findings else NOTHING,
            findings=found.findings,
            sentences=list(_described(found)),
            parts=parts,
        ),
        render("wide_maps.html", title="Who turned up when", note="", maps=[_map(log, groups)], charts=[]),
        *charts_section("Turnout", _turnout_charts(found)),
        *charts_section("Clients", _client_charts(log, found)),
        render("fleet.html", title="Assumed", note="", findings=(), sentences=list(found.assumed), parts=()),
    ]
    page = whole_page(
        title=f"The fleet of {Path(found.path).name}",
        notes=[f"{len(found.assumed)} assumptions about the log are listed at the end."] if found.assumed else [],
        facts=facts(found),
        sections=sections,
        source="a fleet's log",
    )
    write_whole(path, page)


def write_fleet_picture(path: Path, log: ParticipationLog, found: Diagnosis) -> None:
    """Write the charts of the diagnosis as one SVG."""
    charts = [*_turnout_charts(found), *_client_charts(log, found)]
    write_whole(path, sheet([chart for chart in charts if chart]))


def _map(log: ParticipationLog, groups: Groups) -> HeatMap:
    """A map of the work by client and round; clients by group and then by how often they come."""
    came_M = np.bincount(log.client_N, log.work_N > 0, log.clients) / np.maximum(log.asked_M, 1)
    rank_M = np.empty(log.clients, np.int64)
    rank_M[np.lexsort((-came_M, groups.group_M % (groups.count + 1)))] = np.arange(log.clients)
    absent_T = [np.setdiff1d(log.asked(t), log.row(t)[0]) for t in range(log.rounds)]
    absent_A = np.concatenate(absent_T) if absent_T else np.empty(0, np.int64)
    round_A = np.repeat(np.arange(log.rounds), [len(one) for one in absent_T])
    client_N = np.concatenate([log.client_N, absent_A]).astype(np.int64)
    turnout = (
        np.concatenate([log.round_N, round_A]).astype(np.int64),
        rank_M[client_N],
        np.concatenate([log.work_N, np.zeros(len(absent_A))]),
    )
    client_M = np.argsort(rank_M)
    return turnout_map(turnout, "Work done, by group and then by turnout", lambda rank: log.names[client_M[rank]])


def _turnout_charts(found: Diagnosis) -> list[str]:
    t_T = np.arange(found.rounds, dtype=np.float64)
    series = [Series("clients", t_T, np.array(found.turnout_by_round))]
    if found.mass_by_round:
        series.append(Series("examples", t_T, np.array(found.mass_by_round), 1))
    charts = [line_chart(series, "Share that turns up", unit="percent")]
    if found.turnout_by_hour:
        hours = [Series("all" if found.comes_when else "turnout", np.arange(24.0), np.array(found.turnout_by_hour))]
        for i, one in enumerate((w for w in found.comes_when if w.clients < found.clients), 1):
            at_H = 24.0 * np.arange(len(one.turnout)) / len(one.turnout)
            hours.append(Series(f"{one.name(found.clients)}, {one.clients}", at_H, np.array(one.turnout), i))
        charts.append(line_chart(hours, "Turnout by hour of the day", x_label="hour", unit="percent"))
    if found.turnout_by_weekday:
        days = f"{WEEKDAYS[0]} to {WEEKDAYS[-1]}"
        charts.append(bars(np.array(found.turnout_by_weekday), "Turnout by weekday", unit="percent", x_label=days))
    charts.append(line_chart([Series("asked", t_T, np.array(found.asked_by_round, float))], "Clients asked"))
    return charts


def _client_charts(log: ParticipationLog, found: Diagnosis) -> list[str]:
    own = np.array(found.turnout_by_client)
    words = f"{len(own):,} clients, by the share of its rounds that each came"
    charts = [bars(np.sort(own), "Clients by their own turnout", "percent", words)]
    kinds = [("stays", found.stay), ("absences", found.away)]
    lasting = [
        Series(name, np.arange(1.0, len(one.at_least) + 1), np.array(one.at_least), i)
        for i, (name, one) in enumerate(kinds)
    ]
    charts.append(line_chart(lasting, "Stays and absences that last so long", "rounds, at least", unit="percent"))
    work = log.work_N[log.work_N > 0]
    if found.complete < 1:
        words = f"{len(work):,} visits, by the share of the work"
        charts.append(bars(np.sort(work), "Visits by work done", "percent", words, ends=(0.0, 1.0)))
    return charts
