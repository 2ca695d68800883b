"""The rows of a large log as columns of numbers, by DuckDB: of a log without faults. One that has any, or is written in
an unusual way, is read by the plain reader (read_log.py), which says where they are. Both give the same log.

Two passes: the first collects the clients and looks for cells that are not as they should be, the second fetches the
numbers.

Shape letters: N rows of the log, M clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.errors import UserError
from turnout.fleet.reading import WORDS, Reading, TimeReader
from turnout.fleet.rounds import Form, LogRows
from turnout.machine.table_files import TableFile, quoted_name, quoted_text

LARGE = 8_000_000  # bytes of a file, from which on it is read this way
MOST_NUMBERS = 50_000_000  # up to which clients with numbers are looked up in an array
CHUNK = 10_000_000  # rows at a time
SAMPLE = 1_000_000  # times by which their unit is found
TEXT = "VARCHAR"


def fast_rows(table: TableFile, roles: dict[str, str], form: Form, reading: Reading) -> LogRows | None:
    """The rows of a log, with the column of each role; None if the plain reader must look at it. Lines are unknown."""
    try:
        with table.in_duckdb() as (database, types):
            return _rows(database, types, table, roles, form, reading)
    except UserError:
        return None


def _rows(
    database: Any, types: dict[str, str], table: TableFile, roles: dict[str, str], form: Form, reading: Reading
) -> LogRows | None:
    client, rows = quoted_name(roles["client"]), table.rows()
    if any(word in types[column] for column in roles.values() for word in ("STRUCT", "[]", "MAP", "JSON")):
        return None
    if types[roles["client"]] == TEXT:
        client = f"trim({client})"
    elif "INT" not in types[roles["client"]]:
        return None
    timed = [role for role in ("time", "start", "end") if role in roles]
    times = TimeReader(False)
    if timed and (types[roles[timed[0]]] == TEXT or not _is_time(types[roles[timed[0]]])):
        column = quoted_name(roles[timed[0]])
        first = database.execute(f"SELECT CAST({column} AS {TEXT}) FROM {rows} WHERE {column} IS NOT NULL LIMIT 1")
        times = TimeReader.for_cell((first.fetchone() or ("",))[0].strip(), reading.time_format)
    number = {
        role: _number(role, quoted_name(column), types[column], times, reading)
        for role, column in roles.items()
        if role not in ("client", "label")
    }
    faulty = " OR ".join(_faulty(role, sql) for role, sql in number.items()) or "false"
    label = f"coalesce(trim(CAST({quoted_name(roles['label'])} AS {TEXT})), '')" if "label" in roles else "''"
    found = database.execute(
        f"SELECT CAST({client} AS {TEXT}), bool_or({faulty}), min({label}), max({label}), "
        f"max({number.get('examples', '0')}) FROM {rows} GROUP BY {client}"
    ).fetchall()
    if not found or any(not name or bad or least != most for name, bad, least, most, _ in found):
        return None
    codes = _Codes.of(database, client, [name for name, *_ in found])
    fetched = {role: sql for role, sql in number.items() if role != "examples"}
    listed = ", ".join(f'{sql} AS "{"time" if role == "start" else role}"' for role, sql in fetched.items())
    column_N = database.execute(f"SELECT {codes.sql} AS client, {listed} FROM {rows}").fetchnumpy()
    code_N = codes.of_rows(np.ma.getdata(column_N.pop("client")))
    value = {role: np.ma.getdata(column_N.pop(role)) for role in list(column_N)}
    is_calendar = False
    if "time" in value:
        units, is_calendar = times.scale(value["time"][:: max(len(code_N) // SAMPLE, 1)])
        for role in ("time", "end"):
            if role in value and units != 1:
                value[role] /= units
    of_name = {name: (label, examples) for name, _, label, _, examples in found}
    return LogRows(
        path=str(table.path),
        form=form,
        names=codes.names,
        code_N=code_N,
        line_N=None,
        round_N=value.get("round"),
        time_N=value.get("time"),
        end_N=value.get("end"),
        work_N=value.get("work"),
        examples_M=np.array([float(of_name[name][1]) for name in codes.names]) if "examples" in roles else None,
        label_M=tuple(of_name[name][0] for name in codes.names) if "label" in roles else None,
        is_calendar=is_calendar,
        zone=times.zone(value.get("time") is not None, is_calendar),
    )


class _Codes:
    """Clients as numbers: in the order of their numbers where all names are numbers, else by the first row of each."""

    def __init__(self, names: tuple[str, ...], sql: str, code_of: np.ndarray | None) -> None:
        self.names, self.sql, self._code_of = names, sql, code_of

    @classmethod
    def of(cls, database: Any, client: str, names: list[str]) -> _Codes:
        plain = all(name.isdecimal() and name.isascii() and str(int(name)) == name for name in names)
        if plain and max(map(int, names)) < MOST_NUMBERS:
            ordered = sorted(names, key=int)
            code_of = np.zeros(int(ordered[-1]) + 1, np.int32)
            code_of[[int(name) for name in ordered]] = np.arange(len(ordered))
            return cls(tuple(ordered), f"CAST({client} AS INTEGER)", code_of)
        listed = ", ".join(map(quoted_text, names))
        database.execute(f"CREATE TYPE client_name AS ENUM ({listed})")
        text = f"CAST(CAST({client} AS {TEXT}) AS client_name)"
        return cls(tuple(names), f"CAST(enum_code({text}) AS INTEGER)", None)

    def of_rows(self, number_N: np.ndarray) -> np.ndarray:
        """The code of each row; names are brought into the order of their first rows."""
        code_of = self._code_of
        if code_of is None:
            first_M = np.zeros(len(self.names), np.int64)
            for begin in range((len(number_N) - 1) // CHUNK * CHUNK, -1, -CHUNK):
                part = number_N[begin : begin + CHUNK]
                first_M[part[::-1]] = np.arange(begin + len(part) - 1, begin - 1, -1)
            order_M = np.argsort(first_M)
            self.names = tuple(self.names[place] for place in order_M)
            code_of = np.argsort(order_M).astype(np.int32)
        for begin in range(0, len(number_N), CHUNK):
            number_N[begin : begin + CHUNK] = code_of[number_N[begin : begin + CHUNK]]
        return number_N


def _is_time(kind: str) -> bool:
    return kind.startswith(("TIMESTAMP", "DATE"))


def _number(role: str, column: str, kind: str, times: TimeReader, reading: Reading) -> str:
    """A cell as a number in a query; NULL where it is none."""
    text = f"trim({column})" if kind == TEXT else column
    plain = f"TRY_CAST({text} AS DOUBLE)"
    if role == "round":
        return f"CASE WHEN {plain} = floor({plain}) AND abs({plain}) < 2e9 THEN CAST({plain} AS INTEGER) END"
    if role == "work":
        full = "" if reading.full_work == 1 else f" / {reading.full_work!r}"
        if kind == "BOOLEAN":
            return f"CAST({column} AS DOUBLE)"
        words = " ".join(f"WHEN '{word}' THEN {value}" for word, value in WORDS.items())
        return f"coalesce({plain}{full}, CASE lower({text}) {words} END)" if kind == TEXT else f"{plain}{full}"
    if role == "examples":
        return plain
    if _is_time(kind):
        time = f"epoch({column})"
    elif times.numbers:
        time = plain
    elif times.form:
        time = f"epoch(try_strptime({text}, {quoted_text(times.form)}))"
    else:
        time = f"epoch(TRY_CAST({text} AS TIMESTAMPTZ))"
    if role != "end":
        return time
    empty = f"{column} IS NULL" if kind != TEXT else f"coalesce({text}, '') = ''"
    return f"CASE WHEN {empty} THEN CAST('infinity' AS DOUBLE) ELSE {time} END"


def _faulty(role: str, number: str) -> str:
    """Whether a cell is not as it should be, or must be looked at more closely."""
    most = {"round": "2e9", "work": "1", "examples": "1e15"}.get(role)
    if most is not None:
        return f"coalesce(NOT ({number} BETWEEN 0 AND {most}), true)"
    fine = f"NOT isnan({number})" if role == "end" else f"isfinite({number})"
    return f"coalesce(NOT {fine}, true)"
