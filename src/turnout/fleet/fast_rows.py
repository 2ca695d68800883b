"""The rows of a large log as columns of numbers, by DuckDB: of a log without faults. One that has any, or is written in
an unusual way, is read by the plain reader (read_log.py), which says where they are. Both give the same log.

Shape letters: N rows of the log, M clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.errors import UserError
from turnout.fleet.reading import WORDS, Reading, TimeReader, number
from turnout.fleet.rounds import CHUNK, Form, LogRows
from turnout.machine.table_files import TableBlock, TableFile, quoted_name, quoted_text

LARGE = 8_000_000  # bytes of a file, from which on it is read this way
MOST_NUMBERS = 50_000_000  # up to which clients with numbers are looked up in an array
SAMPLE = 1_000_000  # times by which their unit is found
NESTED = ("STRUCT", "[]", "MAP", "JSON")


def fast_rows(table: TableFile, roles: dict[str, str], form: Form, reading: Reading) -> LogRows | None:
    """The rows of a log, with the column of each role; None if the plain reader must look at it. Lines are unknown."""
    first = next(table.blocks(list(roles.values()), lambda line, words: None), None)
    if first is None:
        return None
    try:
        return _FastRows(table, roles, form, reading, first).rows()
    except UserError:
        return None


class _FastRows:
    """Reads the rows; `first` are the first rows as texts, by which the types of a CSV's columns are chosen."""

    def __init__(
        self, table: TableFile, roles: dict[str, str], form: Form, reading: Reading, first: TableBlock
    ) -> None:
        self.table, self.roles, self.form, self.reading = table, roles, form, reading
        timed = next((role for role in ("time", "start", "end") if role in roles), None)
        cell = next(filter(None, first.cells[roles[timed]]), "") if timed else ""
        self.times = TimeReader.for_cell(cell, reading.time_format)
        names = set(first.cells[roles["client"]])
        self.numbered = all(name.isascii() and name.isdecimal() and str(int(name)) == name for name in names)
        chosen = {}
        for role, column in roles.items():
            if role in ("round", "examples") or (
                role == "work" and all(number(c) is not None for c in first.cells[column])
            ):
                chosen[column] = "DOUBLE"
            elif role in ("time", "start", "end") and not self.times.form:
                chosen[column] = "DOUBLE" if self.times.numbers else "TIMESTAMPTZ"
        self.types = {name: chosen.get(name, "VARCHAR") for name in table.header}

    def rows(self) -> LogRows | None:
        with self.table.in_duckdb(self.types) as (database, types):
            if any(word in types[column] for column in self.roles.values() for word in NESTED):
                return None
            sql = {
                "time" if role == "start" else role: self._number(role, quoted_name(column), types[column])
                for role, column in self.roles.items()
                if role not in ("client", "label", "examples")
            }
            clients = self._clients(database, types[self.roles["client"]])
            column_N = database.execute(
                f"SELECT {clients.sql}, {', '.join(f'{one} AS {quoted_name(role)}' for role, one in sql.items())} "
                f"FROM {self.table.rows(self.types)}"
            ).fetchnumpy()
            if any(np.ma.is_masked(one) for one in column_N.values()):
                return None
            value = {role: np.ma.getdata(column_N.pop(role)) for role in list(column_N)}
            code_N = clients.codes(value.pop("client"), value.pop("digits", None))
            if code_N is None or not all(_fine(role, value_N) for role, value_N in value.items()):
                return None
            examples_M, label_M = self._of_clients(database, types, clients.names)
        return self._log_rows(clients.names, code_N, value, examples_M, label_M)

    def _log_rows(
        self,
        names: tuple[str, ...],
        code_N: np.ndarray,
        value: dict[str, np.ndarray],
        examples_M: np.ndarray | None,
        label_M: tuple[str, ...] | None,
    ) -> LogRows:
        is_calendar = False
        if "time" in value:
            units, is_calendar = self.times.scale(value["time"][:: max(len(code_N) // SAMPLE, 1)])
            for role in ("time", "end"):
                if role in value and units != 1:
                    value[role] /= units
        return LogRows(
            path=str(self.table.path),
            form=self.form,
            names=names,
            code_N=code_N,
            line_N=None,
            round_N=value.get("round"),
            time_N=value.get("time"),
            end_N=value.get("end"),
            work_N=value.get("work"),
            examples_M=examples_M,
            label_M=label_M,
            is_calendar=is_calendar,
            zone=self.times.zone("time" in value, is_calendar),
        )

    def _clients(self, database: Any, kind: str) -> _Clients:
        """How clients are fetched: as numbers where their names are such, else as places in a list of the names."""
        column = quoted_name(self.roles["client"])
        if "INT" in kind:
            return _Clients(f"CAST({column} AS BIGINT) AS client")
        if kind != "VARCHAR":
            raise UserError(f"clients are a {kind}")
        if self.numbered:
            return _Clients(f"TRY_CAST({column} AS INTEGER) AS client, CAST(length({column}) AS UTINYINT) AS digits")
        found = database.execute(f"SELECT DISTINCT {column} FROM {self.table.rows(self.types)}").fetchall()
        names = tuple(name for (name,) in found)
        if not all(name and name == name.strip() for name in names):
            raise UserError("a name is empty, or has blanks around it")
        database.execute(f"CREATE TYPE client_name AS ENUM ({', '.join(map(quoted_text, names))})")
        return _Clients(f"CAST(enum_code(CAST({column} AS client_name)) AS INTEGER) AS client", names)

    def _of_clients(
        self, database: Any, types: dict[str, str], names: tuple[str, ...]
    ) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
        """The examples and the label of each client, where the log has them."""
        if not {"examples", "label"} & set(self.roles):
            return None, None
        client = f"CAST({quoted_name(self.roles['client'])} AS VARCHAR)"
        label = "''"
        if "label" in self.roles:
            label = f"coalesce(trim(CAST({quoted_name(self.roles['label'])} AS VARCHAR)), '')"
        count = f"CAST({quoted_name(self.roles['examples'])} AS DOUBLE)" if "examples" in self.roles else "0.0"
        faulty = f"bool_or(coalesce(NOT ({count} BETWEEN 0 AND 1e15), true))"
        found = database.execute(
            f"SELECT {client}, max({count}), min({label}), max({label}), {faulty} "
            f"FROM {self.table.rows(self.types)} GROUP BY ALL"
        ).fetchall()
        of_name = {name: (count, label) for name, count, label, *_ in found}
        if any(bad or least != most for _, _, least, most, bad in found) or set(of_name) != set(names):
            raise UserError("examples or labels have faults")
        examples_M = np.array([of_name[name][0] for name in names]) if "examples" in self.roles else None
        return examples_M, tuple(of_name[name][1] for name in names) if "label" in self.roles else None

    def _number(self, role: str, column: str, kind: str) -> str:
        """A cell as a number in a query; NULL where it is none."""
        if role == "round":
            return f"CASE WHEN {column} = floor({column}) AND {column} < 2e9 THEN CAST({column} AS INTEGER) END"
        if role == "work":
            full = f" / {self.reading.full_work!r}" if self.reading.full_work != 1 else ""
            if kind != "VARCHAR":
                return f"CAST({column} AS DOUBLE)" + (full if kind != "BOOLEAN" else "")
            words = " ".join(f"WHEN '{word}' THEN {value}" for word, value in WORDS.items())
            return f"coalesce(CASE lower(trim({column})) {words} END, TRY_CAST({column} AS DOUBLE){full})"
        if kind.startswith(("TIMESTAMP", "DATE")):
            time = f"epoch({column})"
        elif self.times.form:
            time = f"epoch(try_strptime(trim({column}), {quoted_text(self.times.form)}))"
        else:
            time = f"CAST({column} AS DOUBLE)"
        return f"coalesce({time}, CAST('infinity' AS DOUBLE))" if role == "end" else time


def _fine(role: str, value_N: np.ndarray) -> bool:
    """Whether all values of a column are as they should be; NaN is not."""
    least, most = float(value_N.min()), float(value_N.max())
    if role == "end":
        return least > -np.inf
    limit = 1.0 if role == "work" else np.finfo(np.float64).max
    return least >= (-limit if role == "time" else 0.0) and most <= limit


class _Clients:
    """Clients in a query, and their places: in the order of their numbers where all names are numbers, else by the
    first row of each.

    sql    what is selected for them
    names  in the order of the places
    """

    def __init__(self, sql: str, names: tuple[str, ...] | None = None) -> None:
        self.sql, self.names, self._listed = sql, names or (), names is not None

    def codes(self, number_N: np.ndarray, digits_N: np.ndarray | None) -> np.ndarray | None:
        """The place of each row's client, from what was selected; None for a name like 03, which is not 3."""
        if self._listed:
            first_M = np.zeros(len(self.names), np.int64)
            for begin in range((len(number_N) - 1) // CHUNK * CHUNK, -1, -CHUNK):
                part = number_N[begin : begin + CHUNK]
                first_M[part[::-1]] = np.arange(begin + len(part) - 1, begin - 1, -1)
            order_M = np.argsort(first_M)
            self.names = tuple(self.names[place] for place in order_M)
            code_of = np.argsort(order_M).astype(np.int32)
        else:
            if number_N.min() < 0 or number_N.max() >= MOST_NUMBERS:
                return None
            seen = np.zeros(int(number_N.max()) + 1, dtype=bool)
            tens = 10 ** np.arange(1, 10)
            for begin in range(0, len(number_N), CHUNK):
                part = number_N[begin : begin + CHUNK]
                seen[part] = True
                if (
                    digits_N is not None
                    and (np.searchsorted(tens, part, "right") + 1 != digits_N[begin : begin + CHUNK]).any()
                ):
                    return None
            self.names = tuple(map(str, np.flatnonzero(seen).tolist()))
            code_of = (seen.cumsum() - 1).astype(np.int32)
        code_N = number_N if number_N.dtype == np.int32 else np.empty(len(number_N), np.int32)
        for begin in range(0, len(number_N), CHUNK):
            code_N[begin : begin + CHUNK] = code_of[number_N[begin : begin + CHUNK]]
        return code_N
