"""Heat maps: a matrix as a small PNG (standard library only), with what the page shows around it.

Shape letters: N entries, R rows, K columns of the matrix as drawn.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from turnout.running.charts.axes import Floats
from turnout.running.records.schema import Column

MOST_ROWS, MOST_COLUMNS = 360, 1000
LEVELS = 64
_NOTHING, _ZERO = 0, 1  # palette entries; LEVELS steps of the scale follow
_LIGHT, _DARK, _ABSENT = (176, 212, 238), (8, 69, 148), (230, 126, 60)  # page.css has them too, for the keys
NAMED = 6  # clients of a row that stands for many

Bytes = NDArray[np.uint8]
Turnout = tuple[Column, Column, Column]  # rounds, clients, work of every client asked


@dataclass(frozen=True)
class Cells:
    """A matrix small enough to draw.

    value_RK          mean of the entries in each cell, NaN where there are none
    rows_per_cell     items that a row stands for
    columns_per_cell  columns of the data that a column stands for
    first_column      number of the first column
    """

    value_RK: Floats
    rows_per_cell: float
    columns_per_cell: float
    first_column: int = 0


def gather(row: Column, column: Column, value: Floats, rows: int, first: int, columns: int) -> Cells:
    """Scattered entries as cells, each the mean of its entries.

    >>> one = np.array([1.0])
    >>> gather(np.array([0]), np.array([5]), one, rows=1, first=5, columns=2).value_RK
    array([[ 1., nan]])
    """
    R, K = min(rows, MOST_ROWS), min(columns, MOST_COLUMNS)
    place = (row * R // rows).astype(np.int64) * K + ((column - first) * K // columns).astype(np.int64)
    count = np.bincount(place, minlength=R * K)
    total = np.bincount(place, weights=value, minlength=R * K)
    mean = np.divide(total, count, out=np.full(R * K, np.nan), where=count > 0)
    return Cells(mean.reshape(R, K), rows / R, columns / K, first)


def palette() -> Bytes:
    """RGBA of every entry: nothing, zero, then light to dark."""
    at = np.linspace(0, 1, LEVELS)[:, None]
    scale = np.array(_LIGHT) * (1 - at) + np.array(_DARK) * at
    opaque = np.full((LEVELS, 1), 255)
    ends = np.array([[0, 0, 0, 0], [*_ABSENT, 255]])
    return np.concatenate([ends, np.concatenate([scale, opaque], 1)]).round().astype(np.uint8)


def indices(value_RK: Floats, most: float = 1.0) -> Bytes:
    """The palette entry of each cell.

    >>> indices(np.array([[np.nan, 0.0, 0.5, 1.0]])).tolist()
    [[0, 1, 34, 65]]
    """
    level = np.clip(np.nan_to_num(value_RK) / most, 0, 1) * (LEVELS - 1)
    entry = np.where(value_RK == 0, _ZERO, 2 + level.round())
    return np.where(np.isnan(value_RK), _NOTHING, entry).astype(np.uint8)


def png(index_RK: Bytes, colours: Bytes) -> bytes:
    """An indexed PNG."""
    R, K = index_RK.shape
    lines = np.concatenate([np.zeros((R, 1), np.uint8), index_RK], axis=1)  # filter 0 before each line

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", K, R, 8, 3, 0, 0, 0)
    body = chunk(b"PLTE", colours[:, :3].tobytes()) + chunk(b"tRNS", colours[:, 3].tobytes())
    pixels = chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + pixels + chunk(b"IEND", b"")


@dataclass(frozen=True)
class MapWords:
    """The words of a map: its axes, a cell without a value, a cell of value 0, and the two ends of the scale."""

    column: str
    row: str
    nothing: str
    zero: str
    least: str
    most: str


@dataclass(frozen=True)
class HeatMap:
    """A map for a template.

    cells        the values, in [0, most]
    title, note  above and below it
    words        of its axes and colours
    row_names    who is in each row; `column_names` likewise, empty where columns are numbered
    most         the largest value of the scale
    is_square    drawn square, else as wide as the page
    of           numbers of the variants it belongs to, where the page can hide it
    """

    cells: Cells
    title: str
    words: MapWords
    row_names: Sequence[str]
    column_names: Sequence[str] = ()
    note: str = ""
    most: float = 1.0
    is_square: bool = False
    of: str = ""

    @cached_property
    def image(self) -> str:
        """The picture as an address that holds it; the page's script reads the cells from it."""
        picture = png(indices(self.cells.value_RK, self.most), palette())
        return "data:image/png;base64," + base64.b64encode(picture).decode()

    def data(self) -> dict[str, str | int]:
        """What the template and the page's script need beside the picture."""
        R, K = self.cells.value_RK.shape
        first, across, words = self.cells.first_column, self.cells.columns_per_cell, self.words
        return {
            "height": min(max(R * (22 if R < 16 else 8), 60), 420),
            "first": first,
            "last": first + round(K * across) - 1,
            "shape": f"{K},{R},{across:g},{first},{self.most:g}",
            "names": json.dumps([words.row, words.column, words.nothing, words.zero]),
            "rows": json.dumps(list(self.row_names), separators=(",", ":")),
            "columns": json.dumps(list(self.column_names), separators=(",", ":")) if self.column_names else "",
        }


def row_names(known: Column, rows: int, name_of: Callable[[int], str]) -> list[str]:
    """The clients in each row of a map: one, or several that share it.

    >>> row_names(np.arange(10, 14), 2, str)
    ['10, 11', '12, 13']
    """
    place = np.arange(len(known)) * rows // len(known)
    edges = np.searchsorted(place, np.arange(rows + 1))
    names = [known[a:b].tolist() for a, b in pairwise(edges)]
    return [", ".join(map(name_of, ids[:NAMED])) + (f", … ({len(ids)})" if len(ids) > NAMED else "") for ids in names]


def turnout_map(turnout: Turnout, title: str, name_of: Callable[[int], str], of: str = "") -> HeatMap:
    """Work by client and round, with a row for every client that was ever asked.

    Where clients must share a row, those that did about as much work do: any other mean would hide the differences.

    name_of  a client
    of       numbers of the variants it belongs to
    """
    round_N, client_N, work_N = turnout
    known, row_N = np.unique(client_N, return_inverse=True)
    if len(known) > MOST_ROWS:
        mean = np.bincount(row_N, work_N) / np.bincount(row_N)
        order = np.argsort(-mean, kind="stable")
        row_N, known = np.argsort(order)[row_N], known[order]
    first, last = int(round_N.min()), int(round_N.max())
    cells = gather(row_N, round_N, work_N, len(known), first, last - first + 1)
    note, words = "", MapWords("round", "client", "not asked", "asked, absent", "a little work", "all of it")
    if cells.rows_per_cell > 1:
        each = f"{cells.rows_per_cell:.3g}"
        note = f"The {len(known):,} clients that were asked, the most active at the top, {each} to a row. "
        words = replace(words, row="clients by work")
    elif len(known) != int(client_N.max()) + 1:
        note = f"Rows are the {len(known):,} clients that were ever asked, by number. "
    if cells.columns_per_cell > 1:
        note += f"A column is the mean of {cells.columns_per_cell:.3g} rounds."
    return HeatMap(cells, title, words, row_names(known, len(cells.value_RK), name_of), note=note, of=of)
