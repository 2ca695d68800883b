"""The memory a run announces, what it takes, and what the machine's limits leave."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch

import turnout as to
from turnout.data.federation import digest
from turnout.engine.train import order_bytes
from turnout.machine.memory import _left_in_container
from turnout.running.config.write import to_toml
from turnout.running.loop import rounds_of
from turnout.running.messages import check_fits
from turnout.running.tracks.prepare import prepare

HERE = Path(__file__).parents[1]


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def test_one_client_with_very_many_samples_does_not_fill_up_the_others(tmp_path: Path) -> None:
    owner = torch.cat([torch.zeros(400_000, dtype=torch.int64), torch.arange(1, 100).repeat_interleave(20)])
    x, y = torch.randn(len(owner), 4), torch.randint(2, (len(owner),))
    local = to.Local(to.SGD(lr=0.01), epochs=1, batch_size=20)
    experiment = to.Experiment(to.World(to.data.Own(x, y, owner)), algorithm=to.Algorithm(local), rounds=1)
    track = prepare(experiment.but(runtime=to.runtime.InProcess(device="cpu")))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in rounds_of(track, tmp_path):
        pass
    padded = 100 * 400_000 * 8
    assert resident("VmHWM") - before < padded / 3
    assert sum(track.memory().values()) < padded / 2


def test_the_samples_are_in_memory_once() -> None:
    """Also those of a first client that holds nearly all: trying the model on a few of them must not keep the rest."""
    owner = torch.cat([torch.zeros(4000, dtype=torch.int64), torch.ones(10, dtype=torch.int64)])
    x, y = torch.randn(len(owner), 101), torch.randint(2, (len(owner),))
    track = prepare(to.Experiment(to.World(to.data.Own(x, y, owner)), runtime=to.runtime.InProcess(device="cpu")))
    found = [value for value in gc.get_objects() if type(value) is torch.Tensor and value.shape[1:] == (101,)]
    kept = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in found}
    assert max(kept.values()) == x.nbytes
    few = track.runtime.clients.algorithm.local.batch_size + 8
    assert x.nbytes * 1.2 < sum(kept.values()) < x.nbytes * 1.2 + 4 * 101 * 4 * few  # a fifth is the test set
    assert sum(kept.values()) < track.memory()["data"] + 4 * 101 * 4 * few


def test_names_and_marks_of_data_do_not_copy_it() -> None:
    """A run's file names the samples by a checksum, and a checkpoint by another; neither may take memory of its own."""
    x = torch.zeros(1000, 1000)
    experiment = to.Experiment(to.World(to.data.Own(x, torch.arange(1000) % 2, torch.arange(1000) % 2)))
    tracemalloc.start()
    assert "<Tensor 7a7006a391fd3703>" in to_toml(experiment)
    assert digest("a", x) == "06bb5192e7797d936a92a6c3427ea1c2"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 4


def test_batch_orders_are_counted() -> None:
    local = to.Local(to.SGD(), epochs=2, batch_size=10)
    one = order_bytes(torch.tensor([1000]), local, False)
    assert one == 8 * 200 * 11 + 40 * 1000 + 8 * 1000
    many = order_bytes(torch.tensor([1_000_000] + [10] * 99), local, False)
    assert 16e6 < many < 300e6
    alike = [order_bytes(torch.full((9,), 1000), local, False, threads) for threads in (1, 4, 50)]
    assert [each - alike[0] for each in alike] == [0, 3 * 40 * 1000, 8 * 40 * 1000]  # each sorts a client's samples


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_control_groups_limit_it(version: int, tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    base = root / "memory" if version == 1 else root
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    inner = base / "jobs" / "mine"
    inner.mkdir(parents=True)
    own.write_text("5:cpu,memory:/jobs/mine\n1:name=systemd:/x\n" if version == 1 else "0::/jobs/mine\n")
    for folder, most in ((inner, 10_000), (inner.parent, 4_000), (base, None)):
        (folder / limit).write_text(str(most or ("max" if version == 2 else 9223372036854771712)))
        (folder / used).write_text("3000\n")
        (folder / "memory.stat").write_text("total_inactive_file 500\ninactive_file 500\n")
    assert _left_in_container(root, own) == 1500  # of the group above it, without what files have left in memory
    (inner.parent / limit).unlink()
    assert _left_in_container(root, own) == 7500
    (inner / limit).unlink()
    assert _left_in_container(root, own) is None


def test_what_cannot_fit_is_refused_before_the_first_round() -> None:
    with pytest.raises(to.UserError, match=r"memory .*\(cohort .*, batches .*\).* free"):
        check_fits({"cohort": 900 << 20, "batches": 200 << 20}, free=1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_what_is_announced_is_what_is_used(seed: int) -> None:
    """Of experiments at random: within a quarter; of the smallest, within 8 MB that a process takes more or less of by
    itself."""
    script = HERE / "campaign" / "memory.py"
    done = subprocess.run([sys.executable, str(script), str(seed)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert abs(found["announced"] - found["used"]) < max(0.25 * found["used"], 8 << 20), found
