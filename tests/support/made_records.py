"""Records that no run has made: many clients and rounds in little time."""

from __future__ import annotations

from pathlib import Path

import torch

from turnout.rng import uniform
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.records.records import Records


def make_records(folder: Path, clients: int, rounds: int, asked: int) -> None:
    """The records of a run in which `asked` of the clients are asked every round, and all are measured at times."""
    ids = torch.arange(clients)
    skill = uniform(0, "skill", ids=ids).double()
    with Records.open(folder / "records.sqlite") as records:
        for t in range(rounds):
            client = ((torch.arange(asked) * (clients // asked) + t) % clients).sort().values
            drawn = uniform(0, "work", t, ids=client).double()
            work = torch.where(drawn < 0.4, 0.0, drawn)
            columns = {
                "client": client,
                "work": work,
                "weight": work / asked,
                "loss": 2 * (1 - skill[client]) / (1 + t / 50),
                "bytes_up": (work > 0).long() * 40_000,
                "friend": torch.where(work > 0, -1, (client + 7) % clients),
            }
            measured = skill * (1 - 2 ** (-t / 200))
            found = Evaluation(t, {"global_accuracy": float(measured.mean())}, {"personal_accuracy": (ids, measured)})
            counts = {"members": clients, "asked": asked, "answered": int((work > 0).sum())}
            record = RoundRecord(round=t, work=float(work.mean()), clients=columns, **counts)
            records.add_round(record, found if t % 20 == 19 else None)
