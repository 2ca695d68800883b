"""Partitions deal out every row at most once, keep their promises about labels, and say so when they cannot."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnout.data import Own
from turnout.data.partition import (
    IID,
    Classes,
    Clustered,
    Dirichlet,
    Natural,
    OneLabel,
    Partition,
    Shards,
    divide_pools,
    fill_wishes,
)
from turnout.data.sizes import Equal, Pareto
from turnout.errors import UserError

PARTITIONS: list[Partition] = [
    IID(),
    IID(stratified=True),
    OneLabel(),
    Classes(per_client=2),
    Classes(per_client=3, pick="random"),
    Shards(per_client=2),
    Dirichlet(alpha=1.0),
    Clustered(clusters=2, classes_per_cluster=2),
    Natural(),
]


def labels_of(samples: int, classes: int = 10, seed: int = 0) -> Tensor:
    """Labels in random order, all of them present."""
    g = torch.Generator().manual_seed(seed)
    return (torch.arange(samples) % classes)[torch.randperm(samples, generator=g)]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PARTITIONS),
    st.integers(4, 30),
    st.integers(100, 400),
    st.integers(0, 5),
    st.sampled_from([None, Equal(7), Pareto(scale=3, cap=60)]),
)
def test_rows_are_disjoint_deterministic_and_nobody_is_left_out(partition, clients, samples, seed, sizes):
    label_S = labels_of(samples, seed=seed)
    owner_S = torch.arange(samples) % 40
    want_C = None if sizes is None else sizes.draw(torch.arange(clients), seed)
    try:
        rows_C = partition.split(label_S, owner_S, clients, seed, want_C)
    except UserError:  # too many clients for a label: refused, and tested below
        assume(False)
    row_R = torch.cat(rows_C)
    assert len(rows_C) == clients
    assert min(len(rows) for rows in rows_C) >= 1
    assert len(row_R.unique()) == len(row_R)
    assert 0 <= int(row_R.min()) <= int(row_R.max()) < samples
    again = partition.split(label_S, owner_S, clients, seed, want_C)
    assert all(torch.equal(a, b) for a, b in zip(rows_C, again, strict=True))
    if want_C is not None:
        assert all(len(rows) <= want for rows, want in zip(rows_C, want_C.tolist(), strict=True))


@pytest.mark.parametrize("partition", [IID(), IID(stratified=True), Classes(2), Shards(2), Dirichlet(5.0), Clustered()])
def test_without_sizes_everything_is_dealt_out(partition):
    rows_C = partition.split(labels_of(503), None, 20, seed=1)
    assert torch.equal(torch.cat(rows_C).sort().values, torch.arange(503))


def test_another_seed_is_another_deal():
    for partition in PARTITIONS:
        if isinstance(partition, Natural):  # owners keep what is theirs
            continue
        first, second = (partition.split(labels_of(400), None, 10, seed) for seed in (0, 1))
        assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True)), partition


def test_one_label_each_chosen_uniformly():
    label_S = labels_of(20_000)
    rows_C = OneLabel().split(label_S, None, 1000, seed=0)
    label_C = torch.stack([label_S[rows].unique() for rows in rows_C])
    assert label_C.shape == (1000, 1)
    counts = label_C.flatten().bincount(minlength=10)
    assert counts.min() > 70  # 100 on average, standard deviation 9.5
    assert counts.max() < 130


@pytest.mark.parametrize("pick", ["consecutive", "random"])
def test_classes_gives_exactly_k_with_equal_numbers(pick):
    label_S = labels_of(10_000)
    want_C = Equal(60).draw(torch.arange(50), seed=0)
    for rows in Classes(per_client=3, pick=pick).split(label_S, None, 50, seed=3, want_C=want_C):
        assert sorted(label_S[rows].bincount(minlength=10).tolist())[-4:] == [0, 20, 20, 20]


def test_consecutive_classes_are_spread_evenly():
    label_S = labels_of(1000)
    rows_C = Classes(per_client=2).split(label_S, None, 30, seed=0)
    held = [set(label_S[rows].tolist()) for rows in rows_C]
    assert all(len(pair) == 2 and (max(pair) - min(pair)) in (1, 9) for pair in held)
    assert [sum(label in pair for pair in held) for label in range(10)] == [6] * 10


def test_clusters_have_their_own_classes_and_equal_numbers_of_each():
    # SPEC 5.7: 20 clients, 5 clusters x 4, 2 distinct classes per cluster; MNIST 200 samples per client.
    label_S, partition = labels_of(4000), Clustered()
    rows_C = partition.split(label_S, None, 20, seed=0, want_C=Equal(200).draw(torch.arange(20), 0))
    cluster_C = partition.clusters_of_clients(20)
    assert cluster_C.tolist() == [c // 4 for c in range(20)]
    classes = [tuple(label_S[rows].unique().tolist()) for rows in rows_C]
    assert len(set(classes)) == 5
    assert sorted(label for pair in set(classes) for label in pair) == list(range(10))
    assert all(classes[4 * k] == classes[4 * k + i] for k in range(5) for i in range(4))
    assert all(sorted(label_S[rows].bincount().tolist())[-2:] == [100, 100] for rows in rows_C)


def test_shards_are_contiguous_in_label_order():
    # SPEC 5.7: 200 label-sorted partitions of 250, 2 per client, 500 samples each.
    label_S = labels_of(50_000)
    rows_C = Shards(per_client=2, shards=200).split(label_S, None, 20, seed=0)
    assert {len(rows) for rows in rows_C} == {500}
    assert max(len(label_S[rows].unique()) for rows in rows_C) <= 2


def test_dirichlet_is_more_extreme_for_a_small_alpha():
    label_S = labels_of(5000)

    def largest_share(alpha: float) -> float:
        rows_C = Dirichlet(alpha).split(label_S, None, 10, seed=0)
        return sum(label_S[rows].bincount().max().item() / len(rows) for rows in rows_C) / 10

    assert largest_share(0.1) > 0.4
    assert largest_share(1000.0) < 0.13


def test_natural_keeps_owners_together_and_leaves_out_the_small():
    owner_S = torch.tensor([3, 1, 3, 7, 1, 3])
    rows_C = Natural(min_size=2).split(torch.zeros(6), owner_S, 2, seed=0)
    assert [rows.tolist() for rows in rows_C] == [[1, 4], [0, 2, 5]]


def test_stratified_gives_everyone_the_same_mix():
    label_S = torch.tensor([0] * 60 + [1] * 30)
    for rows in IID(stratified=True).split(label_S, None, 10, seed=0):
        assert label_S[rows].bincount().tolist() == [6, 3]


def test_a_label_asked_for_too_much_cuts_the_largest_only():
    # 3 clients want 5, 40 and 90 of a label with 65: the largest v with 5 + min(40, v) + min(90, v) <= 65 is 30.
    got = fill_wishes(torch.ones(3, 1), torch.tensor([65]), torch.tensor([5, 40, 90]))
    assert got.flatten().tolist() == [5, 30, 30]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 500))
def test_sharing_out_uses_all_and_is_proportional(weights, pool):
    count_C = divide_pools(torch.tensor(weights)[:, None], torch.tensor([pool])).flatten()
    total = sum(weights)
    assert int(count_C.sum()) == (pool if total else 0)
    for weight, count in zip(weights, count_C.tolist(), strict=True):
        assert abs(count - (pool * weight / total if total else 0)) <= 1


@pytest.mark.parametrize(
    ("partition", "clients", "words"),
    [
        (IID(), 200, "fewer clients"),
        (OneLabel(), 200, "fewer clients"),
        (Classes(per_client=11), 4, "only 10 classes"),
        (Shards(per_client=30), 4, "fewer clients"),
        (Shards(per_client=2, shards=4), 4, "need 8 shards"),
        (Dirichlet(alpha=0.001), 50, "raise alpha"),
        (Clustered(clusters=6), 12, "need 12 classes"),
        (Clustered(clusters=5), 4, "at least as many clients"),
        (Natural(), 4, "owner column"),
    ],
)
def test_an_impossible_deal_is_refused_with_advice(partition, clients, words):
    with pytest.raises(UserError, match=words):
        partition.split(labels_of(100), None, clients, seed=0)


def test_labels_are_needed_where_labels_are_dealt():
    for partition in (OneLabel(), Classes(), Shards(), Dirichlet(), Clustered(), IID(stratified=True)):
        with pytest.raises(UserError, match="not labels"):
            partition.split(torch.zeros(10), None, 2, seed=0)


def test_more_clients_than_owners_is_refused():
    with pytest.raises(UserError, match="2 owners have 1 or more samples"):
        Natural().split(torch.zeros(4), torch.tensor([0, 0, 1, 1]), 3, seed=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Classes(per_client=0),
        lambda: Classes(pick="consequtive"),
        lambda: Shards(per_client=0),
        lambda: Dirichlet(alpha=0),
        lambda: Clustered(clusters=0),
    ],
)
def test_wrong_fields_are_refused(make):
    with pytest.raises(UserError):
        make()


def sizes_of(each: int | None, partition: Partition, clients: int = 4) -> list[int]:
    """How many samples the clients of a thousand get."""
    owner = (torch.arange(1000) ** 2) % 7 if isinstance(partition, Natural) else None
    x, sizes = torch.zeros(1000, 2), Equal(each)
    data = Own(x, labels_of(1000), owner, clients=clients, partition=partition, sizes=sizes, test_share=0).load(seed=0)
    return data.examples(torch.arange(clients)).tolist()


def test_an_equal_number_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"10 clients x 400 are 4000 samples, .* 1000.* only 100: lower each"):
        sizes_of(400, IID(), clients=10)
    assert sizes_of(100, IID(), clients=10) == [100] * 10
    assert sizes_of(None, IID(), clients=7) == [142] * 7
    law = Own(torch.zeros(1000, 2), labels_of(1000), clients=10, partition=IID(), sizes=Pareto(scale=150), test_share=0)
    assert int(law.load(seed=0).examples(torch.arange(10)).sum()) <= 1000  # a law is cut to what there is


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_more_than_a_client_can_have_is_refused(partition: Partition):
    with pytest.raises(UserError, match="lower each, or use fewer clients"):
        sizes_of(999, partition)
    assert min(sizes_of(None, partition)) >= 1  # without a number, what there is


@pytest.mark.parametrize("test_share", [0.0, 0.1, 0.2, 0.25, 0.5])
@pytest.mark.parametrize(
    ("per_label", "clients"), [((60, 30, 90), 10), ((61, 37, 95, 8), 10), ((17, 23), 4), ((9, 9), 5)]
)
def test_stratified_clients_train_on_the_same_mix(per_label: tuple[int, ...], clients: int, test_share: float):
    """Of n_l samples of a label each of C clients holds floor or ceil of n_l / C. Of its n a client trains on
    floor((1 - test_share) n); of no label one trains (or tests) on more than one sample more than another."""
    label_S = torch.cat([torch.full((n,), i) for i, n in enumerate(per_label)])[
        torch.randperm(sum(per_label), generator=torch.Generator().manual_seed(5))
    ]
    data = Own(torch.zeros(len(label_S), 2), label_S, clients=clients, partition=IID(stratified=True),
               test_share=test_share).load(seed=3)  # fmt: skip
    everyone = torch.arange(clients)
    held: dict[str, list[list[int]]] = {}
    for part, samples in (("train", data.train(everyone, 0)), ("test", data.test(everyone, 0))):
        labels = data.y[samples.row_R].split(samples.count_C.tolist())
        held[part] = [one.bincount(minlength=len(per_label)).tolist() for one in labels]
    for label, n in enumerate(per_label):
        for c in range(clients):
            both = held["train"][c][label] + held["test"][c][label]
            assert both in (n // clients, -(-n // clients))
        for part in ("train", "test"):
            counts = [held[part][c][label] for c in range(clients)]
            assert max(counts) - min(counts) <= 1
            if n % clients == 0 and sum(per_label) % clients == 0 and all(m % clients == 0 for m in per_label):
                assert max(counts) == min(counts)
    for c in range(clients):
        n = sum(held["train"][c]) + sum(held["test"][c])
        assert sum(held["train"][c]) == max(1, int((1 - test_share) * n + 1e-9))


def test_a_stratified_client_of_any_size_trains_on_its_own_mix():
    """Of n_l samples of a label, n in all and k for training, it trains on k n_l / n, rounded up or down."""
    x, sizes = torch.zeros(3000, 2), Pareto(scale=20, cap=300)
    data = Own(x, labels_of(3000, 5), clients=12, partition=IID(stratified=True), sizes=sizes).load(seed=1)
    everyone = torch.arange(12)
    train, test = data.train(everyone, 0), data.test(everyone, 0)
    assert len(train.count_C.unique()) > 3
    for own_r, kept_r in zip(
        train.row_R.split(train.count_C.tolist()), test.row_R.split(test.count_C.tolist()), strict=True
    ):
        trained, tested = (data.y[rows].bincount(minlength=5) for rows in (own_r, kept_r))
        exact = (trained + tested) * int(trained.sum()) / int((trained + tested).sum())
        assert ((trained - exact).abs() < 1).all()
