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
    names = [row[1] for row in left.rows(f"PRAGMA table_info({table})") if row[1] != "seconds"]
    timed = " WHERE name NOT LIKE '%seconds'" if "name" in keys else ""
    query, place = f"SELECT {', '.join(names)} FROM {table}{timed}", [names.index(key) for key in keys]
    ours, theirs = ({tuple(row[i] for i in place): row for row in records.rows(query)} for records in (left, right))
    for key in sorted(ours.keys() | theirs.keys()):
        where = table + " " + ", ".join(f"{k} {v}" for k, v in zip(keys, key, strict=True))
        if key in ours and key in theirs:
            pairs = zip(names, ours[key], theirs[key], strict=True)
            yield from (f"{where}: {name} is {x!r} and {y!r}" for name, x, y in pairs if x != y)
        else:
            yield f"{where}: only in {(left if key in ours else right).path}"
