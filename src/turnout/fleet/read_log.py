"""Reads any fleet's log: rows of rounds, check-ins with a time, or stays from a start to an end.

    log = read_fleet("checkins.csv", Reading(every="1h"))

Shape letters: N rows of the log; M clients of the log, then owners; B rows of a block.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from turnout.errors import UserError
from turnout.fleet.fast_rows import LARGE, fast_rows
from turnout.fleet.fedscale import is_flash, is_pickle, read_availability, read_flash
from turnout.fleet.participation_log import ParticipationLog
from turnout.fleet.reading import Reading, TimeReader, column_of, count, share, whole
from turnout.fleet.rounds import Form, LogRows, NeedsLines, largest, log_of_rows
from turnout.fleet.server_logs import read_server_log
from turnout.machine.table_files import TableBlock, TableFile, open_table
from turnout.running.records.records import Records
from turnout.world.log import HEADER, TURNOUT_FILE, Faults, find_turnout

LOOKED_AT = 100  # times of a block from which the format is guessed, if they cannot be read
OWNER_COLUMNS = ["client", "owner"]


def read_fleet(path: str | Path, reading: Reading = Reading()) -> ParticipationLog:  # noqa: B008 (frozen)
    """A fleet's log, or the turnout of a run folder; a UserError lists everything that is wrong with it."""
    if reading.source is not None:
        faults = Faults(str(path), "line")
        log = log_of_rows(read_server_log(Path(path), reading.source), reading, faults)
    else:
        log = _read(find_turnout(Path(path)), reading)
    log = log if reading.since is None else _since(log, reading)
    return log if reading.owners is None else _with_owners(log, reading.owners)


def _read(file: Path, reading: Reading) -> ParticipationLog:
    if is_pickle(file) or is_flash(file):
        rows = read_availability(file) if is_pickle(file) else read_flash(file)
        return log_of_rows(rows, reading, Faults(str(file), "entry"))
    if file.name == TURNOUT_FILE and (file.parent / "records.sqlite").is_file():
        reading = replace(reading, missing=reading.missing or "not-asked")  # a run has a row for every client asked
    table = open_table(file, table=reading.table)
    columns = reading.columns(table.header, str(file))
    form = _form(columns, reading, table)
    unused = {"intervals": ["round", "time"], "check-ins": ["round", "end"], "rounds": ["start", "end"]}[form]
    if form == "check-ins" and "time" in columns:
        unused.append("start")
    roles = {role: column for role, column in columns.items() if role not in unused}
    guessed = [
        f"{name!r} is the {role}" for role, name in roles.items() if getattr(reading, role) is None and name != role
    ]
    assumed = [f"columns by their names: {', '.join(guessed)}"] if guessed else []
    own_form = table.header == list(HEADER)
    if file.stat().st_size >= LARGE and table.format != "SQLite" and find_spec("duckdb") is not None:
        with suppress(NeedsLines):
            if (fast := fast_rows(table, roles, form, reading)) is not None:
                return log_of_rows(replace(fast, own_form=own_form, assumed=assumed), reading, Faults(str(file)))
    faults = Faults(str(file), table.counted_in)
    rows = _RowCollector(table, roles, form, reading, faults).rows()
    return log_of_rows(replace(rows, own_form=own_form, assumed=assumed), reading, faults)


def _since(log: ParticipationLog, reading: Reading) -> ParticipationLog:
    """The log from `reading.since` on."""
    number, is_time = reading.since_number() or (0.0, False)
    if is_time and (log.start_T is None or not log.is_calendar):
        raise UserError(f"--since {reading.since}: {log.path} has no dates; give the number of a round, from 0")
    t = int(np.searchsorted(log.start_T, number)) if is_time and log.start_T is not None else int(number)
    if t >= log.rounds or log.first_row_T[t] == len(log.round_N):
        raise UserError(
            f"--since {reading.since}: {log.path} has no rows after that; its rounds are 0 to {log.rounds - 1:,}"
        )
    kept = log.since(t)
    assumed = f"{t:,} of {log.rounds:,} rounds are before {reading.since} and left out (--since)"
    return replace(kept, assumed=(*log.assumed, assumed))


