"""Questions beside work: what devices measure, and the gradient of their data.

Shape letters: C clients of the cohort, P shared parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnout.deploy.flower.devices import Devices
from turnout.deploy.flower.enrolled import Client
from turnout.deploy.flower.mailbox import Heard
from turnout.deploy.flower.messages import COMMON, OWN, REPLY, question
from turnout.exchange import Measure, Measured
from turnout.runtimes import border, wire
from turnout.runtimes.clients import ClientPool
from turnout.runtimes.schema import Refused
from turnout.tasks import TaskSpec
from turnout.types import Tensors


def gradient(
    devices: Devices, shared_P: Tensor, states: Tensors, client_C: Tensor, share_C: Tensor, t: int
) -> Tensor | None:
    """The mean gradient of those who answer; None where nobody does."""
    clients = [devices.enrolled[c] for c in client_C.tolist()]
    common = wire.pack({"shared": shared_P, "states": states, "t": t})
    parts = {c.number: question("gradient", c.standing(devices.run)) | {COMMON: common} for c in clients}
    total_P, mass = torch.zeros_like(shared_P), 0.0
    found = devices.survey("gradient", clients, parts, lambda c, heard: border.gradient(heard.parts[REPLY], shared_P))
    for c, share in zip(client_C.tolist(), share_C.tolist(), strict=True):
        if c in found:
            total_P, mass = total_P + share * found[c], mass + share
    return total_P / mass if mass else None


def measure(devices: Devices, tester: ClientPool | None, task: TaskSpec, asked: Measure) -> Measured:
    """The one model on the server's own test data where it has some, else on devices; clients' own on theirs."""
    central = {} if tester is None else tester.measure(replace(asked, common=False, own=False)).central
    elsewhere = bool(asked.central) and tester is None
    if not (asked.common or asked.own or elsewhere):
        return Measured(central)
    client_C = asked.client_C
    if elsewhere:
        client_C = torch.tensor([c.number for c in devices.enrolled.members()], dtype=torch.int64)
    found = _measured(devices, task, replace(asked, central={}, common=asked.common or elsewhere), client_C)
    common, own = (
        _columns(client_C, {c: getattr(m, name) for c, (m, _) in found.items()}) for name in ("common", "own")
    )
    if elsewhere:
        tested_C = torch.tensor([float(found[c][1]) if c in found else 0.0 for c in client_C.tolist()])
        central = {"global": _pooled(common, tested_C)}
    keep = torch.isin(client_C, asked.client_C)
    common, own = ({n: v[keep] for n, v in values.items()} for values in (common, own))
    return Measured(central, common if asked.common else {}, own)


def _measured(devices: Devices, task: TaskSpec, asked: Measure, client_C: Tensor) -> dict[int, tuple[Measured, int]]:
    """What each client has measured, and on how many samples: no more than it enrolled with count."""
    clients, parts = [devices.enrolled[c] for c in client_C.tolist()], {}
    for client in clients:
        tree = wire.measure_tree(asked, torch.tensor([client.number]))
        common = {name: tree.pop(name) for name in ("t", "shared", "states", "central", "common", "own")}
        parts[client.number] = question("measure", client.standing(devices.run)) | {
            COMMON: wire.pack(common), OWN: wire.pack(tree),
        }  # fmt: skip

    def read(client: Client, heard: Heard) -> tuple[Measured, int]:
        if not heard.head.get("tested"):
            raise Refused("it does not say on how many samples it has tested")
        found = border.measured(heard.parts[REPLY], task, asked.common, asked.own)
        return found, min(heard.head["tested"], client.examples)

    return devices.survey("measure", clients, parts, read)


def _columns(client_C: Tensor, rows: dict[int, Tensors]) -> Tensors:
    """Metrics of some clients, NaN for those who have said nothing."""
    names = sorted({name for values in rows.values() for name in values})
    blank = torch.tensor([torch.nan], dtype=torch.float64)
    return {n: torch.cat([rows.get(c, {}).get(n, blank).double() for c in client_C.tolist()]) for n in names}


def _pooled(values: Tensors, tested_C: Tensor) -> dict[str, float]:
    """Means over all tested samples."""
    found = {}
    for name, value_C in values.items():
        heard_C = ~torch.isnan(value_C) & (tested_C > 0)
        if bool(heard_C.any()):
            weight_C = tested_C[heard_C].double()
            found[name] = float((value_C[heard_C] * weight_C).sum() / weight_C.sum())
    return found
