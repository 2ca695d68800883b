"""Whether two runs are the same: their record files row by row, times aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from turnout.running.records.records import Records
from turnout.running.records.schema import KEYS


def same(a: str | Path, b: str | Path, show: int = 5) -> list[str]:
    """The differences between two record files, times aside; an empty list means the runs are the same."""
    found: list[str] = []
    with Records.read(a) as left, Records.read(b) as right:
        for table, keys in KEYS.items():
            differences = list(_differences(left, right, table, keys))
            found += differences[:show]
            if len(differences) > show:
                found.append(f"{table}: and {len(differences) - show} more")
    return found


def _differences(left: Records, right: Records, table: str, keys: tuple[str, ...]) -> Iterator[str]:
    """Differences of one table; both files are read in the order of their keys, so that a run of any length fits."""
    names = [row[1] for row in left.db.execute(f"PRAGMA table_info({table})") if row[1] != "seconds"]
    timed = " WHERE name NOT LIKE '%seconds'" if "name" in keys else ""
    query = f"SELECT {', '.join(names)} FROM {table}{timed} ORDER BY {', '.join(keys)}"
    place = [names.index(key) for key in keys]
    rows = [records.db.execute(query) for records in (left, right)]
    a, b = (next(r, None) for r in rows)
    while a is not None or b is not None:
        key_a, key_b = (None if row is None else tuple(row[i] for i in place) for row in (a, b))
        first = key_b is None or (key_a is not None and key_a <= key_b)
        key = key_a if first else key_b
        where = table + " " + ", ".join(f"{k} {v}" for k, v in zip(keys, key or (), strict=True))
        if key_a == key_b and a is not None and b is not None:
            pairs = zip(names, a, b, strict=True)
            yield from (f"{where}: {name} is {x!r} and {y!r}" for name, x, y in pairs if x != y)
            a, b = (next(r, None) for r in rows)
        else:
            yield f"{where}: only in {(left if first else right).path}"
            a, b = (next(rows[0], None), b) if first else (a, next(rows[1], None))
