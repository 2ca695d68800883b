"""A file or a run folder that a stranger sent: names are looked up, and code runs only if the user permits it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import turnout as to
from turnout.cli import main
from turnout.running.config.dotted import Code
from turnout.running.config.kinds import installed_parts
from turnout.running.config.read import from_table, load
from turnout.view.live.acting import Actions
from turnout.view.live.watched import WatchedFolder
from turnout.view.trackers import make_tracker

CALLED: list[str] = []
SMALL = {"rounds": 1, "world": {"data": {"kind": "synthetic", "clients": 4}}}
MARKING = "from pathlib import Path\nPath('ran').touch()\n"  # a module that leaves a mark where it is imported


class Trap:
    """Says that it was made."""

    def __init__(self, *arguments: object, **settings: object):
        CALLED.append("Trap")


def trap(*arguments: object) -> Trap:
    CALLED.append("trap")
    return Trap()


class Undeclared:
    """Has every name of a partition, and is none."""

    def split(self, *arguments: object) -> list[int]:
        CALLED.append("split")
        return []


class Empty(to.roles.Partition):
    """Declared to be a partition, and has nothing of one."""


class Promised(to.roles.Aggregation):
    """Declared to be an aggregation, and has nothing of one."""


def rate(lr, t):
    return lr


def network(input_shape, classes):
    return nn.Linear(*input_shape, classes)


def stays(name, module):
    return False


def made_weighting():
    return to.weighting.ByWork()


MARK = "touch called"
INSTALLED = [
    {"model": {"kind": "subprocess:Popen", "args": MARK, "shell": True}},
    {"model": "os:system"},
    {"model": "torch.nn:Linear"},
    {"model": "turnout.running.folder:delete_run"},
    {"algorithm": {"weighting": {"kind": "subprocess:Popen", "args": MARK, "shell": True}}},
    {"algorithm": {"weighting": "antigravity.x:Y"}},
    {"algorithm": {"weighting": "antigravity:webbrowser"}},
    {"algorithm": {"weighting": "this:s"}},
    {"algorithm": {"aggregation": {"kind": "subprocess:check_output", "args": [MARK]}}},
    {"algorithm": {"personal": "os:system"}},
    {"algorithm": {"local": {"schedule": {"kind": "custom", "function": "os:system"}}}},
    {"world": {"data": {"kind": "loader", "function": "os:abort", "clients": 2, "input_shape": [3], "classes": 2}}},
    {"world": {"data": {"kind": "digits", "partition": {"kind": "ipykernel.kernelspec:install", "user": True}}}},
    {"world": {"data": {"kind": "digits", "partition": "platform:platform"}}},
    {"world": {"events": [{"kind": "subprocess:Popen", "args": MARK, "shell": True}]}},
]
READING = """
import json, sys
from turnout.running.config.read import from_table
from turnout.errors import UserError

tables = json.load(sys.stdin)
try:
    from_table({"model": "no_such:Thing"})  # what the reader itself needs is loaded
except UserError:
    pass
seen = []
sys.addaudithook(lambda event, arguments: seen.append((event, str(arguments[0]))) if event in
    ("import", "subprocess.Popen", "os.system", "webbrowser.open") else None)
before, sentences = set(sys.modules), []
for table in tables:
    try:
        from_table(table)
        sentences.append("accepted")
    except UserError as mistake:
        sentences.append(str(mistake))
