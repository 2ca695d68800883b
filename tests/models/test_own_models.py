"""Models of one's own: with frozen parts, without a name in a file, and runs whose rounds are closed by time."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import turnout as to
from same_rows import same
from turnout.cli import main
from turnout.machine.checksums import load_tensors
from turnout.running.tracks import first_values

Capture = pytest.CaptureFixture[str]


class Based(nn.Module):
    """A frozen base, a table that is no state, and a head that is trained."""

    def __init__(self, inputs: int, classes: int, base: float = 1.0, table: float = 0.0):
        super().__init__()
        self.base = nn.Linear(inputs, 6)
        with torch.no_grad():
            self.base.weight.mul_(base)
        self.base.requires_grad_(False)
        self.register_buffer("table", torch.full((6,), table), persistent=False)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x).tanh() + self.table)  # type: ignore[operator]


class Changing:
    """A factory whose values can be changed behind its back; its settings say nothing of that."""

    base, table, head = 1.0, 0.0, 1.0

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        made = Based(input_shape[0], classes, type(self).base, type(self).table)
        with torch.no_grad():
            made.head.weight.mul_(type(self).head)
        return made


@pytest.fixture(autouse=True)
def _as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base", "table", "head"):
        monkeypatch.setattr(Changing, name, getattr(Changing, name))


def small(**changes: object) -> to.Experiment:
    data = to.data.Synthetic(clients=6, sizes=to.data.Pareto(cap=30))
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=5)
    return to.Experiment(to.World(data), Changing(), to.Algorithm(local), rounds=2).but(**changes)


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


# -- frozen values


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"base": 2.0}, "base.weight"),
        ({"table": 1.0}, "table"),
        ({"base": 2.0, "table": 1.0}, "base.weight, table"),
        ({"head": 2.0}, "head.weight"),
    ],
)
def test_a_factory_that_builds_other_values_is_refused_on_resume(
    changed: dict[str, float], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = to.run(small(), tmp_path / "run", quiet=True)
    before = run.records().curve("global_loss")[1].tolist()
    for name, value in changed.items():
        monkeypatch.setattr(Changing, name, value)
    with pytest.raises(to.UserError) as caught:
        to.run(small(rounds=4), tmp_path / "run", resume=True, quiet=True)
    assert f"({names})" in str(caught.value)
    assert run.records().curve("global_loss")[1].tolist() == before


def test_a_run_resumes_where_the_factory_builds_the_same(tmp_path: Path) -> None:
    to.run(small(), tmp_path / "run", quiet=True)
    to.run(small(rounds=4), tmp_path / "run", resume=True, quiet=True)
    to.run(small(rounds=4), tmp_path / "whole", quiet=True)
    assert same(tmp_path / "run" / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []


def test_the_model_of_a_run_has_the_frozen_values_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = to.run(small(), tmp_path / "run", quiet=True)
    x = torch.randn(5, 60, generator=torch.Generator().manual_seed(0))
    first, expected = run.model(), run.model()(x)
    monkeypatch.setattr(Changing, "base", 2.0)
    monkeypatch.setattr(Changing, "table", 1.0)
    again = run.model()
    assert_equal(dict(again.state_dict()), dict(first.state_dict()))
    assert torch.equal(again(x), expected), "the table that is no state too"


def test_frozen_values_that_are_too_large_to_keep_are_known_by_their_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_values, "LIMIT", 100)
    run = to.run(small(), tmp_path / "run", quiet=True)
    assert load_file(tmp_path / "run" / "untrained.safetensors") == {}
    expected = dict(run.model().state_dict())
    assert_equal(dict(run.weights()), expected)
    to.run(small(rounds=3), tmp_path / "run", resume=True, quiet=True)
    monkeypatch.setattr(Changing, "base", 2.0)
    with pytest.raises(to.UserError, match=r"\(base\.weight\)"):
        run.model()
    with pytest.raises(to.UserError, match=r"\(base\.weight\)"):
        to.run(small(rounds=4), tmp_path / "run", resume=True, quiet=True)


def test_frozen_values_that_are_not_kept_need_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_values, "LIMIT", 100)
    run = to.run(small(model=Based(60, 10)), tmp_path / "run", quiet=True)
    module, expected, opened = run.experiment.model, dict(run.model().state_dict()), to.open_run(tmp_path / "run")
    with pytest.raises(to.UserError, match=r"\.weights\(module=\.\.\.\), on the command line --module"):
        opened.weights()
    assert_equal(opened.weights(module=module), expected)  # type: ignore[arg-type]
    with pytest.raises(to.UserError, match=r"\(base\.weight, base\.bias, head\.weight, head\.bias\)"):
        opened.weights(module=Based(60, 10))


def test_first_values_of_personal_parameters_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"algorithm.personal": to.personal.Named("head.*"), "algorithm.selection": to.selection.Count(2)}
    run = to.run(small(rounds=1, **changes), tmp_path / "run", quiet=True)
    expected = [dict(run.model(client).state_dict()) for client in (None, *range(6))]
    monkeypatch.setattr(Changing, "head", 2.0)
    for client, model in zip((None, *range(6)), expected, strict=True):
        assert_equal(dict(run.model(client).state_dict()), model)
        assert_equal(run.weights(client), model)


FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.base = nn.Linear(shape[0], 4)
        nn.init.constant_(self.base.weight, {base})
        self.base.requires_grad_(False)
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.base(x).tanh())
"""
EXPERIMENT = """
rounds = 2
model = "{module}:Net"
world.data = {{kind = "synthetic", clients = 4, sizes = {{kind = "pareto", cap = 30}}}}
algorithm.local = {{epochs = 1, batch_size = 5}}
"""


