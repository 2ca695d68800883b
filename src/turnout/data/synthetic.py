"""SYNTHETIC(alpha, beta), the generated classification task of FedProx: no files, any population.

Shape letters: D dimensions, L classes, S samples of one client, C clients that were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from turnout.data.federation import Pooled
from turnout.data.generated import ClientData, Generated, one_thread
from turnout.data.sizes import Pareto, Sizes, check_test_share, train_count
from turnout.errors import Mistake
from turnout.rng import rng

POOL_CLIENTS, POOL_BYTES = 1000, 256 * 2**20  # up to here the data is made once and pooled


@dataclass(frozen=True)
class Synthetic:
    """SYNTHETIC(alpha, beta); alpha and beta are standard deviations, as in FedProx's code.

    For each client k: u_k ~ N(0, alpha), B_k ~ N(0, beta); m_k with entries ~ N(B_k, 1); W_k and b_k with
    entries ~ N(u_k, 1); x ~ N(m_k, Sigma), Sigma diagonal, Sigma_jj = j^(-1.2); y = argmax(x W_k + b_k).

    SYNTHETIC(0, 0) still has a different W_k, b_k and m_k for every client: it is not IID. `iid=True` has one
    common W, b ~ N(0, 1) and m_k = 0. `sizes` are a client's training and test samples together. For a
    population that is too large to pool, the central test set is that of `central_clients` of them.

    >>> data = Synthetic(clients=3).load(seed=0)
    >>> data.clients, data.input_shape, data.classes
    (3, (60,), 10)
    """

    alpha: float = 1.0
    beta: float = 1.0
    clients: int = 50
    iid: bool = False
    sizes: Sizes = field(default_factory=Pareto)
    test_share: float = 0.1
    dimension: int = 60
    classes: int = 10
    central_clients: int = 200

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise Mistake(f"Synthetic(clients={self.clients}): there must be at least 1 client")
        if self.alpha < 0 or self.beta < 0:
            raise Mistake(f"Synthetic(alpha={self.alpha}, beta={self.beta}): standard deviations are >= 0")
        if self.dimension < 1 or self.classes < 2:
            raise Mistake("Synthetic needs a dimension of at least 1 and at least 2 classes")
        check_test_share(self.test_share)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled | Generated:
        """The federation: pooled where it is small, made on demand where the population is large."""
        made = Generated(
            make=_Maker(self, seed),
            count=_Counter(self, seed),
            clients=self.clients,
            input_shape=(self.dimension,),
            classes=self.classes,
            labels=tuple(str(label) for label in range(self.classes)),
            central_clients=self.central_clients,
        )
        if self.clients > POOL_CLIENTS:
            return made
        samples = int(self.sizes.draw(torch.arange(self.clients), seed).sum())
        return made.pooled() if samples * self.dimension * 4 <= POOL_BYTES else made


@dataclass(frozen=True)
class _Counter:
    """Training sizes by client number. (An object and not a closure: it travels to other processes.)"""

    spec: Synthetic
    seed: int

    def __call__(self, client_C: Tensor) -> Tensor:
        return train_count(self.spec.sizes.draw(client_C, self.seed), self.spec.test_share)


@dataclass(frozen=True)
class _Maker:
    """One client's samples, by address."""

    spec: Synthetic
    seed: int

    def __call__(self, client: int, t: int) -> ClientData:
        # Two threads on a busy machine take 20 times as long for a client, and could round a label differently.
        with one_thread():
            return self.make(client)

    def make(self, client: int) -> ClientData:
        spec, g = self.spec, rng(self.seed, "synthetic", client)
        size = spec.sizes.draw(torch.tensor([client]), self.seed)
        mean_D, weight_DL, bias_L = self.truth(g)
        std_D = torch.arange(1, spec.dimension + 1, dtype=torch.float64).pow(-0.6).float()  # sqrt of j^-1.2
        x_SD = torch.randn(int(size), spec.dimension, generator=g).mul_(std_D).add_(mean_D)
        y_S = torch.addmm(bias_L, x_SD, weight_DL).argmax(1)
        kept = int(train_count(size, spec.test_share))
        return ClientData(x_SD[:kept], y_S[:kept], x_SD[kept:], y_S[kept:])

    def truth(self, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """m_k, W_k and b_k of one client; the mean of b_k is that of W_k."""
        spec, D, L = self.spec, self.spec.dimension, self.spec.classes
        if spec.iid:
            common = rng(self.seed, "synthetic", "common")
            return torch.zeros(D), torch.randn(D, L, generator=common), torch.randn(L, generator=common)
        u = spec.alpha * torch.randn((), generator=g)
        centre = spec.beta * torch.randn((), generator=g)
        mean_D = centre + torch.randn(D, generator=g)
        return mean_D, u + torch.randn(D, L, generator=g), u + torch.randn(L, generator=g)
