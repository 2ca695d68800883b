"""docs/architecture.md says that a new method is one file: here such a file is put into a copy of the library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import turnout
import turnout_papers

PART = """
from dataclasses import dataclass

@dataclass(frozen=True)
class {name}:
    strength: float = 1.0

KINDS = {{"brand-new": {name}}}
"""
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
PLACES = {  # a file to add, and where its class is public
    "world/events/poisson_joins.py": "to.events.BrandNewEvent",
    "data/partition/quantity_skew.py": "to.partition.BrandNewPartition",
    "data/brand_new.py": "to.data.BrandNewData",
    "models/brand_new.py": "to.models.BrandNewModel",
    "task/brand_new.py": "to.tasks.BrandNewTask",
    "parts/terms/brand_new.py": "to.terms.BrandNewTerm",
    "parts/compression/brand_new.py": "to.compression.BrandNewCompression",
    "parts/substitution/brand_new.py": "to.substitution.BrandNewSubstitution",
}
LOOK = """
import turnout as to
from turnout.running.config.catalogue import kinds
from turnout.recipes import cook
from turnout_papers.studies.catalogue import STUDIES, find_study
for name in {names}:
    made = eval(name)
    role = made.__name__.removeprefix("BrandNew").lower()
    assert any("brand-new" in kind.names for kind in kinds()[role]), role
assert cook("brand-new") and find_study("brand-new").name == "brand-new"
ours = [not study.reproduces.startswith("paper ") for study in STUDIES.values()]
assert ours == sorted(ours) and ours[-1], list(STUDIES)  # what reproduces no paper is last
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with one more file in every place."""
    root = tmp_path_factory.mktemp("copy")
    here = Path(turnout.__file__).parent
    papers = Path(turnout_papers.__file__).parent
    for package in (here, papers):
        shutil.copytree(package, root / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, public in PLACES.items():
        (root / "turnout" / file).write_text(PART.format(name=public.rpartition(".")[2]))
    (root / "turnout" / "recipes" / "brand_new.py").write_text(RECIPE)
    (root / "turnout_papers" / "studies" / "brand_new.py").write_text(STUDY)
    return root


def python(code: str, root: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(root)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_a_new_method_recipe_or_study_is_one_file(copied: Path):
    done = python(LOOK.format(names=list(PLACES.values())), copied)
    assert done.returncode == 0, done.stderr


def test_two_classes_of_one_name_are_an_error(copied: Path):
    (copied / "turnout" / "parts" / "terms" / "second.py").write_text(
        PART.format(name="BrandNewTerm").replace("brand-new", "second")
    )
    done = python("import turnout as to; print(to.terms.BrandNewTerm)", copied)
    assert "BrandNewTerm: rename one" in done.stderr
