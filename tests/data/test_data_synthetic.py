"""SYNTHETIC(alpha, beta) is FedProx's generator, sizes are the laws they say, and a million clients cost nothing."""

import math
import pickle
from dataclasses import dataclass

import pytest
import torch

from turnout.data import Equal, Generated, LogNormal, Pareto, Pooled, Synthetic
from turnout.data.federation import LRUCache
from turnout.data.generated import ClientData
from turnout.data.synthetic import _Maker
from turnout.errors import UserError
from turnout.rng import rng

MANY = torch.arange(20_000)


@dataclass(frozen=True)
class Given:
    """Sizes as they are named: by client."""

    sizes: tuple[tuple[int, int], ...]

    def draw(self, client_C: torch.Tensor, seed: int) -> torch.Tensor:
        return torch.tensor([dict(self.sizes)[client] for client in client_C.tolist()])


def test_pareto_has_its_quantiles():
    size_C = Pareto(index=0.5, scale=20, cap=10**9).draw(MANY, seed=0).double()
    # P(n > x) = (20 / x)^0.5: median 4 x_m, 90th percentile 100 x_m.
    assert size_C.quantile(0.5).item() == pytest.approx(80, rel=0.05)
    assert size_C.quantile(0.9).item() == pytest.approx(2000, rel=0.1)
    assert size_C.min() == 20


def test_lognormal_is_fedprox():
    size_C = LogNormal().draw(MANY, seed=0).double()
    # int(lognormal(4, 2)) + 50: median e^4 + 50, 84.13th percentile e^6 + 50.
    assert size_C.quantile(0.5).item() == pytest.approx(54.6 + 50, rel=0.03)
    assert size_C.quantile(0.8413).item() == pytest.approx(403.4 + 50, rel=0.06)
    assert size_C.min() >= 50


@pytest.mark.parametrize("sizes", [Pareto(), LogNormal(), Equal(9)])
def test_a_size_belongs_to_its_client(sizes):
    some = torch.tensor([999_999, 3, 17])
    assert torch.equal(sizes.draw(MANY, 5)[some[1:]], sizes.draw(some, 5)[1:])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Equal(0),
        lambda: Equal().draw(MANY, 0),
        lambda: Pareto(index=0),
        lambda: Pareto(floor=0),
        lambda: Pareto(floor=30, cap=20),
        lambda: LogNormal(std=-1),
        lambda: LogNormal(mean=1000),
        lambda: LogNormal(mean=math.nan),
        lambda: LogNormal(std=math.inf),
        lambda: Pareto(index=math.nan),
        lambda: Pareto(scale=math.inf),
        lambda: Pareto(cap=math.inf),
        lambda: Equal(math.nan),
        lambda: Equal(10**30),
        lambda: Synthetic(clients=0),
        lambda: Synthetic(alpha=-1),
        lambda: Synthetic(classes=1),
        lambda: Synthetic(test_share=1.0),
    ],
)
def test_wrong_fields_are_refused(make):
    with pytest.raises(UserError):
        make()


def truths(spec: Synthetic, clients: int) -> list[tuple[torch.Tensor, ...]]:
    together = _Maker(spec, 0).truth([rng(0, "synthetic", c) for c in range(clients)])
    return list(zip(*together, strict=True))


@pytest.mark.parametrize("iid", [False, True])
@pytest.mark.parametrize("shape", [(60, 10), (1, 2), (5, 3), (16, 17)])
def test_a_cohort_s_data_is_each_client_s_own(iid: bool, shape: tuple[int, int]) -> None:
    """With torch to the last bit; in C (where there is a compiler) up to rounding, and again in any company."""
    sizes = Given(((4, 100), (40, 1), (7, 33), (9999, 7)))
    clients, maker = [4, 40, 7, 9999], _Maker(Synthetic(0.5, 2.0, 10_000, iid, sizes, 0.3, *shape), 3)
    train, test = maker.split(*maker.samples(clients, maker.sizes(clients)))
    quick, quick_test = maker.cohort(clients, 0)
    for i, client in enumerate(clients):
        alone = maker(client, 0)
        for together, own in zip((*train.of(i), *test.of(i)), alone, strict=True):
            assert torch.equal(together, own)
        for together, own in zip((*quick.of(i), *quick_test.of(i)), alone, strict=True):
            torch.testing.assert_close(together, own, rtol=1e-5, atol=5e-6)
        for together, own in zip(quick.of(i), maker.cohort([client], 0)[0].of(0), strict=True):
            assert torch.equal(together, own)


def test_a_large_cohort_made_by_several_threads_is_the_same():
    maker, clients = _Maker(Synthetic(clients=9999, sizes=Pareto(cap=90)), 1), list(range(7, 9000, 90))
    train, test = maker.cohort(clients, 0)
    for i in (0, 1, 49, 50, 51, 98, 99):
        alone, alone_test = maker.cohort(clients[i : i + 1], 0)
        for a, b in zip((*train.of(i), *test.of(i)), (*alone.of(0), *alone_test.of(0)), strict=True):
            assert torch.equal(a, b)


def test_alpha_and_beta_are_standard_deviations():
    drawn = truths(Synthetic(alpha=3.0, beta=2.0), 600)
    u = torch.stack([weight.mean() for _, weight, _ in drawn])
    centre = torch.stack([mean.mean() for mean, _, _ in drawn])
    assert u.std().item() == pytest.approx(3.0, rel=0.1)
    assert centre.std().item() == pytest.approx(2.0, rel=0.1)
    assert drawn[0][1].std().item() == pytest.approx(1.0, rel=0.1)
    assert torch.stack([mean.std() for mean, _, _ in drawn]).mean().item() == pytest.approx(1.0, rel=0.05)


