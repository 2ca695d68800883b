"""An object in a few words, for notebooks: its class, and the settings that differ from their defaults."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

FEW = 6  # entries of a list or a table that are written out
CELL = '<td style="text-align: left; vertical-align: top">{}</td>'
LONG = 160  # letters of a value at most


def summarise(thing: Any) -> str:
    """An object's class and the settings that are not the defaults; large values by their size.

    >>> from turnout.data.sizes import Pareto
    >>> summarise(Pareto(cap=40)), summarise([1, 2]), summarise("a"), summarise(list(range(99)))
    ('Pareto(cap=40)', '[1, 2]', "'a'", 'a list of 99')
    """
    if isinstance(thing, Tensor) or hasattr(thing, "__array__"):
        return f"tensor {list(thing.shape)}"
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return f"{type(thing).__name__}({', '.join(f'{name}={summarise(value)}' for name, value in chosen(thing))})"
    if isinstance(thing, nn.Module):
        return f"{type(thing).__name__}, a module with {sum(p.numel() for p in thing.parameters()):,} parameters"
    if isinstance(thing, Mapping):
        inside = ", ".join(f"{name!r}: {summarise(value)}" for name, value in thing.items())
        return f"{{{inside}}}" if len(thing) <= FEW else f"a table of {len(thing)}"
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(summarise, thing))}]" if len(thing) <= FEW else f"a list of {len(thing)}"
    if callable(thing):
        name = getattr(thing, "__name__", type(thing).__name__)
        return "a function" if name == "<lambda>" else name
    if thing is None or isinstance(thing, str | int | float | bool):
        return repr(thing)
    return f"a {type(thing).__name__}"


def chosen(thing: Any) -> Iterator[tuple[str, Any]]:
    """The settings of a dataclass that are not the defaults."""
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        made = field.default_factory
        usual = field.default if made is dataclasses.MISSING else made()
        try:
            same = value is usual or (type(value) is type(usual) and bool(value == usual))
        except (RuntimeError, ValueError, TypeError):  # tensors and arrays, which compare number by number
            same = False
        if field.init and not same:
            yield field.name, value


def settings_html(title: str, rows: Mapping[str, Any]) -> str:
    """A title and settings in two columns, as HTML in the style of the surrounding page."""
    texts = {name: summarise(value) for name, value in rows.items()}
    short = {name: text if len(text) <= LONG else text[: LONG - 1] + "…" for name, text in texts.items()}
    named = [(f"<b>{html.escape(name)}</b>", html.escape(text)) for name, text in short.items()]
    cells = "".join(f"<tr>{''.join(map(CELL.format, pair))}</tr>" for pair in named)
    return f"<div><div><b>{html.escape(title)}</b></div><table>{cells}</table></div>"
