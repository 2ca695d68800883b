"""What is in the watched folder: runs and their states, studies, races; and marks by which a change is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import UserError
from turnout.running.state import DEEPEST, RECORDS, ListedRun, is_held, listed_run, run_folders
from turnout.view.live.races import ANSWER, TRIALS
from turnout.view.report.finding import runs_in

STUDY = "study.json"
_MARKING = (RECORDS, f"{RECORDS}-wal", "state.json", "runs.json", "error.txt")

Mark = tuple[object, ...]


@dataclass(frozen=True)
class Watched:
    """The folder; runs in it are named by their path below it, "." for the folder itself."""

    folder: Path

    def run_paths(self) -> dict[str, Path]:
        """Folders that are a run, or runs made together, by name."""
        return {self._name(path): path for path in run_folders(self.folder)} if self.folder.is_dir() else {}

    def runs(self) -> dict[str, ListedRun]:
        """All of them with their states, those that changed last first."""
        listed = {name: listed_run(path) for name, path in self.run_paths().items()}
        return dict(sorted(listed.items(), key=lambda item: -item[1].when))

    def path(self, name: str) -> Path:
        """The folder of a run by its name; only folders that are listed can be named."""
        found = self.run_paths().get(name)
        if found is None:
            raise UserError(f"there is no run {name!r} in {self.folder}")
        return found

    def studies(self) -> dict[str, Path]:
        return {self._name(path.parent): path for path in self._files(STUDY)}

    def races(self) -> dict[str, Path]:
        return {self._name(path.parent): path.parent for path in self._files(TRIALS)}

    def marks(self) -> dict[str, Mark]:
        """By name: something that differs once a run, study or race has changed."""
        found: dict[str, Mark] = {}
        for name, path in self.run_paths().items():
            found[name] = tuple(map(_mark, self._within(path)))
        for name, path in self.studies().items():
            found[name] = (*found.get(name, ()), _stamp(path))
        for name, path in self.races().items():
            found[name] = (*found.get(name, ()), _stamp(path / TRIALS), _stamp(path / ANSWER))
        return found

    def _within(self, path: Path) -> list[Path]:
        """A run's folder, or the folders of runs that were made together, and their common one."""
        if not (path / "runs.json").is_file():
            return [path]
        try:
            found = runs_in(path)
        except UserError:
            return [path]
        return [path, *(run.path for run in [*found.runs, *found.waiting])]

    def _files(self, name: str, depth: int = DEEPEST) -> Iterator[Path]:
        for level in range(depth + 1):
            yield from sorted(self.folder.glob("/".join(["*"] * level + [name])))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _mark(folder: Path) -> Mark:
    return (*(_stamp(folder / name) for name in _MARKING), is_held(folder))


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file was last written and how long it is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