def test_the_mean_of_b_is_that_of_w():
    for _, weight, bias in truths(Synthetic(alpha=100.0), 20):
        assert abs(weight.mean() - bias.mean()).item() < 1.5


def test_inputs_and_labels_follow_the_formula():
    spec = Synthetic(sizes=Equal(20_000), test_share=0.0)
    data = _Maker(spec, 0)(7, 0)
    mean, weight, bias = truths(spec, 8)[7]
    variance = torch.arange(1, 61) ** -1.2
    assert torch.allclose(data.x.var(0), variance, rtol=0.06)
    assert torch.allclose(data.x.mean(0), mean, atol=0.04)
    assert torch.equal(data.y, (data.x @ weight + bias).softmax(1).argmax(1))


def test_zero_zero_is_not_iid_and_the_iid_variant_is():
    (m0, w0, b0), (m1, w1, b1) = truths(Synthetic(alpha=0, beta=0), 2)
    assert not torch.equal(w0, w1)
    assert not torch.equal(m0, m1)
    (m0, w0, b0), (m1, w1, b1) = truths(Synthetic(iid=True), 2)
    assert torch.equal(w0, w1)
    assert torch.equal(b0, b1)
    assert not m0.any()
    assert not m1.any()


def test_ninety_ten_per_client():
    data = Synthetic(sizes=LogNormal(std=1.0), clients=20).load(seed=0)
    everyone = torch.arange(20)
    size = LogNormal(std=1.0).draw(everyone, seed=0)
    train = torch.tensor([int(0.9 * n) for n in size.tolist()])
    assert torch.equal(data.examples(everyone), train)
    assert torch.equal(data.train(everyone, 0).count_C, train)
    assert torch.equal(data.test(everyone, 0).count_C, size - train)


def test_pooled_and_generated_hold_the_same_data():
    spec = Synthetic(clients=5, sizes=Equal(30))
    small = spec.load(seed=3)
    large = Synthetic(clients=1_000_000, sizes=Equal(30)).load(seed=3)
    assert isinstance(small, Pooled)
    assert isinstance(large, Generated)
    cohort = torch.tensor([4, 0, 2])
    for i in range(3):
        for a, b in zip(small.train(cohort, 0).of(i), large.train(cohort, 9).of(i), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6)
        for a, b in zip(small.test(cohort, 0).of(i), large.test(cohort, 9).of(i), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6)


def test_a_million_clients_cost_their_cohort():
    data = Synthetic(clients=1_000_000, sizes=Pareto(cap=100)).load(seed=0)
    cohort = torch.tensor([0, 999_999, 123_456])
    samples = data.train(cohort, 0)
    assert len(samples.x) == len(samples.row_R) + len(data.test(cohort, 0).row_R)  # nobody else's was made
    assert torch.equal(samples.count_C, data.examples(cohort))
    x, y = data.central_test()
    assert len(x) == len(y) > 100
    with pytest.raises(UserError, match="no client 1000000"):
        data.train(torch.tensor([1_000_000]), 0)


def test_the_order_of_asking_does_not_matter():
    first, second = (Synthetic(clients=2000).load(seed=1) for _ in range(2))
    first.train(torch.tensor([5]), 0)
    a, b = first.train(torch.tensor([9, 5]), 0), second.train(torch.tensor([5, 9]), 0)
    assert torch.equal(a.of(0)[0], b.of(1)[0])
    assert torch.equal(a.of(1)[0], b.of(0)[0])


def test_fingerprints_tell_seeds_apart():
    for clients in (5, 2000):
        spec = Synthetic(clients=clients)
        assert spec.load(0).fingerprint() == spec.load(0).fingerprint() != spec.load(1).fingerprint()


def test_generated_data_travels_to_another_process():
    data = Synthetic(clients=2000).load(seed=0)
    here = data.train(torch.tensor([3]), 0)
    there = pickle.loads(pickle.dumps(data))
    assert not there.recent.values
    assert torch.equal(there.train(torch.tensor([3]), 0).x, here.x)
    assert torch.equal(data.to("cpu").train(torch.tensor([3]), 0).x, here.x)
    away = here.to(torch.device("meta"))  # samples go to a device, who owns which of them does not
    assert away.x.is_meta
    assert (away.row_R.device.type, away.count_C.device.type) == ("cpu", "cpu")


def test_what_was_made_is_kept_within_its_bytes():
    made: list[int] = []

    def make(client: int, t: int) -> ClientData:
        made.append(client)
        x = torch.full((10, 5), float(client))
        return ClientData(x, torch.zeros(10).long(), x[:0], torch.zeros(0).long())

    data = Generated(make, clients=100, input_shape=(5,), classes=2, recent=LRUCache(2 * 280))
    for client in (0, 1, 0, 2, 0, 1):  # 280 bytes a client: two fit, the one used longest ago goes
        data.train(torch.tensor([client]), 0)
    assert made == [0, 1, 2, 1]
    assert data.recent.held <= 2 * 280
    assert data.central_test() is None


def test_a_law_with_a_heavy_tail_never_overflows():
    assert LogNormal(mean=20, std=50).draw(MANY, seed=0).min() >= 50
    assert Pareto(index=0.01, cap=2**40).draw(MANY, seed=0).min() >= 20
