"""What is called FedAvg is the mean over those who replied; what does something else says so, and shows it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import turnout as to
from turnout.recipes import cook, recipes
from turnout.view.report import results_table
from turnout.view.report.finding import find_runs
from turnout.view.report.results import results
from turnout_papers.studies.catalogue import STUDIES

# Recipes whose methods are means over those who replied, but for schemes that say so by name. In all others every
# variant names another weighting, that of its paper. (The score track federates no weights.)
MEANS = {"baselines", "deadlines", "multitask", "cifar-multitask", "mnist-adam"}
SCHEMES = ("A", "B", "C")


def algorithms(name: str) -> dict[str, to.Algorithm]:
    made = {variant: experiment.algorithm for variant, experiment in cook(name).items()}
    return {variant: algorithm for variant, algorithm in made.items() if isinstance(algorithm, to.Algorithm)}


@pytest.mark.parametrize("name", sorted(recipes()))
def test_a_recipe_of_a_paper_says_what_it_does_instead_of_fedavg(name: str):
    for variant, algorithm in algorithms(name).items():
        means = (
            isinstance(algorithm.weighting, to.weighting.FedAvg | to.weighting.FedNova) or algorithm.substitution.lends
        )
        if variant == "FedAvg" or (name in MEANS and variant not in SCHEMES):
            assert means, f"{name}, {variant} leaves the shares of the missing unused"
        else:
            assert not isinstance(algorithm.weighting, to.weighting.FedAvg), f"{name}, {variant} names no weighting"


def test_a_study_that_says_fedavg_means_it():
    said = 0
    for study in STUDIES.values():
        for part in study.plan("small").parts:
            for variant, experiment in part.variants.items():
                if variant.endswith("FedAvg") or " FedAvg E=" in variant:
                    algorithm = experiment.algorithm
                    assert isinstance(algorithm.weighting, to.weighting.FedAvg) or algorithm.substitution.lends, variant
                    said += 1
    assert said > 5


def away(weighting: to.weighting.Weighting, title: str) -> to.Experiment:
    world = to.World(to.data.Synthetic(clients=10, sizes=to.data.Equal(40)), to.participation.Dropout(0.5))
    return to.Experiment(world, algorithm=to.Algorithm(weighting=weighting), rounds=4, title=title)


def columns(folder: Path) -> dict[str, str]:
    found = results(find_runs(folder))
    return dict(zip(found.header, found.rows[0], strict=True))


def test_the_table_shows_the_sum_of_weights_where_it_is_not_1(tmp_path: Path):
    mean = to.run(away(to.weighting.FedAvg(), "mean"), tmp_path / "mean", quiet=True)
    unused = to.run(away(to.weighting.ByShare(), "unused"), tmp_path / "unused", quiet=True)
    with unused.records() as records:
        sums = records.rounds()["weight_sum"]
    assert "sum of weights" not in columns(mean.folder)
    assert 0.2 < sums.mean() < 0.8
    assert columns(unused.folder)["sum of weights"] == f"{sums.mean():.3g}"
    screen = Console(width=200, file=io.StringIO())
    screen.print(results_table(unused.folder, width=200))
    assert f"{sums.mean():.3g}" in screen.file.getvalue()  # type: ignore[attr-defined]
    page = unused.report().read_text(encoding="utf-8")
    assert "sum of weights" in page
    for whole in (
        away(to.weighting.FedNova(), "steps"),
        away(to.weighting.ByShare(), "old").but(**{"algorithm.substitution": to.substitution.Stale()}),
    ):
        found = to.run(whole, tmp_path / whole.title, quiet=True)
        assert "sum of weights" not in columns(found.folder), "weights of steps; old updates that stand in"
    assert "sum of weights" not in mean.report().read_text(encoding="utf-8").split("<h2>Curves</h2>")[0]
