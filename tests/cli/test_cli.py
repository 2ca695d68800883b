"""The command line: what it runs, shows and writes, and one sentence for every mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import turnout as to
from commands import turnout, work_in
from turnout.cli import COMMANDS as TABLE
from turnout.cli import as_command
from turnout.cli.planning import make_plan, split_values
from turnout.running.config.kinds import load_place

Capture = pytest.CaptureFixture[str]
COMMANDS = [
    "run",
    "runs",
    "show",
    "plot",
    "check",
    "predict",
    "list",
    "report",
    "export",
    "init",
    "data",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_in(tmp_path, monkeypatch)


# -- running


def test_no_argument_shows_what_absence_costs_and_what_helps() -> None:
    plan = make_plan(None, [], [], None, None, False)
    worlds = {run.variant: run.experiment.world.participation for run in plan.runs}
    assert worlds.pop("all present") == to.participation.Always()
    assert set(worlds) == {"FedAvg", "FedProx", "SCAFFOLD", "stale", "friends"}
    assert set(worlds.values()) == {to.participation.GroupDropout((0.8, 0.8, 0.1, 0.1, 0.1))}
    assert sorted({run.seed for run in plan.runs}) == [0, 1, 2]
    assert plan.out.parent == Path("runs")


def test_the_default_recipe_runs_and_ends_with_a_table_a_report_and_a_picture(capsys: Capture) -> None:
    few = ["--set", "rounds=2", "--set", "world.data.clients=10"]
    assert turnout("run", *few, "--seeds", 2, "--jobs", 1, "--out", "out") == 0
    out, err = capsys.readouterr()
    assert "absence (2 seeds)" in out
    assert all(f"│ {variant} " in out for variant in ("all present", "FedAvg", "friends"))
    assert " ± " in out
    assert "report: out/report.html\npicture: out/curves.svg\n" in out
    assert err.startswith("absence: 6 variants × 2 seeds, in out\n")
    assert Path("out/report.html").stat().st_size > 10_000
    assert Path("out/curves.svg").read_text().startswith("<svg")


def test_json_on_stdout_is_alone_there(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--seeds", 2, "--jobs", 1, "--out", "out", "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["title"] == "small"
    assert [(run["variant"], run["seed"], run["folder"]) for run in result["runs"]] == [
        ("small", 0, "out/small/seed-0"),
        ("small", 1, "out/small/seed-1"),
    ]
    finals = [run["final"]["global_accuracy"] for run in result["runs"]]
    assert [run["rounds"] for run in result["runs"]] == [2, 2]
    assert [run["stopped"] for run in result["runs"]] == [None, None]
    row = next(row for row in result["table"] if row["metric"] == "global_accuracy")
    assert row["variant"] == "small"
    assert row["seeds"] == 2
    assert row["mean"] == pytest.approx(sum(finals) / 2)
    assert row["spread"] == pytest.approx(abs(finals[0] - finals[1]) / 2**0.5)
    assert result["failed"] == []
    assert 0 < sum(run["seconds"] for run in result["runs"]) < result["command_seconds"]


def test_json_in_a_file_and_the_reason_to_stop(capsys: Capture) -> None:
    stop = ["--set", "rounds=50", "--set", "stop.target=0.01"]
    assert turnout("run", "small.toml", *stop, "--out", "out", "--json", "result.json", "-q") == 0
    assert "accuracy" in capsys.readouterr().out
    (run,) = json.loads(Path("result.json").read_text())["runs"]
    assert run["stopped"] == "global_accuracy reached 0.01"
    assert run["rounds"] == 1


def test_a_grid_is_the_product_of_its_values(capsys: Capture) -> None:
    grid = ["--grid", "algorithm.weighting=A,C", "--grid", "algorithm.local.epochs=2,3"]
    assert turnout("run", "small.toml", *grid, "--seeds", 1, "--jobs", 2, "--out", "out", "--json", "-", "-q") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["variant"] for run in runs] == [
        f"weighting={scheme}, epochs={epochs}" for scheme in "AC" for epochs in (2, 3)
    ]
    settings = to.open_run(runs[3]["folder"]).experiment.algorithm
    assert (settings.weighting, settings.local.epochs) == (to.weighting.ByWork(), 3)


def test_a_recipes_variants_are_crossed_with_the_grid() -> None:
    plan = make_plan("absence", [], ["algorithm.local.epochs=2,5"], 1, None, False)
    assert [run.variant for run in plan.runs][:2] == ["all present, epochs=2", "all present, epochs=5"]
    assert len(plan.runs) == 12


def test_values_of_a_grid_may_have_commas_of_their_own() -> None:
    assert split_values("[1,2],{a=1, b=[3,4]},'x,y',z") == ["[1,2]", "{a=1, b=[3,4]}", "'x,y'", "z"]


def test_seeds_begin_at_the_experiments_own() -> None:
    plan = make_plan("small.toml", ["seed=7"], [], 3, None, False)
    assert [run.seed for run in plan.runs] == [7, 8, 9]
    assert [run.experiment.seed for run in plan.runs] == [7, 8, 9]


def test_a_recipe_of_ones_own(capsys: Capture) -> None:
    Path("my_recipes.py").write_text(
        "from turnout.running.config.read import load\n"
        "def both():\n"
        "    first = load('small.toml')\n"
        "    return {'one': first, 'two': first.but(rounds=1)}\n"
        "def broken():\n"
        "    return 1 / 0\n"
    )
    assert turnout("run", "my_recipes:broken") == 2
    assert "my_recipes.py, line 6: ZeroDivisionError" in capsys.readouterr().err
    assert turnout("run", "my_recipes:both", "--seeds", 1, "--jobs", 1, "--out", "out", "-q", "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert [(run["variant"], run["rounds"]) for run in result["runs"]] == [("one", 2), ("two", 1)]
    assert result["title"] == "both"


def test_one_bad_value_of_a_grid_does_not_lose_the_others(capsys: Capture) -> None:
    grid = ["--grid", "algorithm.selection.clients=3,99", "--set", "algorithm.selection=count"]
    assert turnout("run", "small.toml", *grid, "--seeds", 1, "--jobs", 1, "--out", "out", "-q") == 1
    out, err = capsys.readouterr()
    assert "clients=3" in out
    assert err.startswith("1 of 2 runs failed. clients=99 seed 0: ")
    assert "Traceback" not in err


def test_when_all_fail_alike_the_reason_is_said_once(capsys: Capture) -> None:
    nowhere = ["--data-dir", "nowhere", "--set", "world.data={kind='mnist', mirror='http://127.0.0.1:9/'}"]
    assert turnout("run", "absence", *nowhere, "--seeds", 1, "--jobs", 1, "-q") == 2
    err = capsys.readouterr().err
    assert err.startswith("6 of 6 runs failed. all present seed 0, FedAvg seed 0, FedProx seed 0, ")
    assert err.count("could not be downloaded") == 1


def test_the_folders_own_runs_go_on_with_more_rounds(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--seeds", 2, "--jobs", 1, "--out", "out", "-q") == 0
    assert turnout("run", "--out", "out", "--resume", "--set", "rounds=4", "--jobs", 1, "-q", "--json", "two.json") == 0
    assert [run["rounds"] for run in json.loads(Path("two.json").read_text())["runs"]] == [4, 4]
    capsys.readouterr()
    assert turnout("run", "--out", "out", "--resume", "--seeds", 3) == 2
    assert "leave out --grid and --seeds" in capsys.readouterr().err


# -- mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run nosuch.toml", "cannot read the experiment file nosuch.toml"),
        ("run particpation", "there is no recipe 'particpation', and no such file: did you mean 'participation'"),
        ("run .", ". is a folder: give a recipe or a .toml file"),
        ("run small.toml --set rounds", "write it as path=value"),
        ("run small.toml --set algorithm.weighting=bywork", "did you mean 'by-work'?"),
        ("run small.toml --grid rounds", "write it as path=value,value"),
        ("run small.toml --grid rounds=1,,2", "write it as path=value,value"),
        ("run small.toml --grid rounds=1,1", "--grid rounds=1,1"),
        ("run small.toml --grid rounds=1,x", "rounds must be a whole number, not 'x'"),
        ("run small.toml --grid seed=1,2", "--seeds N"),
        ("run small.toml --seeds 0", "--seeds 0: give at least 1"),
        ("run small.toml --jobs 0", "--jobs 0: give at least 1"),
        ("run small.toml --json nowhere/x.json", "there is no folder nowhere"),
        ("run small.toml --json .", "--json .: is a folder"),
        ("run small.toml -q --out small.toml/x", "cannot be written into"),
        ("run small.toml --set runtime.threads=100000", "threads must be at least 1 and at most 1024"),
        ("run small.toml -q --set stop.target=nan", "stop.target is not a number"),
        ("export . --model .", "--model .: is a folder"),
        ("run small.toml -q --out small.toml", "small.toml is a file, and a run needs a folder"),
        ("run small.toml -q --set start=nowhere.safetensors", "cannot be read as a safetensors file"),
        ("run small.toml --set world.participation.path=x", "unknown setting world.participation.path"),
        ("run nomodule:recipe", "the recipe: cannot find the module 'nomodule'"),
        ("run json:dumps", "the recipe: json:dumps is code of the package 'json'"),
        ("export nowhere --model x.safetensors", "nowhere is not a run folder"),
        ("report nowhere", "no records in nowhere yet"),
        ("list nonsense", "there is no role 'nonsense'"),
        ("init small.toml", "small.toml exists"),
        ("init my.txt", "an experiment file's name ends in .toml"),
        ("init my.toml --recipe digit", "did you mean 'digits'"),
        ("init my.toml --recipe participation --variant D", "participation has no variant 'D'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str, capsys: Capture) -> None:
    assert turnout(*arguments.split()) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", ["run --bogus", "nosuch", "run --seeds many", "export"])
def test_mistyped_commands_are_explained(arguments: str, capsys: Capture) -> None:
    assert turnout(*arguments.split()) == 2
    assert "Usage: turnout" in "".join(capsys.readouterr())


def test_a_folder_with_something_in_it(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--out", "out", "-q") == 0
    assert turnout("run", "small.toml", "--out", "out", "-q") == 2
    assert "out is not empty" in capsys.readouterr().err
    assert turnout("run", "small.toml", "--out", "out", "-q", "--resume", "--set", "algorithm.local.epochs=3") == 2
    assert "other settings (algorithm.local.epochs)" in capsys.readouterr().err


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_damaged_checkpoint(keep: int, capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--out", "out", "-q") == 0
    path = Path("out/checkpoint.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    assert turnout("run", "small.toml", "--out", "out", "-q", "--resume") == 2
    assert "out/checkpoint.safetensors is damaged" in capsys.readouterr().err
    path.unlink()
    assert turnout("run", "small.toml", "--out", "out", "-q", "--resume") == 0


@pytest.mark.parametrize("other", ["seed=1", "algorithm.weighting=A", "world.data.clients=7", "model=mlp"])
def test_another_runs_checkpoint(other: str, capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--out", "out", "-q") == 0
    assert turnout("run", "small.toml", "--out", "other", "-q", "--set", other) == 0
    Path("other/checkpoint.safetensors").replace("out/checkpoint.safetensors")
    assert turnout("run", "small.toml", "--out", "out", "-q", "--resume") == 2
    assert "belongs to other data" in capsys.readouterr().err


def test_a_file_that_is_no_checkpoint(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--out", "out", "-q") == 0
    save_file({"x": torch.zeros(3)}, "out/checkpoint.safetensors")
    assert turnout("run", "small.toml", "--out", "out", "-q", "--resume") == 2
    assert "is not a checkpoint" in capsys.readouterr().err


def test_lost_client_rows(capsys: Capture) -> None:
    own = ["--set", "model={kind='mlp', hidden=[4], batch_norm=true}", "--set", "algorithm.personal=batch-norm"]
    assert turnout("run", "small.toml", *own, "--out", "out", "-q") == 0
    for path in Path("out/clients").iterdir():
        path.unlink()
    assert turnout("run", "small.toml", *own, "--out", "out", "-q", "--resume") == 2
    assert "the clients' rows in out/clients are damaged" in capsys.readouterr().err


def test_data_with_a_word_among_numbers(capsys: Capture) -> None:
    Path("data.csv").write_text("a,b,who,y\n1,2,ann,0\n3,many,bob,1\n")
    data = "world.data={kind='table', path='data.csv', label='y', owner='who'}"
    assert turnout("run", "small.toml", "--set", data, "-q") == 2
    assert "data.csv, line 3, column 'b': 'many' is not a number, as others" in capsys.readouterr().err


def test_a_loss_that_is_no_number_names_the_client_and_the_round(capsys: Capture) -> None:
    hot = ["--set", "model={kind='mlp', hidden=[8]}", "--set", "algorithm.local.optimizer.lr=1e30"]
    assert turnout("run", "small.toml", *hot, "--out", "out") == 2
    err = capsys.readouterr().err
    assert "the update of client " in err
    assert "in round 0 is not finite" in err
    assert "report: out/report.html" in err
    with to.open_run("out").records() as records:
        assert records.curve("global_loss")[0].tolist() == [-1]


# -- looking and writing


def test_the_table_of_commands_repeats_their_help() -> None:
    for name, row in ((name, row) for name, row in TABLE.items() if row.place.startswith("turnout.cli")):
        found = as_command(name, load_place(row.place))
        assert (found.help or "").startswith(row.help.rstrip(".")), name


def test_a_command_of_a_missing_satellite_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    row = TABLE["fleet"]._replace(needs="turnout.absent")
    monkeypatch.setitem(TABLE, "fleet", row)
    assert turnout("--help") == 0
    assert "  fleet  " not in capsys.readouterr().out
    assert turnout("fleet", "log.csv") == 2
    assert "turnout.absent" in capsys.readouterr().err


def test_help_and_version_come_without_torch() -> None:
    code = "import sys\nfrom turnout.cli import main\nmain({})\nassert 'torch' not in sys.modules, 'torch was loaded'"
    helps = [[name, "--help"] for name in ("run", "runs", "show", "plot", "predict", "export")]
    for arguments in (["--help"], *helps, ["--version"], ["deploy", "init", "--help"]):
        done = subprocess.run([sys.executable, "-c", code.format(arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "turnout" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    assert turnout(*command.split(), "--help") == 0
    out = capsys.readouterr().out
    assert "Usage: turnout " in out
    assert "\\" not in out
    assert f"turnout {command}" in out.split("\n", 1)[1], "an example"


def test_version(capsys: Capture) -> None:
    assert turnout("--version") == 0
    assert capsys.readouterr().out == f"turnout {to.__version__}\n"


def test_list_shows_recipes_and_kinds(capsys: Capture) -> None:
    assert turnout("list") == 0
    out = capsys.readouterr().out
    assert re.search(r"participation +Schemes A, B, C on SYNTHETIC\(1,1\)", out)
    assert "complete-only, A" in out
    assert "lr=0.1, momentum=0.0, weight_decay=0.0" in out
    assert turnout("list", "terms") == 0  # as its namespace in Python; a file says `term`
    assert "scaffold" in capsys.readouterr().out
    assert turnout("list", "weighting") == 0
    only = capsys.readouterr().out
    assert "by-work, C" in only
    assert "SYNTHETIC" not in only


def test_report_is_written_again(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--out", "out", "-q") == 0
    Path("out/report.html").unlink()
    capsys.readouterr()
    assert turnout("report", "out", "--target", 0.01) == 0
    out = capsys.readouterr().out
    assert "rounds" in out
    assert Path("out/report.html").exists()


def test_export_writes_the_models_weights(capsys: Capture) -> None:
    own = ["--set", "model={kind='mlp', hidden=[4], batch_norm=true}", "--set", "algorithm.personal=batch-norm"]
    assert turnout("run", "small.toml", *own, "--out", "out", "-q") == 0
    assert turnout("export", "out", "--model", "model.safetensors") == 0
    assert turnout("export", "out", "--model", "three.safetensors", "--client", 3) == 0
    expected, ours = to.open_run("out").model(client=3).state_dict(), load_file("three.safetensors")
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    common = load_file("model.safetensors")
    assert common.keys() == ours.keys()
    assert any(not torch.equal(common[name], ours[name]) for name in common)
    assert turnout("run", "small.toml", *own, "--set", "start=model.safetensors", "--out", "again", "-q") == 0
    capsys.readouterr()
    assert turnout("export", "out", "--model", "x.safetensors", "--client", 9) == 2
    assert "there is no client 9: they are 0 to 5" in capsys.readouterr().err


def test_init_writes_a_file_that_runs(capsys: Capture) -> None:
    assert turnout("init", "my.toml", "--recipe", "participation", "--variant", "A") == 0
    text = Path("my.toml").read_text()
    assert 'kind = "complete-only"  # or fedavg, by-share, by-work' in text
    few = ["--set", "rounds=1", "--set", "world.data.clients=5", "--set", "world.data.sizes.cap=30"]
    assert turnout("run", "my.toml", *few, "--out", "out", "-q") == 0
    assert "accuracy" in capsys.readouterr().out


def test_data_says_where_it_looks(capsys: Capture) -> None:
    Path("sets/cifar-10-batches-bin").mkdir(parents=True)
    assert turnout("data", "--data-dir", "sets") == 0
    out = capsys.readouterr().out
    assert "data folder: sets" in out
    assert "missing: downloaded when first used" in out
    assert "found: sets" in out


def test_python_m_turnout_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "turnout", "--version"], capture_output=True, text=True)
    assert done.stdout == f"turnout {to.__version__}\n"
    assert done.returncode == 0


def test_resume_needs_a_folder_and_a_missing_file_can_be_written(capsys: Capture) -> None:
    assert turnout("run", "small.toml", "--resume") == 2
    assert "--out DIR --resume" in capsys.readouterr().err
    assert turnout("run", "none.toml", "--out", "out") == 2
    assert "turnout init none.toml" in capsys.readouterr().err


def test_the_seeds_of_a_variant_are_several_runs(capsys: Capture) -> None:
    few = ["--grid", "algorithm.weighting=A,C", "--seeds", 2, "--jobs", 1, "--quiet"]
    assert turnout("run", "small.toml", *few, "--out", "out") == 0
    assert turnout("export", "out/weighting=C", "--model", "m.safetensors") == 2
    assert "holds several runs" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(command: str, capsys: Capture) -> None:
    assert turnout(*command.split(), "--help") == 0
    assert f"\n  turnout {command}" in capsys.readouterr().out


def test_data_finds_the_unpacked_files_of_emnist(capsys: Capture) -> None:
    folder = Path("sets/emnist/gzip")
    folder.mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3"):
        (folder / f"emnist-letters-{part}-ubyte").touch()
    assert turnout("data", "--data-dir", "sets") == 0
    assert "found: sets/emnist" not in capsys.readouterr().out
    (folder / "emnist-letters-test-labels-idx1-ubyte.gz").touch()
    assert turnout("data", "--data-dir", "sets") == 0
    assert "found: sets/emnist/gzip (letters)" in capsys.readouterr().out


def test_the_json_of_a_run_that_failed_says_why(capsys: Capture) -> None:
    diverges = ["--set", "algorithm.local.optimizer.lr=1e38", "--json", "found.json", "--quiet", "--out", "run"]
    assert turnout("run", "small.toml", *diverges) == 2
    found = json.loads(Path("found.json").read_text())
    assert "is not finite" in found["failed"][0]["why"]
    assert "is not finite" in capsys.readouterr().err


def test_closed_or_poor_outputs_do_not_lose_a_result(tmp_path: Path) -> None:
    command = f"{sys.executable} -m turnout run small.toml --quiet --out"
    done = subprocess.run(f"{command} closed >&-", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    poor = subprocess.run(
        f"PYTHONIOENCODING=ascii {command} poor", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert poor.returncode == 0
    assert "accuracy" in poor.stdout
    full = subprocess.run(f"{command} full >/dev/full", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
