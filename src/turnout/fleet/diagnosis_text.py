"""The diagnosis of a fleet's log in words and tables, for a terminal; diagnosis_page.py has the page."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from turnout.fleet.diagnosis import Diagnosis, OutageNote, PartToTry
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


def sentences(found: Diagnosis) -> Iterator[str]:
    """The findings in words."""
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


def summary(found: Diagnosis) -> list[str]:
    """The key numbers, the findings and the assumptions, a line each."""
    return ["; ".join(f"{name}: {value}" for name, value in facts(found)), *sentences(found), *found.assumed]


def _times(outages: OutageNote) -> str:
    often = "out once" if outages.times == 1 else f"out {outages.times} times"
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
    yield from (Text(words) for words in sentences(found))
    yield Text()
    table = Table("setting", "because", box=None, padding=(0, 2, 0, 0), title="parts to try", title_justify="left")
    for part in parts:
        table.add_row(part.setting, part.why)
    yield table
