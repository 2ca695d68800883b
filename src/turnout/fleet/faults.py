"""What is wrong with a log, collected while it is read and said all at once, with line numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.errors import UserError

IN_FULL = 5  # faults of a kind that are quoted
LISTED = 20  # more of the kind, by line


@dataclass
class Faults:
    """The faults of one file; `at` is what its rows are called: lines of a text, rows of a Parquet file."""

    path: str
    at: str = "line"
    _found: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, kind: str, line: int, words: str) -> None:
        """One fault; faults of one kind are counted together."""
        self._found.setdefault(kind, []).append((line, words))

    def __len__(self) -> int:
        return sum(len(found) for found in self._found.values())

    def check(self) -> None:
        """Raise a UserError that names all of them, if there are any."""
        if len(self) == 1:
            ((line, words),) = next(iter(self._found.values()))
            raise UserError(f"{self.path}, {self.at} {line}: {words}")
        if self._found:
            said = sorted(said for found in self._found.values() for said in self._lines(found))
            lines = "\n".join(words for *_, words in said)
            raise UserError(f"{self.path} has {len(self):,} faults; correct them:\n{lines}")

    def _lines(self, found: list[tuple[int, str]]) -> list[tuple[int, bool, str]]:
        """Faults of one kind as sentences, with what to sort them by: the line, and whether others are counted."""
        said = [(line, False, f"  {self.at} {line}: {words}") for line, words in found[:IN_FULL]]
        if more := found[IN_FULL : IN_FULL + LISTED]:
            rest = len(found) - IN_FULL - len(more)
            listed = ", ".join(str(line) for line, _ in more) + (f" and {rest:,} more" if rest else "")
            said.append(
                (said[-1][0], True, f"  and {len(found) - IN_FULL:,} more faults like this: {self.at}s {listed}")
            )
        return said
