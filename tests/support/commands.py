"""The command line in a folder of its own, with one small experiment in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turnout.cli import main

SMALL = """
rounds = 2
[world]
data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
participation = {kind = "traces", first = 8}
[algorithm]
local = {epochs = 2, batch_size = 5}
"""


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens in this folder, which has small.toml."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "small.toml").write_text(SMALL)


def turnout(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])
