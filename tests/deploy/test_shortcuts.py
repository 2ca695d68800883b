"""Which versions of Flower the shortcuts support, and what happens with others."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from turnout.deploy import shortcuts


def test_they_are_used_only_if_asked_for() -> None:
    said = list[str]()
    assert not shortcuts.chosen(False, said.append)
    assert shortcuts.chosen(True, said.append)
    assert said == []


def test_another_version_of_flower_falls_back_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "SUPPORTED", ("1.39", "1.40"))
    said = list[str]()
    assert not shortcuts.chosen(True, said.append)
    assert said == [f"the shortcuts know Flower 1.39 and 1.40, not {version('flwr')}: Flower's own programs are used"]


def test_the_superlink_loads_neither_torch_nor_numpy_s_users() -> None:
    """`python -m turnout.deploy.shortcuts` starts in a process of a hundred megabytes, not of four hundred."""
    code = "import sys, turnout.deploy.shortcuts as s; s.shorten(); print(sorted({'torch', 'flwr'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['flwr']"


def test_only_this_file_goes_inside_flower() -> None:
    """The rest of the wheel imports Flower's public packages alone."""
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
    for path in sorted(__import__("pathlib").Path(shortcuts.__file__).parents[1].rglob("*.py")):
        if path.name == "shortcuts.py":
            continue
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if "flwr" in line]
        imported = [w[1] for w in words if w[0] in ("from", "import") and w[1].startswith("flwr")]
        assert all(name == "flwr" or name.startswith(public) for name in imported), path
