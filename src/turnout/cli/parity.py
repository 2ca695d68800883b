"""`turnout parity`: the same experiments on every runtime, and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.errors import UserError, nearest

if TYPE_CHECKING:
    from turnout.experiment import Experiment
    from turnout.testing.parity import Difference, Elsewhere, RuntimeComparison

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE/VARIANT]...", help="Which experiments.", show_default="one for every part"),
]
On = Annotated[
    list[str] | None, typer.Option("--on", metavar="RUNTIME", help="Which runtimes; may be given again. [default: all]")
]
Everything = Annotated[bool, typer.Option("--all", help="Every recipe that needs no download.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="The table for a page.")]


def parity(names: Names = None, on: On = None, everything: Everything = False, markdown: Markdown = False) -> None:
    """Compare the runtimes of this machine with one process, over a few rounds.

    "equal" is equal to the bit; otherwise the largest difference, relative to the largest number of its kind. Ends
    with code 1 where a runtime does not keep its promise: those that only move work (processes, Ray, Flower) give the
    same bits; engines agree to 1e-7. Under Flower's simulation a few devices take part, and what was seen is played
    again in one process; "-" is what devices cannot do.

    \b
    turnout parity participation/C --on 'two processes'
    turnout parity --all --markdown
    """
    from turnout.cli.screen import console, say
    from turnout.recipes import cook, recipes
    from turnout.runtimes.keeping import KEPT
    from turnout.testing.parity import ONE_PER_PART, RuntimeComparison, acceptable, small_recipes

    known = small_recipes({name: cook(name) for name in recipes()})
    runtimes = _runtimes()
    wanted = list(known) if everything else list(names or ONE_PER_PART)
    columns = _here({name: runtimes[_known(name, runtimes, "runtime")] for name in on or runtimes}, named=bool(on))
    table = _Table(list(columns), markdown)
    broken = 0
    chosen = {name: known[_known(name, known, "experiment")] for name in wanted}
    at_once = {column: runtime.at_once(chosen) for column, runtime in columns.items() if runtime.at_once}
    with KEPT.held():
        for name, experiment in chosen.items():
            comparison = RuntimeComparison(experiment)
            with console(stderr=True).status(name):
                found = {
                    column: at_once[column][name] if column in at_once else _found(comparison, runtime)
                    for column, runtime in columns.items()
                }
            broken += sum(not acceptable(d, columns[column]) for column, d in found.items() if not isinstance(d, str))
            table.add(name, list(found.values()))
            for words in (words for words in found.values() if isinstance(words, str)):
                console(stderr=True).print(f"{name}: {words}", markup=False, soft_wrap=True)
    table.show()
    if broken:
        say(f"{broken} of {len(wanted) * len(columns)} comparisons differ by more than they may", "red")
        raise typer.Exit(1)


def _runtimes() -> dict[str, Elsewhere]:
    """The runtimes to compare, with Flower's simulation, which replays in one process what it observed."""
    from turnout.testing.parity import RUNTIMES, Elsewhere

    def simulate(experiments: Mapping[str, Experiment]) -> Mapping[str, Difference | str]:
        from turnout.deploy.parity import simulated

        return simulated(experiments)

    return RUNTIMES | {"Flower's simulation": Elsewhere(lambda here: here, needs="flwr", at_once=simulate)}


def _known(name: str, known: Iterable[str], what: str) -> str:
    if name not in known:
        raise UserError(f"there is no {what} {name!r}: {nearest(name, list(known))}")
    return name


def _here(columns: dict[str, Elsewhere], named: bool) -> dict[str, Elsewhere]:
    """Those whose library is there; one that was asked for by name has to be."""
    from turnout.machine.optional import optional

    found = {}
    for name, runtime in columns.items():
        try:
            if runtime.needs is not None:
                optional(runtime.needs, f"runtime {name}", runtime.needs)
        except UserError:
            if named:
                raise
            continue
        found[name] = runtime
    return found


def _found(comparison: RuntimeComparison, runtime: Elsewhere) -> Difference:
    from turnout.testing.parity import Difference

    try:
        return comparison.with_(runtime)
    except AssertionError as error:  # not even the same rounds
        return Difference(float("inf"), str(error))


def _cell(found: Difference | str) -> str:
    if isinstance(found, str):  # devices refuse it
        return "-"
    return f"{found.largest:.0e}" if found.largest else "equal"


class _Table:
    """Rows as they come; printed in the end."""

    def __init__(self, columns: list[str], markdown: bool):
        self.head, self.markdown = ["experiment", *columns], markdown
        self.rows: list[list[str]] = []

    def add(self, name: str, found: Sequence[Difference | str]) -> None:
        self.rows.append([name, *map(_cell, found)])

    def show(self) -> None:
        from rich import box
        from rich.table import Table

        from turnout.cli.screen import console

        if self.markdown:
            for row in (self.head, ["---"] * len(self.head), *self.rows):
                typer.echo(f"| {' | '.join(row)} |")
            return
        table = Table(*self.head, box=box.SIMPLE)
        for row in self.rows:
            table.add_row(*row)
        console().print(table)
