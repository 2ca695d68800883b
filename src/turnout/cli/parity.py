"""`turnout parity`: the same experiments on every runtime, and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.common import say
from turnout.errors import UserError, nearest

if TYPE_CHECKING:
    from turnout.experiment import Experiment
    from turnout.testing.parity import Difference, Elsewhere

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE/VARIANT]...", help="The experiments.", show_default="one for every part"),
]


def parity(
    names: Names = None,
    on: Annotated[
        list[str] | None, typer.Option(metavar="RUNTIME", help="The runtimes; repeatable. [default: all]")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every recipe that needs no download.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as Markdown.")] = False,
) -> None:
    """Compare the runtimes of this machine with one process.

    Over a few rounds. "equal" is equal to the bit; otherwise the largest difference, relative to the largest number of
    its kind. Ends with code 1 where a runtime breaks its promise: those that only move work (processes, Ray, Flower)
    give the same bits; engines agree to 1e-7. Under Flower's simulation a few devices take part, and the observed
    turnout is replayed in one process; "-" marks what devices cannot do.

    \b
    turnout parity participation/C --on 'two processes'
    turnout parity --all --markdown
    """
    from rich import box
    from rich.table import Table

    from turnout.machine.terminal import console
    from turnout.recipes import cook, recipes
    from turnout.runtimes.crew import KEPT
    from turnout.testing.parity import ONE_PER_PART, Difference, RuntimeComparison, acceptable, small_recipes

    known = small_recipes({name: cook(name) for name in recipes()})
    runtimes = _runtimes()
    wanted = list(known) if everything else list(names or [name for name in ONE_PER_PART if name in known])
    columns = _installed({name: runtimes[_known(name, runtimes, "runtime")] for name in on or runtimes}, bool(on))
    chosen = {name: known[_known(name, known, "experiment")] for name in wanted}
    at_once = {column: runtime.at_once(chosen) for column, runtime in columns.items() if runtime.at_once}
    rows, broken = [["experiment", *columns]], 0
    with KEPT.held():
        for name, experiment in chosen.items():
            comparison = RuntimeComparison(experiment)
            with console(stderr=True).status(name):
                found: dict[str, Difference | str] = {}
                for column, runtime in columns.items():
                    try:
                        found[column] = at_once[column][name] if column in at_once else comparison.with_(runtime)
                    except AssertionError as error:  # not even the same rounds
                        found[column] = Difference(float("inf"), str(error))
            broken += sum(not acceptable(d, columns[column]) for column, d in found.items() if not isinstance(d, str))
            largest = [None if isinstance(d, str) else d.largest for d in found.values()]  # None: devices refuse it
            rows.append([name, *("-" if d is None else f"{d:.0e}" if d else "equal" for d in largest)])
            for words in (words for words in found.values() if isinstance(words, str)):
                console(stderr=True).print(f"{name}: {words}", markup=False, soft_wrap=True)
    if markdown:
        for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]):
            typer.echo(f"| {' | '.join(row)} |")
    else:
        table = Table(*rows[0], box=box.SIMPLE)
        for row in rows[1:]:
            table.add_row(*row)
        console().print(table)
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


def _installed(columns: dict[str, Elsewhere], named: bool) -> dict[str, Elsewhere]:
    """The runtimes whose library is installed; a missing one that was named is an error."""
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
