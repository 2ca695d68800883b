"""The recipes of the papers: how they are found, that each says what it does instead of FedAvg, and some settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import turnout as to
import turnout_papers
from commands import turnout, work_in
from parity import ONE_PER_PART, small_recipes
from turnout.recipes import cook, recipes
from turnout.running.tracks.prepare import prepare
from turnout_papers.recipes.labels import animals_labels, labels
from turnout_papers.studies.running import studies

Capture = pytest.CaptureFixture[str]

# Recipes whose methods are means over those who replied, but for schemes that say so by name. In all others every
# variant names another weighting, that of its paper. (The score track federates no weights.)
MEANS = {"absence", "baselines", "deadlines", "multitask", "cifar-multitask", "mnist-adam"}
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
    for study in studies().values():
        for part in study.plan("small").parts:
            for variant, experiment in part.variants.items():
                if variant.endswith("FedAvg") or " FedAvg E=" in variant:
                    algorithm = experiment.algorithm
                    assert isinstance(algorithm.weighting, to.weighting.FedAvg) or algorithm.substitution.lends, variant
                    said += 1
    assert said > 5


@pytest.mark.parametrize("name", ["baselines", "friends", "multitask", "together"])
def test_recipes_are_not_warned_of_before_they_begin(name: str):
    for made in cook(name).values():
        assert prepare(made).warnings == ()


def test_every_experiment_that_runtimes_are_compared_on_is_a_recipe():
    assert set(ONE_PER_PART) <= small_recipes({name: cook(name) for name in recipes()}).keys()


def test_turnout_list_shows_the_recipes(capsys: Capture):
    assert turnout("list", "recipes") == 0
    out = capsys.readouterr().out
    assert out.index("digits") < out.index("mnist-friends")


RECIPE = """
from turnout.experiment import Experiment

def brand_new() -> Experiment:
    return Experiment(rounds=2)
"""
STUDY = """
from dataclasses import replace
from turnout_papers.studies.bias import STUDY as BIAS

STUDY = replace(BIAS, name="brand-new")
"""
FIND = """
from turnout.recipes import cook
from turnout_papers.studies.running import find_study, studies

assert cook("brand-new") and find_study("brand-new").name == "brand-new"
"""


def test_a_new_recipe_or_study_is_one_file(tmp_path: Path):
    """Added to a copy of the package, with the entry points of the installed one."""
    here = Path(turnout_papers.__file__).parent
    shutil.copytree(here, tmp_path / "turnout_papers", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "turnout_papers" / "recipes" / "brand_new.py").write_text(RECIPE)
    (tmp_path / "turnout_papers" / "studies" / "brand_new.py").write_text(STUDY)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", FIND], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_a_study_named_wrongly_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    work_in(tmp_path, monkeypatch)
    for arguments, sentence in {
        "study show small.toml": "is not the study.json",
        "study run bias --resume": "name it with --out",
        "study run nonsense": "there is no study 'nonsense'",
    }.items():
        assert turnout(*arguments.split()) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", ["study", "study list", "study run", "study show"])
def test_every_command_about_studies_has_help_and_examples(command: str, capsys: Capture):
    assert turnout(*command.split(), "--help") == 0
    out = capsys.readouterr().out
    assert "Usage: turnout study" in out
    assert f"\n  turnout {command}" in out


def test_the_recipes_are_table_1_and_2():
    """Labels, sizes, models and their changes."""
    made = animals_labels()["average"]
    data = made.world.data
    assert data.labels == (("cat", "dog"), ("dog", "sheep"), ("sheep", "elephant"))
    assert (data.per_label, data.public, made.rounds) == (500, 500, 15)
    uses = {(u.client, u.since): u.model for u in made.algorithm.models}
    assert uses["User_1", 0].channels == (16, 32)
    assert uses["User_1", 0].activation == "softmax"
    assert uses["User_1", 9].hidden == (16, 16, 32)
    assert uses["User_1", 13].channels == (16,)
    assert uses["User_2", 0].channels == (16, 16, 32)
    assert uses["User_2", 5].activation == "softmax"
    assert uses["User_3", 4].channels == (8, 16, 16, 32)
    assert uses["User_3", 0].activation == "relu"
    assert made.algorithm.local.epochs == 5
    assert (labels()["literal"].algorithm.rows, labels()["literal"].algorithm.combine) == ("labelled", "sum")
