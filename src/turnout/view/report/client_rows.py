"""What the records say of single clients over the rounds, read for some of them only: a run may have millions of rows.

Shape letters: C clients, N rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from turnout.running.charts.axes import Floats
from turnout.running.records.records import Records
from turnout.running.records.runs import FILE, RunRecords
from turnout.running.records.schema import Column

Rows = tuple[Column, Column, Floats]  # rounds, clients, values
COLUMNS = {
    "work": "k.work",
    "weight": "k.weight",
    "bytes": "coalesce(k.bytes_up, 0) + coalesce(k.bytes_down, 0)",
    "loss": "k.loss",
    "friend": "CASE WHEN k.friend >= 0 AND k.friend != k.client THEN k.friend END",
}
MANY = 1_000_000  # rows of clients
# A client's rows are found one by one in each round, which is fast where few of many clients are wanted: CROSS JOIN
# keeps SQLite from scanning all rows instead.
_ROWS = """
SELECT k.round, k.client, {} FROM rounds r CROSS JOIN json_each(?) c
CROSS JOIN clients k ON k.round = r.round AND k.client = c.value ORDER BY k.round
"""
_MEASURED = """
SELECT v.round, v.client, v.value FROM (SELECT DISTINCT round FROM evaluations) r CROSS JOIN json_each(?) c
CROSS JOIN client_evaluations v ON v.round = r.round AND v.name = ? AND v.client = c.value ORDER BY v.round
"""


def rows_of(run: RunRecords, client_C: Column, metrics: Sequence[str]) -> dict[str, Rows]:
    """What was recorded of some clients, by metric and by column of their rows."""
    listed = json.dumps(client_C.tolist())
    with Records.read(run.path / FILE) as records:
        query = _ROWS.format(", ".join(COLUMNS.values()))
        table = _table(records, query, (listed,), 2 + len(COLUMNS))
        found = {name: _rows(table[:, [0, 1, 2 + i]]) for i, name in enumerate(COLUMNS)}
        measured = {name: _rows(_table(records, _MEASURED, (listed, name), 3)) for name in metrics}
    return found | measured


def _table(records: Records, query: str, values: tuple[str, ...], width: int) -> Floats:
    return np.array(records.db.execute(query, values).fetchall(), np.float64).reshape(-1, width)


def _rows(table: Floats) -> Rows:
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]


def worth_of(run: RunRecords) -> tuple[Column, Floats]:
    """(clients, a number that is higher for better ones): the last main metric, else how much work they did.

    All that were ever asked or measured; NaN for who was not measured. Of runs with very many rows, where finding out
    who was ever asked takes long, those who were measured.
    """
    main = next(iter(run.glossary.in_order(run.client_values)), None)
    if main is not None and run.total("asked") > MANY:
        return _by_worth(run, main, run.client_values[main][0])
    with Records.read(run.path / FILE) as records:
        asked = _table(records, "SELECT client, avg(work) FROM clients GROUP BY client ORDER BY client", (), 2)
    client_C, work_C = asked[:, 0].astype(np.int64), asked[:, 1]
    return (client_C, work_C) if main is None else _by_worth(run, main, client_C)


def _by_worth(run: RunRecords, main: str, client_C: Column) -> tuple[Column, Floats]:
    measured, values = run.client_values[main]
    everyone = np.union1d(client_C, measured).astype(np.int64)
    worth_C = np.full(len(everyone), np.nan)
    worth_C[np.searchsorted(everyone, measured)] = values if run.glossary.higher_is_better(main) else -values
    return everyone, worth_C
