"""The methods of all papers in one round, in a harsh world: label skew, traces, absences, joins and leaves.

Clients come in clusters with classes of their own. They go up and down for rounds on end; a client that is up finishes
what its trace says, sometimes nothing. Two join late and two leave. A variant is a choice of pieces:

    B            scheme B instead of A: unfinished work counts as it is
    C            scheme C instead: it is scaled up                        flexible
    fast-reboot  a newcomer's share weighs more at first                  flexible
    elastic      the Fisher term, its largest entries every five rounds   EFL
    ternary      sparse ternary messages, both ways                       EFL
    friends      a missing share goes to the most similar client present  FDMS
    personal     BatchNorm layers stay home, their average is shared      MTFL

`baselines` has the methods that the papers compare with, in one world: two classes a client, some clients away.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Any

import turnout as to
import turnout.models as models
from turnout import SGD, Algorithm, Evaluate, Experiment, Join, Leave, Local, Membership, World
from turnout.data import CIFAR10, MNIST, Digits
from turnout.data.partition import Classes, Clustered
from turnout.experiment import DataSpec, Model
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, FedAvg, FedNova
from turnout.world.participation import Dropout, OnOff, Traces
from turnout_papers.recipes import ONE_CORE, on_one_core

PAPERS = {
    "flexible": ("C", "fast-reboot"),
    "EFL": ("C", "elastic", "ternary"),
    "FDMS": ("B", "friends"),  # the last two say nothing of unfinished work
    "MTFL": ("B", "personal"),
}
PIECES = ("C", "fast-reboot", "elastic", "ternary", "friends", "personal")
PLAIN, ALL = "plain", "all"
AMP, MU = (
    to.mixing.FedAMP(alpha=0.1, sigma=1.0),
    1.0,
)  # λ = 0.1: with η = 0.05 ten local steps undo 40 % of a distance to u_k
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"weighting": FedAvg()},
    "FedProx": {"terms": (to.terms.Proximal(mu=0.2),)},
    "FedNova": {"weighting": FedNova()},
    "SCAFFOLD": {"terms": (to.terms.Scaffold(),)},
    "FedGATE": {"terms": (to.terms.FedGATE(),)},
    "VRL-SGD": {"terms": (to.terms.VRLSGD(),)},
    "MimeLite": {"terms": (to.terms.MimeLite(),)},
    "APFL": {"terms": (to.terms.APFL(),)},
    "FedAMP": {"mixing": AMP, "terms": (to.terms.Proximal(mu=MU),)},
}


def all_but(*pieces: str) -> str:
    return f"{ALL} but {' and '.join(pieces)}"


def together(clients: int = 30, rounds: int = 60, keep: float = 0.05) -> dict[str, Experiment]:
    """Scheme A alone, each paper's method, in pairs, and all together, on the embedded digits; without downloads."""
    data = Digits(clients=clients, partition=Clustered(), test_share=0.3)
    local = Local(SGD(lr=0.1), epochs=5, batch_size=10)
    return on_one_core(variants(world(data, clients, rounds), models.MLP(50, batch_norm=True), local, keep, rounds))


def mnist_together(clients: int = 100, rounds: int = 200, keep: float = 0.01) -> dict[str, Experiment]:
    """The same on MNIST with the 2NN of MTFL; a round's work is 20 mini-batches."""
    data = MNIST(clients=clients, partition=Clustered(), local_test="official")
    model, local = models.MLP(200, 200, batch_norm=True), Local(SGD(lr=0.05), steps=20, batch_size=20)
    return variants(world(data, clients, rounds), model, local, keep, rounds)


def cifar_together(clients: int = 50, rounds: int = 120, keep: float = 0.01) -> dict[str, Experiment]:
    """The same on CIFAR-10 with the CNN of MTFL."""
    data = CIFAR10(clients=clients, partition=Clustered(), local_test="official")
    local = Local(SGD(lr=0.05), steps=20, batch_size=20)
    return variants(world(data, clients, rounds), models.mtfl_cifar_cnn(), local, keep, rounds)


def world(data: DataSpec, clients: int, rounds: int) -> World:
    """The first of the third cluster joins after a third of the rounds, the last of all soon after; two leave."""
    middle, last = clients // 2, clients - 1
    joins = (Join(middle, rounds // 3), Join(last, rounds // 3 + max(1, rounds // 20)))
    leaves = (Leave(1, rounds // 2), Leave(middle - 2, 2 * rounds // 3))
    return World(data, OnOff(4.0, 2.0, when_up=Traces(first=8)), (*joins, *leaves))


def variants(world: World, model: Model, local: Local, keep: float, rounds: int) -> dict[str, Experiment]:
    """Schemes A and B, one method, two, all; and all but some pieces (without C it is scheme B)."""
    plain = Experiment(
        world,
        model,
        Algorithm(
            local,
            weighting=CompleteOnly(),
            membership=Membership(join="vanilla"),
            nonfinite="absent",
        ),
        rounds=rounds,
        evaluate=Evaluate(every=max(1, rounds // 60), personal=True),
    )
    chosen: dict[str, Collection[str]] = {PLAIN: (), f"{PLAIN} B": ("B",), **PAPERS}
    chosen |= {f"{a}+{b}": {*PAPERS[a], *PAPERS[b]} for a, b in combinations(PAPERS, 2)}
    without = [(piece,) for piece in PIECES] + [("elastic", "ternary")]
    chosen |= {ALL: PIECES} | {all_but(*out): {"B", *PIECES} - {*out} for out in without}
    return {name: plain.but(**changes(pieces, keep)) for name, pieces in chosen.items()}


def changes(pieces: Collection[str], keep: float) -> dict[str, Any]:
    """The settings that some pieces stand for."""
    fisher = to.terms.Elastic(0.03, samples=16, reduce="mean", fisher_every=5, fisher_keep=keep)
    settings: dict[str, dict[str, Any]] = {
        "B": {"algorithm.weighting": ByShare()},
        "C": {"algorithm.weighting": ByWork()},
        "fast-reboot": {"algorithm.membership.join": "fast-reboot"},
        "elastic": {"algorithm.terms": (fisher,)},
        "ternary": {"algorithm.compression": to.compression.SparseTernary(keep)},
        "friends": {"algorithm.substitution": to.substitution.Friends()},
        "personal": {
            "algorithm.personal": to.personal.batch_norm,
            "algorithm.share_personal": True,
            "algorithm.newcomers": "average",
        },
    }
    return {path: value for piece in settings if piece in pieces for path, value in settings[piece].items()}


def baselines(clients: int = 20, classes: int = 2, away: float = 0.3, rounds: int = 60) -> dict[str, Experiment]:
    """FedAvg, FedProx, FedNova, SCAFFOLD, FedGATE, VRL-SGD, MimeLite, APFL and FedAMP on the embedded digits."""
    return {
        name: Experiment(
            world=World(Digits(clients=clients, partition=Classes(per_client=classes)), Dropout(away)),
            model=models.MLP(32),
            algorithm=Algorithm(local=Local(SGD(lr=0.05), steps=10, batch_size=10), **parts),
            rounds=rounds,
            evaluate=Evaluate(personal=True),
            runtime=ONE_CORE,
        )
        for name, parts in METHODS.items()
    }
