"""Reads any fleet's log: rows of rounds, check-ins with a time, or stretches from a start to an end.

    fleet = read_fleet("checkins.csv", Reading(every="1h"))

Shape letters: N rows of the log, then of the record; M clients, T rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from turnout.errors import UserError
from turnout.fleet.assemble import fleet_of
from turnout.fleet.cells import TimeReader, column_of, number, share, whole
from turnout.fleet.faults import Faults
from turnout.fleet.fedscale import read_availability, read_capacity
from turnout.fleet.fleet import Fleet
from turnout.fleet.owners import with_owners
from turnout.fleet.plain_pickle import is_pickle
from turnout.fleet.reading import Reading, seconds
from turnout.fleet.rows import Effort, Form, LogRows
from turnout.fleet.table import Block, LogTable, open_table
from turnout.world.turnout_csv import HEADER

OWN_FILE = "turnout.csv"  # in a run folder
LOOKED_AT = 100  # times of a block that say how times are written, where they cannot be read


def read_fleet(path: str | Path, reading: Reading = Reading()) -> Fleet:  # noqa: B008 (frozen)
    """A fleet's log, or the observed turnout of a run folder; a UserError names everything that is wrong with it."""
    fleet = _as_logged(path, reading)
    return fleet if reading.owners is None else with_owners(fleet, reading.owners)


def _as_logged(path: str | Path, reading: Reading) -> Fleet:
    """The log with the names that it has."""
    file = _file(Path(path))
    if file.name == OWN_FILE and (file.parent / "records.sqlite").is_file():
        reading = replace(reading, missing=reading.missing or "not-asked")  # a run has a row for everyone it asked
    if is_pickle(file):
        rows = _with_effort(read_availability(file), reading)
        return fleet_of(rows, reading, Faults(str(file), "entry"))
    table = open_table(file, reading.separator)
    columns = reading.columns(table.header, str(table.path))
    form = _form(columns, reading, table)
    faults = Faults(str(table.path), table.counted_in)
    rows = _Collected(table, columns, form, reading, faults).rows()
    return fleet_of(_with_effort(rows, reading), reading, faults)


def _with_effort(rows: LogRows, reading: Reading) -> LogRows:
    """The rows with what a round costs each client, where a capacity trace is given."""
    if reading.capacity is None:
        return rows
    if rows.form != "intervals" or rows.work_N is not None:
        raise UserError(
            f"{rows.path}: a capacity trace decides the work of clients that were there from a start to an end; this "
            "log has no such stretches, or says the work itself"
        )
    devices = read_capacity(reading.capacity)
    device_M = devices.of(rows.names)
    effort = Effort(
        link_M=2 * (reading.megabytes or 0) / devices.megabytes_a_second_M[device_M],
        training_M=(reading.samples or 0) * devices.sample_seconds_M[device_M],
        deadline=np.inf if reading.deadline is None else seconds(reading.deadline),
    )
    return replace(rows, effort=effort)


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / OWN_FILE).is_file():
        return path / OWN_FILE
    inside = sorted(found.parent for found in path.glob(f"*/**/{OWN_FILE}"))
    hint = f"; it holds runs, name one of them, such as {inside[0]}" if inside else ""
    raise UserError(f"{path} is a folder without {OWN_FILE}{hint or ': give a log, or the folder of a run'}")


def _form(columns: dict[str, str], reading: Reading, table: LogTable) -> Form:
    """What the log's rows are, from the columns it has; what is missing is asked for in one sentence."""
    timed = "time" in columns or "start" in columns
    lacking = [] if "client" in columns else ["the client? Say --client NAME"]
    if not timed and "round" not in columns:
        lacking.append("the round, or the time? Say --round NAME, --time NAME, or --start NAME --end NAME")
    if lacking:
        listed = ", ".join(map(repr, table.header))
        raise UserError(f"{table.path}: which column is {'; and which is '.join(lacking)}; the columns are {listed}")
    if "round" in columns and not (timed and reading.every and reading.round is None):
        return "rounds"
    return "intervals" if {"start", "end"} <= set(columns) else "check-ins"


