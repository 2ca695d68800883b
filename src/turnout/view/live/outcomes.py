"""Races of `turnout advise` and results of `turnout study`, read from the files that these commands write."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.machine.checksums import table_of
from turnout.running.charts.units import show
from turnout.running.records.glossary import Glossary

TRIALS, ANSWER, STUDY = "trials.jsonl", "advice.json", "study.json"
RANKING = ["candidate", "score", "seeds", "difference", "state"]
CLAIM, ROW = ("claim", "outcome", "evidence"), ("case", "metric", "ours", "spread", "repeats", "published")


@dataclass(frozen=True)
class Race:
    """A race as a page shows it.

    name          of its folder
    said          how it stands, in a sentence
    header, rows  a table of the candidates
    """

    name: str
    said: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_study(path: Path) -> dict[str, Any]:
    """A study's file: `study`, `scale`, `claims`, `rows`."""
    try:
        found = table_of(path.read_bytes())
        claims = [{name: str(claim[name]) for name in CLAIM} for claim in found["claims"]]
        rows = [{name: row[name] for name in ROW} for row in found["rows"]]
        return {"study": str(found["study"]), "scale": str(found["scale"]), "claims": claims, "rows": rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not what `turnout study run` writes ({error})") from error


def read_race(name: str, folder: Path) -> Race:
    """A race from its folder: its answer, or the runs that have ended so far; an error is shown in its place."""
    try:
        if (folder / ANSWER).is_file():
            found = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
            return Race(name, str(found["answer"]), RANKING, [_cells(row) for row in found["ranking"]])
        return _standing(name, (folder / TRIALS).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Race(name, f"its files cannot be read ({type(error).__name__}: {error})")


def _standing(name: str, lines: str) -> Race:
    """How many runs of each candidate have ended, and the mean of their last values."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines.splitlines():
        try:
            trial = json.loads(line)
        except ValueError:  # a line that is just being written
            continue
        found.setdefault(str(trial["trial"]["candidate"]), []).append(trial["outcome"])
    metrics = list(dict.fromkeys(m for outcomes in found.values() for o in outcomes for m in o.get("values", {})))[:3]
    rows = []
    for candidate, outcomes in found.items():
        shown = []
        for metric in metrics:
            last = [o["values"][metric][-1] for o in outcomes if o.get("values", {}).get(metric)]
            shown.append(show(math.fsum(last) / len(last) if last else math.nan, Glossary().unit(metric)))
        diverged = sum(bool(o.get("diverged")) for o in outcomes)
        rows.append([candidate, str(len(outcomes)), *shown, str(diverged) if diverged else ""])
    count = sum(map(len, found.values()))
    ended = "1 run has" if count == 1 else f"{count:,} runs have"
    return Race(name, f"the race is running: {ended} ended", ["candidate", "runs", *metrics, "diverged"], rows)


def _cells(row: dict[str, Any]) -> list[str]:
    """A row of the ranking.

    >>> _cells({"candidate": "C", "score": 0.123456, "seeds": 7, "difference": math.nan})
    ['C', '0.123', '7', '', '']
    """
    values = [row.get(name) for name in RANKING]
    empty = [v is None or (isinstance(v, float) and math.isnan(v)) for v in values]
    return ["" if e else f"{v:.3g}" if isinstance(v, float) else str(v) for v, e in zip(values, empty, strict=True)]
