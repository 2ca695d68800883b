"""What a dotted path `package.module:Name` in a file may stand for, looked at before anything is called.

A file may come from a stranger. So a path names a class that has the names of the role it is to play, a function that
is annotated to return one, or, where a setting is a function, a function annotated to return what that setting asks
for; nothing else. A module is imported only if its source, found where Python finds modules, binds the name: looking
for what is not there runs nobody's code.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from turnout.errors import Mistake


def imported(dotted: str, path: str) -> Any:
    """What a dotted path names; nothing of it has been called."""
    module, _, name = dotted.partition(":")
    try:
        if module not in sys.modules and not _binds(module, name):
            raise Mistake(f"{path}: module {module!r} has nothing called {name!r}")
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise Mistake(f"{path}: cannot import {module!r} ({error}): is its folder on PYTHONPATH?") from error
    except AttributeError as error:
        raise Mistake(f"{path}: module {module!r} has nothing called {name!r}") from error
    except SyntaxError as error:
        raise Mistake(f"{path}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except Mistake:
        raise
    except Exception as error:  # whatever a person's module does when it is imported
        raise Mistake(f"{path}: importing {module!r} failed: {type(error).__name__}: {error}") from error


def _binds(module: str, name: str) -> bool:
    """Whether a module's source binds a name; a program (`__main__`) or a module without source does not."""
    if module.rpartition(".")[2] == "__main__":
        return False
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {module!r}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return False
    tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    return any(name in _bound(node) for node in ast.walk(tree))


def _bound(node: ast.AST) -> set[str]:
    """The names that a statement binds; `*` may be any, and so may whatever a module's own `__getattr__` gives."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()


def part_named(dotted: str, role: Any, what: str, path: str) -> Any:
    """The class or function that a path names, if it makes or is what a role asks for. `what`: the role in words."""
    thing = imported(dotted, path)
    wanted = nn.Module if what == "model" and not hasattr(thing, "build") else role
    if lacks := misses(thing, wanted):
        raise Mistake(f"{path}: {dotted} is no {what}, {lacks}")
    return thing


def function_named(dotted: str, hint: Any, path: str) -> Any:
    """The function that a path names, if it is annotated to return what the setting asks for."""
    thing = imported(dotted, path)
    if lacks := _misses_result(thing, hint):
        raise Mistake(f"{path}: {dotted} cannot be used here: {lacks}")
    return thing


def misses(thing: Any, role: Any) -> str:
    """Why a thing cannot play a role, in words; empty where it can.

    >>> misses(dict, nn.Module), misses(nn.Linear, nn.Module)
    ('it is no Module', '')
    """
    if not isinstance(role, type):  # the role is a function
        return _misses_result(thing, role) and _misses_making(thing, role)
    if inspect.isclass(thing):
        return _misses_names(thing, role)
    if inspect.isfunction(thing):
        return _misses_making(thing, role)
    return f"give a class, or a function annotated -> {_name(role)}"


def _misses_names(thing: type, role: type) -> str:
    if role is nn.Module:
        return "" if issubclass(thing, role) else f"it is no {_name(role)}"
    names = dict.fromkeys([*vars(role), *getattr(role, "__annotations__", ())])
    said = {name for owner in thing.__mro__ for name in getattr(owner, "__annotations__", ())}
    lost = [n for n in names if not n.startswith("_") and n not in said and not hasattr(thing, n)]
    return f"it lacks {', '.join(lost)}" if lost else ""


def _misses_making(thing: Any, role: Any) -> str:
    """Why a function does not make what a role asks for."""
    given = _returned(thing) if inspect.isfunction(thing) else None
    if given is None:
        return f"a function must be annotated with what it returns (-> {_name(role)})"
    if given is role or _name(given) == _name(role):
        return ""
    if isinstance(role, type) and inspect.isclass(given):
        return _misses_names(given, role)
    return f"it returns {_name(given)}, not {_name(role)}"


def _misses_result(thing: Any, hint: Any) -> str:
    """Why a function cannot be a setting that is a function: what it returns is compared with the hint."""
    call = thing.__call__ if inspect.isclass(thing) and "__call__" in vars(thing) else thing
    if not inspect.isfunction(call):
        return "give a Python function that is annotated with what it returns"
    arguments, given = typing.get_args(hint), _returned(call)
    wanted = arguments[-1] if arguments else Any
    if given is None:
        return f"annotate the function with what it returns (-> {_name(wanted)})"
    return "" if _agrees(given, wanted) else f"it returns {_name(given)}, not {_name(wanted)}"


def _agrees(given: Any, wanted: Any) -> bool:
    """Whether a function annotated to return one type may stand where another is asked for."""
    if wanted is Any or given is wanted or isinstance(given, str):
        return wanted is Any or _name(given) == _name(wanted)
    options = typing.get_args(wanted) if _is_union(wanted) else (wanted,)
    made = typing.get_args(given) if _is_union(given) else (given,)
    return all(any(_is_kind_of(one, option) for option in options) for one in made)


def _is_kind_of(given: Any, wanted: Any) -> bool:
    a, b = typing.get_origin(given) or given, typing.get_origin(wanted) or wanted
    if wanted is Any or a is b or (b is float and a is int):
        return True
    return inspect.isclass(a) and inspect.isclass(b) and b is not object and issubclass(a, b)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _returned(function: Callable[..., Any]) -> Any:
    """The annotation of what a function returns; None without one, its text where only a type checker knows it."""
    written = getattr(function, "__annotations__", {}).get("return")
    if not isinstance(written, str):
        return written
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, AttributeError, TypeError):
        return written


def _name(hint: Any) -> str:
    if isinstance(hint, str):
        return hint.rpartition(".")[2]
    return getattr(hint, "__name__", None) or str(hint).replace("typing.", "")
