"""What `to.run` was given: experiments by name, and the seeds they are repeated with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment

Several = Sequence[Experiment] | Mapping[str, Experiment]
Given = Experiment | Several
Seeds = int | Sequence[int]


def named(given: Any) -> dict[str, Experiment]:
    """Experiments by name: a dict's own, else their titles, else their numbers."""
    if isinstance(given, Experiment):
        return {given.title or "run": given}
    if isinstance(given, Mapping):
        found = {str(name): experiment for name, experiment in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        found = {}
        for i, experiment in enumerate(given, 1):
            name = getattr(experiment, "title", "") or f"experiment {i}"
            if name in found:
                raise UserError(f"two experiments have the title {name!r}: give a dict, {{name: experiment}}")
            found[name] = experiment
    else:
        what = f"the {type(given).__name__} {given!r}"
        raise UserError(f"to.run was given {what}: give an Experiment (recipes are for `turnout run NAME`), or several")
    if not found:
        raise UserError("to.run was given no experiment: give one, a list of them, or a dict by name")
    for name, experiment in found.items():
        if not isinstance(experiment, Experiment):
            raise UserError(f"{name!r} is the {type(experiment).__name__} {experiment!r}: give an Experiment")
    return found


def tracked_by(variants: Mapping[str, Experiment], trackers: Sequence[str]) -> dict[str, Experiment]:
    """The experiments with these trackers too; they are settings, so that a resumed run goes on with them."""
    found = {}
    for name, experiment in variants.items():
        listed = tuple(dict.fromkeys([*experiment.track, *trackers]))
        found[name] = experiment.but(track=listed) if trackers else experiment
    return found


def seeds_of(variants: Mapping[str, Experiment], seeds: Any) -> Sequence[int] | None:
    """The seeds that every experiment is repeated with; None where each runs once with its own.

    >>> seeds_of({"a": Experiment(seed=3)}, 2), seeds_of({"a": Experiment()}, None)
    ([3, 4], None)
    """
    if seeds is None:
        return None
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        own = {experiment.seed for experiment in variants.values()}
        if seeds < 1:
            raise UserError(f"seeds={seeds}: give at least 1")
        if len(own) > 1:
            raise UserError(f"the experiments have different seeds of their own ({sorted(own)}): give seeds as a list")
        first = own.pop()
        return list(range(first, first + seeds))
    if isinstance(seeds, str) or not all(isinstance(seed, int) for seed in seeds) or not seeds:
        raise UserError(f"seeds is a number of seeds, or a list of them, not {seeds!r}")
    if twice := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
        raise UserError(f"the seed {twice[0]} is there twice")
    return list(seeds)
