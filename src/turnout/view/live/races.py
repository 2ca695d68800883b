"""The race of `turnout advise`, from its folder: the runs that have ended so far, or the answer it came to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.running.charts.units import show
from turnout.running.records.glossary import Glossary

TRIALS, ANSWER = "trials.jsonl", "advice.json"


@dataclass(frozen=True)
class Race:
    """A race as a page shows it: a sentence, and the rows of a table under the names of its columns."""

    name: str
    said: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_race(name: str, folder: Path) -> Race:
    """A race from its folder; what cannot be read is said instead of shown."""
    try:
        if (folder / ANSWER).is_file():
            return _ended(name, json.loads((folder / ANSWER).read_text(encoding="utf-8")))
        return _going_on(name, list(_trials(folder / TRIALS)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Race(name, f"its files cannot be read ({type(error).__name__}: {error})")


def _ended(name: str, found: dict[str, Any]) -> Race:
    header = ["candidate", "score", "seeds", "difference", "state"]
    return Race(
        name, str(found["answer"]), header, [[_words(row.get(key)) for key in header] for row in found["ranking"]]
    )


def _going_on(name: str, trials: list[dict[str, Any]]) -> Race:
    """How many runs of each candidate have ended, and what they measured at the end, in the mean."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        found.setdefault(str(trial["trial"]["candidate"]), []).append(trial["outcome"])
    metrics = list(dict.fromkeys(m for outcomes in found.values() for o in outcomes for m in o.get("values", {})))[:3]
    rows = []
    for candidate, outcomes in found.items():
        means = [_mean([o["values"][m][-1] for o in outcomes if o.get("values", {}).get(m)]) for m in metrics]
        diverged = sum(bool(o.get("diverged")) for o in outcomes)
        shown = [show(mean, Glossary().unit(metric)) for metric, mean in zip(metrics, means, strict=True)]
        rows.append([candidate, str(len(outcomes)), *shown, str(diverged) if diverged else ""])
    header = ["candidate", "runs", *metrics, "diverged"]
    ended = "1 run has" if len(trials) == 1 else f"{len(trials):,} runs have"
    return Race(name, f"the race goes on: {ended} ended", header, rows)


def _trials(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the file; one that is just being written is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        yield found


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _words(value: Any) -> str:
    """A value in a table.

    >>> _words(0.123456), _words(None), _words(math.nan), _words(7)
    ('0.123', '', '', '7')
    """
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3g}"
    return "" if value is None else str(value)