@dataclass
class _Collected:
    """The numbers of a log, block by block."""

    table: LogTable
    columns: dict[str, str]
    form: Form
    reading: Reading
    faults: Faults
    code_of: dict[str, int] = field(default_factory=dict)
    clock: TimeReader | None = None
    found: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def rows(self) -> LogRows:
        roles = [role for role in self.columns if self._wanted(role)]
        for block in self.table.blocks([self.columns[role] for role in roles], self.faults):
            self._keep("line", np.array(block.line_B, dtype=np.int32))
            for role in roles:
                self._keep(role, self._read(role, block))
        if not self.code_of:
            self.faults.check()  # no row could be read
            raise UserError(f"{self.table.path} has no rows: a row says that a client was asked, or came")
        return self._joined()

    def _wanted(self, role: str) -> bool:
        """Whether a column matters for this form of log."""
        if self.form == "intervals":
            return role not in ("round", "time")
        if self.form == "check-ins":
            return role not in ("round", "end") and not (role == "start" and "time" in self.columns)
        return role not in ("start", "end")

    def _keep(self, role: str, values: np.ndarray) -> None:
        self.found.setdefault("time" if role == "start" else role, []).append(values)

    def _read(self, role: str, block: Block) -> np.ndarray:
        column = self.columns[role]
        if role == "client":
            return self._codes(block, column)
        if role in ("time", "start", "end"):
            return self._times(block, column, still_there=role == "end")
        read, wanted = self._numbers(role)
        plain = {"round": (int, 2.0**53), "examples": (float, 2.0**53), "work": (float, 1.0)}[role]
        quick = plain if role != "work" or self.reading.full_work == 1 else None
        return column_of(block, column, read, self.faults, wanted, quick)

    def _numbers(self, role: str) -> tuple[Callable[[str], float | None], str]:
        if role == "round":
            return whole, "a whole number"
        if role == "examples":
            return lambda text: found if (found := number(text)) is not None and found >= 0 else None, "a count"
        full = self.reading.full_work
        most = f"0 to {full:g}, the number for all of the work" if full != 1 else "the share finished, 0 to 1 or in %"
        return share(full, self.table.separator == ";"), most

    def _codes(self, block: Block, column: str) -> np.ndarray:
        names = block.cells[column]
        for name in names:
            self.code_of.setdefault(name, len(self.code_of))
        for line in (line for line, name in zip(block.line_B, names, strict=True) if not name):
            self.faults.add("client", line, f"{column} is empty: which client is it?")
        codes = (self.code_of[name] for name in names)
        return np.fromiter(codes, dtype=np.int32, count=len(block.line_B))

    def _times(self, block: Block, column: str, still_there: bool) -> np.ndarray:
        """Times of a block; an `end` that is empty is NaN: the client is still there."""
        texts = block.cells[column]
        if self.clock is None:
            first = next((text for text in texts if text), "")
            self.clock = TimeReader.for_cell(first, self.reading.time_format)
        read = self.clock.read
        parse = (lambda text: read(text) if text else np.inf) if still_there else read
        unread = [text for text in texts[:LOOKED_AT] if text and read(text) is None]
        return column_of(block, column, parse, self.faults, self.clock.wanted(unread))

    def _joined(self) -> LogRows:
        whole_log = {f"{role}_N": np.concatenate(parts) for role, parts in self.found.items()}
        time_N, kind = whole_log.get("time_N"), None
        if time_N is not None and self.clock is not None:
            units, kind = self.clock.scale(time_N[np.isfinite(time_N)])
            whole_log |= {name: whole_log[name] / units for name in ("time_N", "end_N") if name in whole_log}
        return LogRows(
            path=str(self.table.path),
            form=self.form,
            names=tuple(self.code_of),
            code_N=whole_log["client_N"],
            line_N=whole_log["line_N"],
            round_N=whole_log.get("round_N"),
            time_N=whole_log.get("time_N"),
            end_N=whole_log.get("end_N"),
            work_N=whole_log.get("work_N"),
            examples_N=whole_log.get("examples_N"),
            clock=kind,
            own_form=self.table.header == list(HEADER),
            said=self._said(),
        )

    def _said(self) -> list[str]:
        """What was guessed about the table itself."""
        guessed = {role: name for role, name in self.columns.items() if getattr(self.reading, role) is None}
        odd = [f"{name!r} is the {role}" for role, name in guessed.items() if name != role and self._wanted(role)]
        return [f"columns by their names: {', '.join(odd)}"] if odd else []
