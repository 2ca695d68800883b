"""`--allow` and `--no-code`: whose code a command's files may name, on every command that reads experiments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="PACKAGE",
        help="Let files name code of an installed package that you trust; may be given again. Modules below the "
        "current folder need no --allow.",
    ),
]
NoCode = Annotated[
    bool, typer.Option("--no-code", help="Refuse all code that a file names by a dotted path: for files of others.")
]


def permits_code(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options."""

    @wraps(command)
    def with_options(*, allow: list[str] | None = None, no_code: bool = False, **given: Any) -> None:
        from turnout.running.config.dotted import allowing

        with allowing(allow or (), no_code):
            command(**given)

    hints = get_type_hints(command, localns={"Reading": object}, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("allow", keyword, default=None, annotation=Allow),
        inspect.Parameter("no_code", keyword, default=False, annotation=NoCode),
    ]
    with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    return with_options
