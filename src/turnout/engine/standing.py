"""Where a chunk of clients stands in its local training, as terms see it; and rows that captured steps can rely on.

Shape letters: c clients of the chunk, P parameters (all columns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turnout.engine.batches import Batch
from turnout.engine.gpu.graphs import GraphCache
from turnout.engine.own_samples import OwnSamples, fisher, mean_gradient
from turnout.parts.terms.base import At
from turnout.rng import key
from turnout.types import Tensors

if TYPE_CHECKING:
    from turnout.engine.chunk import Chunk


def standing(
    chunk: Chunk, step: int, rows: slice | Tensor, flat: Tensor, states: Tensors, batch: Batch | None = None
) -> At:
    """What terms may see of some clients at a step."""
    shared = chunk.network.layout.shared
    start = chunk.start_cP if chunk.start_cP.shape[0] == 1 else chunk.start_cP[rows]

    def gradient(x_cP: Tensor) -> Tensor:
        full, out = flat.clone(), torch.empty_like(flat)
        full[:, :shared] = x_cP
        given = batch or chunk.batch(step, rows)
        chunk.gradients.gradient(full, {n: v.clone() for n, v in states.items()}, given, out)
        return out[:, :shared]

    def squared_gradients(samples: int) -> Tensor:
        own = _samples_of(chunk, rows, key(chunk.job.seed, "samples", chunk.job.t), samples)
        size = max(chunk.job.batch_size, 32) if flat.is_cuda else chunk.job.batch_size
        found = fisher(chunk.gradients, flat, states, own, size)
        return found if found.shape[1] == shared else found[:, :shared]

    def full_gradient(x_cP: Tensor) -> Tensor:
        full = flat.clone()
        full[:, :shared] = x_cP
        own = _samples_of(chunk, rows, address=0)
        return mean_gradient(chunk.gradients, full, states, own, chunk.job.batch_size)[:, :shared]

    return At(
        x_cP=flat[:, :shared],
        start_cP=start[:, :shared],
        lr=chunk.job.lr,
        step=step,
        steps_c=chunk.progress_c[rows],
        examples_c=chunk.examples_c[rows],
        gradient=gradient,
        squared_gradients=squared_gradients,
        full_gradient=full_gradient,
        t=chunk.job.t,
    )


def _samples_of(chunk: Chunk, rows: slice | Tensor, address: int, most: int | None = None) -> OwnSamples:
    place_c = torch.arange(chunk.rows.start, chunk.rows.stop)[rows]
    return OwnSamples.of(chunk.job.samples, place_c, chunk.client_c[rows], address, most)


def hold_rows(chunk: Chunk, graphs: GraphCache) -> None:
    """Work on copies whose addresses are the same in every round, as captured steps need."""
    chunk.states = {name: graphs.hold(f"state {name}", value) for name, value in chunk.states.items()}
    if chunk.in_one:
        return
    chunk.start_cP = graphs.hold("start", chunk.start_cP)
    chunk.progress_c, chunk.examples_c = (
        graphs.hold("steps", chunk.progress_c),
        graphs.hold("examples", chunk.examples_c),
    )
    chunk.slots = {name: graphs.hold(f"slot {name}", value) for name, value in chunk.slots.items()}
    for term in chunk.job.terms:
        own, sent = chunk.mine.get(term.name, {}), chunk.job.down.get(term.name, {})
        chunk.mine[term.name] = {n: graphs.hold(f"mine {term.name} {n}", v) for n, v in own.items()}
        held = {n: graphs.hold(f"down {term.name} {n}", v[None])[0] for n, v in sent.items()}
        chunk.down = {**chunk.down, term.name: held}


def put_rows_back(chunk: Chunk) -> None:
    """What was held becomes the cohort's result."""
    for name, value in chunk.states.items():
        chunk.result.states[name][chunk.rows] = value
    if chunk.in_one:
        return
    for name, value in chunk.slots.items():
        chunk.result.slots[name][chunk.rows] = value
    for term, own in chunk.mine.items():
        for name, value in own.items():
            chunk.result.mine[term][name][chunk.rows] = value
