"""What clients at work need: the device and how the work is cut up, and bytes of memory by what for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turnout.data import Federation
from turnout.engine.job import plain_sgd
from turnout.engine.train import order_bytes
from turnout.parts.compression.base import Dense
from turnout.parts.terms.base import as_quadratic, sends

if TYPE_CHECKING:
    from turnout.runtimes.clients import ClientPool

# of one model: modules to train and to measure, first values, the server's, and those of a step of the server
COPIES = 8
LOOKED_AT = 100_000  # clients, when the memory that a run needs is counted


def described(clients: ClientPool) -> dict[str, Any]:
    """The device, and how the work is cut up."""
    algorithm, trainer = clients.algorithm, clients.trainer
    layout, start_P = clients.model.layout, clients.place.put(clients.model.flat_P[: clients.model.layout.shared])
    rows = 2 if algorithm.mixing.personal or layout.width > layout.shared else 1  # whether starts differ
    start_cP = start_P.expand(rows, -1)
    springs = all(as_quadratic(term, start_cP, term.server_state(start_P)) is not None for term in algorithm.terms)
    optimizer = algorithm.local.optimizer
    engine = trainer.title(optimizer, springs and (plain_sgd(optimizer) or not algorithm.terms))
    return clients.place.describe() | {"engine": engine, "chunk": trainer.chunk, "threads": trainer.threads}


def bytes_needed(clients: ClientPool, cohort: int, ever: int) -> dict[str, int]:
    """Bytes by what for, with so many clients in a round and in all rounds together."""
    algorithm, layout, trainer = clients.algorithm, clients.model.layout, clients.trainer
    width = 8 if clients.place.dtype == torch.float64 else 4
    matrices = 1 + len(algorithm.local.optimizer.slots) + (0 if isinstance(algorithm.compression, Dense) else 1)
    beside = sum(sends(term) for term in algorithm.terms) * layout.shared
    samples_C, alone = _most_samples(clients.federation, cohort), clients.network.has_batch_statistics()
    return {
        "cohort": (int(matrices * layout.width + beside) * width + clients.store.row_bytes) * cohort,
        "model": (COPIES + trainer.threads) * layout.width * width,
        "training": trainer.step_bytes(cohort, algorithm.local.optimizer),
        "batches": order_bytes(samples_C, algorithm.local, alone, trainer.threads),
        "client state": clients.store.row_bytes * ever,
        "data": data_bytes(clients.federation),
    }


def _most_samples(federation: Federation, cohort: int) -> Tensor:
    """The samples of those in a cohort who have the most; where there are very many clients, among some of them."""
    some = torch.arange(min(federation.clients, LOOKED_AT))
    return federation.examples(some).cpu().sort(descending=True).values[:cohort]


def data_bytes(federation: Federation) -> int:
    """What the samples take that lie in memory, and whose they are; what is shared counts once."""
    rows = [getattr(getattr(federation, name, None), "row_R", None) for name in ("train_rows", "test_rows")]
    named = [getattr(federation, name, None) for name in ("x", "y", "test_x", "test_y")]
    central = getattr(federation, "central", None)
    found = [*named, *rows, *(central if isinstance(central, tuple) else ())]
    storages = [value.untyped_storage() for value in found if isinstance(value, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
