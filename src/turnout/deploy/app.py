"""Folders for Flower: the app that `turnout export --flower-app` writes, for any SuperLink, and what `turnout deploy
init` writes, for a server and devices of one's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from turnout.deploy.agreement import Agreeable
from turnout.deploy.settings import Flower
from turnout.errors import UserError
from turnout.experiment import Experiment, World
from turnout.machine.files import write_whole
from turnout.running.config.read import to_toml
from turnout.world.participation import Always

TEMPLATES = Path(__file__).parent / "templates"
MODULE = '''"""The ServerApp and the ClientApp of experiment.toml."""

from pathlib import Path

from turnout.deploy.apps import client_app_of, server_app_of

EXPERIMENT = Path(__file__).with_name("experiment.toml")
server_app = server_app_of(EXPERIMENT)
client_app = client_app_of(EXPERIMENT)
'''


def template(name: str, **words: object) -> str:
    """A template's text, with the words filled in."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return text.format(**words) if words else text


def server_project(experiment: Path, out: Path, keys: Path | str = "") -> str:
    """The pyproject.toml of an app whose experiment is a file of the server's machine."""
    return template("project.toml", module="turnout.deploy.apps", experiment=experiment, out=out, keys=keys)


def write_flower_app(folder: Path, experiment: Experiment) -> list[Path]:
    """Write an ordinary Flower app, which has the experiment in it, into a new folder."""
    files = {
        "pyproject.toml": template("project.toml", module="turnout_app", experiment="", out="", keys=""),
        "turnout_app.py": MODULE,
        "experiment.toml": to_toml(for_devices(experiment)),
    }
    return _written(folder, files)


def write_app(folder: Path, experiment: Experiment) -> list[Path]:
    """Write the files of a server and its devices into a new folder."""
    place = folder.absolute()
    files = {
        "app/pyproject.toml": server_project(place / "experiment.toml", place / "run", place / "devices"),
        "experiment.toml": to_toml(for_devices(experiment)),
        "device.toml": template("device.toml"),
        "certificates.sh": template("certificates.sh"),
    }
    commands = {"server": f"deploy server {place} --out {place}/run", "device": f"device run {place}/device.toml"}
    for what, words in commands.items():
        command = f"{sys.executable} -P -m turnout {words}"
        files[f"turnout-{what}.service"] = template("unit.service", what=what, folder=place, command=command)
    return _written(folder, files)


def _written(folder: Path, files: Mapping[str, str]) -> list[Path]:
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name a new folder")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return [folder / name for name in files]


def with_columns(experiment: Experiment) -> Experiment:
    """The experiment; on a table or on texts, with the labels, columns and words that all devices use."""
    data = experiment.world.data
    if not isinstance(data, Agreeable) or data.declared() is not None:
        return experiment
    return experiment.but(**{"world.data": data.fixed(experiment.seed)})


def for_devices(experiment: Experiment) -> Experiment:
    """The experiment on real devices: turnout, joins and leaves are observed, not drawn."""
    if isinstance(experiment.runtime, Flower):
        return experiment
    world = World(experiment.world.data, Always())
    given = getattr(experiment.world.data, "clients", None)
    clients = given if isinstance(given, int) and given > 0 else Flower().clients
    return experiment.but(world=world, runtime=Flower(clients=clients, compute=experiment.runtime.compute))
