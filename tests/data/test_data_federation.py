"""Pooled federations: rows by client, held-out tests, official tests, sizes, noise; the embedded digits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.data import Digits, Equal, Noisy, Own, Pareto, Rows, Synthetic
from turnout.data.partition import Classes, Clustered, OneLabel, Shards
from turnout.errors import UserError


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_rows_of_any_cohort(counts, data):
    lists = [torch.randint(0, 99, (n,), generator=torch.Generator().manual_seed(i)) for i, n in enumerate(counts)]
    cohort = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=10))
    row_R, count_C = Rows.of(lists).take(torch.tensor(cohort))
    assert row_R.tolist() == [row for c in cohort for row in lists[c].tolist()]
    assert count_C.tolist() == [counts[c] for c in cohort]


def test_digits_are_the_digits():
    pool = Digits().read()
    x, y = pool.test
    assert (len(pool.x), len(x)) == (1438, 359)
    assert pool.x.shape[1:] == (1, 8, 8)
    assert (pool.x.min(), pool.x.max()) == (0.0, 1.0)
    # The counts of the data set's documentation.
    both = torch.cat([pool.y, y]).bincount()
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_central_test_does_not_depend_on_the_seed():
    first, second = (Digits(clients=5).load(seed).central_test() for seed in (0, 1))
    assert torch.equal(first[0], second[0])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.floats(0, 0.9), st.sampled_from(["holdout", "last"]), st.integers(0, 3))
def test_train_and_test_are_disjoint_and_cover(clients, share, local_test, seed):
    data = Digits(clients=clients, test_share=share, local_test=local_test).load(seed)
    everyone = torch.arange(clients)
    train, test = data.train(everyone, 0), data.test(everyone, 0)
    rows = torch.cat([train.row_R, test.row_R])
    assert torch.equal(rows.sort().values, torch.arange(1438))
    assert train.count_C.min() >= 1
    size_C = train.count_C + test.count_C
    assert torch.equal(train.count_C, ((1 - share) * size_C.double() + 1e-9).floor().long().clamp(min=1))
    assert torch.equal(data.examples(everyone), train.count_C)


def test_last_keeps_the_partitions_order():
    # SPEC 1.3, FDMS 8: class a then class b, unshuffled; of 100 + 100 the first 80 % are 100 of a and 60 of b.
    spec = Digits(clients=5, partition=Clustered(), sizes=Equal(200), local_test="last")
    data = spec.load(seed=0)
    counts = data.train(torch.tensor([2]), 0).of(0)[1].bincount(minlength=10)
    assert sorted(counts.tolist())[-2:] == [60, 100]
    assert data.groups.tolist() == [0, 1, 2, 3, 4]


def test_official_tests_have_the_clients_own_mix():
    # SPEC 1.3, MTFL 9: the test set is split with the same assignment as the training set.
    data = Digits(clients=10, partition=Shards(2), local_test="official").load(seed=0)
    everyone = torch.arange(10)
    train, test = data.train(everyone, 0), data.test(everyone, 0)
    assert len(train.row_R) == 1438
    assert len(test.row_R.unique()) == len(test.row_R) == 359
    label_L, test_L = data.y.bincount(), test.y.bincount()
    for c in range(10):
        mine, tested = train.of(c)[1].bincount(minlength=10), test.of(c)[1].bincount(minlength=10)
        assert not tested[mine == 0].any()
        assert ((tested - mine / label_L * test_L).abs() <= 1).all()
    assert torch.equal(test.x, data.central_test()[0])


def test_pareto_sizes_are_capped_by_the_label():
    data = Digits(clients=20, partition=OneLabel(), sizes=Pareto(scale=20), test_share=0).load(seed=0)
    size_C, want_C = data.examples(torch.arange(20)), Pareto(scale=20).draw(torch.arange(20), 0)
    assert (size_C <= want_C).all()
    small = want_C <= 30  # a fifth of a label's pool or less: nobody takes it away from the small
    assert small.any()
    assert torch.equal(size_C[small], want_C[small])
    assert size_C.max() > 60


def test_equal_without_a_number_divides_equally():
    data = Digits(clients=10, partition=Classes(2), sizes=Equal(), test_share=0).load(seed=0)
    assert data.examples(torch.arange(10)).min() >= 120  # 143 each, less where a class is short


def test_moving_keeps_the_data():
    data = Digits(clients=4, local_test="official").load(seed=0)
    moved = data.to("cpu")
    cohort = torch.tensor([3, 1])
    assert torch.equal(moved.train(cohort, 0).of(1)[0], data.train(cohort, 0).of(1)[0])
    assert torch.equal(moved.test(cohort, 0).of(0)[1], data.test(cohort, 0).of(0)[1])
    assert moved.fingerprint() == data.fingerprint()


def test_fingerprint_sees_the_deal_and_the_numbers():
    data = Digits(clients=4).load(seed=0)
    assert data.fingerprint() != Digits(clients=4).load(seed=1).fingerprint()
    assert data.fingerprint() != replace(data, x=data.x + 1).fingerprint()


def test_noise_is_on_a_fifth_of_the_clients_and_in_training_only():
    clean_spec = Digits(clients=20)
    clean, noisy = clean_spec.load(seed=0), Noisy(clean_spec).load(seed=0)
    spoilt = Noisy(clean_spec).clients(20, seed=0).tolist()
    assert len(spoilt) == 4
    everyone = torch.arange(20)
    a, b = clean.train(everyone, 0), noisy.train(everyone, 0)
    changed = [c for c in range(20) if not torch.equal(a.of(c)[0], b.of(c)[0])]
    assert changed == spoilt
    assert torch.equal(clean.test(everyone, 0).of(spoilt[0])[0], noisy.test(everyone, 0).of(spoilt[0])[0])
    assert (noisy.x.min(), noisy.x.max()) == (0, 1)
    with pytest.raises(UserError, match="share"):
        Noisy(clean_spec, share=2)


def test_pooled_tests_are_central_where_there_is_no_official_test():
    data = Synthetic(clients=6, sizes=Equal(50)).load(seed=0)
    own = data.test(torch.arange(6), 0)
    assert torch.equal(data.central_test()[0], own.x[own.row_R])
    nothing = Own(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), clients=2, test_share=0).load(seed=0)
    assert nothing.central_test() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Digits(clients=0),
        lambda: Digits(test_share=1.0),
        lambda: Digits(local_test="oficial"),
        lambda: Digits(clients=None).load(),
        lambda: Own(torch.zeros(4, 2), torch.zeros(4).long(), clients=2, local_test="official").load(),
    ],
)
def test_wrong_fields_are_refused(make):
    with pytest.raises(UserError):
        make()
