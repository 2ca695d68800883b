"""SYNTHETIC(alpha, beta), FedProx's generated classification task: needs no files, for any number of clients.

Shape letters: D dimensions, L classes, S samples of one client, C clients that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.data.federation import Pooled
from turnout.data.generated import ClientData, Generated
from turnout.data.sizes import Pareto, Sizes, check_test_share, train_count
from turnout.errors import check_settings
from turnout.machine.compiler import at, function, pointer, real, whole
from turnout.machine.threads import cores, ordered_map
from turnout.rng import rng, rng_seed
from turnout.types import Samples

POOL_CLIENTS, POOL_BYTES = 1000, 256 * 2**20  # up to these sizes the data is made once and pooled
NUMBERS_PER_THREAD = 100_000  # fewer are not worth another thread
SOURCE = Path(__file__).with_name("synthetic.c")
ARGUMENTS = (pointer, pointer, whole, whole, whole, real, real, pointer, pointer, pointer, pointer)


@dataclass(frozen=True)
class Synthetic:
    """SYNTHETIC(alpha, beta); alpha and beta are standard deviations, as in FedProx's code.

    For each client k: u_k ~ N(0, alpha), B_k ~ N(0, beta); m_k with entries ~ N(B_k, 1); W_k and b_k with
    entries ~ N(u_k, 1); x ~ N(m_k, Sigma), Sigma diagonal, Sigma_jj = j^(-1.2); y = argmax(x W_k + b_k).

    SYNTHETIC(0, 0) still has a different W_k, b_k and m_k for every client: it is not IID.

    alpha, beta       how much the clients' models and inputs differ
    clients           how many
    iid               one common W, b ~ N(0, 1), and m_k = 0
    sizes             each client's training and test samples together
    test_share        the share of its samples that a client keeps for testing
    dimension         the numbers of a sample
    classes           how many
    central_clients   how many clients' test samples are the central test set, if there are too many clients to pool

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
        check_settings(self, alpha="[0, inf)", beta="[0, inf)")  # standard deviations
        check_settings(self, clients="[1, inf)", dimension="[1, inf)", classes="[2, 1000000]")  # each has a name
        check_test_share(self.test_share)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled | Generated:
        """The federation: pooled if it is small, made on demand if it is large."""
        maker = _Maker(self, seed)
        made = Generated(
            make=maker,
            cohort=maker.cohort,
            count=maker.train_counts,
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


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread inside the block: in many small operations more threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Maker:
    """Makes clients' samples. Each client draws from its own generator; the arithmetic is done for a whole cohort.

    With a compiler, a cohort's samples are drawn in C: several times as fast, the same numbers up to rounding. A single
    client's samples always come from torch.
    """

    spec: Synthetic
    seed: int

    def __call__(self, client: int, t: int) -> ClientData:
        train, test = self.split(*self.samples([client], self.sizes([client])))
        return ClientData(*train.of(0), *test.of(0))

    def cohort(self, clients: Sequence[int], t: int) -> tuple[Samples, Samples]:
        make = function(SOURCE, "make", ARGUMENTS)
        draw = self.samples if make is None else partial(self.samples_in_c, make)
        return self.split(*draw(clients, self.sizes(clients)))

    def train_counts(self, client_C: Tensor) -> Tensor:
        return train_count(self.spec.sizes.draw(client_C, self.seed), self.spec.test_share)

    def sizes(self, clients: Sequence[int]) -> Tensor:
        return self.spec.sizes.draw(torch.tensor(clients), self.seed).to(torch.int64).contiguous()

    def split(self, x_SD: Tensor, y_S: Tensor, size_C: Tensor) -> tuple[Samples, Samples]:
        """Split each client's samples: the first ones for training, the others for testing."""
        kept_C = train_count(size_C, self.spec.test_share)
        place_S = torch.arange(len(x_SD)) - (size_C.cumsum(0) - size_C).repeat_interleave(size_C)
        trains_S = place_S < kept_C.repeat_interleave(size_C)
        row_R, test_R = trains_S.nonzero().squeeze(1), (~trains_S).nonzero().squeeze(1)
        return Samples(x_SD, y_S, row_R, kept_C), Samples(x_SD, y_S, test_R, size_C - kept_C)

    def scale(self) -> Tensor:
        """Standard deviations of x: the roots of j^-1.2."""
        return torch.arange(1, self.spec.dimension + 1, dtype=torch.float64).pow(-0.6).float()

    def samples_in_c(self, make: Any, clients: Sequence[int], size_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same as `samples`, in C; a large cohort is divided among the cores."""
        spec, total = self.spec, int(size_C.sum())
        seed_C = torch.tensor([rng_seed(self.seed, "synthetic", client) for client in clients])
        common = torch.cat([part.flatten() for part in self.common()]) if spec.iid else None
        x_SD, y_S = torch.empty(total, spec.dimension), torch.empty(total, dtype=torch.int64)
        scale_D, end_C = self.scale(), size_C.cumsum(0)
        law = (spec.dimension, spec.classes, spec.alpha, spec.beta, None if common is None else at(common), at(scale_D))

        def some(begin: int) -> int:
            first, count = int(end_C[begin] - size_C[begin]), min(each, len(clients) - begin)
            given = (at(seed_C[begin:]), at(size_C[begin:]), count)
            return make(*given, *law, at(x_SD[first:]), at(y_S[first:]))

        parts = max(1, min(cores(), len(clients), 1 + x_SD.numel() // NUMBERS_PER_THREAD))
        each = max(1, -(-len(clients) // parts))
        if any(list(ordered_map(some, range(0, len(clients), each), parts))):
            raise MemoryError
        return x_SD, y_S, size_C

    @_one_thread()  # on a busy machine two threads take 20 times as long, and could round a label differently
    def samples(self, clients: Sequence[int], size_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x and y of these clients, one after another, and the number of samples of each."""
        spec, sizes = self.spec, size_C.tolist()
        draws = [rng(self.seed, "synthetic", client) for client in clients]
        mean_CD, weight_CDL, bias_CL = self.truth(draws)
        x_SD = torch.empty(sum(sizes), spec.dimension)
        score_SL = torch.empty(len(x_SD), spec.classes)
        x_C = x_SD.split(sizes)
        for x, g in zip(x_C, draws, strict=True):
            x.normal_(generator=g)
        x_SD.mul_(self.scale())
        rows = zip(x_C, score_SL.split(sizes), mean_CD.unbind(), weight_CDL.unbind(), bias_CL.unbind(), strict=True)
        for x, score, mean_D, weight_DL, bias_L in rows:
            torch.addmm(bias_L, x.add_(mean_D), weight_DL, out=score)
        return x_SD, score_SL.argmax(1), size_C

    def common(self) -> tuple[Tensor, Tensor]:
        g = rng(self.seed, "synthetic", "common")
        weight_DL = torch.randn(self.spec.dimension, self.spec.classes, generator=g)
        return weight_DL, torch.randn(self.spec.classes, generator=g)

    def truth(self, draws: Sequence[torch.Generator]) -> tuple[Tensor, Tensor, Tensor]:
        """m_k, W_k and b_k of each client; the mean of b_k is that of W_k."""
        spec, C, D, L = self.spec, len(draws), self.spec.dimension, self.spec.classes
        if spec.iid:
            weight_DL, bias_L = self.common()
            return torch.zeros(C, D), weight_DL.expand(C, D, L), bias_L.expand(C, L)
        parts = [torch.empty(C, *shape) for shape in ((), (), (D,), (D, L), (L,))]
        for g, *own in zip(draws, *(part.unbind() for part in parts), strict=True):
            for part in own:
                part.normal_(generator=g)
        u_C, centre_C, mean_CD, weight_CDL, bias_CL = parts
        u_C.mul_(spec.alpha)
        mean_CD.add_(centre_C.mul_(spec.beta)[:, None])
        return mean_CD, weight_CDL.add_(u_C[:, None, None]), bias_CL.add_(u_C[:, None])


KINDS = {"synthetic": Synthetic}