json.dump({"modules": sorted(set(sys.modules) - before), "seen": seen, "sentences": sentences}, sys.stdout)
"""


def read_elsewhere(tables: list[dict[str, object]], folder: Path) -> dict[str, list[str]]:
    """Read tables in a new process, in a folder of its own: the sentences, and what was imported or called."""
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "BROWSER": "touch browser"}
    done = subprocess.run(
        [sys.executable, "-c", READING], input=json.dumps(tables), capture_output=True, text=True, check=True,
        cwd=folder, env=environment,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_code_of_installed_packages_is_neither_called_nor_imported(tmp_path: Path) -> None:
    found = read_elsewhere(INSTALLED, tmp_path)
    for table, sentence in zip(INSTALLED, found["sentences"], strict=True):
        assert "is code of the package" in sentence, (table, sentence)
        assert "--allow" in sentence
    assert found["modules"] == []
    assert found["seen"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_of_jupyter_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text(
        '[world.data]\nkind = "digits"\n[world.data.partition]\nkind = "ipykernel.kernelspec:install"\nuser = true\n'
        'kernel_name = "python3"\nenv = { PYTHONPATH = "/theirs" }\n'
    )
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "turnout", "run", "theirs.toml"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "ipykernel.kernelspec:install is code of the package 'ipykernel'" in done.stderr
    assert "--allow ipykernel" in done.stderr
    assert list(home.iterdir()) == []


def installed_names() -> Iterator[str]:
    """Every class and function at the top of every installed module, Python's own included, from their sources."""
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")}:
        for path in sorted(Path(place).rglob("*.py")):
            words = path.relative_to(place).with_suffix("").parts
            if "site-packages" in words or not all(word.isidentifier() for word in words):
                continue
            module = ".".join(words[:-1] if words[-1] == "__init__" else words)
            try:
                body = ast.parse(path.read_bytes()).body
            except (SyntaxError, ValueError, RecursionError):
                continue
            for node in body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    yield f"{module}:{node.name}"


@pytest.mark.slow
def test_no_installed_object_is_called_or_imported(tmp_path: Path) -> None:
    names = list(installed_names())
    assert len(names) > 50_000
    roles = (
        lambda name: {"model": name},
        lambda name: {"world": {"data": name}},
        lambda name: {"world": {"data": {"kind": "digits", "partition": name}}},
    )
    tables = [roles[i % 3](name) for i, name in enumerate(names)]  # a name is looked up in the same way for every role
    found = read_elsewhere(tables, tmp_path)
    accepted = [table for table, said in zip(tables, found["sentences"], strict=True) if "is code of" not in said]
    assert accepted == []
    assert found["modules"] == []
    assert found["seen"] == []
    print(f"{len(names):,} names of installed functions and classes")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, with modules of its own; what was imported from it is forgotten afterwards."""
    work = tmp_path / "here"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(work)])
    yield work
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")) or name == "package":
            del sys.modules[name]


OWN = """
import turnout as to
from subprocess import run
from dataclasses import dataclass
from torch import nn

@dataclass(frozen=True)
class Half(to.weighting.Weighting):
    part: float = 0.5

    def client_scale(self, turnout):
        return self.part * (turnout.progress_C > 0)

