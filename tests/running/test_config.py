"""Experiments as TOML, in and out; single settings; and a sentence for everything that cannot be."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turnout as to
from turnout.recipes import cook, recipes
from turnout.running.config.catalogue import commented, kinds
from turnout.running.config.kinds import KINDS, ROLE_NAMES
from turnout.running.config.read import build, from_table, load
from turnout.running.config.run_file import check_same, lasting
from turnout.running.config.variants import with_setting
from turnout.running.config.write import to_toml

EVERYTHING = """
title = "all of it"
rounds = 7
seed = 3
start = "weights.safetensors"

[world.data]
kind = "digits"
clients = 9
partition = {kind = "classes", per_client = 3}
sizes = {kind = "pareto", cap = 50}

[world.participation]
kind = "dropout"
rate = 0.25
when_up = {kind = "traces", names = ["T0", "Tlo"]}

[model]
kind = "mlp"
hidden = [20, 10]
batch_norm = [1]

[algorithm]
personal = {kind = "named", pattern = "output.*"}
weighting = "B"
max_weight = 2

[[algorithm.terms]]
kind = "proximal"
mu = 0.1

[algorithm.local]
epochs = 5
optimizer = {kind = "sgd", lr = 1}
schedule = "inverse-clock"

[stop]
target = 0.9
"""


def per_sample(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return path


def test_a_file_is_the_experiment_one_would_write_in_python(tmp_path: Path) -> None:
    assert load(written(tmp_path, EVERYTHING)) == to.Experiment(
        world=to.World(
            data=to.data.Digits(clients=9, partition=to.partition.Classes(per_client=3), sizes=to.data.Pareto(cap=50)),
            participation=to.participation.Dropout(0.25, when_up=to.participation.Traces(names=("T0", "Tlo"))),
        ),
        model=to.models.MLP(20, 10, batch_norm=(1,)),
        algorithm=to.Algorithm(
            local=to.Local(optimizer=to.SGD(lr=1.0), epochs=5, schedule=to.InverseClock()),
            terms=(to.terms.Proximal(mu=0.1),),
            personal=to.personal.Named("output.*"),
            weighting=to.weighting.ByShare(),
            max_weight=2.0,
        ),
        rounds=7,
        seed=3,
        start="weights.safetensors",
        stop=to.Stop(target=0.9),
        title="all of it",
    )


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    once = load(written(tmp_path, EVERYTHING))
    assert load(written(tmp_path, to_toml(once))) == once


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_is_a_file(name: str, tmp_path: Path) -> None:
    for experiment in cook(name).values():
        assert load(written(tmp_path, to_toml(experiment))) == experiment
        assert load(written(tmp_path, commented(experiment, "from a recipe"))) == experiment


@pytest.mark.parametrize("role", list(KINDS), ids=[ROLE_NAMES[role] for role in KINDS])
def test_every_kind_that_needs_nothing_can_be_named(role: Any) -> None:
    for name, maker in KINDS[role].items():
        kind = next(k for k in kinds()[ROLE_NAMES[role]] if name in k.names)
        if "..." not in kind.settings.values():
            part = build(role, name, "here")
            assert part is maker or dataclasses.is_dataclass(part), name


@settings(max_examples=50, deadline=None)
@given(
    lr=st.floats(min_value=1e-30, max_value=1e30),
    title=st.text(max_size=20),
    hidden=st.lists(st.integers(1, 500), max_size=3),
)
def test_numbers_and_texts_survive_exactly(lr: float, title: str, hidden: list[int]) -> None:
    import tomllib

    given_ = to.Experiment(model=to.models.MLP(*hidden), title=title).but(**{"algorithm.local.optimizer.lr": lr})
    assert from_table(tomllib.loads(to_toml(given_))) == given_


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("rounds=5", "rounds", 5),
        ("algorithm.local.optimizer.lr=1", "algorithm.local.optimizer.lr", 1.0),
        ("algorithm.weighting=A", "algorithm.weighting", to.weighting.CompleteOnly()),
        ("algorithm.weighting.kind=by-share", "algorithm.weighting", to.weighting.ByShare()),
        ("world.participation={kind='dropout', rate=0.1}", "world.participation", to.participation.Dropout(0.1)),
        ("algorithm.terms=[{kind='proximal', mu=2}]", "algorithm.terms", (to.terms.Proximal(mu=2.0),)),
        ("algorithm.personal=batch-norm", "algorithm.personal", to.personal.batch_norm),
        ("title=two words", "title", "two words"),
        ("algorithm.local.epochs=none", "algorithm.local.epochs", None),
        ("stop.target=none", "stop.target", None),
    ],
)
def test_one_setting(setting: str, path: str, value: object) -> None:
    found: Any = with_setting(to.Experiment(), setting)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize("written", ["proximal", "fedprox", {"kind": "proximal"}, [{"kind": "proximal"}]])
def test_one_part_needs_no_list(written: object) -> None:
    assert from_table({"algorithm": {"terms": written}}).algorithm.terms == (to.terms.Proximal(),)
    assert to.Algorithm(terms=to.terms.Proximal()) == to.Algorithm(terms=[to.terms.Proximal()])


def test_one_event_and_one_attack_need_no_list() -> None:
    world = {"events": {"kind": "join", "client": 3, "round": 2}, "attack": "sign-flip", "attackers": 0.2}
    found = from_table({"world": world}).world
    assert found.events == (to.Join(client=3, round=2),)
    assert found.attack == (to.attacks.SignFlip(),)
    with pytest.raises(to.UserError, match=r"algorithm\.terms .*'proximal'"):
        to.Algorithm(terms="proximal")


@pytest.mark.parametrize(
    ("setting", "role"),
    [
        ("algorithm.weighting=fedprox", "term"),
        ("algorithm.weighting=Scaffold", "term"),
        ("algorithm.terms=fedavg", "weighting"),
        ("algorithm.server=adam", "optimizer"),
        ("world.participation=classes", "partition"),
        ("algorithm.selection=join", "event"),
        ("algorithm.selection=fleet-log", "participation"),
    ],
)
def test_a_name_known_in_another_role_is_said_to_be_of_that_role(setting: str, role: str) -> None:
    with pytest.raises(to.UserError, match=f"it is a kind of {role}"):
        with_setting(to.Experiment(), setting)


def test_a_setting_inside_a_list() -> None:
    experiment = to.Experiment(algorithm=to.Algorithm(terms=(to.terms.Proximal(mu=0.5),)))
    assert with_setting(experiment, "algorithm.terms.0.mu=3").algorithm.terms == (to.terms.Proximal(mu=3.0),)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("algorithm.lokal.epochs=3", r"unknown setting algorithm.lokal: did you mean 'local'\?"),
        ("algorithm.weighting=bywork", r"no weighting of kind 'bywork': did you mean 'by-work'\?"),
        ("algorithm.weighting=5", "algorithm.weighting must be a kind or a table with one, not 5"),
        ("algorithm.weighting={kind=5}", "algorithm.weighting needs a kind"),
        ("algorithm.weighting={}", "algorithm.weighting needs a kind"),
        ("world.data={kind='digits', clints=3}", r"unknown setting world.data.clints: did you mean 'clients'"),
        ("rounds=many", "rounds must be a whole number, not 'many'"),
        ("rounds=2.5", "rounds must be a whole number, not 2.5"),
        ("rounds=true", "rounds must be a whole number, not True"),
        ("rounds=0", "rounds must be at least 1"),
        ("rounds", "write it as path=value"),
        ("rounds=", "write it as path=value"),
        ("=3", "write it as path=value"),
        ("algorithm.local=3", "algorithm.local must be a table of settings, not 3"),
        ("algorithm.local.optimizer.lr=fast", "algorithm.local.optimizer.lr must be a number, not 'fast'"),
        ("algorithm.local.optimizer.lr=-1", "^algorithm.local.optimizer.lr must be above 0"),
        ("algorithm.local={epochs=2, steps=7}", "^algorithm.local: local work is asked for both"),
        ("algorithm.terms.0.mu=1", "give the number of one of the 0 entries"),
        ("algorithm.personal.pattern=x", "algorithm.personal needs a kind"),
        ("world.participation=fleet-log", "world.participation needs path"),
        ("model={kind='mlp', hidden=3}", "model.hidden must be a list, not 3"),
        ("algorithm.weighting=no_such_module:Thing", "cannot find the module 'no_such_module'"),
        ("algorithm.weighting=no_such_module:Thing", "run the command in the folder that holds no_such_module.py"),
        ("algorithm.weighting=mine.Tempered", "for code of your own write 'mine:Tempered'"),
        ("algorithm.weighting=mine.py:Tempered", "write the module, 'mine:Tempered', without .py"),
        ("algorithm.weighting=json:Thing", "json:Thing is code of the package 'json'"),
        ("algorithm.weighting=tests.system.test_strangers:Thing", "has nothing called 'Thing'"),
        ("algorithm.personal={kind='tests.system.test_strangers:stays', depth=3}", "has no settings: leave out depth"),
        ("model={kind='tests.system.test_strangers:network', depth=3}", "unknown setting model.depth"),
    ],
)
def test_what_cannot_be_is_a_sentence(setting: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(to.UserError, match=sentence):
        with_setting(to.Experiment(), setting)


def test_a_module_of_ones_own_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torn_module.py").write_text("x = 1\ndef broken(:\n")
    (tmp_path / "raising_module.py").write_text("net = 1 / 0")
    with pytest.raises(to.UserError, match=r"algorithm.weighting: .*torn_module.py, line 2"):
        with_setting(to.Experiment(), "algorithm.weighting=torn_module:Mine")
    with pytest.raises(to.UserError, match=r"raising_module.*ZeroDivisionError"):
        with_setting(to.Experiment(), "model=raising_module:net")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"rounds = ", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"round = 3", r"unknown setting round: did you mean 'rounds'"),
        (b"[world]\ndata = 3", "world.data must be a kind"),
        (b"world = 3", "world must be a table of settings, not 3"),
        (
            b"[algorithm.local.optimizer]\nkind = 'sgd'\nlr = -1",
            "^algorithm.local.optimizer.lr must be above 0, not -1",
        ),
        (b"algorithm.terms = [{kind = 'proximal', mu = -1}]", "^algorithm.terms.0.mu must be"),
        (b"[world]\ndata = {kind = 'digits', clients = 0}", "^world.data.clients must be at least 1, not 0"),
    ],
)
def test_files_that_cannot_be(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_bytes(content)
    with pytest.raises(to.UserError, match=sentence):
        load(tmp_path / "experiment.toml")
    with pytest.raises(to.UserError, match="cannot read the experiment file"):
        load(tmp_path / "nowhere.toml")


def test_metrics_may_have_any_name(tmp_path: Path) -> None:
    named = dict.fromkeys(("top 5", "a.b", "", 'say "x"', "kind", "größe"), per_sample)
    experiment = to.Experiment(
        to.World(to.data.Digits(clients=4)), to.models.MLP(4), task=to.tasks.Task(per_sample, named), rounds=1
    )
    text = to_toml(experiment)
    assert '"top 5" = "test_config:per_sample"' in text
    assert load(written(tmp_path, text)) == load(written(tmp_path, commented(experiment, "any name"))) == experiment
    to.run(experiment, tmp_path / "run", quiet=True)
    again = to.run(experiment.but(rounds=2), tmp_path / "run", quiet=True, resume=True)
    assert list(again.curve("global_top 5")[0]) == [-1, 0, 1]  # -1: before the first round


def test_ones_own_objects_are_named_by_their_content() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    net = nn.Linear(2, 2)

    def experiment(x: torch.Tensor, model: Any) -> to.Experiment:
        return to.Experiment(world=to.World(data=to.data.Own(x, y, owner=[0, 0, 1, 1])), model=model)

    first = to_toml(experiment(x, net))
    assert to_toml(experiment(x.clone(), net)) == first
    assert to_toml(experiment(x + 1, net)) != first
    assert to_toml(experiment(x, nn.Linear(2, 2))) != first


def net_of(width: int) -> Any:
    return lambda: nn.Linear(2, width)


def test_a_function_is_named_by_its_source_and_what_it_holds() -> None:
    assert to_toml(to.Experiment(model=net_of(2))) == to_toml(to.Experiment(model=net_of(2)))
    assert to_toml(to.Experiment(model=net_of(2))) != to_toml(to.Experiment(model=net_of(3)))
    assert 'model = "<source ' in to_toml(to.Experiment(model=net_of(2)))


def test_a_file_cannot_give_back_an_object(tmp_path: Path) -> None:
    experiment = to.Experiment(model=nn.Linear(60, 10))
    with pytest.raises(to.UserError, match=r"model .*open_run\(folder, experiment=experiment\)"):
        load(written(tmp_path, to_toml(experiment)))


def test_only_what_may_change_may_change(tmp_path: Path) -> None:
    before = to.Experiment()
    path = written(tmp_path, to_toml(before))
    check_same(
        path, before.but(rounds=500, title="longer", stop=to.Stop(target=0.5), runtime=to.runtime.InProcess(threads=7))
    )
    with pytest.raises(to.UserError, match=r"\(algorithm.local.batch_size, seed\)"):
        check_same(path, before.but(seed=1, **{"algorithm.local.batch_size": 3}))
    assert lasting(before) == lasting(before.but(rounds=1)) != lasting(before.but(seed=1))


def test_the_catalogue_says_what_is_in_the_code() -> None:
    found = {kind.names[0]: kind for kind in kinds()["optimizer"]}
    assert found["sgd"].settings == {"lr": "0.1", "momentum": "0.0", "weight_decay": "0.0"}
    assert all(kind.about.endswith(".") for role in kinds().values() for kind in role)


NEW_TERM = """
from dataclasses import dataclass
from turnout.parts.terms.base import LocalTerm

