"""Recipes of the papers, one module for each; every public function that makes experiments without arguments is one.

flexible.py   schemes A, B and C, arrivals, departures     Ruan, Zhang, Liang, Joe-Wong: Towards Flexible Device
                                                           Participation in Federated Learning
elastic.py    EFL: the elastic term, ternary messages      Ma, Lu, Lu, Li, Yi, Cui: Towards Heterogeneous Clients with
                                                           Elastic Federated Learning
labels.py     users with labels and models of their own    Gudur, Balaji, Kumar: Resource-Constrained Federated Learning
                                                           with Heterogeneous Labels and Models
friends.py    FDMS: friends stand in for missing clients   Wang, Xu: Combating Client Dropout in Federated Learning via
                                                           Friend Model Substitution
multitask.py  MTFL: personal BatchNorm, distributed Adam   Mills, Hu, Min: User-Oriented Multi-Task Federated Deep
                                                           Learning for Mobile Edge Computing
together.py   all of them in one round; the methods that they compare with
clock.py      fleets of devices, deadlines and asynchronous steps in simulated time
"""

from __future__ import annotations

from collections.abc import Mapping

from turnout.experiment import Experiment
from turnout.settings import InProcess

ONE_CORE = InProcess(device="cpu", threads=1)  # where tiny models are fastest


def on_one_core(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """The same experiments on one core of the CPU."""
    return {name: e.but(runtime=ONE_CORE) for name, e in experiments.items()}
