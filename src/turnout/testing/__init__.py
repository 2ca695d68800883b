"""Public conformance checks of the promises of each role, for parts of your own.

    from turnout.testing import check_weighting
    check_weighting(MyWeighting())

A check raises AssertionError with the promise that is broken and the numbers that break it. `CHECKS` has the check of
each role.

examples.py   example rounds, and promises that all parts with a state share
world.py      participation, events, attacks, devices, selection
data.py       data, partitions, sizes, models, tasks
clients.py    optimizers, schedules, compression
terms.py      terms of the gradient
server.py     weighting, aggregation, server step, substitution, mixing, closing
parity.py     the same experiment on different runtimes (`turnout parity`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnout.data.federation import DataSpec
from turnout.data.partition import Partition
from turnout.data.sizes import Sizes
from turnout.models.layers import ModelSpec
from turnout.parts.aggregation import Aggregation
from turnout.parts.closing import Closing
from turnout.parts.compression.base import Compression
from turnout.parts.mixing import Mixing
from turnout.parts.optimizers import Optimizer
from turnout.parts.schedules import Schedule
from turnout.parts.selection import Selection
from turnout.parts.server import ServerStep
from turnout.parts.substitution.base import Substitution
from turnout.parts.terms.base import Term
from turnout.parts.weighting import Weighting
from turnout.tasks import TaskSpec
from turnout.testing.clients import check_compression, check_optimizer, check_schedule
from turnout.testing.data import check_data, check_model, check_partition, check_sizes, check_task
from turnout.testing.examples import example_applied, example_turnouts
from turnout.testing.server import (
    check_aggregation,
    check_closing,
    check_mixing,
    check_server_step,
    check_substitution,
    check_weighting,
)
from turnout.testing.terms import check_term
from turnout.testing.world import (
    check_attack,
    check_devices,
    check_events,
    check_participation,
    check_selection,
)
from turnout.world.attacks import Attack
from turnout.world.devices import Devices
from turnout.world.events import Events
from turnout.world.participation import Participation

__all__ = [
    "CHECKS",
    "check_aggregation",
    "check_attack",
    "check_closing",
    "check_compression",
    "check_data",
    "check_devices",
    "check_events",
    "check_mixing",
    "check_model",
    "check_optimizer",
    "check_participation",
    "check_partition",
    "check_schedule",
    "check_selection",
    "check_server_step",
    "check_sizes",
    "check_substitution",
    "check_task",
    "check_term",
    "check_weighting",
    "example_applied",
    "example_turnouts",
]

# Which check a part of a role must pass.
CHECKS: dict[type, Callable[[Any], None]] = {
    DataSpec: check_data,
    Partition: check_partition,
    Sizes: check_sizes,
    Participation: check_participation,
    Events: check_events,
    Devices: check_devices,
    Attack: check_attack,
    ModelSpec: check_model,
    TaskSpec: check_task,
    Selection: check_selection,
    Optimizer: check_optimizer,
    Schedule: check_schedule,
    Term: check_term,
    Mixing: check_mixing,
    Compression: check_compression,
    Substitution: check_substitution,
    Weighting: check_weighting,
    Aggregation: check_aggregation,
    ServerStep: check_server_step,
    Closing: check_closing,
}
