"""Running from Python: what a Run gives, one's own models and data, several runs at once, failures kept apart."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import turnout as to
from example_experiments import run_many
from turnout.machine.checksums import read_json, write_json
from turnout.machine.memory import free_bytes, keep_freed_memory
from turnout.machine.threads import cores
from turnout.running.messages import Failed, check_fits
from turnout.running.plan import RunPlan, planned_runs
from turnout.running.records.finding import find_runs
from turnout.running.runs import explained, jobs_at_a_time, run_planned
from turnout.running.stop_rules import higher_is_better
from turnout.running.tracking import NO_HOOKS
from turnout.tasks import Regression
from turnout.view.report.results import results


def small(**changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=8, sizes=to.data.Pareto(cap=40))
    world = to.World(data, to.participation.Traces(first=8))
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=5)
    return to.Experiment(world, algorithm=to.Algorithm(local=local), rounds=3).but(**changes)


def own_data() -> to.data.Own:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=g)
    return to.data.Own(x, (x[:, 0] > 0).long(), owner=[i % 6 for i in range(60)])


class Net(nn.Module):
    """Somebody's own model, with a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.outer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x))
        return self.outer(hidden) + 0.1 * hidden[:, :2]


def test_a_run_gives_curves_report_and_model(tmp_path: Path) -> None:
    run = to.run(small(), tmp_path / "run", quiet=True)
    rounds, values = run.curve("global_accuracy")
    assert rounds == [-1, 0, 1, 2]
    assert run.final("global_accuracy") == values[-1]
    assert run.rounds() == 3
    assert run.stopped() is None
    assert run.report() == tmp_path / "run" / "report.html"
    model = run.model()
    x, y = small().world.data.load(0, None).central_test() or (torch.empty(0), torch.empty(0))
    accuracy = (model(x).argmax(1) == y).double().mean()
    assert float(accuracy) == pytest.approx(values[-1])


def test_a_run_is_found_again(tmp_path: Path) -> None:
    run = to.run(small(), tmp_path / "run", quiet=True)
    again = to.open_run(tmp_path / "run")
    assert again.experiment.algorithm == run.experiment.algorithm
    ours, theirs = again.model().state_dict(), run.model().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(to.UserError, match="is not a run folder"):
        to.open_run(tmp_path)


def test_a_client_has_its_own_model_where_something_is_personal(tmp_path: Path) -> None:
    changes = {"model": to.models.MLP(6, batch_norm=True), "algorithm.personal": to.personal.batch_norm}
    run = to.run(small(**changes), tmp_path / "run", quiet=True)
    common, three, four = run.model().state_dict(), run.model(client=3).state_dict(), run.model(client=4).state_dict()
    personal = [name for name in common if "norm" in name and "tracked" not in name]
    assert personal
    for name, value in three.items():
        assert torch.equal(value, four[name]) == (name not in personal and "tracked" not in name) or "tracked" in name
        assert torch.equal(value, common[name]) or "norm" in name
    with pytest.raises(to.UserError, match="client 8"):
        run.model(client=8)


def test_without_personal_parameters_a_client_has_the_common_model(tmp_path: Path) -> None:
    run = to.run(small(), tmp_path / "run", quiet=True)
    ours, common = run.model(client=2).state_dict(), run.model().state_dict()
    assert all(torch.equal(ours[name], common[name]) for name in common)