class Net(nn.Module):
    def __init__(self, inputs, classes, hidden=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.layers(x)

def make(input_shape, classes, **more):
    return Net(input_shape[0], classes, **more)

def nothing(input_shape, classes):
    return "a text"

def half():
    return Half(0.25)

def experiment():
    return to.Experiment(to.World(to.data.Synthetic(clients=4)), rounds=1)
"""


def test_modules_below_the_current_folder_are_the_users_own(here: Path) -> None:
    (here / "package").mkdir()
    (here / "package" / "own_parts.py").write_text(OWN)
    named = "package.own_parts"
    table = {"model": f"{named}:make", "algorithm": {"weighting": {"kind": f"{named}:Half", "part": 0.75}}}
    found = from_table(table)
    assert found.algorithm.weighting.part == 0.75
    assert found.model is sys.modules[named].make
    assert from_table({"algorithm": {"weighting": f"{named}:half"}}).algorithm.weighting.part == 0.25
    with pytest.raises(to.UserError, match=r"subprocess:run .*--allow subprocess"):
        from_table({"model": {"kind": f"{named}:run", "args": MARK, "shell": True}})
    with pytest.raises(to.UserError, match="has nothing called 'Third'"):
        from_table({"model": f"{named}:Third"})


@pytest.mark.parametrize("place", ["lib/site-packages", "../elsewhere"])
def test_packages_that_are_not_the_folders_own_are_refused(
    place: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / place).mkdir(parents=True)
    (here / place / "their_parts.py").write_text(MARKING + OWN)
    monkeypatch.syspath_prepend(str(here / place))
    with pytest.raises(to.UserError, match="--allow their_parts"):
        from_table({"algorithm": {"weighting": "their_parts:Half"}})
    assert not (here / "ran").exists()
    (here / "my.toml").write_text('rounds = 1\nworld.data.kind = "digits"\nalgorithm.weighting = "their_parts:Half"\n')
    assert main(["run", "my.toml", "--out", "out", "-q"]) == 2
    assert main(["run", "my.toml", "--out", "out", "-q", "--allow", "their_parts"]) == 0
    assert (here / "ran").exists()
    with pytest.raises(to.UserError, match="--allow their_parts"):
        to.open_run("out").experiment.algorithm.weighting.counts(None)
    assert type(to.open_run("out", allow=["their_parts"]).experiment.algorithm.weighting).__name__ == "Half"
    to.load_model("out", allow=["their_parts"])
    configuration = here.parent / "config" / "turnout" / "config.toml"
    configuration.parent.mkdir(parents=True)
    configuration.write_text('allow = ["their_parts"]\n')
    assert type(to.open_run("out").experiment.algorithm.weighting).__name__ == "Half"
    configuration.write_text('alow = ["their_parts"]\n')
    with pytest.raises(to.UserError, match=r"config\.toml"):
        from_table({"algorithm": {"weighting": "their_parts:Half"}})


def test_no_code_refuses_the_folders_own_modules_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "own_parts.py").write_text(MARKING + OWN)
    (here / "my.toml").write_text("rounds = 1\n")
    for options in (
        ["my.toml", "--set", "algorithm.weighting=own_parts:Half"],
        ["my.toml", "--grid", "algorithm.weighting=A,own_parts:Half"],
        ["my.toml", "--track", "own_parts:Half"],
        ["own_parts:experiment"],
    ):
        assert main(["run", *options, "--out", "out", "-q", "--no-code"]) == 2
        assert "--no-code refuses" in capsys.readouterr().err, options
    assert main(["run", "my.toml", "--no-code", "--allow", "own_parts"]) == 2
    assert main(["run", "my.toml", "--allow", "own.parts"]) == 2
    assert not (here / "ran").exists()
    assert main(["run", "own_parts:experiment", "--out", "out", "-q"]) == 0


def test_nothing_is_imported_before_every_name_is_permitted(here: Path) -> None:
    (here / "own_parts.py").write_text(MARKING + OWN)
    with pytest.raises(to.UserError, match="package 'os'"):
        from_table({"model": "own_parts:make", "algorithm": {"weighting": "os:system"}})
    with pytest.raises(to.UserError, match="rounds "):
        from_table({"model": "own_parts:make", "rounds": "many"})
    assert not (here / "ran").exists()


def test_the_rule_holds_for_variants_settings_folders_and_trackers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "variants.toml").write_text('rounds = 1\n[variants.a]\n[variants.b]\nalgorithm.weighting = "os:abort"\n')
    (here / "recommended.toml").write_text('rounds = 1\n[algorithm]\nterms = ["os:abort"]\n')
    (here / "tracked.toml").write_text('rounds = 1\ntrack = "os:abort"\n')
    (here / "plain.toml").write_text("rounds = 1\n")
    assert main(["run", "plain.toml", "--out", "out", "-q"]) == 0
    sent = here / "sent"
    sent.mkdir()
    (sent / "experiment.toml").write_text('rounds = 1\nmodel = "os:abort"\n')
    for arguments in (
        ["run", "variants.toml"],
        ["run", "recommended.toml"],
        ["run", "tracked.toml"],
        ["run", "plain.toml", "--set", "model=os:abort"],
        ["run", "plain.toml", "--track", "os:abort"],
        ["run", "--out", "sent", "--resume"],
        ["run", "os:abort"],
        ["compare", "recommended.toml", "plain.toml"],
        ["deploy", "init", "app", "recommended.toml"],
        ["init", "new.toml", "--recipe", "os:abort"],
    ):
        assert main(arguments) == 2, arguments
        assert "os:abort is code of the package 'os'" in capsys.readouterr().err, arguments
    (here / "out" / "experiment.toml").write_text('rounds = 1\nmodel = "os:abort"\n')
    assert main(["export", "out", "--model", "m.safetensors"]) == 0  # weights need no module
    assert main(["predict", "out", "plain.toml"]) == 2
    assert "os:abort is code of the package 'os'" in capsys.readouterr().err
    for arguments in (["runs", "."], ["show", "out"], ["report", "out"]):
        main(arguments)
    assert main(["run", "plain.toml", "--out", "out", "--resume", "-q"]) == 2
    assert "out holds a run with other settings" in capsys.readouterr().err


def test_a_part_is_one_by_its_class_not_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    CALLED.clear()

    def partition(kind: str) -> dict[str, object]:
        return {"world": {"data": {"kind": "digits", "partition": f"test_strangers:{kind}"}}}

    for kind in ("Undeclared", "Trap"):
        with pytest.raises(to.UserError, match=r"turnout\.roles\.Partition"):
            from_table(partition(kind))
    assert CALLED == []
    with pytest.raises(to.UserError, match=r"Trap.* partition"):
        from_table(partition("trap"))
    with pytest.raises(to.UserError, match="lacks split"):
        from_table(partition("Empty"))
    with pytest.raises(to.UserError, match="it has no linear, combine"):  # in Python too: a promise is not a method
        to.Algorithm(aggregation=Promised())
    with pytest.raises(to.UserError, match="CALLED is a list"):
        from_table(partition("CALLED"))


def test_what_is_of_the_role_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    table = {
        "model": "test_strangers:network",
        "algorithm": {
            "weighting": "test_strangers:made_weighting",
            "personal": "test_strangers:stays",
            "local": {"schedule": {"kind": "custom", "function": "test_strangers:rate"}},
        },
    }
    found = from_table(table)
    assert found.model is network
    assert isinstance(found.algorithm, to.Algorithm)
    assert found.algorithm.weighting == to.weighting.ByWork()
    assert found.algorithm.personal is stays


@pytest.mark.parametrize("track", ["test_strangers:Trap", "test_strangers:trap"])
def test_a_tracker_is_declared_before_it_is_made(track: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    CALLED.clear()
    with pytest.raises(to.UserError, match="tracker"):
        make_tracker(track)
    assert CALLED == []


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        ('"own_parts:make"', [(3, 60), (10, 3)]),
        ('{ kind = "own_parts:make", hidden = 7 }', [(7, 60), (10, 7)]),
        ('{ kind = "own_parts:Net", inputs = 60, hidden = 5 }', [(5, 60), (10, 5)]),
    ],
)
def test_any_function_or_class_makes_a_model(model: str, shapes: list[tuple[int, int]], here: Path) -> None:
    (here / "own_parts.py").write_text(OWN)
    (here / "my.toml").write_text(f'rounds = 1\nmodel = {model}\nworld.data = {{ kind = "synthetic", clients = 4 }}\n')
    assert main(["run", "my.toml", "--out", "out", "-q"]) == 0
    made = to.load_model("out")
    assert [tuple(p.shape) for p in made.parameters() if p.dim() == 2] == shapes
    assert load("out/experiment.toml").model.__class__ is load("my.toml").model.__class__
    assert main(["run", "--out", "out", "--resume", "--set", "rounds=2", "-q"]) == 0
    assert main(["run", "my.toml", "--out", "out", "--resume", "--set", "rounds=2", "-q"]) == 0


def test_a_setting_of_a_models_function_can_be_changed(here: Path) -> None:
    (here / "own_parts.py").write_text(OWN)
    (here / "my.toml").write_text(
        'rounds = 1\nmodel = { kind = "own_parts:Net", inputs = 60 }\nworld.data.kind = "synthetic"\n'
        "[variants.narrow]\nmodel.hidden = 2\n[variants.wide]\nmodel.hidden = 9\n"
    )
    assert main(["run", "my.toml", "--seeds", "1", "--out", "out", "-q"]) == 0
    hidden = {name: to.load_model(f"out/{name}/seed-0").layers[0].out_features for name in ("narrow", "wide")}
    assert hidden == {"narrow": 2, "wide": 9}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ('"own_parts:nothing"', "gave str, not an nn.Module"),
        ('{ kind = "own_parts:Net", hidden = 2, depth = 3 }', "unknown setting model.depth"),
        ('{ kind = "own_parts:Net", hidden = 2 }', "the model cannot be made: Net"),
        ('{ kind = "own_parts:make", depth = 3 }', "unexpected keyword argument 'depth'"),
    ],
)
def test_a_model_that_cannot_be_made_is_a_sentence(
    model: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own_parts.py").write_text(OWN)
    (here / "my.toml").write_text(f'rounds = 1\nmodel = {model}\nworld.data.kind = "synthetic"\n')
    assert main(["run", "my.toml", "--out", "out", "-q"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("model", [nn.Linear, nn.Conv2d, nn.Bilinear, nn.Embedding])
def test_a_class_that_needs_other_arguments_is_a_sentence(model: type, tmp_path: Path) -> None:
    with pytest.raises(to.UserError, match=f"{model.__name__}.*give it the other"):
        to.run(to.Experiment(model=model, rounds=1), tmp_path / "run", quiet=True)


def write_distribution(folder: Path, entry: str) -> None:
    about = folder / "their_kinds-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-kinds\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[turnout.parts]\nweighting.half = {entry}\n")
    (folder / "their_kinds.py").write_text(OWN)


def test_kinds_of_installed_entry_points_need_no_permission(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = here.parent / "site-packages"
    write_distribution(installed, "their_kinds:Half")
    monkeypatch.syspath_prepend(str(installed))
    installed_parts.cache_clear()
    try:
        (here / "my.toml").write_text(
            'rounds = 1\nworld.data.kind = "synthetic"\nalgorithm.weighting = { kind = "half", part = 0.75 }\n'
        )
        assert main(["run", "my.toml", "--out", "out", "-q", "--no-code"]) == 0
        assert 'kind = "half"' in Path("out/experiment.toml").read_text()
        assert to.open_run("out").experiment.algorithm.weighting.part == 0.75
        with pytest.raises(to.UserError, match="package 'their_kinds'"):
            from_table({"algorithm": {"aggregation": "their_kinds:Half"}})
        with pytest.raises(to.UserError, match="did you mean 'half'"):
            from_table({"algorithm": {"weighting": "hallf"}})
    finally:
        installed_parts.cache_clear()


ANNOUNCED = """
[turnout.parts]
weighting.theirs = their_kinds:Half
[turnout.recipes]
their-recipe = their_kinds:experiment
[turnout.commands]
theirs = their_kinds:make
"""


@pytest.mark.parametrize(
    ("kind", "words", "sentence"),
    [
        ("dist-info", ["run", "my.toml"], "no weighting of kind 'theirs'"),
        ("dist-info", ["run", "their-recipe"], "no recipe 'their-recipe'"),
        ("dist-info", ["theirs"], "No such command 'theirs'"),
        ("egg-info", ["theirs"], "No such command 'theirs'"),
    ],
)
def test_a_package_that_lies_in_the_current_folder_is_not_installed(
    kind: str, words: list[str], sentence: str, tmp_path: Path
) -> None:
    """Neither its kinds nor its recipes nor its commands are known, also where Python itself searches the folder."""
    about = tmp_path / f"turnout_papers-9.{kind}"  # it does not stand in for an installed one of this name either
    about.mkdir()
    (about / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text("Name: turnout-papers\nVersion: 9\n")
    (about / "entry_points.txt").write_text(ANNOUNCED)
    (tmp_path / "their_kinds.py").write_text(MARKING + OWN)
    (tmp_path / "my.toml").write_text('rounds = 1\nalgorithm.weighting = "theirs"\n')
    start = ["-m", "turnout"] if kind == "egg-info" else ["-c", "import sys, turnout.cli; sys.exit(turnout.cli.main())"]
    done = subprocess.run([sys.executable, *start, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("start", "runtime"),
    [
        (["-P", "-m", "turnout"], 'kind = "processes", number = 2'),  # -P: as the installed command
        (["-m", "turnout"], 'kind = "in-process"'),
        pytest.param(["-P", "-m", "turnout"], 'kind = "ray", workers = 1', marks=pytest.mark.slow),
    ],
)
def test_a_folder_that_holds_a_torch_is_safe_to_run_in(start: list[str], runtime: str, tmp_path: Path) -> None:
    """A run, and processes that it starts, search the libraries before the current folder."""
    (tmp_path / "torch.py").write_text(MARKING)
    (tmp_path / "my.toml").write_text(
        f'rounds = 1\nworld.data = {{ kind = "synthetic", clients = 4 }}\nruntime = {{ {runtime} }}\n'
    )
    words = ["run", "my.toml", "--no-code", "--out", "out", "-q"]
    done = subprocess.run([sys.executable, *start, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_modules_beside_a_strangers_file_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, here = tmp_path / "sent", tmp_path / "here"
    sent.mkdir()
    here.mkdir()
    (sent / "their_module.py").write_text("class Weighting:\n    pass\n")
    (sent / "theirs.toml").write_text('[algorithm]\nweighting = "their_module:Weighting"\n')
    (here / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["run", str(sent / "theirs.toml")]) == 2
    assert "cannot find the module 'their_module'" in capsys.readouterr().err
    assert sys.path[-1] == str(here)  # after the libraries, so that nothing here stands in for one


def test_only_what_lies_below_the_watched_folder_is_started_from_a_page(here: Path) -> None:
    (here / "runs").mkdir()
    (here / "own_parts.py").write_text(OWN)
    (here / "runs" / "own_recipes.py").write_text(OWN)
    (here / "outside.toml").write_text("rounds = 1\n")
    actions = Actions(WatchedFolder(Path("runs")))
    for source in (
        "../outside.toml",
        str(here / "outside.toml"),
        "own_parts:experiment",
        "os:abort",
        "-h",
        "/etc/passwd",
    ):
        with pytest.raises(to.UserError, match="cannot be started from a page"):
            actions.start({"source": source, "name": "mine"})
    (here / "runs" / "inside.toml").write_text('rounds = 1\nworld.data = { kind = "synthetic", clients = 4 }\n')
    for name, source in (("a", "inside.toml"), ("b", "runs.own_recipes:experiment")):
        actions.start({"source": source, "name": name})
        assert actions.started[name].process.wait(timeout=120) == 0, actions.failures()
        assert (here / "runs" / name / "records.sqlite").exists()


DIGITS = "9" * 5000


@pytest.mark.parametrize("number", [DIGITS, f"-{DIGITS}", "1" + 30 * "0", "0x" + 5000 * "f", "9223372036854775808"])
def test_a_number_that_is_too_large_is_a_sentence(number: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "big.toml").write_text(f"rounds = {number}\n")
    for arguments in (["big.toml"], ["digits", "--set", f"rounds={number}"], ["digits", "--grid", f"seed.x={number}"],
                      ["digits", "--set", f"world.data.clients=[{number}]"],
                      ["digits", "--set", f"algorithm.local.optimizer.lr={number}"]):  # fmt: skip
        assert main(["run", *arguments, "-q", "--out", "out"]) == 2, arguments
        said = capsys.readouterr().err
        assert "limit (4300 digits)" in said or "may be at most 9223372036854775807" in said, (arguments, said)
        assert len(said) < 400


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("world.data.clients={}", "out of memory"),
        ("algorithm.local.epochs={}", "at most 1,000,000 units of work"),
        ("world.data.dimension={}", "out of memory"),
        ("world.data.classes={}", "at most 1000000"),
    ],
)
def test_the_largest_number_is_a_sentence_where_it_is_too_large(
    setting: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "synthetic" if "classes" in setting or "dimension" in setting else "digits"
    settings = [f"world.data.kind={data}", setting.format(2**63 - 1), "world.participation=traces", "rounds=1"]
    assert main(["run", "digits", *(word for one in settings for word in ("--set", one)), "-q", "--out", "out"]) > 0
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1


def test_a_value_that_is_nested_too_deeply_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", "--set", f"model.hidden={5000 * '['}{5000 * ']'}"]) == 2
    assert "is not valid TOML" in capsys.readouterr().err


def test_a_permission_says_nothing_of_names_that_are_none() -> None:
    for dotted in ("a b:c", "os.:x", ":x", "os:", "../evil:x", "os:path.join"):
        with pytest.raises(to.UserError, match="is not a path to code"):
            Code(below=Path.cwd()).check(dotted, "model")


@pytest.mark.parametrize("path", ["../elsewhere", "/tmp/elsewhere", "a/../../b"])
def test_a_list_of_runs_stays_in_its_folder(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sent").mkdir()
    Path("sent/runs.json").write_text(json.dumps({"title": "x", "runs": [{"variant": "a", "seed": 0, "path": path}]}))
    for command in (["run", "--out", "sent", "--resume"], ["show", "sent"], ["runs", "sent"]):
        main(command)
        assert "outside" in "".join(capsys.readouterr()), command
    assert [p.name for p in tmp_path.iterdir()] == ["sent"]