@dataclass(frozen=True)
class Halved(LocalTerm):
    "Half of the gradient."

    name: str = "halved"

    def transform_grad(self, grad_cP, at, server_state, client_state):
        return grad_cP / 2

KINDS = {"halved": Halved}
"""
NEW_DATA = """
from turnout.data.synthetic import Synthetic

class Squares(Synthetic):
    "Squares."

KINDS = {"squares": Squares}
"""
WITH_BOTH = """
import importlib.util, sys

for package in ("turnout.parts.terms", "turnout.data"):
    spec = importlib.util.find_spec(package)
    spec.submodule_search_locations.append(f"{sys.argv[1]}/{package}")
    sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])

import turnout as to
from turnout.running.config.catalogue import kinds
from turnout.running.config.variants import with_setting
from turnout.running.config.write import to_toml
from turnout.testing import CHECKS

made = with_setting(to.Experiment(), "algorithm.terms=[{kind='halved'}]").but(**{"world.data": to.data.Squares()})
assert made.algorithm.terms == (to.terms.Halved(),) and "Halved" in dir(to.terms)
assert 'kind = "halved"' in to_toml(made) and 'kind = "squares"' in to_toml(made)
assert "Half of the gradient." in [kind.about for kind in kinds()["term"]]
assert CHECKS[to.terms.Term](to.terms.Halved()) is None
"""


def test_a_new_part_is_one_file(tmp_path: Path) -> None:
    for package, name, text in [("turnout.parts.terms", "halved", NEW_TERM), ("turnout.data", "squares", NEW_DATA)]:
        (tmp_path / package).mkdir()
        (tmp_path / package / f"{name}.py").write_text(text)
    command = [sys.executable, "-c", WITH_BOTH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