def one_net() -> Net:
    """With the same first weights in any order of the tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net()


@pytest.mark.parametrize(
    "model",
    [
        one_net(),
        lambda: Net(),
        lambda shape: nn.Linear(shape[0], 2),
        lambda shape, classes: nn.Linear(shape[0], classes),
    ],
    ids=["module", "function", "function of the shape", "function of shape and classes"],
)
def test_any_model_and_tensors_in_memory(model: object, tmp_path: Path) -> None:
    experiment = to.Experiment(to.World(own_data()), model, rounds=12)  # type: ignore[arg-type]
    run = to.run(experiment.but(**{"algorithm.local.optimizer.lr": 0.5}), tmp_path / "run", quiet=True)
    assert run.final("global_accuracy") > run.curve("global_accuracy")[1][0]
    assert isinstance(run.model(), Net | nn.Linear)
    with pytest.raises(to.UserError, match="object of your own"):
        to.open_run(tmp_path / "run").model()
    again = to.open_run(tmp_path / "run", experiment=run.experiment)
    assert torch.equal(next(again.model().parameters()), next(run.model().parameters()))


def test_a_model_that_cannot_be_vectorised_says_so_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Asking(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum().item() < 1e9 else x

    to.run(to.Experiment(to.World(own_data()), Asking(), rounds=1), tmp_path / "run")
    said = capsys.readouterr().err
    assert "cannot be vectorised, so clients train one at a time" in said
    assert "loop engine" in said


def test_the_module_given_is_not_changed(tmp_path: Path) -> None:
    net = Net()
    before = net.inner.weight.detach().clone()
    run = to.run(to.Experiment(to.World(own_data()), net, rounds=1), tmp_path / "run", quiet=True)
    assert torch.equal(net.inner.weight, before)
    assert not torch.equal(run.model().state_dict()["inner.weight"], before)


def test_starting_from_given_weights(tmp_path: Path) -> None:
    first = to.run(small(), tmp_path / "first", quiet=True)
    save_file(first.model().state_dict(), tmp_path / "weights.safetensors")
    second = to.run(small(start=str(tmp_path / "weights.safetensors")), tmp_path / "second", quiet=True)
    assert second.curve("global_loss")[1][0] == pytest.approx(first.final("global_loss"))
    save_file({"other": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(to.UserError, match=r'Unexpected key.*"other"'):
        to.run(small(start=str(tmp_path / "other.safetensors")), tmp_path / "third", quiet=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": lambda: nn.Linear(60, 3)}, "gives 3 scores but the data has 10 labels"),
        ({"model": lambda: nn.Linear(7, 10)}, r"cannot take samples of shape \(60,\)"),
        ({"model": lambda a, b, c: nn.Linear(60, 10)}, "the model function needs a, b, c"),
        ({"model": lambda: 3}, "the model function gave int"),
        ({"model": 3}, "model is 3"),
        ({"algorithm.selection": to.selection.Count(9)}, "9"),
        ({"stop": to.Stop(target=0.5, metric="global_acc")}, "did you mean 'global_accuracy'"),
        ({"runtime": to.runtime.InProcess(device="tpu")}, "runtime.device = .tpu. is not a device"),
        ({"model": to.models.CNN()}, "takes images"),
    ],
)
def test_what_cannot_run_is_a_sentence_before_the_first_round(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(to.UserError, match=sentence):
        to.run(small(**changes), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "records.sqlite").exists()


def test_data_with_a_hole_is_a_sentence(tmp_path: Path) -> None:
    data = own_data()
    data.x[13, 1] = float("nan")
    with pytest.raises(to.UserError, match=r"row 13 \(client '1'\)"):
        to.run(to.Experiment(to.World(data), Net()), tmp_path / "run", quiet=True)


def test_a_diverging_run_stops_with_its_records_and_a_report(tmp_path: Path) -> None:
    def explode(lr: float, clock: int) -> float:
        return lr if clock < 4 else 1e30

    changes = {"model": to.models.MLP(6), "algorithm.local.schedule": to.schedules.Custom(explode), "rounds": 20}
    with pytest.raises(to.UserError, match=r"client \d+ in round [45]"):
        to.run(small(**changes), tmp_path / "run", quiet=True)
    with to.Run(tmp_path / "run", small()).records() as records:
        assert records.last_round() in (3, 4)
        assert len(records.curve("global_loss")[0]) >= 5
    assert (tmp_path / "run" / "report.html").exists()


def test_stop_rules_say_why(tmp_path: Path) -> None:
    run = to.run(small(rounds=50, stop=to.Stop(patience=2)), tmp_path / "run", quiet=True)
    assert run.rounds() < 50
    assert run.stopped() == "no gain in global_accuracy for 2 evaluations"


def nll(output: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(output, target, reduction="none") / math.log(10)


def test_the_best_variant_is_the_one_with_the_lowest_value_of_a_metric_that_should_be_low(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = to.tasks.Task(loss=nll, metrics={"surprise": to.tasks.Metric(nll, higher_is_better=False)}, main="surprise")
    slow, fast = (small(task=own, **{"algorithm.local.optimizer.lr": lr}) for lr in (1e-6, 0.1))
    runs = run_many({"slow": slow, "fast": fast}, [0, 1, 2], tmp_path / "both", jobs=1)
    assert runs[1].final("global_surprise") < runs[0].final("global_surprise")
    assert results(find_runs(tmp_path / "both")).leading == 1
    assert "fast seed 0: 3 rounds in" in (said := capsys.readouterr().err)
    assert f"surprise {runs[1].final('global_surprise'):.3g}" in said
    patient = fast.but(rounds=20, stop=to.Stop(target=1.01 * runs[1].final("global_surprise")))
    assert to.run(patient, tmp_path / "to-target", quiet=True).rounds() <= 3


def test_an_error_that_is_not_the_main_metric_falls_too() -> None:
    experiment = small(task=Regression(), stop=to.Stop(metric="global_mae", patience=1))
    assert not higher_is_better(experiment)


def test_variants_and_seeds_side_by_side_equal_one_after_another(tmp_path: Path) -> None:
    from same_rows import same

    variants = {"A": small(**{"algorithm.weighting": to.weighting.CompleteOnly()}), "C": small()}
    one = run_many(variants, [0, 1], tmp_path / "one", jobs=1, quiet=True)
    two = run_many(variants, [0, 1], tmp_path / "two", jobs=2, quiet=True)
    assert [run.folder.relative_to(tmp_path / "one") for run in one] == [Path(p) for p in folders()]
    for ours, theirs in zip(one, two, strict=True):
        assert same(ours.folder / "records.sqlite", theirs.folder / "records.sqlite") == []
    listed = json.loads((tmp_path / "two" / "runs.json").read_text())
    assert [entry["path"] for entry in listed["runs"]] == folders()


def folders() -> list[str]:
    return [f"{scheme}/seed-{seed}" for seed in (0, 1) for scheme in "AC"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_failure_does_not_take_the_others(jobs: int, tmp_path: Path) -> None:
    variants = {"good": small(), "bad": small(**{"algorithm.selection": to.selection.Count(9)}), "fine": small()}
    failed = run_planned(RunPlan("some", planned_runs(variants, [0]), tmp_path / "runs"), jobs=jobs, quiet=True)
    assert [failure.name for failure in failed] == ["bad seed 0"]
    assert all((tmp_path / "runs" / name / "seed-0" / "turnout.csv").exists() for name in ("good", "fine"))
    with pytest.raises(to.UserError, match="bad seed 0: "):
        run_many(variants, [0], tmp_path / "runs", jobs=jobs, resume=True, quiet=True)


def test_many_reasons_are_not_a_wall_of_words() -> None:
    failed = [Failed(f"run {i}", f"reason {min(i, 4)}", True) for i in range(7)]
    words = explained(failed, 9)
    assert words.startswith("7 of 9 runs failed. run 0: reason 0; run 1: reason 1; run 2: reason 2; and 2 more")
    assert explained(failed[4:], 9) == "3 of 9 runs failed. run 4, run 5, run 6: reason 4"


def raising(lr: float, clock: int) -> float:
    raise KeyError("no rate")


def test_an_unexpected_error_keeps_its_traceback(tmp_path: Path) -> None:
    variants = {"good": small(), "bad": small(**{"algorithm.local.schedule": to.schedules.Custom(raising)})}
    (failure,) = run_planned(RunPlan("some", planned_runs(variants, [0]), tmp_path / "runs"), jobs=2, quiet=True)
    assert not failure.mistake
    assert "KeyError: 'no rate'" in failure.why
    assert "in raising" in (tmp_path / "runs" / "bad" / "seed-0" / "error.txt").read_text()


def dying(lr: float, clock: int) -> float:
    import os

    os._exit(7)


def test_a_process_that_is_killed_is_a_failure_of_its_run_only(tmp_path: Path) -> None:
    bad = small(**{"algorithm.local.schedule": to.schedules.Custom(dying)})
    variants = {"good": small(), "bad": bad, "fine": small(), "well": small()}
    (failure,) = run_planned(RunPlan("some", planned_runs(variants, [0]), tmp_path / "runs"), jobs=2, quiet=True)
    assert failure.name == "bad seed 0"
    assert "ended from outside (code 7)" in failure.why
    assert all((tmp_path / "runs" / name / "seed-0" / "turnout.csv").exists() for name in ("good", "fine", "well"))


def with_process(folder: Path, lr: float, clock: int) -> float:
    (folder / str(os.getpid())).touch()
    return lr


def test_a_process_takes_one_run_after_another(tmp_path: Path) -> None:
    """A GPU's context and kernels take longer to set up than many a run."""
    (tmp_path / "seen").mkdir()
    noting = to.schedules.Custom(partial(with_process, tmp_path / "seen"))
    variants = {name: small(**{"algorithm.local.schedule": noting}) for name in "abcde"}
    assert run_planned(RunPlan("five", planned_runs(variants, [0]), tmp_path / "runs"), jobs=2, quiet=True) == []
    processes = {int(file.name) for file in (tmp_path / "seen").iterdir()}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_folders_are_not_mixed_up(tmp_path: Path) -> None:
    to.run(small(), tmp_path / "one", quiet=True)
    with pytest.raises(to.UserError, match="is not empty"):
        to.run(small(), tmp_path / "one", quiet=True)
    with pytest.raises(to.UserError, match="holds a single run"):
        run_many({"a": small(), "b": small()}, [0], tmp_path / "one", resume=True)
    run_many({"a": small(), "b": small()}, [0], tmp_path / "two", quiet=True)
    with pytest.raises(to.UserError, match="holds several runs"):
        run_planned(RunPlan("one", planned_runs({"a": small()}, [0]), tmp_path / "two"), resume=True)
    with pytest.raises(to.UserError, match="holds several runs"):
        to.load_model(tmp_path / "two")
    (tmp_path / "file").write_text("")
    with pytest.raises(to.UserError, match="is a file"):
        to.run(small(), tmp_path / "file", quiet=True)


