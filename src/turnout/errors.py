"""The exception for a user's mistake or a missing library: a sentence with what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import errno
import importlib
import warnings
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """A user's mistake; its message is shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython and notebooks show instead of a traceback."""
        return [f"UserError: {self}"]


class Absent:
    """Stands for an object that a run's file cannot hold: any use of it raises an error with the reason.

    why  the reason

    >>> Absent("model was an object of your own").build
    Traceback (most recent call last):
    turnout.errors.UserError: model was an object of your own
    """

    def __init__(self, why: str):
        self.why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(self.why)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        raise UserError(self.why)

    def __repr__(self) -> str:
        return f"<{self.why}>"


OUT_OF_MEMORY = "the machine is out of memory: take a smaller model, ask fewer clients a round, or use --jobs 1"
_NO_MEMORY = ("allocate memory", "out of memory", "can't start new thread", "failed to map segment", "IOERR_SHMMAP",
              "Storage size calculation overflowed")  # fmt: skip


def out_of_memory(error: BaseException) -> str | None:
    """The sentence for an error that is due to a lack of memory, in this process or on a device; None for another.

    >>> out_of_memory(OSError(12, "Cannot allocate memory")) == out_of_memory(KeyError("x"))
    False
    """
    words = f"{error} {getattr(error, 'sqlite_errorname', '')}".strip()
    short = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if not short and not any(sign in words for sign in _NO_MEMORY):
        return None
    return OUT_OF_MEMORY + (f" ({words.splitlines()[0][:200]})" if words else "")


