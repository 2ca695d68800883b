"""One run in several processes: the results of one process, whoever is killed when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import turnout as to
from example_experiments import ternary
from same_rows import same
from turnout.running import loop
from turnout.running.config.read import to_toml
from turnout.running.loop import FinishedRound
from turnout.running.records.checkpoint import rounds_done
from turnout.runtimes.crew import WORKERS
from turnout.runtimes.processes import GROUP
from turnout.runtimes.wire import read_tree, write_tree
from turnout.types import flatten

ALONE = to.runtime.InProcess(device="cpu", threads=1)


def in_two(experiment: to.Experiment) -> to.Experiment:
    return experiment.but(runtime=to.runtime.Processes(2, ALONE))


def test_a_process_that_dies_costs_a_sentence_and_resume_goes_on_to_the_same_values(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)

    def kill(step: FinishedRound) -> None:
        if step.record.round == 2:
            os.kill(WORKERS.get(GROUP, dict, bool).others[0].pid, signal.SIGKILL)

    whole, killed, experiment = tmp_path / "whole", tmp_path / "killed", ternary(6)
    to.run(experiment, whole, quiet=True)
    with pytest.raises(to.UserError, match=r"process 2 of 2 has ended \(by signal 9\).*--resume"):
        to.run(in_two(experiment), killed, quiet=True, on_round=kill)
    assert rounds_done(killed) == 3
    to.run(in_two(experiment), killed, quiet=True, resume=True)
    assert same(whole / "records.sqlite", killed / "records.sqlite") == []
    assert not WORKERS._groups, "a process is left over"


def test_what_only_this_program_has_cannot_go_to_others(tmp_path):
    experiment = in_two(ternary(2)).but(model=lambda: to.models.MLP(8))
    with pytest.raises(to.UserError, match="put it into a module"):
        to.run(experiment, tmp_path / "run", quiet=True)
    assert not WORKERS._groups


def test_settings_that_make_no_sense():
    with pytest.raises(to.UserError, match="number must be at least 1"):
        to.runtime.Processes(0)


@pytest.mark.parametrize("more", [8, 18])  # too few for the store of torch, and for its connections
def test_too_few_open_files_is_a_sentence(more: int, tmp_path: Path) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (n := 6 + {more}, n))"
    own = "from turnout.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", f"import sys; {limit}; {own}", "run", "small.toml", "--processes", "2", "-q"]
    (tmp_path / "small.toml").write_text('rounds = 1\nworld.data = { kind = "synthetic", clients = 4 }\n')
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "more can be opened here: allow more (ulimit -n)" in done.stderr
    assert len(done.stderr.splitlines()) == 3  # where the report and the picture are, and the sentence


def test_what_is_started_serves_the_runs_of_a_block_and_ends_with_it():
    said: list[str] = []

    def start() -> str:
        said.append("start")
        return "it"

    for _ in range(2):
        WORKERS.get("thing", start, said.append)
        WORKERS.release("thing")
    assert said == ["start", "it"] * 2
    with WORKERS.reused():
        for _ in range(2):
            assert WORKERS.get("thing", start, said.append) == "it"
            WORKERS.release("thing")
        assert said[4:] == ["start"]
    assert said[4:] == ["start", "it"]


def test_a_tree_arrives_as_it_was_sent():
    """Whatever its tensors are: large ones travel alone, small ones together, empty ones not at all."""
    kinds = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
    made = [(torch.rand(shape) * 9).to(k) for shape in ((), (3,), (0, 4), (5, 7)) for k in kinds]
    tree = {"t": 3, "lr": 0.1, "none": {}, "rows": {str(i): value for i, value in enumerate(made)}}
    tree |= {"large": torch.randn(3, 30_000), "odd": torch.arange(12.0).reshape(3, 4).T}
    tree |= {"one": torch.tensor(5).expand(1), "same": torch.ones(1).expand(4)}
    sent: list[torch.Tensor] = []
    write_tree(tree, lambda value: sent.append(value.clone()))
    assert len(sent) == 3
    found, plain = flatten(read_tree(lambda value: value.copy_(sent.pop(0))))
    expected, expected_plain = flatten(tree)
    assert (plain, found.keys(), sent) == (expected_plain, expected.keys(), [])
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


# -- the command line


def command(file: Path, out: Path, *more: str) -> list[str]:
    return ["-m", "turnout", "run", str(file), "--out", str(out), "--quiet", *more]


def environment() -> dict[str, str]:
    return os.environ | {"TURNOUT_CHECKPOINT_SECONDS": "0.01", "OMP_NUM_THREADS": "1"}


def torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(round_: int, out: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while rounds_done(out) < round_ and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, "it has ended before it could be killed"


@pytest.mark.slow
def test_killing_the_first_process_ends_the_others_and_resume_goes_on(tmp_path):
    file, out, whole, experiment = tmp_path / "e.toml", tmp_path / "out", tmp_path / "whole", ternary(60)
    file.write_text(to_toml(experiment))
    process = subprocess.Popen([sys.executable, *command(file, out, "--processes", "2")], env=environment())
    wait_for(5, out, process)
    (other,) = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{other}/cmdline").exists() and Path(f"/proc/{other}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the other process is still there"
        time.sleep(0.05)
    subprocess.run([sys.executable, *command(file, out, "--processes", "2", "--resume")], env=environment(), check=True)
    to.run(experiment, whole, quiet=True)
    assert same(whole / "records.sqlite", out / "records.sqlite") == []


@pytest.mark.slow
def test_under_torchrun_several_runs_and_one_that_is_finished(tmp_path):
    """Two seeds, then the same again with nothing left to do: the other process hears that all is over."""
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(to_toml(ternary(4)))
    for more in ([], ["--resume"]):
        subprocess.run(torchrun(*command(file, out, "--seeds", "2", *more)), env=environment(), check=True, timeout=300)
    for seed in (0, 1):
        to.run(ternary(4).but(seed=seed), tmp_path / f"{seed}", quiet=True)
        (found,) = out.glob(f"*/seed-{seed}/records.sqlite")
        assert same(tmp_path / f"{seed}" / "records.sqlite", found) == []


@pytest.mark.slow
def test_a_rank_that_dies_under_torchrun_ends_all_and_resume_goes_on(tmp_path):
    file, out, whole, experiment = tmp_path / "e.toml", tmp_path / "out", tmp_path / "whole", ternary(60)
    file.write_text(to_toml(experiment))
    process = subprocess.Popen(torchrun(*command(file, out)), env=environment())
    wait_for(5, out, process)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    assert process.wait(timeout=120) != 0
    assert rounds_done(out) < experiment.rounds
    subprocess.run(torchrun(*command(file, out, "--resume")), env=environment(), check=True, timeout=300)
    to.run(experiment, whole, quiet=True)
    assert same(whole / "records.sqlite", out / "records.sqlite") == []


@pytest.mark.slow
def test_a_time_budget_is_the_first_process_s_to_decide(tmp_path):
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(to_toml(ternary(10_000).but(**{"stop.seconds": 1.0})))
    subprocess.run(torchrun(*command(file, out)), env=environment(), check=True, timeout=300)
    assert "time budget" in to.open_run(out).stopped()
    assert 0 < rounds_done(out) < 10_000


def test_torchrun_and_processes_must_agree(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(to.UserError, match="torchrun has started 3 processes"):
        to.run(in_two(ternary(2)), quiet=True)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(to.UserError, match="only the first has the experiment"):
        to.run(in_two(replace(ternary(2))), quiet=True)