def test_jobs_are_as_many_as_cores_unless_an_experiment_cannot_travel() -> None:
    many = planned_runs({str(i): small() for i in range(100)}, [0])
    expected = 1 if torch.cuda.is_available() else cores()
    assert jobs_at_a_time(many, None, NO_HOOKS) == expected
    assert jobs_at_a_time(many[:1], None, NO_HOOKS) == 1
    by_lambda = planned_runs({"a": small(model=lambda: nn.Linear(60, 10)), "b": small()}, [0])
    assert jobs_at_a_time(by_lambda, None, NO_HOOKS) == 1


def test_memory_is_estimated_before_the_first_round(tmp_path: Path) -> None:
    assert (free_bytes(torch.device("cpu")) or 0) > 2**20
    few = {"cohort": 2000, "data": 1000, "client state": 10**12}
    assert check_fits(few, free=2000) == 3000  # the data is in memory already, clients' state goes to disk
    with pytest.raises(to.UserError, match=r"3 kB .*\(cohort 2 kB, data 1 kB\).* 1 kB .*algorithm.selection"):
        check_fits(few, free=1000)
    with pytest.raises(to.UserError, match=r"1 kB .*\(--jobs 1\)"):
        check_fits(few, free=1000, side_by_side=True)
    huge = small(**{"world.data.clients": 50_000, "model": to.models.MLP(3000, 3000, 3000), "runtime.device": "cpu"})
    with pytest.raises(to.UserError, match=r"of memory .*cohort"):
        to.run(huge, tmp_path / "run", quiet=True)


