"""Reads plain data from a pickle file without unpickling: its opcodes are interpreted here, and none of them runs code.

Accepted are numbers, texts, bytes, None, True and False, and lists, tuples and dictionaries of them, of every protocol.
Whatever names a class or a function (and so could run something) is refused: the opcodes GLOBAL, STACK_GLOBAL, INST,
OBJ, REDUCE, BUILD, NEWOBJ, EXT and PERSID, and all others that are not listed below.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnout.errors import UserError

_MARK = object()
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def is_pickle(path: Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later, or like an old one of a dictionary or a list."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(2)
    return (begins[:1] == b"\x80" and begins[1:2] <= b"\x05") or begins in (b"(d", b"(l", b"}q", b"]q")


def plain_data(path: Path) -> Any:
    """The data of a pickle file, or a UserError where it is more than data."""
    reader = _Reader()
    try:
        with path.open("rb") as file:
            for opcode, argument, _ in pickletools.genops(file):
                if not reader.step(opcode.name, argument):
                    raise UserError(
                        f"{path} is a pickle with {_what(opcode.name, argument)}, which could run code when it is "
                        "loaded: only numbers, texts, lists and dictionaries are read; convert it to CSV yourself if "
                        "you trust it"
                    )
        return reader.stack[-1]
    except (ValueError, IndexError, KeyError, TypeError, EOFError, MemoryError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        why = str(error) or "it speaks of more than memory holds"
        raise UserError(f"{path} is no complete pickle file ({why}): fetch or write it again") from error


def _what(name: str, argument: object) -> str:
    return f"the opcode {name}" + (f" ({str(argument)[:60]!r})" if argument is not None else "")


class _Reader:
    """A stack and a memo, as pickle has them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> bool:
        """Follow one opcode; False for one that is not plain data."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _SHORT_TUPLES:
            count = _SHORT_TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        else:
            return self._collect(name)
        return True

    def _collect(self, name: str) -> bool:
        """The opcodes that gather what lies on the stack."""
        stack = self.stack
        if name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._since_mark()
            _of(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._since_mark()
            _of(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name == "LIST":
            stack.append(self._since_mark())
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name == "DICT":
            items = self._since_mark()
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        else:
            return name in ("PROTO", "FRAME", "STOP")
        return True

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("a list has no beginning")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items


def _of(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is expected, there is a {type(value).__name__}")
    return value
