"""Nothing that did nothing ends well: what is odd is said before the first round where it can be known, in the last
lines of the run, and in its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
import torch

import turnout as to
from example_experiments import run_many
from turnout.cli import main
from turnout.recipes import cook
from turnout.view import HOOKS
from worlds import Given

Capture = pytest.CaptureFixture[str]
CLIENTS, SAMPLES = 6, 300


def data(labels: Callable[[torch.Tensor], torch.Tensor] | None = None, **more: object) -> to.data.Own:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, 5, generator=g), torch.randint(0, 3, (SAMPLES,), generator=g)
    return to.data.Own(x, labels(y) if labels else y, torch.arange(SAMPLES) % CLIENTS, **more)


def experiment(given: object = None, participation: object = None, **changes: object) -> to.Experiment:
    world = to.World(given or data(), participation or to.participation.Always())  # type: ignore[arg-type]
    return to.Experiment(world, rounds=3).but(**changes)


def prices(folder: Path) -> to.data.Table:
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(SAMPLES, 3, generator=g).tolist()
    lines = [f"{a:.4f},{b:.4f},{100_000 + 20_000 * c:.0f},shop {i % CLIENTS}" for i, (a, b, c) in enumerate(rows)]
    (folder / "prices.csv").write_text("\n".join(["size,age,price,shop", *lines]) + "\n")
    return to.data.Table(folder / "prices.csv", label="price", owner="shop")


def unheld() -> to.data.Own:
    g = torch.Generator().manual_seed(2)
    return data(test=(torch.randn(50, 5, generator=g), torch.arange(50) % 5), classes=5)


def gap(y: torch.Tensor) -> torch.Tensor:
    return y.index_fill(0, torch.tensor([0]), 20_000)


ODD: dict[str, tuple[Callable[[Path], to.Experiment], str]] = {
    "nobody turns up": (
        lambda folder: experiment(participation=Given(*[0.0] * CLIENTS)),
        "work counts in the first 3 rounds, so nothing will be trained",
    ),
    "too little for one mini-batch": (
        lambda folder: experiment(participation=Given(*[0.4] * CLIENTS), **{"algorithm.local": to.Local(steps=2)}),
        "work counts in the first 3 rounds",
    ),
    "too little for one mini-batch, of a third": (
        lambda folder: experiment(participation=Given(0.4, 0.4, *[0.6] * 4), **{"algorithm.local": to.Local(steps=2)}),
        "finish less than one mini-batch, which counts as absent",
    ),
    "a label far off": (
        lambda folder: experiment(data(gap)),
        "the largest label makes 20,001 classes",
    ),
    "numbers read as classes": (
        lambda folder: experiment(prices(folder)),
        "classes among 240 training samples",
    ),
    "a class nobody holds": (
        lambda folder: experiment(unheld()),
        "training samples of classes 3, 4",
    ),
    "no test samples": (
        lambda folder: experiment(data(test_share=0.0)),
        "there are no test samples, so nothing is measured: raise test_share, or give a test set",
    ),
    "a stream without test samples": (
        lambda folder: experiment(to.data.Stream(arriving, clients=3, input_shape=(5,), classes=3)),
        "there are no test samples",
    ),
}


def arriving(client: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1000 * client + t)
    return torch.randn(20, 5, generator=g), torch.randint(0, 3, (20,), generator=g)


@pytest.mark.parametrize(("made", "sentence"), ODD.values(), ids=ODD)
def test_what_can_be_known_is_said_before_the_first_round_and_again(
    made, sentence: str, tmp_path: Path, capsys: Capture
):
    run = to.run(made(tmp_path), tmp_path / "out")
    lines = capsys.readouterr().err.splitlines()
    said = [i for i, line in enumerate(lines) if sentence in line]
    done = next(i for i, line in enumerate(lines) if line.startswith("done:"))
    assert said
    assert said[0] < done, "said when it could be known"
    assert said[-1] > done, "and in the last lines"
    assert all(lines[i].startswith("warning: ") for i in said)
    assert any(sentence in words for words in run.warnings())
    assert sentence in unescape(run.report().read_text(encoding="utf-8"))


def test_a_run_in_which_nobody_trained_says_so(tmp_path: Path, capsys: Capture):
    run = to.run(experiment(participation=Given(*[0.0] * CLIENTS)), tmp_path / "out")
    words = "no client trained in any of the 3 rounds (no client answered): the model is the one it began with"
    assert words in run.warnings()
    assert f"warning: {words}" in capsys.readouterr().err.splitlines()[-2:]
    assert words in run.report().read_text(encoding="utf-8")


def test_a_run_that_changed_nothing_says_so(tmp_path: Path):
    run = to.run(experiment(**{"algorithm.server": to.server.ServerSGD(lr=1e-30)}), tmp_path / "out", quiet=True)
    assert any("nothing that is measured has changed" in words for words in run.warnings())


def test_a_loss_that_has_exploded_says_so(tmp_path: Path, capsys: Capture):
    hot = experiment(data(), **{"algorithm.local": to.Local(to.SGD(lr=1e25), epochs=5)})
    run = to.run(hot, tmp_path / "out")
    loss, first = run.final("global_loss"), run.curve("global_loss")[1][0]
    assert loss > 1e20
    words = f"global_loss is {loss:.3g}, and was {first:.3g} before training: training has diverged"
    assert any(words in said for said in run.warnings())
    assert words in capsys.readouterr().err
    assert words in run.report().read_text(encoding="utf-8")


class OneLongStep:
    def rate(self, lr: float, clock: int) -> float:
        return 10 * lr if clock == 6 else lr


def test_a_run_that_loses_what_it_had_learned_says_so(tmp_path: Path, capsys: Capture):
    """One round of long steps leaves every hidden unit at 0, for every sample and for good."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 5, generator=g)
    local = to.Local(to.SGD(lr=1.0), epochs=2, batch_size=25, schedule=OneLongStep())
    world = to.World(to.data.Own(x, x[:, :3].argmax(1), torch.arange(SAMPLES) % CLIENTS))
    dies = to.Experiment(world, to.models.MLP(8, 8), to.Algorithm(local), rounds=6, seed=1)
    assert to.run(dies, tmp_path / "before", quiet=True).warnings() == []
    run = to.run(dies.but(rounds=12), tmp_path / "out")
    loss = run.curve("global_loss")[1]
    assert min(loss) < loss[0] / 4 < loss[-1] / 3
    words = f"global_loss is {loss[-1]:.3g}, and was {min(loss):.3g} after round {loss.index(min(loss)) - 1} and "
    assert any(said.startswith(words) and "what was learned is lost. Unless" in said for said in run.warnings())
    assert words in capsys.readouterr().err
    assert words in run.report().read_text(encoding="utf-8")