def with_run_examples(log: ParticipationLog, folder: Path) -> ParticipationLog:
    """The log of a run with its clients' examples, from the records; unchanged if clients have names, or none are
    recorded."""
    with Records.read(folder / "records.sqlite") as records:
        columns = records.clients()
    if "examples" not in columns or not all(name.isdecimal() for name in log.names):
        return log
    examples = dict(zip(columns["client"].tolist(), columns["examples"].tolist(), strict=True))
    examples_M = np.array([examples.get(int(name)) or 0 for name in log.names], dtype=np.float64)
    return replace(log, examples_M=examples_M) if examples_M.any() else log


def _form(columns: dict[str, str], reading: Reading, table: TableFile) -> Form:
    """What the log's rows are, from the columns it has; missing columns are asked for in one sentence."""
    timed = "time" in columns or "start" in columns
    lacking = [] if "client" in columns else ["the client? Set --client NAME"]
    if not timed and "round" not in columns:
        lacking.append("the round, or the time? Set --round NAME, --time NAME, or --start NAME --end NAME")
    if lacking:
        listed = ", ".join(map(repr, table.header))
        raise UserError(f"{table.path}: which column is {'; and which is '.join(lacking)}; the columns are {listed}")
    if "round" in columns and not (timed and reading.every and reading.round is None):
        return "rounds"
    return "intervals" if {"start", "end"} <= set(columns) else "check-ins"


@dataclass
class _RowCollector:
    """Collects the numbers of a log, block by block."""

    table: TableFile
    roles: dict[str, str]
    form: Form
    reading: Reading
    faults: Faults
    code_of: dict[str, int] = field(default_factory=dict)
    label_of: dict[str, str] = field(default_factory=dict)
    times: TimeReader | None = None
    found: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def rows(self) -> LogRows:
        columns = list(self.roles.values())
        for block in self.table.blocks(columns, lambda line, words: self.faults.add("cells", line, words)):
            self.found.setdefault("line", []).append(np.array(block.line_B, dtype=np.int32))
            for role, column in self.roles.items():
                if role == "label":
                    self._labels(column, block)
                else:
                    name = "time" if role == "start" else role
                    self.found.setdefault(name, []).append(self._read(role, column, block))
        if not self.code_of:
            self.faults.check()  # no row could be read
            raise UserError(f"{self.table.path} has no rows: a row says that a client was asked, or came")
        whole_log = {role: np.concatenate(parts) for role, parts in self.found.items()}
        is_calendar, zone = False, None
        if "time" in whole_log and self.times is not None:
            time_N = whole_log["time"]
            units, is_calendar = self.times.scale(time_N[np.isfinite(time_N)])
            whole_log |= {name: whole_log[name] / units for name in ("time", "end") if name in whole_log}
            zone = self.times.zone(True, is_calendar)
        code_N = whole_log["client"]
        examples_N = whole_log.get("examples")
        return LogRows(
            path=str(self.table.path),
            form=self.form,
            names=tuple(self.code_of),
            code_N=code_N,
            line_N=whole_log["line"],
            round_N=whole_log.get("round"),
            time_N=whole_log.get("time"),
            end_N=whole_log.get("end"),
            work_N=whole_log.get("work"),
            examples_M=None if examples_N is None else largest(np.nan_to_num(examples_N), code_N, len(self.code_of)),
            label_M=tuple(self.label_of.get(name, "") for name in self.code_of) if "label" in self.roles else None,
            is_calendar=is_calendar,
            zone=zone,
        )

    def _labels(self, column: str, block: TableBlock) -> None:
        """Note the label of each client; a client has one."""
        names = block.cells[self.roles["client"]]
        for name, label, line in zip(names, block.cells[column], block.line_B, strict=True):
            if (known := self.label_of.setdefault(name, label)) != label:
                words = f"client {name} has the {column} {label!r}, and {known!r} before: a client has one"
                self.faults.add("label", line, f"{words} (--label none reads none)")

    def _read(self, role: str, column: str, block: TableBlock) -> np.ndarray:
        """The numbers of a column [B]."""
        faults, full = self.faults, self.reading.full_work
        if role == "client":
            names = block.cells[column]
            for line, name in zip(block.line_B, names, strict=True):
                if not name:
                    faults.add("client", line, f"{column} is empty: which client is it?")
            codes = (self.code_of.setdefault(name, len(self.code_of)) for name in names)
            return np.fromiter(codes, dtype=np.int32, count=len(names))
        if role in ("time", "start", "end"):
            texts = block.cells[column]
            if self.times is None:
                self.times = TimeReader.for_cell(next(filter(None, texts), ""), self.reading.time_format)
            read_time = self.times.read
            unread = [text for text in texts[:LOOKED_AT] if text and read_time(text) is None]
            # an empty end is infinite: the client is still there
            parse = (lambda text: read_time(text) if text else np.inf) if role == "end" else read_time
            return column_of(block, column, parse, faults, self.times.wanted(unread))
        if role == "round":
            return column_of(block, column, whole, faults, "a whole number")
        if role == "examples":
            return column_of(block, column, count, faults, "a count")
        wanted = f"0 to {full:g}, the number for all of the work" if full != 1 else "the share finished, 0 to 1 or in %"
        read = share(full, self.table.separator == ";")
        return column_of(block, column, read, faults, wanted)


