"""Recipes: functions that return complete experiments. `recipes()` finds them by their annotations: no registry.

first.py        a first experiment on the embedded digits: read this first
flexible.py     paper 000: schemes A, B and C, arrivals, departures
elastic.py      paper 001: the elastic term, ternary messages, scheme C
compression.py  paper 001: what messages cost in bytes
labels.py       paper 002: users with labels and models of their own
friends.py      paper 003: friends stand in for missing clients
multitask.py    paper 004: personal BatchNorm layers, distributed Adam
baselines.py    the methods that papers compare with
together.py     all papers in one round
clock.py        fleets of devices, deadlines and asynchronous steps in simulated time

May import settings of every kind (experiment, world, data, models, parts, runtimes, scores); nothing that runs or shows
an experiment.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import ModuleType

from turnout.errors import UserError, nearest
from turnout.experiment import Experiment

Recipe = Callable[..., Experiment | dict[str, Experiment]]
_RETURNS = ("Experiment", "dict[str, Experiment]", Experiment, dict[str, Experiment])


def recipes() -> dict[str, Recipe]:
    """The recipes by name: every public function of the modules here that makes experiments without arguments.

    >>> "participation" in recipes()
    True
    """
    found: dict[str, Recipe] = {}
    packages = [__name__, *(entry.value for entry in entry_points(group="turnout.recipes"))]
    for module in (module for package in packages for module in _modules(package)):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and _is_recipe(function):
                found[name.replace("_", "-")] = function
    return found


def _modules(package: str) -> list[ModuleType]:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return [importlib.import_module(f"{package}.{info.name}") for info in found]


def _is_recipe(function: Callable[..., object]) -> bool:
    """Whether a function is public, is annotated as returning experiments, and can be called without arguments."""
    if function.__name__.startswith("_") or function.__annotations__.get("return") not in _RETURNS:
        return False
    return all(p.default is not p.empty for p in inspect.signature(function).parameters.values())


def cook(name: str) -> dict[str, Experiment]:
    """The variants of a recipe by name, or by the dotted path `package.module:function` of one's own."""
    if ":" in name:
        from turnout.running.config.dotted import usual_code

        recipe, name = usual_code().named(name, "the recipe"), name.rpartition(":")[2]
    else:
        known = recipes()
        recipe = known.get(name.replace("_", "-"))
        if recipe is None:
            raise UserError(f"there is no recipe {name!r}, and no such file: {nearest(name, known)}")
    return variants_of(_made(recipe, name), name)


def _made(recipe: Recipe, name: str) -> object:
    """Call a recipe; an error in it is reported with its file and line, since recipes may be a user's own code."""
    try:
        return recipe()
    except UserError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"the recipe {name} failed in {place.filename}, line {place.lineno}: {why}") from error


def variants_of(made: object, name: str) -> dict[str, Experiment]:
    """The experiments that a recipe returned, by variant; a single experiment is the only variant."""
    if isinstance(made, Experiment):
        return {made.title or name: made}
    if isinstance(made, Mapping) and made and all(isinstance(e, Experiment) for e in made.values()):
        return {str(variant): experiment for variant, experiment in made.items()}
    raise UserError(f"the recipe {name} gave {type(made).__name__}: return an Experiment, or a dict of them by variant")
