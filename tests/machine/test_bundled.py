"""The library of kernels that a wheel brings, and the choice of an instruction set."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from turnout.engine.batches import address_batches
from turnout.engine.dropout import keep_mask
from turnout.machine import bundled
from turnout.machine.compiler import compiler, function, has_kernels
from turnout.parts.compression.codec.messages import Piece
from turnout.parts.compression.codec.picks import Picked, largest
from turnout.types import Samples

SOURCES = Path(bundled.__file__).parents[1]
SMALL = [kernel for kernel in bundled.KERNELS if kernel[1] != "train"]  # `train` alone takes half a minute to compile


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, program = tmp_path_factory.mktemp("wheel") / "kernels.so", compiler()
    assert program is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "KERNELS", SMALL)
        bundled.build(made, [program], platform.machine())
    return made


@pytest.fixture
def installed(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As installed from a wheel, on a machine without a compiler."""
    function.cache_clear()
    monkeypatch.setattr(bundled, "LIBRARY", library)
    monkeypatch.setattr("turnout.machine.compiler.LIBRARY", library)
    monkeypatch.setattr("turnout.machine.compiler._trouble", {})
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    yield
    function.cache_clear()


def test_every_c_source_is_in_the_library() -> None:
    assert {SOURCES / source for source, _, _ in bundled.KERNELS} == set(SOURCES.rglob("*.c"))


@pytest.mark.usefixtures("installed")
def test_kernels_of_a_wheel_need_no_compiler() -> None:
    assert compiler() is None
    assert has_kernels()
    for source, name, variants in SMALL:
        for defines in variants:
            assert function(SOURCES / source, name, (), defines) is not None
    assert function(SOURCES / "engine/kernels/c/local_steps.c", "train", (), bundled.SINGLE) is None  # not in SMALL


def computed() -> tuple[torch.Tensor, torch.Tensor, Picked]:
    """A mask, an order of samples and picked entries: results that do not depend on rounding."""
    keys = torch.arange(5) * 7919
    mask = keep_mask(keys, torch.Size([3, 17]), 0.3, False, torch.float32, torch.device("cpu"))
    held = Samples(torch.zeros(30, 1), torch.zeros(30), torch.arange(30), torch.tensor([19, 11]))
    order = address_batches(held, torch.tensor([4, 9]), torch.tensor([6, 3]), 5, False, 0, 2).row_cJB
    row = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    return mask, order, largest(row, [Piece(0, 30, 7), Piece(30, 20, 20)])


@pytest.mark.parametrize("level", [*bundled.levels_here(), "one that came later"])
def test_every_instruction_set_gives_the_same(
    level: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask, order, picked = computed()
    request.getfixturevalue("installed")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: level)
    of_wheel, used = computed(), bundled.bundled("mask", bundled.SINGLE).__name__
    assert used == f"mask_REAL_float_SINGLE_{level if level in bundled.LEVELS else 'DEFAULT'}"
    assert torch.equal(of_wheel[0], mask)
    assert torch.equal(of_wheel[1], order)
    assert torch.equal(of_wheel[2].column_CK, picked.column_CK)
    assert torch.equal(of_wheel[2].there_CK, picked.there_CK)
