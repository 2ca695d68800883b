"""What terms send and keep when a chunk of clients has ended its training, as rows of the cohort's result.

Rows are copied only where they have to be: a tensor that a term has just made becomes the cohort's own where the chunk
is everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from turnout.engine.standing import standing
from turnout.types import Tensors

if TYPE_CHECKING:
    from turnout.engine.chunk import Chunk


def finish_terms(chunk: Chunk) -> None:
    """What each term sends and keeps when training has ended."""
    everyone = slice(0, len(chunk.client_c))
    for term in chunk.job.terms:
        at, before = standing(chunk, 0, everyone, chunk.flat_cP, chunk.states), chunk.mine.get(term.name, {})
        up, mine = term.finish(at, chunk.down.get(term.name, {}), before)
        for name, value in up.items():  # first, since they may be rows that are about to change
            _send(chunk, term.name, name, value)
        for name, value in _apart(mine, before).items():
            _keep(chunk, term.name, name, value)


def _send(chunk: Chunk, term: str, name: str, value: Tensor) -> None:
    """Write what a term sends into the cohort's tensor; where this chunk is everybody, a new tensor is that."""
    sent, clients = chunk.result.up.setdefault(term, {}), len(chunk.job.client_C)
    if len(value) == clients and _is_new(chunk, value):
        sent[name] = value
    else:
        sent.setdefault(name, value.new_zeros(clients, *value.shape[1:]))[chunk.rows] = value


def _keep(chunk: Chunk, term: str, name: str, value: Tensor) -> None:
    """What a term keeps becomes the cohort's; where this chunk is everybody, a new tensor is that."""
    kept = chunk.mine[term][name]
    alike = value.shape == kept.shape and value.dtype == kept.dtype
    if alike and len(value) == len(chunk.job.client_C) and _is_new(chunk, value):
        chunk.mine[term][name] = chunk.result.mine[term][name] = value
    else:
        kept.copy_(value)


def _is_new(chunk: Chunk, value: Tensor) -> bool:
    """Whether a tensor is no part of what a term was shown and will change, nor of what is sent already."""
    shown = [chunk.flat_cP, chunk.start_cP, *chunk.states.values(), chunk.progress_c, chunk.examples_c]
    for rows in (*chunk.mine.values(), *chunk.down.values(), *chunk.result.up.values()):
        shown += rows.values()
    return not any(_overlap(value, other) for other in shown)


def _apart(new: Tensors, old: Tensors) -> Tensors:
    """New rows, copied where they are old ones of another name: those are about to change."""
    moved = {n for n, v in new.items() if any(_overlap(v, other) for name, other in old.items() if name != n)}
    return {name: value.clone() if name in moved else value for name, value in new.items()}


def _overlap(value: Tensor, other: Tensor) -> bool:
    return value.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
