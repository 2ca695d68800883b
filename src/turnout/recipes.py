"""Recipes: functions that return complete experiments, and how they are found.

A recipe is a public function that is annotated `-> Experiment` or `-> dict[str, Experiment]` (variants by name) and can
be called without arguments. There is no registry: the recipes below are those of the core; an installed package adds
its own by entry points of the group `turnout.recipes`, whose value is one function, `package.module:function`, or a
module or a package of modules with several; and any function is a recipe by its dotted path, `turnout run
package.module:function`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from types import ModuleType

import turnout.models as models
from turnout.data import Digits
from turnout.data.partition import Classes, Clustered
from turnout.errors import UserError, nearest
from turnout.experiment import Algorithm, Evaluate, Experiment, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.substitution.base import Stale
from turnout.parts.substitution.friends import Friends
from turnout.parts.terms.baselines import Proximal
from turnout.parts.terms.control_variates import Scaffold
from turnout.parts.weighting import ByShare, ByWork
from turnout.suggestions import announced
from turnout.world.participation import GroupDropout, Traces

Recipe = Callable[..., Experiment | dict[str, Experiment]]


def digits(clients: int = 50, rounds: int = 40) -> Experiment:
    """A small CNN on the embedded digits, two classes per client, five kinds of devices, scheme C."""
    return Experiment(
        world=World(
            data=Digits(clients=clients, partition=Classes(per_client=2)),
            participation=Traces(first=5),
        ),
        model=models.digits_cnn(),
        algorithm=Algorithm(local=Local(SGD(lr=0.1), epochs=5, batch_size=10), weighting=ByWork()),
        rounds=rounds,
        evaluate=Evaluate(per_client=True),
        title="digits",
    )


def absence(away: float = 0.8, others_away: float = 0.1, rounds: int = 60) -> dict[str, Experiment]:
    """Absence tied to data: clients that hold four of the ten digits are mostly away; what that costs, what helps.

    50 clients of the embedded digits in five groups of two digits each. Clients of the first two groups are absent in
    `away` of the rounds, the others in `others_away`. The first variant is FedAvg without absence.
    """
    data = Digits(clients=50, partition=Clustered(clusters=5, classes_per_cluster=2))
    local = Local(SGD(lr=0.1), epochs=2, batch_size=20)
    rates = (away, away, others_away, others_away, others_away)
    fedavg = Experiment(World(data), models.MLP(64), Algorithm(local=local), rounds=rounds)
    tied = fedavg.but(world=World(data, GroupDropout(rates)))
    return {
        "all present": fedavg,
        "FedAvg": tied,
        "FedProx": tied.but(algorithm=Algorithm(local=local, terms=(Proximal(1.0),))),
        "SCAFFOLD": tied.but(algorithm=Algorithm(local=local, terms=(Scaffold(),))),
        "stale": tied.but(algorithm=Algorithm(local=local, weighting=ByShare(), substitution=Stale())),
        "friends": tied.but(algorithm=Algorithm(local=local, weighting=ByShare(), substitution=Friends())),
    }


def recipes() -> dict[str, Recipe]:
    """All recipes by name: those of the core, then those of installed packages, which this imports.

    >>> list(recipes())[:2]
    ['digits', 'absence']
    """
    by_name = dict(_CORE)
    for entry in announced("turnout.recipes"):
        by_name = by_name | _loaded(entry) | by_name  # the core's own stay
    return by_name


def _loaded(entry: EntryPoint) -> dict[str, Recipe]:
    """The recipes of an entry point; none, with a warning, if it cannot be loaded."""
    try:
        loaded = entry.load()
        if not isinstance(loaded, ModuleType):
            return {entry.name: loaded}
        names = pkgutil.iter_modules(getattr(loaded, "__path__", []), f"{entry.value}.")
        modules = [loaded, *(importlib.import_module(info.name) for info in names)]
    except Exception as error:  # any failure of an installed package's import
        why = f"{type(error).__name__}: {error}"
        warnings.warn(f"the recipes of {entry.value} cannot be loaded ({why})", stacklevel=3)
        return {}
    return {name: recipe for module in modules for name, recipe in _recipes_in(module).items()}


def _recipes_in(module: ModuleType) -> dict[str, Recipe]:
    """The public functions of a module that make experiments without arguments."""
    returns = ("Experiment", "dict[str, Experiment]", Experiment, dict[str, Experiment])
    return {
        name.replace("_", "-"): function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and function.__annotations__.get("return") in returns
        and all(p.default is not p.empty for p in inspect.signature(function).parameters.values())
    }


_CORE = _recipes_in(sys.modules[__name__])


def find_recipe(name: str) -> Recipe | None:
    """A recipe by name: the core's, that of an entry point of this name, or one in a module with several."""
    name = name.replace("_", "-")
    if name in _CORE:
        return _CORE[name]
    entries = announced("turnout.recipes")
    named = [entry for entry in entries if entry.attr and entry.name == name]
    matches = (_loaded(entry).get(name) for entry in [*named, *(entry for entry in entries if not entry.attr)])
    return next((recipe for recipe in matches if recipe is not None), None)


def cook(name: str) -> dict[str, Experiment]:
    """The variants of a recipe by name, or by the dotted path `package.module:function` of one's own."""
    if ":" in name:
        from turnout.running.config.dotted import usual_code

        recipe, name = usual_code().named(name, "the recipe"), name.rpartition(":")[2]
    elif (recipe := find_recipe(name)) is None:
        raise UserError(f"there is no recipe {name!r}, and no such file: {nearest(name, recipes())}")
    try:
        made = recipe()
    except UserError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"the recipe {name} failed in {place.filename}, line {place.lineno}: {why}") from error
    if isinstance(made, Experiment):
        return {made.title or name: made}
    if isinstance(made, Mapping) and made and all(isinstance(e, Experiment) for e in made.values()):
        return {str(variant): experiment for variant, experiment in made.items()}
    raise UserError(f"the recipe {name} gave {type(made).__name__}: return an Experiment, or a dict of them by variant")
