"""Joins and leaves from a CSV file: an entry of `World.events`."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from turnout.errors import UserError
from turnout.world.events.base import Event, Join, Leave, PlannedEvents, Setting, number_of

HEADER = ["round", "client", "event"]


@dataclass(frozen=True)
class EventLog:
    """Joins and leaves from a CSV file with the header `round,client,event`; an event is `join`, `leave`, `vanish` for
    a leave without a word, or `outside` for a client that is no member at first and may never be."""

    path: str

    @property
    def drawn(self) -> bool:
        return False

    def events(self, setting: Setting) -> PlannedEvents:
        rows = [(i, row) for i, row in enumerate(self._rows()) if row]
        events = tuple(self._row(i, row, setting) for i, row in rows if row[2:] != ["outside"])
        outside = (number_of(row[1], setting, self._line(i) + ": ") for i, row in rows if row[2:] == ["outside"])
        return PlannedEvents(events, tuple(outside))

    def _line(self, i: int) -> str:
        return f"{self.path}, line {i + 2}"

    def _rows(self) -> list[list[str]]:
        try:
            with open(self.path, newline="", encoding="utf-8-sig") as file:
                rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
        except OSError as error:
            raise UserError(f"cannot read the events {self.path}: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{self.path} is not a CSV text of `round,client,event`: {error}") from error
        if not rows or rows[0] != HEADER:
            raise UserError(f"{self.path}, line 1: the header must be `round,client,event`")
        return rows[1:]

    def _row(self, i: int, row: list[str], setting: Setting) -> Event:
        where = self._line(i)
        if len(row) != 3 or not row[0].isdecimal():
            raise UserError(f"{where}: a row is a round, a client and join, leave or vanish, not {','.join(row)!r}")
        if row[2] not in ("join", "leave", "vanish"):
            raise UserError(f"{where}: an event is `join`, `leave` or `vanish`, not {row[2]!r}")
        client, t = number_of(row[1], setting, f"{where}: "), int(row[0])
        return Join(client, t) if row[2] == "join" else Leave(client, t, silent=row[2] == "vanish")


KINDS = {"event-log": EventLog}