def test_what_a_part_warns_of_and_a_run_that_stands_still_are_said(tmp_path: Path, capsys: Capture):
    """An elastic term that is far too stiff: nobody's second update is a number, and the model stays as it was."""
    stiff = {"algorithm.terms": (to.terms.Elastic(1e30),), "algorithm.nonfinite": "absent", "rounds": 6}
    run = to.run(experiment(data(), **stiff), tmp_path / "out")
    assert [words for words in run.warnings() if words.startswith("η λ max U has become") and "(round 0)" in words]
    still = "every round from 1 to 5 was skipped (no update that counts is finite): the model is an old one"
    assert still in run.warnings()
    assert still in capsys.readouterr().err
    assert main(["show", str(tmp_path / "out")]) == 0
    assert still in capsys.readouterr().err


def test_a_last_round_without_anybody_is_nothing_to_warn_of(tmp_path: Path):
    class AwayAtLast:
        def fraction(self, client_C: torch.Tensor, t: int, *rest: object) -> torch.Tensor:
            return torch.full((len(client_C),), float(t < 2), dtype=torch.float64)

    run = to.run(experiment(participation=AwayAtLast()), tmp_path / "out", quiet=True)
    assert run.frame()["skipped"].iloc[-1] == "no client answered"
    assert run.warnings() == []


def test_a_run_that_is_fine_is_not_warned_of(tmp_path: Path, capsys: Capture):
    run = to.run(experiment(), tmp_path / "out")
    assert run.warnings() == []
    assert "warning" not in capsys.readouterr().err
    assert 'class="warning"' not in run.report().read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["digits", "participation"])
def test_recipes_are_not_warned_of_before_they_begin(name: str):
    from turnout.running.tracks.prepare import prepare

    for made in cook(name).values():
        assert prepare(made).warnings == ()


def test_the_same_of_several_runs_is_said_once(tmp_path: Path, capsys: Capture):
    away = experiment(participation=Given(*[0.0] * CLIENTS))
    run_many({"a": away, "b": away, "c": experiment()}, [0, 1], tmp_path / "out", jobs=1, hooks=HOOKS)
    err = capsys.readouterr().err
    assert err.count("work counts in the first") == 2  # at the start, and in the last lines
    assert "warning (a seed 0, b seed 0, a seed 1 and 1 more): no client trained" in err
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "a seed 0, b seed 0, a seed 1 and 1 more: no client trained" in page


def test_the_command_line_ends_with_it_also_quiet_and_as_json(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    away = ["--set", "world.participation={kind='dropout', rate=0.9999999}", "--set", "rounds=2"]
    few = ["--set", "world.data.clients=4", "--set", "evaluate.every=1"]
    assert main(["run", "digits", *away, *few, "--out", "out", "-q", "--json", "found.json"]) == 0
    out, err = capsys.readouterr()
    assert "warning: no client trained in any of the 2 rounds" in err.splitlines()[-1]
    assert "warning" not in out
    (run,) = json.loads(Path("found.json").read_text())["runs"]
    assert any("no client trained" in words for words in run["warnings"])
    assert main(["report", "out"]) == 0
    assert "no client trained" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_warnings(tmp_path: Path):
    odd = experiment(unheld())
    to.run(odd, tmp_path / "out", quiet=True)
    run = to.run(odd.but(rounds=5), tmp_path / "out", resume=True, quiet=True)
    assert len(run.warnings()) == 1


SMALL_RUN = """
import turnout as to
run = to.run(to.Experiment(rounds=1), "out")
print([words for words in run.warnings() if "MKL" in words])
"""
PRODUCT = "import torch; torch.ones(3, 3) @ torch.ones(3, 3)"


@pytest.mark.parametrize(
    ("setting", "first", "said"), [("AUTO", "", False), (None, PRODUCT, True), ("", "", True)],
    ids=["as it should be", "torch computed first", "off"],
)  # fmt: skip
def test_products_that_round_by_address_are_said(setting: str | None, first: str, said: bool, tmp_path: Path):
    env = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    env |= {} if setting is None else {"MKL_CBWR": setting}
    command = [sys.executable, "-c", first + SMALL_RUN]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert ("only close" in done.stdout) == said
    assert ("only close" in done.stderr) == said
