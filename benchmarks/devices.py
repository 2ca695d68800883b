"""A SuperLink with many warm devices, a fifth of which are killed every round: does training go on, does memory grow?

    python benchmarks/devices.py --devices 200 --rounds 50
    python benchmarks/devices.py --devices 20 --together 20 --kill 0 --close 1 --look 0.2 --rounds 9 --sums secure

Devices are threads of a few processes; every round some of the processes are killed without warning and started again.
The algorithm is SCAFFOLD, whose rows are on the devices' disks. Printed: seconds a round, the memory of the server and
of the SuperLink, and the seconds of CPU that they and the devices have used so far; in the end how many answered,
whether the rows of all clients are there and can be read, and the CPU that a device's turn in a round took (asked and
answered), the first round left out. With `--sums` it is FedAvg, by plain, secure or private sums.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

import turnout as to
from turnout.deploy.app import server_project
from turnout.deploy.processes import Process, ServerPlace, Serving, device_process, free_port
from turnout.deploy.settings import Flower
from turnout.machine.checksums import load_tensors
from turnout.running.config.read import to_toml
from turnout.running.loop import run_id
from turnout.running.records.records import Records
from turnout.types import unflatten


def experiment(devices: int, rounds: int, seconds: float, close_at: float, sums: str | None) -> to.Experiment:
    local = to.Local(to.SGD(lr=0.05), epochs=1, batch_size=4)
    secure = to.SecureSum(least=max(2, devices // 2)) if sums in ("secure", "private") else None
    private = to.Private(1.0, n0=devices, delta=1e-3, noise_multiplier=1.0) if sums == "private" else None
    fedavg = to.Algorithm(local, membership=to.Membership(join="vanilla"), secure=secure, privacy=private)
    return to.Experiment(
        world=to.World(to.data.Digits(clients=devices)),
        model=to.models.MLP(32),
        algorithm=fedavg if sums else to.Algorithm(local, terms=[to.terms.Scaffold()]),
        rounds=rounds,
        evaluate=to.Evaluate(every=10),
        runtime=Flower(
            clients=devices, start_with=int(0.9 * devices), least=devices // 2, server_data=True, close_at=close_at,
            round_seconds=seconds, request_seconds=seconds / 2,
        ),
    )  # fmt: skip


class Load:
    """The processes in a folder."""

    def __init__(
        self, folder: Path, devices: int, together: int, given: to.Experiment, look: float, in_memory: bool, stock: bool
    ):
        self.folder, self.out, port = folder, folder / "run", free_port()
        (folder / "app").mkdir(parents=True)
        (folder / "experiment.toml").write_text(to_toml(given))
        (folder / "app" / "pyproject.toml").write_text(server_project(folder / "experiment.toml", self.out))
        place = ServerPlace(folder / "app", folder / "server", port=port, in_memory=in_memory, shortcuts=not stock)
        self.serving = Serving(place, folder / "experiment.toml", self.out, say=lambda words: None)
        files = [self.device(i, port, look) for i in range(devices)]
        parts = [files[i : i + together] for i in range(0, devices, together)]
        self.processes = [device_process(part, folder / f"{part[0].stem}.log", shortcuts=True) for part in parts]
        self.buried = 0.0  # seconds of CPU of devices that were killed
        self.cpu: dict[int, dict[str, float]] = {}  # by rounds done, seconds of CPU so far

    def device(self, i: int, port: int, look: float) -> Path:
        path = self.folder / f"device-{i}.toml"
        path.write_text(
            f'experiment = "experiment.toml"\nclient = "{i}"\nsuperlink = "127.0.0.1:{port}"\n'
            f'folder = "disk/{i}"\nlook = {look}\n'
        )
        return path

    def used(self) -> str:
        """What the server's process and the SuperLink hold and have worked so far."""
        superlink = self.serving.superlink
        link = superlink.popen.pid if superlink and superlink.popen else None
        processes = {"server": self.serving.pid(), "SuperLink": link}
        alive = sum(worked(process.popen.pid) for process in self.processes if process.popen and process.runs)
        cpu = {name: worked(pid) for name, pid in processes.items()} | {"devices": self.buried + alive}
        self.cpu[self.serving.rounds_done()] = cpu
        held = ", ".join(f"{name} {resident(pid):.0f} MB {cpu[name]:.0f} s" for name, pid in processes.items())
        return f"{held}, devices {cpu['devices']:.0f} s"

    def kill(self, process: Process) -> None:
        """Kill some devices; what they have worked is remembered."""
        self.buried += worked(process.popen.pid) if process.popen and process.runs else 0.0
        process.kill()

    def whole(self) -> tuple[int, int]:
        """Clients whose replies were used, and those of them whose rows are there and are numbers."""
        files = sorted((self.out / "clients").glob("enrolled-*.safetensors"), key=lambda file: file.stat().st_mtime)
        if not files:
            return 0, 0  # it was ended before the first checkpoint
        clients, good = unflatten(*load_tensors(files[-1], "measure again")), 0
        run = run_id(self.out)
        used = {client["name"]: client["used"] for client in clients.values() if client["used"] >= 0}
        for name, t in used.items():
            rows = load_file(self.folder / "disk" / name / "rows" / run / f"{t:07d}.safetensors")
            good += all(bool(np.isfinite(value.numpy()).all()) for value in rows.values())
        return len(used), good