# Names of settings and parts in other libraries that are spelt nothing like ours.
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "eta", "step_size"), "lr"),
    **dict.fromkeys(("batch", "batchsize", "bs"), "batch_size"),
    **dict.fromkeys(("num_rounds", "n_rounds", "iterations"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients", "num_users", "users"), "clients"),
    **dict.fromkeys(("num_epochs", "n_epochs", "local_epochs"), "epochs"),
    **dict.fromkeys(("num_steps", "local_steps"), "steps"),
    **dict.fromkeys(("adam", "fedadam"), "ServerAdam"),
    **dict.fromkeys(("yogi", "fedyogi"), "ServerYogi"),
    **dict.fromkeys(("adagrad", "fedadagrad"), "ServerAdagrad"),
}
NEAR, AS_NEAR = 0.6, 0.1  # the least similarity of two names, 0 to 1, and the largest distance to the best one
LISTED = 30  # names at most


def near(name: str, known: Iterable[str]) -> list[str]:
    """Known names that may be meant, at most two: a synonym in other libraries, or a similar spelling.

    >>> near("weighing", ["weighting", "weights", "seed"]), near("learning_rate", ["lr", "momentum"])
    (['weighting'], ['lr'])
    """
    names, wanted = list(known), plain(name)
    if SYNONYMS.get(wanted) in names:
        return [SYNONYMS[wanted]]
    alike = {other: difflib.SequenceMatcher(None, wanted, plain(other)).ratio() for other in names}
    best = max(alike.values(), default=0.0)
    return sorted((n for n in names if alike[n] >= max(NEAR, best - AS_NEAR)), key=lambda n: (-alike[n], n))[:2]


def plain(name: str) -> str:
    """A name for comparisons: lower case, with underscores between words."""
    return name.casefold().replace("-", "_").replace(" ", "_")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name.

    >>> nearest("tarces", ["always", "traces"])
    "did you mean 'traces'? (known: always, traces)"
    >>> nearest("xyz", ["always", "traces"]), nearest("xyz", [])
    ('known are always, traces', 'there are none')
    """
    names = sorted(known)
    if not names:
        return "there are none"
    listed = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    close = near(name, names)
    return f"did you mean {' or '.join(map(repr, close))}? (known: {listed})" if close else f"known are {listed}"


def unknown_setting(where: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a setting that does not exist."""
    names = list(known)
    return f"{where} has no setting {name!r}: {nearest(name, names) if names else 'it has no settings'}"


def check_settings(part: Any, **allowed: str | tuple[Any, ...]) -> None:
    """Refuse settings of a part that are not among some values, or not in an interval; None is fine as a default.

    >>> check_settings(Absent(1), why="[0, 1)")
    Traceback (most recent call last):
    turnout.errors.UserError: Absent.why must be at least 0 and below 1, not 1
    """
    for name, choice in allowed.items():
        value, where = getattr(part, name), f"{type(part).__name__}.{name}"
        if isinstance(choice, tuple):
            if value not in choice:
                raise UserError(f"{where} is {value!r}: {nearest(str(value), map(str, choice))}")
        elif value is not None or getattr(type(part), name, "") is not None:
            low, high = choice[1:-1].split(", ")
            try:
                above = value >= float(low) if choice[0] == "[" else value > float(low)
                below = value <= float(high) if choice[-1] == "]" else value < float(high)
            except TypeError:  # not a number
                above = below = False
            if not (above and below):
                least = f"{'at least' if choice[0] == '[' else 'above'} {low}"
                most = "" if high == "inf" else f" and {'at most' if choice[-1] == ']' else 'below'} {high}"
                raise UserError(f"{where} must be {least}{most}, not {value!r}")


def check_part(where: str, part: Any, role: type, example: str) -> None:
    """Refuse an object that cannot play a role: it needs a protocol's names, or must be an instance of a class.

    >>> check_part("algorithm.server", "adam", object, "ServerAdam()")
    Traceback (most recent call last):
    turnout.errors.UserError: algorithm.server is the text 'adam': in Python give an object, such as ServerAdam()
    """
    if isinstance(part, Absent):
        return
    if isinstance(part, str):
        raise UserError(f"{where} is the text {part!r}: in Python give an object, such as {example}")
    if isinstance(part, type):
        raise UserError(f"{where} is the class {part.__name__} itself: give an object, such as {example}")
    protocol = getattr(role, "_is_protocol", False)
    missing = lacking(part, role) if protocol else []
    if missing or not (protocol or isinstance(part, role)):
        what = f" (it has no {', '.join(missing)})" if missing else ""
        raise UserError(f"{where} is an object of class {type(part).__name__}{what}: give one such as {example}")


def lacking(part: Any, role: Any) -> list[str]:
    """The names of a role's class that an object lacks; none if the role is not a class.

    A method that is only inherited from a protocol counts as missing, since it has no content there; where a protocol
    marks some methods as abstract, only those.

    >>> lacking([], Iterable), lacking({}, list)[:3]
    ([], ['append', 'insert', 'extend'])
    """
    names = dict.fromkeys([*vars(role), *getattr(role, "__annotations__", ())]) if isinstance(role, type) else {}
    abstract = getattr(role, "__abstractmethods__", None) or names
    empty = {n: v for n, v in vars(role).items() if n in abstract} if getattr(role, "_is_protocol", False) else {}

    def has(name: str) -> bool:
        return hasattr(part, name) and not (name in empty and getattr(type(part), name, None) is empty[name])

    return [name for name in names if not name.startswith("_") and not has(name)]


def optional(module: str, what: str, extra: str) -> Any:
    """Import a module that `pip install 'turnout[extra]'` installs; `what` names the feature that needs it.

    >>> optional("no_such_library.part", "reading minds", "minds")
    Traceback (most recent call last):
    turnout.errors.UserError: reading minds needs no_such_library, which is not installed: pip install 'turnout[minds]'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own code
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = (error.name or module).partition(".")[0]
        raise UserError(f"{what} needs {name}, which is not installed: pip install 'turnout[{extra}]'") from error
    except (ImportError, OSError) as error:  # a shared library of the system that it needs
        raise UserError(f"{what} needs {module.partition('.')[0]}, which cannot be loaded here: {error}") from error
