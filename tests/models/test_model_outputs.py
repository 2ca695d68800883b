"""Models that return more than a tensor: an object with logits, a named tuple, a tuple; and what is refused."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import turnout as to
from turnout.cli import main

Wrap = Callable[[Tensor], Any]


@dataclass
class Output:
    """Like the outputs of Hugging Face's models."""

    logits: Tensor
    hidden: Tensor | None = None


class Pair(NamedTuple):
    hidden: Tensor
    logits: Tensor


WAYS: dict[str, Wrap] = {
    "an object": Output,
    "a named tuple": lambda scores: Pair(scores + 1, scores),
    "a dict": lambda scores: {"hidden": scores + 1, "logits": scores},
    "a tuple": lambda scores: (scores, scores + 1),
    "a list": lambda scores: [scores],
}


class Wrapped(nn.Module):
    """Two layers whose scores come back inside something else; `plain` is the same model without it."""

    def __init__(self, inputs: int, classes: int, wrap: Wrap):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Linear(5, classes)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.last(self.norm(self.first(x)).relu()))


def plain(scores: Tensor) -> Tensor:
    return scores


class ByShape:
    """A model spec that holds how scores are wrapped."""

    def __init__(self, wrap: Wrap):
        self.wrap = wrap

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return Wrapped(input_shape[0], classes, self.wrap)


def experiment(wrap: Wrap, **changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=5, sizes=to.data.Pareto(cap=30))
    local = to.Local(to.SGD(lr=0.1), epochs=1, batch_size=5)
    found = to.Experiment(to.World(data), ByShape(wrap), to.Algorithm(local), rounds=2)
    return found.but(**{"evaluate": to.Evaluate(per_client=True, personal=True), **changes})


@pytest.mark.parametrize("engine", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("way", WAYS)
def test_scores_are_found_in_what_a_model_returns(way: str, engine: str, tmp_path: Path) -> None:
    runtime = to.runtime.InProcess(engine=engine, device="cpu", threads=1)
    ours = to.run(experiment(WAYS[way], runtime=runtime), tmp_path / "ours", quiet=True)
    theirs = to.run(experiment(plain, runtime=runtime), tmp_path / "theirs", quiet=True)
    for metric in ("global_loss", "global_accuracy", "personal_loss"):
        assert ours.curve(metric) == theirs.curve(metric)
    first, second = ours.model().state_dict(), theirs.model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in second)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"algorithm.terms": (to.terms.Elastic(strength=0.1),)}, "global_loss"),
        ({"algorithm.personal": to.personal.batch_norm}, "personal_loss"),
        ({"evaluate": to.Evaluate(recovery=True)}, "global_loss"),
    ],
)
def test_terms_and_probes_find_them_too(changes: dict[str, object], metric: str, tmp_path: Path) -> None:
    ours = to.run(experiment(Output, **changes), tmp_path / "ours", quiet=True)
    theirs = to.run(experiment(plain, **changes), tmp_path / "theirs", quiet=True)
    assert ours.curve(metric) == theirs.curve(metric)


@pytest.mark.parametrize(
    ("wrap", "returned"),
    [
        (lambda scores: None, "the model returns None"),
        (lambda scores: {"a": scores, "b": scores}, "the model returns a dict with 'a', 'b'"),
        (lambda scores: (), "the model returns a tuple"),
        (lambda scores: (None, scores), "the model returns a tuple"),
        (lambda scores: [[scores]], "the model returns a list"),
        (lambda scores: Output("text"), "the model returns a Output"),  # type: ignore[arg-type]
        (lambda scores: scores.detach().numpy(), "the model returns a ndarray"),
    ],
)
def test_what_holds_no_scores_is_refused_before_the_first_round(wrap: Wrap, returned: str, tmp_path: Path) -> None:
    with pytest.raises(to.UserError) as caught:
        to.run(experiment(wrap), tmp_path / "run", quiet=True)
    assert returned in str(caught.value)
    assert "def forward(self, x): return self.model(x)['name'], [1] or .name" in str(caught.value)
    assert not (tmp_path / "run").exists()


class OnlyInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(60, 10)

    def forward(self, x: Tensor) -> Any:
        return {"loss": self.layer(x)} if self.training else self.layer(x)


@pytest.mark.parametrize("engine", ["loop", "auto"])
def test_what_a_model_returns_in_training_is_looked_at_too(engine: str, tmp_path: Path) -> None:
    runtime = to.runtime.InProcess(engine=engine, device="cpu")
    with pytest.raises(to.UserError, match="the model returns a dict with 'loss'"):
        to.run(experiment(plain, model=OnlyInTraining(), runtime=runtime), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_clients_that_exchange_scores_find_them_too(tmp_path: Path) -> None:
    from score_worlds import score_world

    ours = to.run(score_world().but(model=ByShape(Output)), tmp_path / "ours", quiet=True)
    theirs = to.run(score_world().but(model=ByShape(plain)), tmp_path / "theirs", quiet=True)
    assert ours.curve("consensus_accuracy") == theirs.curve("consensus_accuracy")


MODULE = """
from dataclasses import dataclass
from torch import Tensor, nn

@dataclass
class Output:
    logits: Tensor

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x):
        return Output(self.layer(x))
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on a table whose model returns an object with logits, by its path."""
    (tmp_path / "my_logits.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_logits", raising=False)  # that of another test lies in another folder
    import my_logits  # type: ignore[import-not-found]

    rows = [f"{i % 3},{i % 5},{['ann', 'bob', 'cyd'][i % 3]},{i % 2}" for i in range(60)]
    Path("data.csv").write_text("a,b,who,y\n" + "\n".join(rows) + "\n")
    data = to.data.Table("data.csv", label="y", owner="who")
    to.run(to.Experiment(to.World(data), my_logits.Net, rounds=2), "run", quiet=True)
    return tmp_path


def test_predict_finds_them(table: Path) -> None:
    assert main(["predict", "run", "data.csv", "--out", "predicted.csv"]) == 0
    model, data = to.load_model("run"), to.data.Table("data.csv", label="y", owner="who")
    x = data.encode("data.csv")
    expected = model(x).logits.argmax(1).tolist()
    with open("predicted.csv", newline="") as file:
        assert [int(row["prediction"]) for row in csv.DictReader(file)] == expected


@pytest.mark.filterwarnings("ignore")
def test_a_program_gives_the_scores(table: Path) -> None:
    assert main(["export", "run", "--model", "model.pt2"]) == 0
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(1))
    program = torch.export.load("model.pt2").module()
    assert torch.allclose(program(x), to.load_model("run")(x).logits, atol=1e-6)


def test_numbers_in_their_own_unit(tmp_path: Path) -> None:
    data = [f"{i % 7},{10 * (i % 7) + 100},{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "data.csv").write_text("x,y,who\n" + "\n".join(data) + "\n")
    table = to.data.Table(str(tmp_path / "data.csv"), label="y", owner="who", regression=True)
    given = to.Experiment(to.World(table), ByShape(Output), task=to.tasks.Regression(), rounds=2)
    run = to.run(given, tmp_path / "run", quiet=True)
    predicted = run.model()(table.encode(str(tmp_path / "data.csv")))
    assert predicted.shape == (60, 1)
    assert bool((predicted > 50).all()), "in the unit of y, which is 100 to 160"