def resident(pid: int | None) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def worked(pid: int | None) -> float:
    """Seconds of CPU."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def play(load: Load, kill: float, limit: float) -> None:
    """Until the last round, or the limit: after each round, kill some processes and start those killed before."""
    chance, dead, outbox, until = random.Random(0), list[Process](), 0, time.monotonic() + limit
    load.serving.start()
    for process in load.processes:
        process.start()
    began = time.monotonic()
    while not load.serving.watch() and time.monotonic() < until:
        if load.serving.rounds_done() > outbox:
            outbox = load.serving.rounds_done()
            print(f"round {outbox - 1}: {time.monotonic() - began:6.1f} s, {load.used()}", flush=True)
            for process in dead:
                process.start()
            dead = chance.sample(load.processes, round(kill * len(load.processes)))
            for process in dead:
                load.kill(process)
            began = time.monotonic()
        time.sleep(0.2)


def report(load: Load, rows: bool) -> None:
    """How many answered, how good the model is, and whether all rows are whole."""
    with Records.read(load.out / "records.sqlite") as records:
        answered, evaluated = records.column("answered"), "global_accuracy" in records.metrics()
        seconds, sent = records.column("seconds"), records.column("bytes_up")
        accuracy = records.curve("global_accuracy")[1] if evaluated else []
    if not len(answered):
        print("no round ended within the limit")
        return
    print(
        f"{len(answered)} rounds, answered {min(answered)} to {max(answered)}, accuracy",
        *(f"{a:.3f}" for a in accuracy),
    )
    if rows:
        used, good = load.whole()
        print(f"{used} clients have rows, {good} of them are whole")
    print(f"median round {np.median(seconds[1:]):.2f} s, {sent.sum() / answered.sum():.0f} bytes from a device")
    first, last = min(load.cpu, default=0), max(load.cpu, default=0)
    if turns := sum(answered[first:last]):
        spent = {name: 1000 * (seconds - load.cpu[first][name]) / turns for name, seconds in load.cpu[last].items()}
        print("ms of CPU for a device's turn:", ", ".join(f"{name} {ms:.0f}" for name, ms in spent.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--together", type=int, default=10, help="devices in a process")
    parser.add_argument("--kill", type=float, default=0.2, help="part of the processes that is killed every round")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most a round")
    parser.add_argument("--close", type=float, default=0.75, help="part of those who accepted that closes a round")
    parser.add_argument("--look", type=float, default=1.0, help="seconds between two looks of a device")
    parser.add_argument("--in-memory", action="store_true", help="the SuperLink keeps nothing on disk")
    parser.add_argument("--stock", action="store_true", help="the SuperLink as Flower starts it, for comparison")
    parser.add_argument("--sums", choices=["plain", "secure", "private"], help="FedAvg by such sums")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which it ends, in any round")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended too
    with tempfile.TemporaryDirectory() as folder:
        given = experiment(asked.devices, asked.rounds, asked.seconds, asked.close, asked.sums)
        load = Load(Path(folder), asked.devices, asked.together, given, asked.look, asked.in_memory, asked.stock)
        try:
            play(load, asked.kill, asked.limit)
        finally:
            for process in load.processes:
                process.kill()
            load.serving.stop()
        report(load, rows=asked.sums is None)


if __name__ == "__main__":
    main()
