"""The folder that `turnout deploy init` writes: a complete app, for the server and for devices."""

from __future__ import annotations

import sys
from pathlib import Path

from turnout.deploy.agreement import Agreeable
from turnout.deploy.settings import Flower
from turnout.errors import UserError
from turnout.experiment import Experiment, World
from turnout.machine.files import write_whole
from turnout.running.config.read import to_toml
from turnout.world.participation import Always

TEMPLATES = Path(__file__).parent / "templates"
PROJECT, DEVICE, CERTIFICATES, UNIT = (
    (TEMPLATES / name).read_text(encoding="utf-8")
    for name in ("project.toml", "device.toml", "certificates.sh", "unit.service")
)


def write_app(folder: Path, experiment: Experiment) -> list[Path]:
    """Write the files of an app into a new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.absolute()
    files = {
        "app/pyproject.toml": PROJECT.format(
            experiment=f"{place}/experiment.toml", out=f"{place}/run", keys=f"{place}/devices"
        ),
        "experiment.toml": to_toml(for_devices(experiment)),
        "device.toml": DEVICE,
        "certificates.sh": CERTIFICATES,
    }
    commands = {"server": f"deploy server {place} --out {place}/run", "device": f"device run {place}/device.toml"}
    for what, words in commands.items():
        command = f"{sys.executable} -m turnout {words}"
        files[f"turnout-{what}.service"] = UNIT.format(what=what, folder=place, command=command)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
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
