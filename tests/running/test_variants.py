"""Variants: settings that belong together, in a file, on the command line and in Python."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import turnout as to
from turnout.cli import main
from turnout.cli.planning import make_plan
from turnout.running.config.read import load
from turnout.running.config.variants import variants_in
from turnout.running.result import RunName

SMALL = """
title = "small"
rounds = 2
seed = 3
[world]
data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
[algorithm]
local = {epochs = 2, batch_size = 5}
"""
METHODS = """
[variants.fedavg]

[variants.scaffold]
algorithm.terms = ["scaffold"]
algorithm.local.optimizer.lr = 0.05

[variants."by steps"]
algorithm.local.epochs = "none"
algorithm.local.steps = 7
world.participation = {kind = "dropout", rate = 0.5}
"""


def variants(more: str, base: str = SMALL) -> dict[str, to.Experiment]:
    return variants_in(tomllib.loads(base + more))


def test_each_variant_has_its_own_settings_on_top_of_the_files() -> None:
    found = variants(METHODS)
    assert list(found) == ["fedavg", "scaffold", "by steps"]
    base = variants("[variants.only]\n")["only"]
    assert found["fedavg"] == base
    assert found["scaffold"] == base.but(
        **{"algorithm.terms": (to.terms.Scaffold(),), "algorithm.local.optimizer.lr": 0.05}
    )
    assert all(e.rounds == 2 and e.seed == 3 for e in found.values())


def test_settings_that_are_only_right_together_are_changed_together() -> None:
    local = variants(METHODS)["by steps"].algorithm.local
    assert (local.epochs, local.steps, local.batch_size) == (None, 7, 5)


def test_a_table_with_a_kind_is_a_whole_part_and_one_without_changes_some_of_it() -> None:
    base = '[world.participation]\nkind = "dropout"\nrate = 0.2\nwhen_up = {kind = "traces", first = 4}\n'
    some = variants("[variants.v.world.participation]\nrate = 0.4\n", base)["v"]
    assert some.world.participation == to.participation.Dropout(0.4, when_up=to.participation.Traces(first=4))
    whole = variants('[variants.v.world.participation]\nkind = "dropout"\nrate = 0.4\n', base)["v"]
    assert whole.world.participation == to.participation.Dropout(0.4)


def test_a_setting_of_one_term() -> None:
    base = '[[algorithm.terms]]\nkind = "proximal"\nmu = 0.1\n[[algorithm.terms]]\nkind = "scaffold"\n'
    found = variants("[variants.v]\nalgorithm.terms.0.mu = 0.5\n", base)["v"]
    assert found.algorithm.terms == (to.terms.Proximal(mu=0.5), to.terms.Scaffold())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("[variants.v]\nalgorithm.locl.epochs = 3\n", r"variants\.v: unknown setting algorithm\.locl: did you mean"),
        ("[variants.v]\nseed = 4\n", r"variants\.v: seeds are common to all variants: --seeds N"),
        ("[variants.v]\nrounds = 'many'\n", r"variants\.v: rounds must be a whole number"),
        ('[variants.v]\n"algorithm.local.epochs" = 4\n', "unknown setting algorithm.local.epochs"),
        ("[variants]\nv = 3\n", r"variants\.v is a table of settings"),
        ("[variants]\n", "\\[variants.scaffold\\]"),
        ("[variants.v]\nalgorithm.terms.0.mu = 0.5\n", r"variants\.v: algorithm\.terms\.0"),
    ],
)
def test_a_variant_that_cannot_be_is_a_sentence(more: str, sentence: str) -> None:
    with pytest.raises(to.UserError, match=sentence):
        variants(more)


def test_a_files_variants_are_run_like_a_recipes(tmp_path: Path) -> None:
    path = tmp_path / "methods.toml"
    path.write_text(SMALL.replace('title = "small"\n', "") + METHODS)
    plan = make_plan(str(path), ["rounds=1"], [], 2, tmp_path / "out", False)
    assert plan.title == "methods"
    assert [run.path for run in plan.runs] == [
        f"{name}/seed-{seed}" for seed in (3, 4) for name in ("fedavg", "scaffold", "by_steps")
    ]
    assert [run.experiment.rounds for run in plan.runs] == [1] * 6
    crossed = make_plan(str(path), [], ["rounds=1,2"], 1, None, False)
    assert [run.variant for run in crossed.runs][:3] == ["fedavg, rounds=1", "fedavg, rounds=2", "scaffold, rounds=1"]
    assert len(make_plan(str(path), [], [], None, None, False).runs) == 9  # three seeds to compare


def test_one_experiment_of_a_file_with_variants_is_not_a_guess(tmp_path: Path) -> None:
    path = tmp_path / "methods.toml"
    path.write_text(SMALL + METHODS)
    with pytest.raises(to.UserError, match="has variants"):
        load(path)


@pytest.mark.parametrize(
    ("settings", "grid", "sentence"),
    [
        ([], ["rounds=1,2", "rounds=3"], "--grid rounds"),
        ([], ["algorithm.weighting=A", "algorithm.weighting.kind=B"], "--grid algorithm.weighting"),
        (["rounds=5"], ["rounds=1,2"], "--set rounds has no effect"),
    ],
)
def test_a_path_is_varied_once(settings: list[str], grid: list[str], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    with pytest.raises(to.UserError, match=sentence):
        make_plan(str(path), settings, grid, 1, None, False)


# -- in Python


def small(**changes: object) -> to.Experiment:
    return variants("[variants.only]\n")["only"].but(**changes)


def test_experiments_times_seeds_have_the_folders_of_the_command_line(tmp_path: Path) -> None:
    both = {"fedavg": small(), "scaffold": variants(METHODS)["scaffold"]}
    group = to.run(both, tmp_path / "out", seeds=2, jobs=1, quiet=True)
    listed = json.loads((tmp_path / "out" / "runs.json").read_text())
    assert [entry["path"] for entry in listed["runs"]] == [
        f"{name}/seed-{seed}" for seed in (3, 4) for name in ("fedavg", "scaffold")
    ]
    assert [run.folder.relative_to(tmp_path / "out").as_posix() for run in group] == [
        entry["path"] for entry in listed["runs"]
    ]
    assert len(group) == 4
    assert [run.experiment.seed for run in group["scaffold"]] == [3, 4]
    assert group[1].folder == group["scaffold"][0].folder
    finals = group.final("global_accuracy")
    assert finals["scaffold"] == [run.final("global_accuracy") for run in group["scaffold"]]
    assert group.report() == tmp_path / "out" / "report.html"
    with pytest.raises(to.UserError, match="did you mean 'scaffold'"):
        group["scafold"]


def test_a_list_is_named_by_titles_else_by_number(tmp_path: Path) -> None:
    listed = [small(title="one"), small(title="", rounds=1)]
    group = to.run(listed, tmp_path / "out", quiet=True, jobs=1)
    assert list(group.variants) == ["one", "experiment 2"]
    assert (tmp_path / "out" / "one" / "seed-3" / "records.sqlite").exists()
    assert (tmp_path / "out" / "experiment_2" / "seed-3").is_dir()


def test_experiments_times_seeds_end_as_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table with its verdict and the report's path; on stderr, as what a script prints is its own."""
    given = {"a": small(rounds=2), "b": small(rounds=1)}
    to.run(given, tmp_path / "out", seeds=2, jobs=1)
    said = capsys.readouterr()
    assert said.out == ""
    assert main(["report", str(tmp_path / "out")]) == 0
    table, _, rest = capsys.readouterr().out.partition("report: ")
    assert "global_accuracy" in table
    assert table in said.err
    assert f"report: {rest}" in said.err
    to.run(given, tmp_path / "quiet", seeds=2, jobs=1, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_group_is_printed_as_a_short_table(tmp_path: Path) -> None:
    group = to.run({"a": small(rounds=2), "b": small(rounds=1)}, tmp_path / "out", seeds=2, quiet=True, jobs=1)
    head, titles, *rows = str(group).splitlines()
    assert head == f"4 runs in {tmp_path / 'out'}"
    assert titles.split() == ["name", "seed", "rounds", "global_accuracy", "folder"]
    for row, ((variant, seed), run) in zip(rows, group.runs.items(), strict=True):
        value = f"{100 * run.final('global_accuracy'):.1f}"
        assert row.split() == [variant, str(seed), str(run.rounds()), value, "%", f"{variant}/seed-{seed}"]
    assert repr(group) == str(group)
    one = group["b"][0]
    value = f"{100 * one.final('global_accuracy'):.1f} %"
    assert str(one) == f"Run in {tmp_path / 'out/b/seed-3'}: finished, 1/1 rounds, global_accuracy {value}"


def test_a_group_of_many_runs_is_cut_when_printed(tmp_path: Path) -> None:
    run = to.run(small(rounds=1), tmp_path / "run", quiet=True)
    group = to.RunGroup(tmp_path, {RunName("a", seed): run for seed in range(100)})
    lines = str(group).splitlines()
    assert len(lines) < 30
    assert lines[-1] == "... and 80 more"


def test_a_group_is_opened_from_its_folder(tmp_path: Path) -> None:
    made = to.run({"a": small(rounds=2), "b": small(rounds=1)}, tmp_path / "out", seeds=2, quiet=True, jobs=1)
    opened = to.open_run(tmp_path / "out")
    assert list(opened.runs) == list(made.runs)
    assert opened.final("global_accuracy") == made.final("global_accuracy")
    assert [run.experiment.rounds for run in opened] == [2, 1, 2, 1]
    assert len(opened["b"][1].model().state_dict()) > 0
    seeds = to.open_run(tmp_path / "out" / "a")
    assert seeds.final("global_accuracy") == {"a": made.final("global_accuracy")["a"]}
    with pytest.raises(to.UserError, match="holds several runs"):
        to.open_run(tmp_path / "out", experiment=small())


def test_one_experiment_with_several_seeds(tmp_path: Path) -> None:
    group = to.run(small(rounds=1), tmp_path / "out", seeds=[5, 9], quiet=True, jobs=1)
    assert [run.folder.name for run in group["small"]] == ["seed-5", "seed-9"]
    assert [run.experiment.seed for run in group] == [5, 9]


def test_experiments_with_seeds_of_their_own_keep_them(tmp_path: Path) -> None:
    group = to.run({"a": small(rounds=1), "b": small(rounds=1, seed=8)}, tmp_path / "out", quiet=True, jobs=1)
    assert [run.experiment.seed for run in group] == [3, 8]


def test_a_group_is_resumed(tmp_path: Path) -> None:
    to.run({"a": small(rounds=1)}, tmp_path / "out", seeds=2, quiet=True, jobs=1)
    with pytest.raises(to.UserError, match="is not empty"):
        to.run({"a": small(rounds=1)}, tmp_path / "out", seeds=2, quiet=True, jobs=1)
    group = to.run({"a": small(rounds=2)}, tmp_path / "out", seeds=3, quiet=True, jobs=1, resume=True)
    assert [run.rounds() for run in group] == [2, 2, 2]


def test_a_group_is_replaced_where_one_says_so_and_shows_itself(tmp_path: Path) -> None:
    both = {"a": small(rounds=1), "b": small(rounds=1)}
    to.run(both, tmp_path / "out", quiet=True, jobs=1, trackers=[])
    (tmp_path / "out" / "a" / "seed-3" / "tensorboard").mkdir()
    (tmp_path / "out" / "a" / "seed-3" / "tensorboard" / "events.out").touch()
    group = to.run(both, tmp_path / "out", seeds=2, quiet=True, jobs=1, overwrite=True)
    assert not (tmp_path / "out" / "a" / "seed-3" / "tensorboard").exists()
    shown = group._repr_html_()
    assert "<svg" in shown
    assert "a" in shown
    with pytest.raises(to.UserError, match="resume=True and overwrite=True"):
        to.run(both, tmp_path / "out", quiet=True, overwrite=True, resume=True)
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(to.UserError, match="needs pandas"):
            group.frame()
    else:
        frame = group.frame()
        assert frame.index.names == ["variant", "seed", "round"]
        assert frame.loc[("b", 4, 0), "global_accuracy"] == group["b"][1].final("global_accuracy")


@pytest.mark.parametrize(
    ("given", "seeds", "sentence"),
    [
        ([], 1, r"to.run was given \[\]: give an Experiment"),
        ({"a": 3}, 1, "'a': 3}: give an Experiment"),
        ([small(), small()], 1, "two experiments have the same title: give a dict"),
        ([small()], 0, "seeds is a number of seeds, at least 1, .* not 0"),
        ([small()], [1, 1], r"or a list of different ones, not \[1, 1\]"),
        ([small()], "five", "seeds is a number of seeds, at least 1, or a list of different ones, not 'five'"),
        ({"a": small(), "b": small(seed=8)}, 2, "have different seeds of their own"),
        ("digits", None, "to.run was given 'digits'"),
    ],
)
def test_what_cannot_be_run_together_is_a_sentence(given: object, seeds: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(to.UserError, match=sentence):
        to.run(given, tmp_path / "out", seeds=seeds, quiet=True)  # type: ignore[call-overload]
    assert not (tmp_path / "out").exists()


SCRIPT = """
import turnout as to
{own}
first = to.Experiment(rounds=2).but(**{{"world.data.clients": 6, "world.data.sizes": to.data.Pareto(cap=30)}})
runs = to.run({{"a": first, "b": first.but({change})}}, "out", seeds=2, quiet=True)
print(len(runs))
"""
OWN = """
def rate(lr, clock):
    return lr / 2
"""


@pytest.mark.parametrize(
    ("own", "change"),
    [("", "rounds=1"), (OWN, '**{"algorithm.local.schedule": to.schedules.Custom(rate)}')],
    ids=["settings only", "with a function of the script"],
)
def test_a_plain_script_needs_no_guard_around_it(own: str, change: str, tmp_path: Path) -> None:
    """Runs side by side are other processes, which must not run the script again."""
    (tmp_path / "script.py").write_text(SCRIPT.format(own=own, change=change))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