def write_factory(folder: Path, module: str, base: float) -> None:
    (folder / f"{module}.py").write_text(FACTORY.format(base=base))
    forget(module)


def forget(module: str) -> None:
    """As in another process: the module is looked for anew."""
    importlib.invalidate_caches()
    sys.modules.pop(module, None)


def test_resuming_finds_a_factory_that_builds_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    write_factory(tmp_path, "my_base", 0.1)
    Path("small.toml").write_text(EXPERIMENT.format(module="my_base"))
    assert main(["run", "small.toml", "--out", "run", "-q"]) == 0
    write_factory(tmp_path, "my_base", 0.7)
    capsys.readouterr()
    assert main(["run", "--out", "run", "--resume", "--set", "rounds=3", "-q"]) == 2
    assert "(base.weight)" in capsys.readouterr().err
    (tmp_path / "my_base.py").unlink()
    forget("my_base")
    assert main(["check", "run"]) == 0, "it reads files, and runs no code of theirs"


def test_check_finds_values_of_another_run(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    to.run(small(), tmp_path / "run", quiet=True)
    monkeypatch.setattr(Changing, "base", 2.0)
    to.run(small(), tmp_path / "other", quiet=True)
    shutil.copy(tmp_path / "other" / "untrained.safetensors", tmp_path / "run" / "untrained.safetensors")
    assert main(["check", str(tmp_path / "run")]) == 1
    assert "untrained.safetensors" in capsys.readouterr().out
    with pytest.raises(to.UserError, match=r"untrained\.safetensors"):
        to.open_run(tmp_path / "run").weights()


def test_check_finds_values_that_were_changed_or_deleted(tmp_path: Path, capsys: Capture) -> None:
    to.run(small(), tmp_path / "run", quiet=True)
    path = tmp_path / "run" / "untrained.safetensors"
    content, (mapped, about) = path.read_bytes(), load_tensors(path, "")
    tensors = {name: value.clone() for name, value in mapped.items()}
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    assert main(["check", str(tmp_path / "run")]) == 1
    assert "untrained.safetensors is damaged" in capsys.readouterr().out
    path.unlink()
    assert main(["check", str(tmp_path / "run")]) == 1
    assert "untrained.safetensors is missing" in capsys.readouterr().out
    to.run(small(rounds=3), tmp_path / "run", resume=True, quiet=True)
    again, about_again = load_tensors(path, "")  # safetensors writes metadata in any order
    assert about_again == about
    assert again.keys() == tensors.keys()
    assert all(again[name].equal(value) for name, value in tensors.items())
    assert main(["check", str(tmp_path / "run")]) == 0


def test_clients_that_exchange_scores_have_frozen_values_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from score_worlds import score_world

    run = to.run(score_world(rounds=2).but(model=Changing()), tmp_path / "run", quiet=True)
    expected = dict(run.model(client=1).state_dict())
    to.run(score_world(rounds=3).but(model=Changing()), tmp_path / "run", resume=True, quiet=True)
    monkeypatch.setattr(Changing, "base", 2.0)
    with pytest.raises(to.UserError, match=r"base\.weight"):
        to.run(score_world(rounds=4).but(model=Changing()), tmp_path / "run", resume=True, quiet=True)
    with pytest.raises(to.UserError, match=r"base\.weight"):
        run.model(client=1)
    monkeypatch.setattr(Changing, "base", 1.0)
    assert run.model(client=1).state_dict()["base.weight"].equal(expected["base.weight"])


def test_layers_that_learn_their_size_from_the_samples_resume(tmp_path: Path) -> None:
    def lazy(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(classes))

    run = to.run(small(model=lazy), tmp_path / "run", quiet=True)
    torch.rand(7)  # moves torch's own generator
    to.run(small(model=lazy, rounds=3), tmp_path / "run", resume=True, quiet=True)
    torch.rand(7)
    to.run(small(model=lazy, rounds=3), tmp_path / "whole", quiet=True)
    assert same(tmp_path / "run" / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []
    assert_equal(dict(run.model().state_dict()), run.weights())


# -- closings

CLOSINGS = {
    "deadline": to.closing.Deadline(seconds=1.2),
    "late": to.closing.Deadline(seconds=1.2, partial=False, late="use"),
    "first": to.closing.FirstReplies(count=3),
    "buffered": to.closing.Buffered(size=2, concurrency=4),
}
DEVICES = to.devices.Tiers(slower=20000.0)
NORMED = to.models.MLP(5, batch_norm=True)


def timed(closing: object, **changes: object) -> to.Experiment:
    found = {"world.devices": DEVICES, "algorithm.closing": closing, "model": NORMED, "rounds": 6}
    return small(**found, **changes)


@pytest.mark.parametrize("closing", CLOSINGS)
def test_the_model_of_a_run_whose_rounds_are_closed(closing: str, tmp_path: Path) -> None:
    run = to.run(timed(CLOSINGS[closing]), tmp_path / "run", quiet=True)
    path = tmp_path / "model.safetensors"
    expected = trained_with_data(run)
    assert_equal(dict(run.model().state_dict()), expected)
    assert_equal(dict(to.load_model(tmp_path / "run").state_dict()), expected)
    assert main(["export", str(tmp_path / "run"), "--model", str(path)]) == 0
    assert_equal(load_file(path), expected)


def trained_with_data(run: to.Run) -> dict[str, Tensor]:
    from turnout.running.loop import read_state
    from turnout.running.tracks.prepare import prepare

    track = prepare(run.experiment)
    found = read_state(track, run.folder)
    assert found is not None
    return dict(track.module(track.unpack(found.state), None).state_dict())


def test_a_run_that_stops_by_simulated_hours_has_a_model(tmp_path: Path) -> None:
    given = timed(to.closing.WaitForAll(), stop=to.Stop(simulated_hours=1e-4))
    run = to.run(given, tmp_path / "run", quiet=True)
    assert run.stopped() is not None
    assert_equal(dict(run.model().state_dict()), trained_with_data(run))


@pytest.mark.parametrize("closing", ["late", "buffered"])
@pytest.mark.parametrize("optimizer", [to.SGD(lr=0.1), to.Adam(lr=0.01)])
def test_late_replies_and_statistics_survive_a_resume(closing: str, optimizer: object, tmp_path: Path) -> None:
    given = timed(CLOSINGS[closing], **{"algorithm.local.optimizer": optimizer})
    half = to.run(given.but(rounds=3), tmp_path / "run", quiet=True)
    kept = load_file(half.folder / "checkpoint.safetensors")
    assert {"time/in_flight/update", "states/norm1.running_mean"} <= kept.keys()
    resumed = to.run(given, tmp_path / "run", resume=True, quiet=True)
    whole = to.run(given, tmp_path / "whole", quiet=True)
    assert same(tmp_path / "run" / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []
    assert_equal(dict(resumed.model().state_dict()), dict(whole.model().state_dict()))


@pytest.mark.parametrize("term", [to.terms.Elastic(strength=0.1), to.terms.Scaffold(), to.terms.MimeLite()])
def test_what_terms_and_the_server_hold_survives_a_resume(term: object, tmp_path: Path) -> None:
    changes = {"algorithm.terms": (term,), "algorithm.server": to.server.ServerAdam(), "model": NORMED}
    given = small(rounds=6, **changes)
    to.run(given.but(rounds=3), tmp_path / "run", quiet=True)
    resumed = to.run(given, tmp_path / "run", resume=True, quiet=True)
    whole = to.run(given, tmp_path / "whole", quiet=True)
    assert same(tmp_path / "run" / "records.sqlite", tmp_path / "whole" / "records.sqlite") == []
    assert_equal(dict(resumed.model().state_dict()), dict(whole.model().state_dict()))


# -- models that no file can name


def line(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes))


class Tied(nn.Module):
    """One matrix with two names, and a buffer beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(60, 60, bias=False), nn.Linear(60, 60, bias=False)
        self.decode.weight = self.encode.weight
        self.register_buffer("shift", torch.full((60,), 0.5))
        self.head = nn.Linear(60, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decode(self.encode(x).tanh()).tanh() + self.shift)  # type: ignore[operator]


MODELS = {"a lambda": lambda shape, classes: line(shape, classes), "an object": line((60,), 10), "tied": Tied()}
HOMES = {"a lambda": to.personal.batch_norm, "an object": None, "tied": None}


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_whose_model_no_file_can_name(kind: str, tmp_path: Path, capsys: Capture) -> None:
    given = small(model=MODELS[kind], **{"algorithm.personal": HOMES[kind]})
    run = to.run(given, tmp_path / "run", quiet=True)
    opened = to.open_run(tmp_path / "run")
    assert opened.curve("personal_loss" if HOMES[kind] else "global_loss")[0] == [-1, 0, 1]
    assert (opened.rounds(), opened.stopped(), opened.experiment.rounds) == (2, None, 2)
    assert opened.report().is_file()
    for client in (None, 3):
        expected = dict(run.model(client).state_dict())
        assert_equal(opened.weights(client), expected)
        path = tmp_path / f"{client}.safetensors"
        chosen = [] if client is None else ["--client", str(client)]
        assert main(["export", str(tmp_path / "run"), "--model", str(path), *chosen]) == 0
        assert_equal(load_file(path), expected)
        assert_equal(dict(opened.model(client, module=MODELS[kind]).state_dict()), expected)
    assert main(["export", str(tmp_path / "run"), "--csv", str(tmp_path / "csv")]) == 0
    assert main(["check", str(tmp_path / "run")]) == 0
    capsys.readouterr()


def test_the_module_is_asked_for_where_it_is_needed(tmp_path: Path, capsys: Capture) -> None:
    folder = str(tmp_path / "run")
    to.run(small(model=lambda shape, classes: line(shape, classes)), folder, quiet=True)
    for call in (lambda: to.open_run(folder).model(), lambda: to.load_model(folder)):
        with pytest.raises(to.UserError) as caught:
            call()
        for words in (".model(module=...)", "--module package.module:Name", "run.weights()", "model.safetensors"):
            assert words in str(caught.value)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    for command in (["predict", folder, str(tmp_path / "rows.csv")], ["export", folder, "--model", f"{folder}.pt2"]):
        assert main(command) == 2
        assert "--module package.module:Name" in capsys.readouterr().err
    with pytest.raises(to.UserError, match="object of your own"):
        to.run(to.open_run(folder).experiment.but(rounds=3), folder, resume=True, quiet=True)


def test_another_module_is_refused_by_the_names_that_differ(tmp_path: Path) -> None:
    to.run(small(model=lambda shape, classes: line(shape, classes)), tmp_path / "run", quiet=True)
    opened = to.open_run(tmp_path / "run")
    swapped = nn.Sequential(nn.Linear(60, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 10))
    with pytest.raises(to.UserError, match=r"another model than this one: 1\.weight is missing, 1\.bias is missing"):
        opened.model(module=swapped)
    with pytest.raises(to.UserError, match=r"0\.weight is \(5, 60\) and was \(4, 60\)"):
        opened.model(module=nn.Sequential(nn.Linear(60, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 10)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_prediction_and_programs_with_a_module_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_factory(tmp_path, "my_given", 0.3)
    import my_given  # type: ignore[import-not-found]

    rows = [f"{i % 3},{i % 5},{['ann', 'bob', 'cyd'][i % 3]},{i % 2}" for i in range(60)]
    Path("data.csv").write_text("a,b,who,y\n" + "\n".join(rows) + "\n")
    data = to.data.Table("data.csv", label="y", owner="who")
    made = to.Experiment(to.World(data), lambda shape, classes: my_given.Net(shape, classes), rounds=2)
    run = to.run(made, "run", quiet=True)
    assert main(["predict", "run", "data.csv", "--module", "my_given:Net", "--out", "found.csv"]) == 0
    expected = run.model()(data.encode("data.csv")).argmax(1).tolist()
    found = [line.split(",")[4] for line in Path("found.csv").read_text().splitlines()[1:]]
    assert found == [str(label) for label in expected]
    assert main(["export", "run", "--model", "model.pt2", "--module", "my_given:Net"]) == 0
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(torch.export.load("model.pt2").module()(x), run.model()(x))
    capsys.readouterr()
    assert main(["predict", "run", "data.csv", "--module", "my_given:Missing"]) == 2
    assert "--module" in capsys.readouterr().err


def test_data_and_a_task_that_only_a_program_has_do_not_keep_a_run_closed(tmp_path: Path) -> None:
    data = to.data.Own(torch.randn(30, 4), torch.randn(30), owner=[i % 3 for i in range(30)])
    task = to.tasks.Task(loss=lambda output, target: (output - target).square().mean(1))
    run = to.run(to.Experiment(to.World(data), to.models.MLP(4), task=task, rounds=2), tmp_path / "run", quiet=True)
    opened = to.open_run(tmp_path / "run")
    assert opened.curve("global_loss") == run.curve("global_loss")
    assert_equal(dict(opened.model().state_dict()), dict(run.model().state_dict()))
    with pytest.raises(to.UserError, match=r"world\.data was an object of your own|world\.data\.x was an object"):
        opened.experiment.world.data.load(0, None)


def test_weights_that_a_run_started_from_may_be_gone(tmp_path: Path) -> None:
    first = to.run(small(model=to.models.MLP(4)), tmp_path / "first", quiet=True)
    save_file(first.weights(), tmp_path / "start.safetensors")
    given = small(model=to.models.MLP(4), start=str(tmp_path / "start.safetensors"))
    run = to.run(given, tmp_path / "run", quiet=True)
    expected = dict(run.model().state_dict())
    (tmp_path / "start.safetensors").unlink()
    assert_equal(dict(run.model().state_dict()), expected)
