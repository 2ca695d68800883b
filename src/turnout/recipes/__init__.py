"""Recipes: functions that return complete experiments, one file per paper. Their names are found, not registered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Mapping

from turnout.errors import Mistake, nearest
from turnout.experiment import Experiment

Recipe = Callable[..., Experiment | dict[str, Experiment]]
_RETURNS = ("Experiment", "dict[str, Experiment]", Experiment, dict[str, Experiment])


def recipes() -> dict[str, Recipe]:
    """Every public function of the modules here that makes experiments from nothing, in the order of their files.

    >>> "participation" in recipes()
    True
    """
    found: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and _is_recipe(function):
                found[name.replace("_", "-")] = function
    return found


def _is_recipe(function: Callable[..., object]) -> bool:
    """Public, says that it returns experiments, and needs no argument; others help to write recipes."""
    if function.__name__.startswith("_") or function.__annotations__.get("return") not in _RETURNS:
        return False
    return all(p.default is not p.empty for p in inspect.signature(function).parameters.values())


def cook(name: str) -> dict[str, Experiment]:
    """The variants of a recipe by name, or by the dotted path `package.module:function` of one's own."""
    if ":" in name:
        from turnout.config.kinds import imported

        recipe, name = imported(name, "the recipe"), name.rpartition(":")[2]
    else:
        known = recipes()
        recipe = known.get(name.replace("_", "-"))
        if recipe is None:
            raise Mistake(f"there is no recipe {name!r}, and no such file: {nearest(name, known)}")
    return variants_of(_made(recipe, name), name)


def _made(recipe: Recipe, name: str) -> object:
    """What a recipe returns; an error in it is said with its place, as recipes are people's own code."""
    try:
        return recipe()
    except Mistake:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error}"
        raise Mistake(f"the recipe {name} failed in {place.filename}, line {place.lineno}: {why}") from error


def variants_of(made: object, name: str) -> dict[str, Experiment]:
    """What a recipe returned, as variants: one experiment is a single variant."""
    if isinstance(made, Experiment):
        return {made.title or name: made}
    if isinstance(made, Mapping) and made and all(isinstance(e, Experiment) for e in made.values()):
        return {str(variant): experiment for variant, experiment in made.items()}
    raise Mistake(f"the recipe {name} gave {type(made).__name__}: return an Experiment, or a dict of them by variant")
