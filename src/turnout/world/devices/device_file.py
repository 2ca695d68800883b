"""Devices from a CSV file: one row a client, or rows to draw from.

    client,tier,samples_per_second,down_mbps,up_mbps,latency
    ada,phone,310.5,36,11,0.04

`samples_per_second` is of the model at hand; a file may have `gflops` instead. `tier` may be missing.

Shape letters: C clients of the cohort, N rows of the file.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from turnout.errors import UserError, nearest
from turnout.machine.table_files import open_table
from turnout.rng import uniform
from turnout.world.devices.device_draw import BYTES_OF_MEGABIT, GIGA, DeviceConditions, DeviceDraw
from turnout.world.enrolment import ClientNames, Enrolment

SPEEDS = ("samples_per_second", "gflops")
LINKS = ("down_mbps", "up_mbps", "latency")
MODES = ("match", "resample")


@dataclass(frozen=True)
class DeviceRow:
    """One row of such a file.

    client              its name, or its number
    speed               how fast it computes, in the unit of the file's column
    down_mbps, up_mbps  Mbit/s of its links
    latency             seconds, each way
    tier                the name of its tier
    """

    client: str
    speed: float
    down_mbps: float
    up_mbps: float
    latency: float
    tier: str = "device"


@dataclass(frozen=True)
class DeviceTable:
    """All rows of such a file.

    rows  one for each device
    unit  the name of the column that says how fast they compute
    """

    rows: tuple[DeviceRow, ...]
    unit: str = "samples_per_second"


def write_devices(path: str | Path, rows: Iterable[DeviceRow], unit: str = "samples_per_second") -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["client", "tier", unit, *LINKS])
        for row in rows:
            numbers = (row.speed, row.down_mbps, row.up_mbps, row.latency)
            writer.writerow([row.client, row.tier, *(f"{number:.6g}" for number in numbers)])


def read_devices(path: str | Path) -> DeviceTable:
    """Read and check a file of devices; an error names its line."""
    table = open_table(Path(path), separator=",")
    unit = next((name for name in SPEEDS if name in table.header), None)
    lacking = [name for name in ("client", *LINKS) if name not in table.header]
    if unit is None or lacking:
        what = lacking[0] if lacking else " or ".join(SPEEDS)
        raise UserError(
            f"{path} has no column {what}: the header is client,tier,samples_per_second,down_mbps,up_mbps,latency"
        )
    block = table.read()
    rows = []
    for i, line in enumerate(block.line_B):
        numbers = {}
        for name in (unit, *LINKS):
            cell = block.cells[name][i]
            try:
                numbers[name] = float(cell)
            except ValueError:
                raise UserError(f"{table.place(line)}: {name} must be a number, got {cell!r}") from None
            if not (numbers[name] > 0 or (name == "latency" and numbers[name] == 0)) or numbers[name] == float("inf"):
                raise UserError(f"{table.place(line)}: {name} must be above 0, got {cell}")
        tier = block.cells["tier"][i] if "tier" in block.cells else ""
        links = {name: numbers[name] for name in LINKS}
        rows.append(DeviceRow(block.cells["client"][i], numbers[unit], **links, tier=tier or "device"))
    client, count = Counter(row.client for row in rows).most_common(1)[0] if rows else ("", 0)
    if count > 1:
        raise UserError(f"{path} has two rows of client {client}: give one device a client")
    return DeviceTable(tuple(rows), unit)


@dataclass(frozen=True)
class DeviceFile(DeviceConditions):
    """Devices of a CSV file of `client,tier,samples_per_second,down_mbps,up_mbps,latency` (or `gflops`).

    path   the file
    mode   "match": every client has the row of its name (its number if the data has no names); "resample": every client
           has one of the rows, drawn once
    names  the names of the data's clients; set when the experiment is prepared
    and the settings of `DeviceConditions`
    """

    path: str
    mode: str = "match"
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise UserError(f"world.devices.mode is {self.mode!r}: {nearest(self.mode, MODES)}")

    @cached_property
    def table(self) -> DeviceTable:
        return read_devices(self.path)

    @property
    def tiers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.tier for row in self.table.rows))

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """The numbers [N, 4], and the place of each row's tier [N]."""
        rows = [(row.speed, row.down_mbps, row.up_mbps, row.latency) for row in self.table.rows]
        places = [self.tiers.index(row.tier) for row in self.table.rows]
        return torch.tensor(rows, dtype=torch.float64), torch.tensor(places)

    @cached_property
    def _row_of(self) -> dict[int, int]:
        names = ClientNames(self.names)
        return {n: i for i, row in enumerate(self.table.rows) if (n := names.number(row.client)) is not None}

    def tied_to_clients(self, enrolment: Enrolment, rounds: int) -> DeviceFile:
        tied = replace(self, names=enrolment.names)
        tied.__dict__["table"] = self.table
        if self.mode == "match":
            missing = next((c for c in range(enrolment.clients) if c not in tied._row_of), None)
            if missing is not None:
                name = enrolment.names[missing] if enrolment.names else missing
                raise UserError(
                    f"{self.path} has no device for client {name}: give every client a row, or set "
                    "world.devices.mode = 'resample'"
                )
        return tied

    def draw(self, client_C: Tensor, t: int, seed: int) -> DeviceDraw:
        number_N4, tier_N = self._columns
        if self.mode == "resample":
            row_C = (uniform(seed, "device", "row", ids=client_C) * len(tier_N)).long()
        else:
            row_C = torch.tensor([self._row_of[c] for c in client_C.tolist()], dtype=torch.int64)
        speed_C, down_C, up_C, latency_C = number_N4[row_C].unbind(1)
        by_samples = self.table.unit == "samples_per_second"
        draw = DeviceDraw(
            compute_C=speed_C if by_samples else speed_C * GIGA,
            down_C=down_C * BYTES_OF_MEGABIT,
            up_C=up_C * BYTES_OF_MEGABIT,
            latency_C=latency_C,
            tier_C=tier_N[row_C],
            by_samples=by_samples,
        )
        return self.vary(draw, client_C, t, seed)


KINDS = {"device-file": DeviceFile}
