"""One's own data: tensors with owners, loaders, streams, a file per client; and what is refused, with its place."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from turnout.data import ClientFiles, Loader, Own, Stream
from turnout.data.partition import IID
from turnout.errors import UserError


def test_owners_become_clients_in_order():
    x, y = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    data = Own(x, y, owner=torch.tensor([30, 4, 30, 4, 30, 4]), test_share=0).load(seed=0)
    assert data.names == ("4", "30")  # numbers in the order of numbers
    mine, labels = data.train(torch.tensor([1]), 0).of(0)
    assert sorted(labels.tolist()) == [0, 1, 2]
    assert sorted(mine[:, 0].tolist()) == [0.0, 4.0, 8.0]


def test_arrays_a_test_set_and_regression():
    x = np.random.default_rng(0).normal(size=(8, 3))
    data = Own(x, x[:, 0], clients=2, partition=IID(), test=(x[:4], x[:4, 0])).load(seed=0)
    assert (data.classes, data.labels, data.x.dtype) == (1, (), torch.float32)
    assert data.y.shape == (8, 1)
    assert len(data.central_test()[0]) == 4
    assert Own(x, np.arange(8) % 2, clients=2, labels=("no", "yes", "maybe")).load().classes == 3


BAD = torch.zeros(4, 2)
BAD[2, 1] = float("nan")
GOOD, LABELS = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Own(BAD, LABELS, owner=["a", "b", "c", "d"]), r"row 2 \(client 'c'\): x is NaN or infinite"),
        (lambda: Own(GOOD, torch.tensor([0.0, 1.0, 2.0, float("inf")]), clients=2), "row 3: y is NaN"),
        (lambda: Own(GOOD, torch.tensor([0, 5, -1, 1]), clients=2, classes=3), r"row 1 \(and 1 more rows\): the label"),
        (lambda: Own(GOOD, LABELS, owner=["a", "b"]), "4 samples and 2 owners"),
        (lambda: Own(GOOD, LABELS[:3], clients=2), "one row of each per sample"),
        (lambda: Own(GOOD[:0], LABELS[:0], clients=2), "no samples"),
        (lambda: Own(GOOD, LABELS, clients=2, test=(BAD, LABELS)), "test row 2"),
        (lambda: Own(GOOD, LABELS, clients=2, test=(torch.zeros(4, 3), LABELS)), "shape"),
        (lambda: Own(GOOD[:0], LABELS[:0], owner=[]), "no samples"),
        (
            lambda: Own(GOOD, ["cat", "dog", "cat", "dog"], clients=2),
            r"y is not an array of numbers.*number the classes",
        ),
        (lambda: Own(GOOD, np.array(["cat"] * 4), clients=2), "y is not an array of numbers"),
        (lambda: Own([[1.0], [1.0, 2.0]], LABELS[:2], clients=2), "x is not an array of numbers"),
        (lambda: Own(GOOD, LABELS, clients=2, test=(GOOD, ["cat"] * 4)), "test set: y is not"),
        (lambda: Own(GOOD, LABELS, clients=2, test=3), "pair"),
        (lambda: Own(GOOD, LABELS, clients=2, test=GOOD), "pair"),
        (lambda: Own(GOOD, LABELS[:3], owner=["a", "b", "c", "d"]), r"x is \(4, 2\) and y \(3,\)"),
        (lambda: Own(GOOD, torch.tensor(1), clients=2), "one row of each per sample"),
        (lambda: Own(GOOD, LABELS), r"clients=\.\.\."),
        (lambda: Own(GOOD, LABELS, owner=["a", "a", "b", "b"], clients=3), "2 owners"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_its_place(make, words):
    with pytest.raises(UserError, match=words):
        make().load(seed=0)


def numbers(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((10, 3), float(client)), torch.arange(10) % 2


def test_a_loader_is_called_for_its_cohort_only():
    called: list[int] = []

    def function(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        called.append(client)
        return numbers(client)

    data = Loader(function, clients=1000, input_shape=(3,), classes=2).load(seed=0)
    cohort = torch.tensor([7, 900])
    assert data.examples(cohort).tolist() == [8, 8]
    samples, tests = data.train(cohort, 0), data.test(cohort, 5)
    assert called == [7, 900]
    assert samples.of(1)[0].unique().tolist() == [900.0]
    assert tests.count_C.tolist() == [2, 2]
    known = Loader(function, clients=1000, input_shape=(3,), classes=2, examples=lambda client_C: client_C * 0 + 8)
    assert known.load(seed=0).examples(torch.tensor([1, 2, 3])).tolist() == [8, 8, 8]
    assert called == [7, 900]


def test_a_loaders_mistake_names_the_client():
    wrong = {
        "shape": lambda client: (torch.zeros(4, 2), torch.zeros(4).long()),
        "client 3, row 1: x is NaN": lambda client: (
            torch.tensor([[0.0] * 3, [float("nan")] * 3]),
            torch.zeros(2).long(),
        ),
        "client 3, row 0: the label": lambda client: (torch.zeros(1, 3), torch.tensor([2])),
        "client 3, row 0: there are no samples": lambda client: (torch.zeros(0, 3), torch.zeros(0).long()),
    }
    for words, function in wrong.items():
        data = Loader(function, clients=5, input_shape=(3,), classes=2).load(seed=0)
        with pytest.raises(UserError, match=words):
            data.train(torch.tensor([3]), 0)


def test_a_stream_changes_with_the_round():
    def function(client: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((t + 1, 2), 10.0 * client + t), torch.zeros(t + 1).long()

    data = Stream(function, clients=4, input_shape=(2,), classes=2).load(seed=0)
    cohort = torch.tensor([2, 1])
    assert data.train(cohort, 0).x[:, 0].tolist() == [20, 10]
    assert data.train(cohort, 1).x[:, 0].tolist() == [21, 21, 11, 11]
    assert data.train(cohort, 0).x[:, 0].tolist() == [20, 10]
    assert data.test(cohort, 1).count_C.tolist() == [0, 0]
    assert data.central_test() is None
    tested = Stream(function, function, clients=4, input_shape=(2,), classes=2).load(seed=0)
    assert tested.test(cohort, 2).count_C.tolist() == [3, 3]
    assert tested.central_test()[0][:, 0].tolist() == [0, 10, 20, 30]


def test_a_streams_mistake_names_the_round():
    def function(client: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([[0.0], [float("nan") if t == 3 else 1.0]]), torch.zeros(2).long()

    data = Stream(function, clients=4, input_shape=(1,), classes=2).load(seed=0)
    data.train(torch.tensor([2]), 2)
    with pytest.raises(UserError, match="client 2, round 3, row 1: x is NaN"):
        data.train(torch.tensor([2]), 3)


def test_one_file_per_client(tmp_path):
    for name, value in (("bob", 2.0), ("ann", 1.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((5, 3), value), y=np.arange(5) % 2)
    data = ClientFiles(tmp_path, classes=2).load(seed=0)
    assert (data.names, data.input_shape, data.classes) == (("ann", "bob"), (3,), 2)
    assert data.train(torch.tensor([1]), 0).x.unique().tolist() == [2.0]
    save_file({"x": torch.zeros(4, 2), "y": torch.rand(4, 1)}, tmp_path / "c.safetensors")
    other = ClientFiles(tmp_path, "*.safetensors", test_share=0).load(seed=0)
    assert (other.labels, other.classes, other.examples(torch.tensor([0])).tolist()) == ((), 1, [4])


def test_client_files_that_cannot_be_used(tmp_path):
    with pytest.raises(UserError, match="no files"):
        ClientFiles(tmp_path, classes=2).load()
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 3)), z=np.zeros(5))
    with pytest.raises(UserError, match="arrays x and y"):
        ClientFiles(tmp_path, classes=2).load()
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 3)), y=np.zeros(5, dtype=int))
    with pytest.raises(UserError, match=r"classes=\.\.\."):
        ClientFiles(tmp_path).load()
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.array(["cat", "dog"]))
    with pytest.raises(UserError, match=r"a.npz: y is not an array of numbers"):
        ClientFiles(tmp_path, classes=2).load()


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"classes": 0}, "at least 1 client and 1 class"), ({"classes": 3, "labels": ("a",)}, "3 classes and 1 labels")],
)
def test_wrong_fields_of_client_files_are_refused(tmp_path, fields, words):
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 3)), y=np.zeros(5, dtype=int))
    with pytest.raises(UserError, match=words):
        ClientFiles(tmp_path, **fields).load()


@pytest.mark.parametrize(
    "fields", [{"clients": 0}, {"classes": 0}, {"test_share": 1.0}, {"names": ("only one",)}, {"labels": ("a",)}]
)
def test_wrong_fields_are_refused(fields):
    with pytest.raises(UserError):
        Loader(numbers, **({"clients": 5, "input_shape": (3,), "classes": 2} | fields))


def test_a_small_file_that_unpacks_to_more_than_the_memory_is_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((100_000, 10)), y=np.zeros(100_000, dtype=int))
    assert (tmp_path / "a.npz").stat().st_size < 50_000
    assert len(ClientFiles(tmp_path, classes=2).load(0).train(torch.tensor([0]), 0).x) > 50_000
    monkeypatch.setattr("turnout.data.loaders.free_bytes", lambda device: 8_000_000)
    with pytest.raises(UserError, match=r"a.npz is 8,800,\d+ bytes when it is unpacked, and 8,000,000 bytes of memory"):
        ClientFiles(tmp_path, classes=2).load(0)
