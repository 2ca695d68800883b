"""Which runs are in a folder and how they are doing: for `turnout runs`, and for finding the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import UserError
from turnout.running.folder import LOCK_FILE
from turnout.running.records.glossary import Glossary
from turnout.running.records.records import Records
from turnout.running.records.run_list import read_run_list
from turnout.running.state import RECORDS, RunState, is_held, state_of

DEEPEST = 4  # folders below the one that is listed
HERE = Path(".")  # where runs are looked for if no folder is named: runs/ is in it, and so is what --out names


@dataclass(frozen=True)
class ListedRun:
    """A run, or several that were made together (`parts`, by variant and seed)."""

    path: Path
    state: RunState
    parts: tuple[tuple[str, RunState], ...] = ()

    @property
    def when(self) -> float:
        return max([self.state.when, *(state.when for _, state in self.parts)])


def listed_runs(folder: Path, each: bool = False) -> list[ListedRun]:
    """The runs below a folder, the latest first; `each`: those of a folder of runs one by one."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: runs are made by turnout run, under runs/ if no --out is given")
    found = [run for path in run_folders(folder) for run in _listed(path, each or path == folder)]
    if not found:
        raise UserError(f"{folder.absolute()} holds no runs: turnout run makes one")
    return sorted(found, key=lambda run: -run.when)


def listed_run(folder: Path) -> ListedRun:
    """One run, or several that were made together as one."""
    return _listed(folder, each=False)[0]


def last_run(folder: Path = HERE) -> Path:
    """The folder of the run, or of the runs, that changed last."""
    return listed_runs(folder)[0].path


def run_folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Folders that are a run or list runs; nothing inside them is looked at."""
    if _is_run(folder):
        yield folder
    elif depth < DEEPEST:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and not path.is_symlink():
                yield from run_folders(path, depth + 1)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run or lists runs; one that is being prepared has only its lock.

    An experiment.toml alone is a file that a person wrote: a run has a lock file beside it.
    """
    if any((folder / name).is_file() for name in ("runs.json", RECORDS)):
        return True
    return (folder / LOCK_FILE).is_file() and ((folder / "experiment.toml").is_file() or is_held(folder))


def _listed(path: Path, each: bool) -> list[ListedRun]:
    if not (path / "runs.json").is_file():
        return [ListedRun(path, state_of(path))]
    try:
        entries = [(entry.variant, path / entry.path) for entry in read_run_list(path).runs]
    except (OSError, UserError) as error:
        return [ListedRun(path, RunState("failed", why=str(error)))]
    if each:
        return [ListedRun(inside, state_of(inside)) for _, inside in entries]
    parts = tuple((variant, state_of(inside)) for variant, inside in entries)
    return [ListedRun(path, _together(path, parts, entries[0][1] if entries else path), parts)]


def _together(path: Path, parts: tuple[tuple[str, RunState], ...], first: Path) -> RunState:
    """Several runs as one: how many are in which state, all their rounds, the best variant's mean."""
    counts: dict[str, int] = {}
    for _, part in parts:
        counts[part.state] = counts.get(part.state, 0) + 1
    words = ", ".join(f"{n} {name}" for name, n in counts.items())
    state = next(iter(counts)) if len(counts) == 1 else words
    if "running" not in counts and is_held(path):  # processes start, or data is prepared
        state = f"running ({words})"
    why = next((part.why for _, part in parts if part.state == "failed"), None)
    done, rounds = sum(p.done for _, p in parts), sum(p.rounds or 0 for _, p in parts)
    best = _best(parts, first)
    if best is None:
        return RunState(state, done, rounds, why)
    variant, value, like = best
    return RunState(state, done, rounds, why, 0.0, f"{variant}: {like.metric}", value, like.unit)


def _best(parts: tuple[tuple[str, RunState], ...], first: Path) -> tuple[str, float, RunState] | None:
    values: dict[str, list[float]] = {}
    for variant, part in parts:
        if part.value is not None:
            values.setdefault(variant, []).append(part.value)
    known = next((part for _, part in parts if part.value is not None), None)
    if known is None or known.metric is None:
        return None
    means = {variant: sum(found) / len(found) for variant, found in values.items()}
    higher = _glossary(first).higher_is_better(known.metric)
    best = max(means, key=lambda variant: means[variant] if higher else -means[variant])
    return best, means[best], known


def _glossary(folder: Path) -> Glossary:
    if not (folder / RECORDS).is_file():
        return Glossary()
    with Records.read(folder / RECORDS) as records:
        return records.glossary()
