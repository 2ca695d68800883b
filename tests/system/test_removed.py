"""The core without its satellites and without the papers; tests/campaign/removed.py runs all of its tests so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "campaign" / "removed.py"
FEW = ("tests/test_round.py", "tests/test_fedavg.py", "tests/server/test_late.py", "tests/clients/test_store.py")


@pytest.mark.slow
@pytest.mark.parametrize("room", ["scores", "fleet", "view", "deploy", "testing", "papers"])
def test_the_core_works_without(room: str) -> None:
    command = [sys.executable, str(SCRIPT), room, "--jobs", "0", "--tests", *FEW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[100%]" in done.stdout
