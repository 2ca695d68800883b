"""docs/extending.md says that a new method is one file: here such a file is put into a copy of the library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import turnout

PART = """
from dataclasses import dataclass

@dataclass(frozen=True)
class {name}:
    strength: float = 1.0

KINDS = {{"brand-new": {name}}}
"""
PLACES = {  # a file to add, and where its class is public
    "data/brand_new.py": "to.data.BrandNewData",
    "models/brand_new.py": "to.models.BrandNewModel",
    "parts/terms/brand_new.py": "to.terms.BrandNewTerm",
    "parts/compression/brand_new.py": "to.compression.BrandNewCompression",
    "parts/substitution/brand_new.py": "to.substitution.BrandNewSubstitution",
}
LOOK = """
import turnout as to
from turnout.running.config.catalogue import kinds
for name in {names}:
    made = eval(name)
    role = made.__name__.removeprefix("BrandNew").lower()
    assert any("brand-new" in kind.names for kind in kinds()[role]), role
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with one more file in every place."""
    root = tmp_path_factory.mktemp("copy")
    here = Path(turnout.__file__).parent
    shutil.copytree(here, root / here.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, public in PLACES.items():
        (root / "turnout" / file).write_text(PART.format(name=public.rpartition(".")[2]))
    return root


def python(code: str, root: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(root)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_a_new_method_is_one_file(copied: Path):
    done = python(LOOK.format(names=list(PLACES.values())), copied)
    assert done.returncode == 0, done.stderr