def test_progress_on_no_terminal_is_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.running.display.PLAIN_EVERY", 0.0)
    monkeypatch.setattr("turnout.running.messages.LINE_SECONDS", 0.0)
    to.run(small(**{"runtime.engine": "by-hand", "runtime.device": "cpu"}), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("8 clients, 610 shared parameters, by-hand engine on cpu")
    assert "of memory" in lines[0]
    assert lines[1].startswith("round 1/3, global_accuracy ")
    assert "turnout 8/8" in lines[1] or "turnout 7/8" in lines[1]
    assert "clients/s" in lines[1]
    assert "left" in lines[1]
    assert lines[-1].startswith("done: 3 rounds in ")


def test_quiet_is_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    run_many({"a": small(), "b": small()}, [0], tmp_path / "runs", jobs=1, quiet=True)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")
    assert time.monotonic() - start < 60


def test_public_names_load_when_they_are_used() -> None:
    from turnout.public import __all__ as names

    assert all(getattr(to, name) is not None for name in names)
    assert set(names) <= set(dir(to))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        to.Nonsense  # noqa: B018
    with pytest.raises(AttributeError, match=r"turnout\.aggregation\.Krum"):
        to.Krum  # noqa: B018


def test_a_package_does_not_replace_the_namespace_of_its_name() -> None:
    import turnout.server.state

    assert to.server.ServerAdam().lr == 0.01
    assert to.server.state is turnout.server.state
    assert issubclass(to.scores.Scores, object)
    assert callable(to.run)


def test_freed_memory_stays_with_the_process_where_the_c_library_can() -> None:
    assert keep_freed_memory() == (sys.platform == "linux" and "glibc" in platform.libc_ver()[0])


def test_of_several_runs_those_that_ended_are_taken_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without their checkpoints, and where another engine would train: nothing is trained again."""
    two = {"plain": small(), "engine of its own": small(runtime=to.runtime.InProcess(engine="loop"))}
    folders = [run.folder for run in run_many(two, [0], tmp_path / "runs", quiet=True, jobs=1)]
    for folder in folders:
        (folder / "checkpoint.safetensors").unlink()
        about = read_json(folder / "environment.json", "")
        write_json(folder / "environment.json", about | {"engine": "one of another machine"})
    before = {file: file.read_bytes() for folder in folders for file in folder.iterdir() if file.suffix == ".sqlite"}
    again = run_many(two, [0], tmp_path / "runs", resume=True, jobs=1)
    assert before == {file: file.read_bytes() for file in before}
    assert "2 of 2 runs had ended" in capsys.readouterr().err
    assert all(len(run.curve("train_loss")[0]) == 3 for run in again)
    longer = {name: experiment.but(rounds=4) for name, experiment in two.items()}
    with pytest.raises(to.UserError, match="another machine"):
        run_many(longer, [0], tmp_path / "runs", resume=True, quiet=True, jobs=1)