def _with_owners(log: ParticipationLog, path: str) -> ParticipationLog:
    """The log with its clients under the names of their owners, from a CSV of client,owner. A client that the file does
    not have keeps its name; one with several owners becomes several clients with the same rows."""
    owners = _read_owners(path)
    named = [owners.get(name, [name]) for name in log.names]
    renamed = sum(name in owners for name in log.names)
    if not renamed:
        raise UserError(f"{path}: none of its clients is in the log {log.path}; that has {log.names[0]!r}, ...")
    names = tuple(owner for owned in named for owner in owned)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"{path}: two clients of the log would be {twice!r}: give each its own owner")
    count_M = np.array([len(owned) for owned in named])
    logged_M = np.repeat(np.arange(log.clients), count_M)
    row_N = np.repeat(np.arange(len(log.client_N)), count_M[log.client_N])
    copy_N = np.arange(len(row_N)) - np.searchsorted(row_N, row_N)
    client_N = (np.cumsum(count_M) - count_M)[log.client_N[row_N]] + copy_N
    order_N = np.lexsort((client_N, log.round_N[row_N]))
    row_N = row_N[order_N]
    assumed = f"{renamed:,} of the log's {log.clients:,} clients have the names of their owners in {path}"
    return replace(
        log,
        names=names,
        round_N=log.round_N[row_N],
        client_N=client_N[order_N].astype(np.int32),
        work_N=log.work_N[row_N],
        examples_M=None if log.examples_M is None else log.examples_M[logged_M],
        line_M=None if log.line_M is None else log.line_M[logged_M],
        assumed=(*log.assumed, assumed),
    )


def _read_owners(path: str) -> dict[str, list[str]]:
    """The owners of each client in the file."""
    table = open_table(Path(path))
    if table.header != OWNER_COLUMNS:
        raise UserError(f"{path}: its first line must be client,owner: a client of the log, and whose data it has")
    faults = Faults(path, table.counted_in)
    owners: dict[str, list[str]] = {}
    line_of: dict[str, int] = {}
    block = table.read()
    for client, owner, line in zip(*(block.cells[name] for name in OWNER_COLUMNS), block.line_B, strict=True):
        if not client or not owner:
            faults.add("empty", line, f"the {'owner' if client else 'client'} is empty")
        elif owner in line_of:
            faults.add("twice", line, f"the owner {owner!r} is on line {line_of[owner]} already")
        else:
            line_of[owner] = line
            owners.setdefault(client, []).append(owner)
    faults.check()
    return owners
