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

PROJECT = """# A Flower app: `flwr run` takes it from here. Its code is turnout, installed on server and devices.
[project]
name = "turnout-app"
version = "1.0.0"
description = "Federated training with turnout"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "turnout"

[tool.flwr.app.components]
serverapp = "turnout.deploy.apps:server_app"
clientapp = "turnout.deploy.apps:client_app"

[tool.flwr.app.config]
experiment = "{experiment}"
out = "{out}"
keys = "{keys}"
"""

DEVICE = """# A device: turnout device run device.toml
experiment = "experiment.toml"     # the server's own file: model, algorithm, task and seed must be the same
client = "0"                       # a name of its own; its number, if the data numbers its clients
superlink = "127.0.0.1:8000"       # the server's address
folder = "device"                  # where it keeps its rows

# With TLS and a key of its own (certificates.sh makes both):
# root = "certificates/ca.crt"
# key = "certificates/device.key"

# Its own data, if it is not the experiment's world.data:
# [data]
# kind = "table"
# path = "mine.csv"
# label = "outcome"                # the column to predict
# clients = 1                      # all rows are this device's; labels and columns are those of the experiment

[policy]                           # when it works
least_battery = 0.0                # not with less of its battery than this part, unless it is charging
only_charging = false
unmetered = false                  # not on a metered network
quiet = ""                         # hours in which it does not work, such as "22-7"
"""

CERTIFICATES = """#!/bin/sh
# Certificates for TLS and keys for devices, with openssl and ssh-keygen.
#   sh certificates.sh server HOST [HOST ...]   an authority, and the server's certificate for these names or addresses
#   sh certificates.sh device NAME              a device's keys: NAME.key stays on it, NAME.key.pub goes to the server
set -e
mkdir -p certificates
cd certificates
case "$1" in
server)
    shift
    names=""
    for host in "$@" localhost 127.0.0.1; do
        case "$host" in *[!0-9.]*) names="$names,DNS:$host" ;; *) names="$names,IP:$host" ;; esac
    done
    [ -f ca.key ] || openssl req -x509 -newkey rsa:4096 -nodes -days 3650 -subj "/CN=turnout authority" \\
        -keyout ca.key -out ca.crt 2>/dev/null
    openssl req -newkey rsa:4096 -nodes -subj "/CN=turnout server" -keyout server.key -out server.csr 2>/dev/null
    printf 'subjectAltName=%s\\n' "${names#,}" > server.ext
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile server.ext \\
        -out server.crt 2>/dev/null
    rm -f server.csr server.ext
    echo "certificates/ca.crt goes to every device; server.crt and server.key stay here" ;;
device)
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$2" -f "$2.key"
    echo "certificates/$2.key stays on the device; certificates/$2.key.pub goes to the server" ;;
*)
    echo "sh certificates.sh server HOST ... | device NAME"
    exit 2 ;;
esac
"""

UNIT = """# Python and folder are those of the machine this was written on. With TLS, the server's command also needs
# --host 0.0.0.0 --certificates {folder}/certificates.
[Unit]
Description=turnout {what}
After=network-online.target

[Service]
WorkingDirectory={folder}
ExecStart={command}
Restart=on-failure
RestartSec=5
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

[Install]
WantedBy=multi-user.target
"""


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
