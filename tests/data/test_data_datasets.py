"""A torch Dataset, and pictures in a folder for each owner: samples with owners, and what is refused with its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import turnout as to
from turnout.data import FromDataset, ImageFolder
from turnout.errors import UserError


class Letters(Dataset):
    """Twelve small samples of three writers; counts how often one is asked for."""

    classes = ("a", "b", "c")

    def __init__(self) -> None:
        self.asked = 0
        self.writers = ["eve", "dan", "eve"] * 4

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        self.asked += 1
        return torch.full((4,), float(i)), i % 3


def test_a_dataset_is_read_once_and_split_by_owner(tmp_path):
    requests = Letters()
    data = FromDataset(requests, owner=lambda i: requests.writers[i], test_share=0)
    found = data.load()
    assert (found.names, found.labels, found.input_shape) == (("dan", "eve"), ("a", "b", "c"), (4,))
    assert sorted(found.train(torch.tensor([0])).of(0)[0][:, 0].tolist()) == [1, 4, 7, 10]
    run = to.run(to.Experiment(to.World(data), rounds=2), tmp_path / "run", quiet=True)
    assert isinstance(run.model(), torch.nn.Module)
    assert requests.asked == 12
    by_list = FromDataset(requests, owner=requests.writers)
    assert by_list.load().names == ("dan", "eve")


def test_the_owner_may_be_part_of_a_sample():
    x, y, owner = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([7, 7, 8, 8, 8, 9])
    assert FromDataset(TensorDataset(x, y, owner), owner=2).load().names == ("7", "8", "9")
    rows = [{"image": x[i], "label": "no" if i % 2 else "yes", "who": f"w{i % 2}"} for i in range(6)]
    found = FromDataset(rows, owner="who", x="image", y="label", test_share=0).load()
    assert (found.names, found.labels, found.y.tolist()) == (("w0", "w1"), ("no", "yes"), [1, 0, 1, 0, 1, 0])
    assert torch.equal(found.x, x)


def test_numbers_to_predict_a_test_set_and_no_owner():
    x = torch.randn(8, 3)
    numbers = FromDataset(TensorDataset(x, x[:, 0]), clients=2, test=TensorDataset(x[:4], x[:4, 0])).load()
    assert (numbers.labels, numbers.classes, numbers.y.shape) == ((), 1, (8, 1))
    assert len(numbers.central_test()[0]) == 4
    with pytest.raises(UserError, match=r"clients=\.\.\."):
        FromDataset(TensorDataset(x, x[:, 0])).load()


def test_pictures_become_numbers_from_0_to_1():
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 255
    grey = np.full((4, 6), 51, np.uint8)
    for picture in (Image.fromarray(red), red, torch.from_numpy(red.transpose(2, 0, 1).copy())):
        found = FromDataset([(picture, 0), (picture, 1)], clients=1).load()
        assert found.input_shape == (3, 4, 6)
        assert found.x[0, :, 0, 0].tolist() == [1, 0, 0]
    for picture in (Image.fromarray(grey), grey):
        found = FromDataset([(picture, 0), (picture, 1)], clients=1).load()
        assert found.input_shape == (1, 4, 6)
        assert found.x[0, 0, 0, 0].item() == pytest.approx(0.2)


class Counting(IterableDataset):
    def __iter__(self) -> Iterator[tuple[list[float], float]]:
        return iter([([1.0, 2.0], 0.5), ([3.0, 4.0], 1.5)])


def make() -> Dataset:
    return Letters()


def test_streams_subsets_and_functions_that_make_one():
    assert FromDataset(Counting(), clients=1, test_share=0).load().x.tolist() == [[1, 2], [3, 4]]
    assert len(FromDataset(Subset(Letters(), [0, 5]), clients=1).load().x) == 2
    assert FromDataset(make, clients=2).load().labels == ("a", "b", "c")


def test_an_experiment_of_a_dataset_is_written_and_recognised(tmp_path):
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])

    def experiment(x: torch.Tensor) -> to.Experiment:
        return to.Experiment(to.World(FromDataset(TensorDataset(x, y), clients=2)), rounds=1)

    to.run(experiment(x), tmp_path / "run", quiet=True)
    to.run(experiment(x.clone()).but(rounds=2), tmp_path / "run", quiet=True, resume=True)
    with pytest.raises(UserError, match="other settings"):
        to.run(experiment(x + 1).but(rounds=2), tmp_path / "run", quiet=True, resume=True)


def test_a_list_of_samples_is_not_written_into_the_file(tmp_path):
    samples = [(torch.zeros(2), i % 2) for i in range(50)]
    run = to.run(to.Experiment(to.World(FromDataset(samples, clients=2)), rounds=1), tmp_path / "run", quiet=True)
    assert len((run.folder / "experiment.toml").read_text()) < 3000


def test_a_dataset_whose_parts_hold_each_other_can_be_run(tmp_path):
    class Knot(Letters):
        def __init__(self) -> None:
            super().__init__()
            self.myself = self

    to.run(to.Experiment(to.World(FromDataset(Knot(), clients=2)), rounds=1), tmp_path / "run", quiet=True)


GOOD = [(torch.zeros(2), 0), (torch.ones(2), 1)]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: FromDataset([*GOOD, (torch.zeros(3), 0)], clients=1),
            r"inputs cannot be joined.*\[3\] at entry 2",
        ),
        (lambda: FromDataset([*GOOD, (torch.tensor([0.0, float("nan")]), 0)], clients=1), "sample 2: x is NaN"),
        (lambda: FromDataset([*GOOD, (torch.zeros(2), None)], clients=1), "targets cannot be joined"),
        (
            lambda: FromDataset([*GOOD, (torch.zeros(2), "cat")], clients=1),
            "targets cannot be joined.*str",
        ),
        (
            lambda: FromDataset([*GOOD, (torch.zeros(2), 0.5)], clients=1),
            "targets cannot be joined.*whole numbers and others",
        ),
        (
            lambda: FromDataset([*GOOD, ("text", 0)], clients=1),
            "inputs cannot be joined.*str",
        ),
        (lambda: FromDataset([torch.zeros(2)], clients=1), "no samples that are pairs"),
        (lambda: FromDataset([(torch.zeros(2),)], clients=1), "a sample has no part 1"),
        (lambda: FromDataset([{"a": 1}], clients=1, y="image"), "a sample has no part 'image'"),
        (lambda: FromDataset(GOOD, owner=["ann"]), "2 samples and 1 owner"),
        (lambda: FromDataset(GOOD, owner=5), "a sample has no part 5"),
        (lambda: FromDataset(GOOD, owner=lambda i: None), "owner of sample 0 is None"),
        (lambda: FromDataset([], clients=1), "no samples"),
        (lambda: FromDataset(5, clients=1), "torch Dataset"),
        (lambda: FromDataset(GOOD, clients=1, labels=("a",)), "label is outside 0 to 0"),
    ],
)
def test_what_is_wrong_with_samples_is_refused(build, words):
    with pytest.raises(UserError, match=words):
        build().load()


def picture(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path)


def test_a_folder_for_each_owner(tmp_path):
    for owner, counts in (("ann", {"cat": 3, "dog": 1}), ("bob", {"dog": 2})):
        for name, count in counts.items():
            for i in range(count):
                picture(tmp_path / "pets" / owner / name / f"{i}.png", (255, 0, 0))
    found = ImageFolder("pets", size=4, owner="folder", test_share=0).load(0, tmp_path)
    assert (found.names, found.labels, found.clients) == (("ann", "bob"), ("cat", "dog"), 2)
    assert sorted(found.train(torch.tensor([0])).of(0)[1].tolist()) == [0, 0, 0, 1]
    assert found.train(torch.tensor([1])).of(0)[1].tolist() == [1, 1]


def test_a_folder_for_each_owner_with_a_test_set(tmp_path):
    for owner in ("ann", "bob"):
        picture(tmp_path / "train" / owner / "cat" / "0.png", (255, 0, 0))
        picture(tmp_path / "train" / owner / "dog" / "0.png", (255, 0, 0))
    picture(tmp_path / "test" / "cyd" / "dog" / "0.png", (255, 0, 0))
    found = ImageFolder(tmp_path, size=4, owner="folder", test_share=0).load()
    assert found.names == ("ann", "bob")
    assert found.central_test()[1].tolist() == [1]


def test_owners_of_pictures_that_cannot_be_told(tmp_path):
    picture(tmp_path / "cat" / "0.png", (255, 0, 0))
    with pytest.raises(UserError, match=r"cat.0.png lies beside the folders of classes.*owner/class/file"):
        ImageFolder(tmp_path, owner="folder").load()
    with pytest.raises(UserError, match=r"owner='folders'.*did you mean 'folder'"):
        ImageFolder(tmp_path, owner="folders")
    with pytest.raises(UserError, match=r"clients=.*owner="):
        ImageFolder(tmp_path).load()
    (tmp_path / "ann" / "cat").mkdir(parents=True)
    picture(tmp_path / "ann" / "stray.png", (255, 0, 0))
    picture(tmp_path / "ann" / "cat" / "0.png", (255, 0, 0))
    (tmp_path / "cat" / "0.png").unlink()
    (tmp_path / "cat").rmdir()
    with pytest.raises(UserError, match=r"ann.stray.png lies beside the folders of classes"):
        ImageFolder(tmp_path, owner="folder").load()
