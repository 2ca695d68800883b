"""The diagnosis of a fleet's log in words and tables, as a terminal shows it; fleet_page.py has the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from turnout.fleet.diagnosis import Diagnosis, OutageNote
from turnout.fleet.fleet import Fleet
from turnout.fleet.likeness import Likeness
from turnout.fleet.speaks_for import PartToTry
from turnout.running.charts.units import duration, show, sparkline
from turnout.running.records.records import Records

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


def with_examples(fleet: Fleet, folder: Path) -> Fleet:
    """The fleet of a run with its clients' examples, from the records; as it is where clients have names, or none are
    known."""
    with Records.read(folder / "records.sqlite") as records:
        columns = records.clients()
    known = "examples" in columns and all(name.isdecimal() for name in fleet.names)
    if not known:
        return fleet
    examples = dict(zip(columns["client"].tolist(), columns["examples"].tolist(), strict=True))
    found_M = np.array([examples.get(int(name)) or 0 for name in fleet.names], dtype=np.float64)
    return replace(fleet, examples_M=found_M) if found_M.any() else fleet


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
    for words, lasts in (("A stay", found.stay), ("An absence", found.away)):
        unit = "" if found.every is None else f" ({duration(lasts.mean * found.every)})"
        if lasts.count:
            yield (
                f"{words} lasts {lasts.mean:.1f} rounds on average{unit}, half of them {lasts.median:.0f} or less, a "
                f"tenth more than {lasts.longest_tenth:.0f}."
            )
        else:
            yield f"{words} was never seen."
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
