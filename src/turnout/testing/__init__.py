"""Public conformance checks of the promises of each role, for parts of your own.

    from turnout.testing import check_weighting
    check_weighting(MyWeighting())

A check raises AssertionError with the promise that is broken and the numbers that break it. `CHECKS` has the check of
each role.

examples.py   example rounds, and promises that all parts with a state share
world.py      participation, events, attacks, devices, selection; data, partitions, sizes, models, tasks
clients.py    optimizers, schedules, compression, terms of the gradient
server.py     weighting, aggregation, server step, substitution, mixing, closing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from turnout.testing.clients import check_compression, check_optimizer, check_schedule, check_term
from turnout.testing.examples import example_applied as example_applied
from turnout.testing.examples import example_turnouts as example_turnouts
from turnout.testing.server import (
    check_aggregation,
    check_closing,
    check_mixing,
    check_server_step,
    check_substitution,
    check_weighting,
)
from turnout.testing.world import (
    check_attack,
    check_data,
    check_devices,
    check_events,
    check_model,
    check_participation,
    check_partition,
    check_selection,
    check_sizes,
    check_task,
)

_every: list[Callable[..., None]] = [
    check_data, check_partition, check_sizes, check_participation, check_events, check_devices, check_attack,
    check_model, check_task, check_selection, check_optimizer, check_schedule, check_term, check_mixing,
    check_compression, check_substitution, check_weighting, check_aggregation, check_server_step, check_closing,
]  # fmt: skip
# Which check a part of a role must pass: the role is the type of the check's first argument.
CHECKS: dict[type, Callable[[Any], None]] = {next(iter(get_type_hints(check).values())): check for check in _every}
