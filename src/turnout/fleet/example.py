"""An invented log of a fleet: devices that check in while they charge, with what happens to real ones.

    turnout fleet --example checkins.csv

Shape letters: T hours, M devices.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import torch

from turnout.machine.files import replacing
from turnout.rng import uniform

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
HEADER = ("checked_in_at", "device", "share_done", "examples")


@dataclass(frozen=True)
class ExampleFleet:
    """Devices of two towns over some days; an hour is a round, and only devices that came are in the log.

    devices  how many there are
    days     of the log
    seed     of the draws

    - They charge at night, less so at weekends; in town "hill" evening is four hours later than in "shore".
    - A device stays for hours, not for single rounds: each hour it draws a new state with probability 1/4.
    - In "hill" the power fails about once in four days, and the whole town is away for six to eighteen hours. Once the
      server itself is down.
    - A tenth of the devices hardly ever comes, a tenth joins in the second half, a tenth leaves in the first.
    - Older devices finish only a part of the work. Devices that come less have more examples.
    """

    devices: int = 80
    days: int = 28
    seed: int = 0

    @property
    def names(self) -> list[str]:
        return [f"{'hill' if i % 2 else 'shore'}-{i // 2:03d}" for i in range(self.devices)]

    def work(self) -> np.ndarray:
        """The work of each device in each hour [T, M]; 0 is away, NaN not (or no longer) a member."""
        hours, at_M = 24 * self.days, np.arange(self.devices)
        t_T, in_hill_M = np.arange(hours)[:, None], at_M % 2 == 1
        up_TM = self._at_charger(t_T, in_hill_M)
        up_TM &= ~(self.power_cuts()[:, None] & in_hill_M)
        up_TM[24 * self.days // 3 + 9 : 24 * self.days // 3 + 21] = False  # the server is down from 9 to 21
        done_M = np.where(at_M % 4 == 0, 0.5, 1.0)  # older devices
        share_TM = np.clip(done_M * (0.7 + 0.6 * self._numbers("share", hours)), 0.05, 1.0)
        work_TM = np.where(up_TM, np.where(done_M < 1, share_TM, 1.0), 0.0)
        begin_M = np.where(at_M % 10 == 3, hours // 2 + (at_M * 5) % (hours // 4), 0)  # late ones join
        end_M = np.where(at_M % 10 == 7, hours // 4 + (at_M * 7) % (hours // 4), hours)  # some leave
        return np.where((t_T >= begin_M) & (t_T < end_M), work_TM, np.nan)

    def _numbers(self, what: str, hours: int, devices: int | None = None) -> np.ndarray:
        ids = torch.arange(devices or self.devices)
        return torch.stack([uniform(self.seed, "example", what, t, ids=ids) for t in range(hours)]).numpy()

    def _at_charger(self, t_T: np.ndarray, in_hill_M: np.ndarray) -> np.ndarray:
        """Whether a device is at its charger [T, M]: with probability 3/4 as in the hour before, else drawn anew."""
        hours = len(t_T)
        hour_TM = (t_T - 4 * in_hill_M) % 24
        night_TM = 0.5 + 0.5 * np.cos(2 * np.pi * (hour_TM - 2) / 24)  # 1 at two at night, 0 at two in the afternoon
        weekend_T = (t_T // 24 % 7 >= 5) * 0.15
        rare_M = np.arange(self.devices) % 10 == 5
        likes_M = np.where(rare_M, 0.06, 0.75 + 0.5 * self._numbers("likes", 1)[0])
        chance_TM = np.clip(likes_M * (0.08 + 0.8 * night_TM - weekend_T), 0.005, 0.97)
        anew_TM, up_TM = self._numbers("anew", hours) < 0.25, self._numbers("choice", hours) < chance_TM
        for t in range(1, hours):
            up_TM[t] = np.where(anew_TM[t], up_TM[t], up_TM[t - 1])
        return up_TM

    def power_cuts(self) -> np.ndarray:
        """The hours in which "hill" has no power [T]."""
        hours = 24 * self.days
        length_T = 6 + (12 * self._numbers("cut length", hours, 1)[:, 0]).astype(int)
        cut_T = np.zeros(hours, dtype=bool)
        for t in np.flatnonzero(self._numbers("cut", hours, 1)[:, 0] < 1 / 96):
            cut_T[t : t + length_T[t]] = True
        return cut_T

    def examples(self) -> np.ndarray:
        """How many examples each device holds [M]: the rare ones have the most."""
        at_M = np.arange(self.devices)
        return np.where(at_M % 10 == 5, 600, 60 + (at_M * 37) % 120)

    def write(self, path: Path) -> int:
        """Write the log as a CSV of check-ins in the order of time; returns how many there are."""
        work_TM, examples_M, names = self.work(), self.examples(), self.names
        minute_TM = self._numbers("minute", len(work_TM))
        rows = [
            (BEGIN + timedelta(hours=int(t), minutes=60 * float(minute_TM[t, m])), int(m))
            for t, m in zip(*np.nonzero(np.nan_to_num(work_TM) > 0), strict=True)
        ]
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADER)
            for when, m in sorted(rows):
                hour = int((when - BEGIN).total_seconds() // 3600)
                cells = (when.strftime("%Y-%m-%d %H:%M:%S"), names[m], f"{work_TM[hour, m]:.2f}", int(examples_M[m]))
                writer.writerow(cells)
        return len(rows)
