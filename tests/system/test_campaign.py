"""The campaign (`make campaign`) in short: nonsense for every reader; kills and failing disks in the slow tests."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parents[1] / "campaign"


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("fuzz")


def test_answers_of_nonsense_are_refused_with_a_sentence(fuzz: ModuleType) -> None:
    counts = importlib.import_module("faults").Counts()
    fuzz.messages(counts, 0, 600)
    assert counts.wrong == []
    kinds = ("hello", "head", "work", "measure", "gradient", "rows", "scores", "learnt", "outputs")
    assert counts.tried == {f"fuzzed answers: {kind}": 600 for kind in kinds}


def test_answers_that_are_right_pass_the_border(fuzz: ModuleType) -> None:
    for cases in fuzz.answers().values():
        for honest, use in cases:
            use(honest)


def test_files_and_experiments_of_nonsense_are_refused_with_a_sentence(fuzz: ModuleType) -> None:
    counts = importlib.import_module("faults").Counts()
    fuzz.files(counts, 1, 12)
    fuzz.tables(counts, 1, 60)
    assert counts.wrong == []
    assert len(counts.tried) > 9


def test_mutations_are_single_mistakes_in_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    mutations = importlib.import_module("mutations").mutations
    source = """
LIMIT: int = 3
def f(a: int, b: int, at: float = 0.5) -> int:
    \"\"\"Neither 1 here nor the message counts.\"\"\"
    if not a < b:
        raise ValueError(f"{a + b}", 7)
    a -= max(a, b, key=abs) * -2
    return a if a and b else LIMIT
"""
    found = [(m.line, m.kind, m.text, m.lines) for m in mutations(source.encode())]
    assert sorted(found) == sorted(
        [
            (2, "constant", "4", ()),
            (3, "constant", "1.0", ()),
            (5, "condition", "(not (not a < b))", (5,)),
            (5, "sign or not removed", "(a < b)", (5,)),
            (5, "comparison", "(a <= b)", (5,)),
            (5, "comparison", "(a >= b)", (5,)),
            (6, "statement dropped", "pass", (6,)),
            (7, "statement dropped", "pass", (7,)),
            (7, "arithmetic", "a += max(a, b, key=abs) * -2", (7,)),
            (7, "arithmetic", "(max(a, b, key=abs) / -2)", (7,)),
            (7, "arguments swapped", "(max(b, a, key=abs))", (7,)),
            (7, "argument dropped", "(max(a, b))", (7,)),
            (7, "name", "min", (7,)),
            (7, "sign or not removed", "(2)", (7,)),
            (7, "constant", "3", (7,)),
            (8, "condition", "(not (a and b))", (8,)),
            (8, "and/or", "(a or b)", (8,)),
            (8, "input returned", "return a", (8,)),
            (8, "input returned", "return b", (8,)),
        ]
    )


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("machines")


def test_numbers_of_two_machines_are_compared(machines: ModuleType, tmp_path: Path) -> None:
    for name, w, n in (("a", -4.0, 2), ("b", -3.0, 2), ("c", -4.0, 3)):
        save_file({"w": torch.tensor([1.0, w]), "n": torch.tensor([n])}, tmp_path / name, {"products": "4"})
    assert machines.distance(tmp_path / "a", tmp_path / "a") == 0.0
    assert machines.distance(tmp_path / "a", tmp_path / "b") == 0.25
    assert machines.distance(tmp_path / "a", tmp_path / "c") == float("inf")
    assert machines.different_products(tmp_path / "a") == 4


def test_a_machine_without_its_tools_is_not_run_and_the_table_says_why(machines: ModuleType, tmp_path: Path) -> None:
    found = {
        "no tool": machines.simulate("no tool", machines.Machine(needs=("no-such-tool",)), tmp_path),
        "no such processor": machines.simulate("no such processor", machines.Machine(flag="no-such-set"), tmp_path),
        "close": machines.Found("bits equal; 4 passed", 2.3e-7),
    }
    assert machines.table(found).splitlines()[2:] == [
        "| no tool | left out: no no-such-tool |  |",
        "| no such processor | left out: this processor has no no-such-set |  |",
        "| close | bits equal; 4 passed | 2e-07 |",
    ]


@pytest.mark.slow
def test_a_machine_on_which_the_same_seed_gives_other_bits_fails(machines: ModuleType, tmp_path: Path) -> None:
    """Without MKL_CBWR products depend on memory addresses: as a machine that promises equal bits, it must be found."""
    off = machines.simulate("off", machines.Machine(machines.WARNED, {"MKL_CBWR": ""}), tmp_path)
    assert "different products by memory address" in off.result
    assert machines.simulate("on", machines.Machine(machines.WARNED), tmp_path).result == "bits equal; 3 passed"


@pytest.mark.slow
def test_a_short_campaign(tmp_path: Path) -> None:
    sizes = {"kills": 12, "groups": 4, "stops": 3, "damages": 2, "memory": 8, "files": 200}
    sizes |= {"messages": 2_000, "stride": 20, "devices": 1, "seconds": 3000}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    command = [sys.executable, str(HERE / "run.py"), *options, "--jobs", "1", "--out", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["wrong"] == []
    assert found["tried"]["kills at a file operation"] >= 15
    assert found["tried"]["sanitized kernels"] >= 4
    faults = ("the SuperLink killed", "a stranger's key", "a device that sends garbage", "an old introduction")
    assert all(found["tried"][fault] == 1 for fault in faults)
