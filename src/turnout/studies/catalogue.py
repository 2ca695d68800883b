"""All studies by name, in the order of the papers."""

from __future__ import annotations

from turnout.errors import Mistake, nearest
from turnout.studies import (
    activations,
    adam,
    arrivals,
    bias,
    bmta,
    bytes,
    departures,
    elastic,
    friend_cost,
    friend_discovery,
    friends,
    gradients,
    labels,
    low_participation,
    noniid,
    participation,
    personal,
    together,
)
from turnout.studies.study import Study

PAPERS = (
    (participation, bias, arrivals, departures),  # 000
    (elastic, noniid, low_participation, bmta, bytes),  # 001
    (labels,),  # 002
    (friends, friend_discovery, friend_cost),  # 003
    (adam, personal, gradients, activations),  # 004
    (together,),  # all of them
)
STUDIES = {module.STUDY.name: module.STUDY for modules in PAPERS for module in modules}


def find_study(name: str) -> Study:
    if not isinstance(name, str) or name not in STUDIES:
        raise Mistake(f"there is no study {name!r}: {nearest(name, STUDIES)}")
    return STUDIES[name]
