"""A file that says whose data each client of a log has: CSV of `client,owner`, for a log with names of its own.

A client of the log may stand for several owners: then each of them has its rows.

Shape letters: N rows of the log, then of the record; M clients of the log, then owners.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from turnout.errors import UserError
from turnout.fleet.faults import Faults
from turnout.fleet.fleet import Fleet
from turnout.fleet.table import open_table

HEADER = ["client", "owner"]


def with_owners(fleet: Fleet, path: str) -> Fleet:
    """The log with its clients under the names of their owners; a client that the file leaves out keeps its own."""
    owners = read_owners(path)
    named = [owners.get(name, [name]) for name in fleet.names]
    found = sum(name in owners for name in fleet.names)
    if not found:
        raise UserError(f"{path}: none of its clients is in the log {fleet.path}; that has {fleet.names[0]!r}, ...")
    names = tuple(owner for owned in named for owner in owned)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"{path}: two clients of the log would be {twice!r}: give each its own owner")
    count_M = np.array([len(owned) for owned in named])
    logged_M = np.repeat(np.arange(fleet.clients), count_M)
    row_N = np.repeat(np.arange(len(fleet.client_N)), count_M[fleet.client_N])
    copy_N = np.arange(len(row_N)) - np.searchsorted(row_N, row_N)
    client_N = (np.cumsum(count_M) - count_M)[fleet.client_N[row_N]] + copy_N
    order_N = np.lexsort((client_N, fleet.round_N[row_N]))
    row_N = row_N[order_N]
    said = f"{found:,} of the log's {fleet.clients:,} clients have the names of their owners in {path}"
    return replace(
        fleet,
        names=names,
        round_N=fleet.round_N[row_N],
        client_N=client_N[order_N].astype(np.int32),
        work_N=fleet.work_N[row_N],
        examples_M=None if fleet.examples_M is None else fleet.examples_M[logged_M],
        line_M=None if fleet.line_M is None else fleet.line_M[logged_M],
        assumed=(*fleet.assumed, said),
    )


def read_owners(path: str) -> dict[str, list[str]]:
    """The owners of each client in the file."""
    table = open_table(Path(path), None)
    if table.header != HEADER:
        raise UserError(f"{path}: its first line must be client,owner: a client of the log, and whose data that is")
    faults, found, line_of = Faults(path, table.counted_in), {}, {}  # type: ignore[var-annotated]
    for block in table.blocks(HEADER, faults):
        for client, owner, line in zip(*(block.cells[name] for name in HEADER), block.line_B, strict=True):
            if not client or not owner:
                faults.add("empty", line, f"the {'owner' if client else 'client'} is empty")
            elif owner in line_of:
                faults.add("twice", line, f"the owner {owner!r} is on line {line_of[owner]} already")
            else:
                line_of[owner] = line
                found.setdefault(client, []).append(owner)
    faults.check()
    return found
