"""What every engine offers: the gradient of a chunk of clients, or a plain SGD step on it.

Three classes implement it. The plain loop is the reference that tests compare the other two with.

    ByHand      engine/by_hand.py: plain stacks of layers under a loss of engine/losses.py
    Vmapped     engine/autograd.py: torch.func.vmap(grad), for any module that vectorises
    Looped      engine/autograd.py: one client at a time with ordinary autograd; also the fallback

Shape letters: c clients of a chunk, B batch, P parameters.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from turnout.engine.batches import Batch
from turnout.engine.factored import ChunkWeights
from turnout.engine.gpu.graphs import GraphCache
from turnout.engine.network import Network
from turnout.types import Tensors


class Gradients(Protocol):
    """Gradients and plain SGD steps of a chunk. States (BatchNorm statistics) are updated in place, as by a module."""

    network: Network
    title: str
    sees_padding: bool  # whether the samples that pad a short batch would enter BatchNorm's statistics

    @property
    def graphs(self) -> GraphCache | None:
        """Where its steps are captured; None if they cannot be."""
        ...

    def gradient(self, flat_cP: Tensor, states: Tensors, batch: Batch, out_cP: Tensor) -> Tensor:
        """Write the gradients into `out_cP`; returns the mean loss of each client."""
        ...

    def descend(self, flat_cP: Tensor, states: Tensors, batch: Batch, lr: float, decay: float) -> Tensor:
        """One plain SGD step in place: x <- x - lr (g + decay x); returns the mean loss of each client."""
        ...

    def add_squares(
        self, flat_cP: Tensor, states: Tensors, batch: Batch, into_cP: Tensor, fresh: bool, scale: float
    ) -> None:
        """Add the square of each sample's own gradient times `scale`, in evaluation mode; samples with mask 0 do not
        count. `fresh`: there are no numbers in `into_cP` yet.
        """
        ...

    def chunk_weights(self, start_cP: Tensor, clients: int, samples: int) -> ChunkWeights | None:
        """A copy of a chunk's first weights outside the cohort's matrix; None if steps on the matrix are faster.

        `samples`: the most samples a client will see, or 0 if factored weights cannot be used (`Job.factored_samples`).
        """
        ...

    def factored_bytes(self, start_cP: Tensor, samples: int) -> int:
        """Bytes of one client's factored weights in such a copy (engine/factored.py); 0 if there are none."""
        ...

    def outputs(self, flat_cP: Tensor, states: Tensors, x: Tensor) -> Tensor:
        """Outputs of each client's own model on its own samples [c, B, ...], in evaluation mode."""
        ...

    def twin(self) -> Gradients:
        """A copy for another thread (modules are not thread-safe)."""
        ...
