"""The diagnosis of a fleet's log as one HTML file that needs nothing else, or its charts as one picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from turnout.fleet.diagnosis import WEEKDAYS, Diagnosis, PartToTry
from turnout.fleet.diagnosis_text import comparison_rows, facts, sentences
from turnout.fleet.fleet_participation import LogComparison
from turnout.fleet.groups import Groups
from turnout.fleet.participation_log import ParticipationLog
from turnout.machine.files import write_whole
from turnout.running.charts.bars import bars, histogram
from turnout.running.charts.heat import HeatMap, turnout_map
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import charts_section, renderer, trusted, whole_page
from turnout.running.charts.svg import sheet

render = renderer("turnout.fleet")


def write_fleet_page(
    path: Path,
    log: ParticipationLog,
    found: Diagnosis,
    groups: Groups,
    parts: list[PartToTry],
    comparison: LogComparison | None,
) -> None:
    """Write the diagnosis as a page."""
    sections: list[Markup] = [
        render("fleet.html", title="What it shows", note="", sentences=list(sentences(found)), parts=parts),
        render("wide_maps.html", title="Who turned up when", note="", maps=[_map(log, groups)], charts=[]),
        *charts_section("Turnout", _turnout_charts(found)),
        *charts_section("Clients", _client_charts(log, found)),
    ]
    if comparison is not None:
        note = (
            f"Statistics of the log, and of participation drawn from it: blocks of {comparison.stretch} rounds "
            "(blocks) and the fitted model (fitted), means over three seeds."
        )
        values = {"rows": comparison_rows(comparison), "charts": trusted([_hours_chart(comparison)])}
        columns = ("log", "blocks", "fitted")
        sections.append(render("likeness.html", title="Drawn from the log", note=note, columns=columns, **values))
    page = whole_page(
        title=f"The fleet of {Path(found.path).name}",
        notes=[f"Assumed: {words}." for words in found.assumed],
        facts=facts(found),
        sections=sections,
        source="a fleet's log",
    )
    write_whole(path, page)


def write_fleet_picture(path: Path, log: ParticipationLog, found: Diagnosis, comparison: LogComparison | None) -> None:
    """Write the charts of the diagnosis as one SVG."""
    charts = [*_turnout_charts(found), *_client_charts(log, found)]
    if comparison is not None:
        charts.append(_hours_chart(comparison))
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
        hours = Series("turnout", np.arange(24.0), np.array(found.turnout_by_hour))
        charts.append(line_chart([hours], "Turnout by hour of the day", x_label="hour", unit="percent"))
    if found.turnout_by_weekday:
        days = f"{WEEKDAYS[0]} to {WEEKDAYS[-1]}"
        charts.append(bars(np.array(found.turnout_by_weekday), "Turnout by weekday", unit="percent", x_label=days))
    charts.append(line_chart([Series("asked", t_T, np.array(found.asked_by_round, float))], "Clients asked"))
    return charts


def _client_charts(log: ParticipationLog, found: Diagnosis) -> list[str]:
    own = np.array(found.turnout_by_client)
    charts = [histogram(own, "Clients by their own turnout", "percent", "share of its rounds that a client came")]
    kinds = [("stays", found.stay), ("absences", found.away)]
    lasting = [
        Series(name, np.arange(1.0, len(one.at_least) + 1), np.array(one.at_least), i)
        for i, (name, one) in enumerate(kinds)
    ]
    charts.append(line_chart(lasting, "Stays and absences that last so long", "rounds, at least", unit="percent"))
    work = log.work_N[log.work_N > 0]
    if found.complete < 1:
        charts.append(histogram(work, "Visits by work done", "percent", "share of the work", ends=(0.0, 1.0)))
    return charts


def _hours_chart(found: LogComparison) -> str:
    if not found.log.by_hour:
        return ""
    modes = [("log", found.log), ("blocks", found.blocks), ("fitted", found.fitted)]
    hours = np.arange(float(len(found.log.by_hour)))
    series = [Series(name, hours, np.array(one.by_hour), i) for i, (name, one) in enumerate(modes)]
    return line_chart(series, "Turnout by round of the day", x_label="round of the day", unit="percent")
