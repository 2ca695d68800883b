"""A model card: what a trained model is, who took part in training it, and how well it does, from the run's records.

Markdown, with the header that Hugging Face's model pages read. Uses, licence and origin of the data are not in a run's
records: the card says so, and leaves them to its author.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from turnout.errors import UserError
from turnout.running.charts.units import show
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import RunRecords
from turnout.running.records.warnings import warnings_of
from turnout.tasks import Unit
from turnout.view.report.short import common_kinds, facts, notes

OPEN = (
    ("Uses", "what the model is for, and what it must not be used for"),
    ("Data", "where the clients' data comes from, and whether they agreed to its use"),
    ("Licence", "of the model's weights"),
)


def model_card(folder: Path) -> str:
    """The card of one run, in Markdown."""
    runs = find_runs(folder)
    if len(runs.runs) != 1:
        raise UserError(f"{folder} holds {len(runs.runs)} runs, and a card is of one: name its folder")
    (run,) = runs.runs
    about = json.loads(run.text("data.json") or "{}")
    made = json.loads(run.text("environment.json") or "{}")
    kinds, unit = common_kinds(runs), runs.glossary.unit
    lines = ["---", "library_name: turnout", "tags:", "- federated-learning", "---", "", f"# {_cell(runs.title)}", ""]
    versions = ", ".join(f"{name} {made[name]}" for name in ("turnout", "torch", "python") if name in made)
    lines += [f"Trained with federated learning ({versions}); seed {run.seed_number}.", ""]
    if about:
        several = about.get("inputs") or {"": (about["input_shape"], about["input_type"])}
        inputs = [f"{name} {' × '.join(map(str, shape))} numbers ({kind})" for name, (shape, kind) in several.items()]
        lines += [f"- Input: {', '.join(inputs).strip()}"]
        labels = [_cell(str(label)) for label in about["labels"]]
        shown = ", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "")
        lines += [f"- Output: {about['classes']} numbers" + (f", one for each label: {shown}" if labels else ""), ""]
    lines += ["## Training", "", *_table(("part", "kind"), kinds), ""]
    lines += ["`experiment.toml` in the run's folder has every setting.", "", *_table(("", ""), facts(runs)), ""]
    results = [(metric, show(run.final(metric), unit(metric))) for metric in runs.metrics]
    lines += ["## Results", "", *_table(("metric", "after the last round"), results), ""]
    per_client = [(name, *_spread(values, unit(name))) for name, (_, values) in run.client_values.items()]
    if per_client:
        lines += [*_table(("of single clients", "lowest", "median", "highest"), per_client), ""]
    lines += ["## Limits", "", *_limits(run), *(f"- {words}" for words in [*notes(runs), *warnings_of(run)]), ""]
    lines += ["## For the author to write", "", "A run's records do not have these:", ""]
    return "\n".join([*lines, *(f"- **{name}**: {what}" for name, what in OPEN)]) + "\n"


def _limits(run: RunRecords) -> Iterator[str]:
    """Which clients the model has learnt little from."""
    _, client_N, work_N = run.turnout()
    asked = np.unique(client_N)
    share_C = np.array([float((work_N[client_N == client] > 0).mean()) for client in asked])
    lowest, median, highest = _spread(share_C, "percent")
    yield f"- A client replied in {lowest} to {highest} of the rounds in which it was asked (median {median})."
    never = [_cell(run.client(int(client))) for client in asked[share_C == 0]]
    if never:
        names = f"{', '.join(never[:20])}{', ...' if len(never) > 20 else ''}"
        yield f"- {len(never)} of {len(asked)} clients never replied, so the model has not seen their data: {names}."


def _spread(values: Sequence[float] | np.ndarray, unit: Unit) -> tuple[str, str, str]:
    found = np.asarray(values, np.float64)
    found = found[np.isfinite(found)]
    if not len(found):
        return ("–", "–", "–")
    lowest, median, highest = (show(float(np.quantile(found, q)), unit) for q in (0.0, 0.5, 1.0))
    return lowest, median, highest


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[_cell(cell) for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _cell(text: str) -> str:
    """A text of others, such as a client's name, on one line and without Markdown or HTML of its own."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))
