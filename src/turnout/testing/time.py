"""Checks of simulated time: devices, and how rounds are closed."""

from __future__ import annotations

import torch

from turnout.parts.closing import Closing, close
from turnout.testing.examples import checkpointed, copied, example_enrolment, expect, unchanged
from turnout.world.devices import Devices
from turnout.world.enrolment import tied

ROUNDS = 4


def check_devices(devices: Devices, clients: int = 40) -> None:
    """Promises of devices: finite speeds above 0 in float64, tiers that have a name, addressed: any order of rounds
    gives the same numbers, and so does any company."""
    devices = tied(devices, example_enrolment(clients), ROUNDS, "check_devices")
    client_C, some_c = torch.arange(clients), torch.arange(1, clients, 3)
    first = [devices.draw(client_C, t, 0) for t in range(ROUNDS)]
    for t in (3, 1, 0, 2):
        again, some = devices.draw(client_C, t, 0), devices.draw(some_c, t, 0)
        for name in ("compute_C", "down_C", "up_C", "latency_C"):
            value_C = getattr(again, name)
            expect(value_C.shape == client_C.shape, f"draw: {name} has one number a client, not {tuple(value_C.shape)}")
            expect(value_C.dtype == torch.float64, f"draw: {name} in float64, not {value_C.dtype}")
            lowest = 0 if name == "latency_C" else torch.finfo(torch.float64).tiny
            right = bool((torch.isfinite(value_C) & (value_C >= lowest)).all())
            expect(right, f"draw: {name} is finite and above 0, round {t} has {value_C.tolist()[:3]}")
            expect(torch.equal(value_C, getattr(first[t], name)), f"draw: round {t} must not depend on earlier draws")
            expect(torch.equal(getattr(some, name), value_C[some_c]), f"draw: in round {t} a device knows its company")
        known = bool(((again.tier_C >= 0) & (again.tier_C < len(devices.tiers))).all())
        expect(known, f"draw: a tier is a place in tiers, which has {len(devices.tiers)}")
    on_C = devices.on_for(client_C, 1000.0, 0)
    expect(on_C.dtype == torch.float64 and bool((on_C >= 0).all()), "on_for: seconds in float64, 0 or more")
    expect(torch.equal(devices.on_for(some_c, 1000.0, 0), on_C[some_c]), "on_for: a device depends on its company")


def check_closing(closing: Closing) -> None:
    """Promises of a closing: a round ends at a finite time, not after its limit, whoever is there; a reply of this
    round counts in full and an older one never more than a newer one; a checkpoint can hold what it remembers."""
    state = checkpointed(closing.begin(), "begin")
    for arrivals in ([3.0, 9.0, 5.0], [torch.inf, 4.0], [torch.inf], []):
        limit, arrival_C = closing.limit(state), torch.tensor(arrivals, dtype=torch.float64)
        enough = closing.enough(len(arrivals))
        most = len(arrivals)
        expect(min(1, most) <= enough <= most, f"enough: {enough} replies of {most} clients that are asked")
        closes, in_time_C = close(arrival_C, limit, enough)
        expect(0 <= closes < float("inf") and closes <= limit, f"limit: {closes} s for arrivals {arrivals}, by {limit}")
        expect(int(in_time_C.sum()) <= enough, f"enough: {int(in_time_C.sum())} replies in time, {enough} are enough")
        before = copied(state)
        after = checkpointed(closing.observe(state, arrival_C[torch.isfinite(arrival_C)]), "observe")
        expect(unchanged(state, before), "observe: must not write into what it was given")
        state = after
    factor_R = closing.discount(torch.arange(5))
    expect(float(factor_R[0]) == 1, f"discount: a reply of this round counts 1, not {float(factor_R[0])}")
    falling = bool((factor_R[1:] <= factor_R[:-1]).all()) and bool((factor_R > 0).all())
    expect(falling, f"discount: above 0 and not rising with age: {factor_R.tolist()}")
