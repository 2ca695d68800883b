"""A method as a strategy for Flower's own API: devices run there without Turnout (templates/flower_strategy.py)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w

from turnout.deploy.app import template
from turnout.errors import UserError
from turnout.experiment import Algorithm, Experiment
from turnout.machine.files import write_whole
from turnout.parts.closing import Deadline, WaitForAll
from turnout.parts.optimizers import SGD
from turnout.parts.schedules import Constant
from turnout.parts.selection import Count, Fraction
from turnout.parts.substitution.base import NoSubstitution, Stale
from turnout.parts.substitution.friends import Friends
from turnout.parts.terms.baselines import Proximal
from turnout.parts.weighting import ByShare, ByWork, CompleteOnly, FedAvg, FedNova

STRATEGY, SETTINGS = "strategy.py", "settings.toml"
WEIGHTINGS = {FedAvg: "fedavg", CompleteOnly: "A", ByShare: "B", ByWork: "C", FedNova: "fednova"}
SUBSTITUTIONS: dict[type, str] = {NoSubstitution: "none", Friends: "friends", Stale: "stale"}
SAME = ("local", "shares", "weighting", "substitution", "terms", "selection", "closing", "nonfinite")  # can be exported
OTHERWISE = "turnout export --flower-app, or turnout deploy init, run it with Turnout on the devices"


def strategy_settings(experiment: Experiment, round_seconds: float = 3600.0) -> dict[str, Any]:
    """The settings of the strategy; an error says why a method has none."""
    algorithm, plain = experiment.algorithm, Algorithm()
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"only methods that federate weights can be a strategy of Flower's; {OTHERWISE}")
    names = [f.name for f in fields(plain) if f.name not in SAME]
    other = [name for name in names if getattr(algorithm, name) != getattr(plain, name)]
    terms = [type(term).__name__ for term in algorithm.terms if not isinstance(term, Proximal)]
    if other or terms:
        what = f"algorithm.{other[0]}" if other else terms[0]
        raise UserError(f"{what} needs code on the devices, which a strategy of Flower's does not bring: {OTHERWISE}")
    for role, known in (("weighting", WEIGHTINGS), ("substitution", SUBSTITUTIONS)):
        part = getattr(algorithm, role)
        if type(part) not in known or part != type(part)():
            raise UserError(f"algorithm.{role} = {part} has no form as a strategy of Flower's: {OTHERWISE}")
    local, closing = algorithm.local, algorithm.closing
    if not isinstance(local.optimizer, SGD) or algorithm.shares.by != "samples":
        raise UserError(f"a strategy of Flower's is written for SGD and shares by samples: {OTHERWISE}")
    if isinstance(closing, Deadline):
        round_seconds = closing.seconds
    elif type(closing) is not WaitForAll:
        raise UserError(f"Flower closes a round after all replies or a time, not as {closing} says: {OTHERWISE}")
    rate = [local.schedule.rate(local.optimizer.lr, t) for t in range(experiment.rounds)]
    work = {"local-epochs": local.full_work} if local.steps is None else {"local-steps": local.steps}
    options = {"momentum": local.optimizer.momentum, "weight-decay": local.optimizer.weight_decay,
               "proximal-mu": sum(t.mu for t in algorithm.terms if isinstance(t, Proximal))}  # fmt: skip
    selection = algorithm.selection
    ask: dict[str, Any] = {"share": selection.share if isinstance(selection, Fraction) else 1.0}
    if isinstance(selection, Count):
        ask = {"count": selection.clients}
    return {
        "rounds": experiment.rounds,
        "round-seconds": round_seconds,
        "ask": {**ask, "least-connected": ask.get("count", 2)},
        "rule": {
            "weighting": WEIGHTINGS[type(algorithm.weighting)],
            "substitution": SUBSTITUTIONS[type(algorithm.substitution)],
        },
        "train": {
            "lr": rate[0] if isinstance(local.schedule, Constant) else rate,
            "batch-size": local.batch_size,
            **work,
            **{name: value for name, value in options.items() if value},
        },
    }


def write_strategy(folder: Path, experiment: Experiment, round_seconds: float, about: str) -> list[Path]:
    """Write the strategy and its settings into a folder; `about`: a line at the top of the settings."""
    settings = strategy_settings(experiment, round_seconds)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / STRATEGY, template("flower_strategy.py"))
    write_whole(folder / SETTINGS, f"# {about}\n{tomli_w.dumps(settings)}")
    return [folder / STRATEGY, folder / SETTINGS]
