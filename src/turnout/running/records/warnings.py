"""Warnings about runs: nothing was trained, rounds were skipped, training went wrong, a part or the data warns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from turnout.running.records.glossary import Glossary
from turnout.running.records.runs import RunRecords, Runs
from turnout.running.records.schema import Column

EXPLODED = 100  # times the loss before training
LEARNED = 0.2  # of the loss before training: if a loss fell by more, something was learned
LEFT, LAST = 0.2, 3  # it is lost if in the last 3 measurements no more than a fifth of the gain is left
LOWER = (
    "Unless an attack, noise or other data explain it, lower algorithm.local.optimizer.lr or algorithm.server.lr, or "
    "ask for less local work"
)
NAMED = 3  # runs
STILL, STILL_ROUNDS = 5, 3  # a run stood still if the last fifth of its rounds, and at least 3, were skipped


def warnings_of(run: RunRecords) -> list[str]:
    """The warnings about one run."""
    warnings = list(run.warned)
    for name, column in run.rounds.items():  # a part's column of warnings: the first
        if name.endswith("_warning"):
            texts = [f"{words} (round {t})" for t, words in enumerate(column.tolist()) if isinstance(words, str)]
            warnings += texts[:1]
    warnings += _untrained(run)
    if wrong := went_wrong(run.curves, run.glossary):
        warnings.append(f"{wrong}. {LOWER}")
    return warnings


def warnings_in(runs: Runs) -> list[tuple[str, str]]:
    """(which runs, warning), each warning once; "" where it is about all of them."""
    by_warning: dict[str, list[str]] = {}
    for run in runs.runs:
        for words in warnings_of(run):
            by_warning.setdefault(words, []).append(run.name)
    shown = []
    for words, names in by_warning.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        shown.append(("" if len(names) == len(runs.runs) else ", ".join(names[:NAMED]) + more, words))
    return shown


def _untrained(run: RunRecords) -> Iterator[str]:
    reasons = run.rounds["skipped"].tolist()
    skipped, rounds = [why for why in reasons if isinstance(why, str)], len(reasons)
    if rounds and len(skipped) == rounds:
        why = Counter(skipped).most_common(1)[0][0]
        yield f"no client trained in any of the {rounds} rounds ({why}): the model is the one it began with"
    elif still := stood_still(reasons):
        yield f"{still}: the model is an old one"
    elif (
        rounds
        and run.curves
        and all(
            len(value_T) > 1 and round_T[0] == -1 and value_T[0] == value_T[-1]
            for round_T, value_T in run.curves.values()
        )
    ):
        yield "nothing that is measured has changed since before training: look at the learning rates"


def stood_still(skipped: Sequence[object]) -> str | None:
    """A sentence if the last rounds were all skipped; None where they were few. A skipped round has a text as reason.

    >>> stood_still([None, None, *["no client answered"] * 3])
    'every round from 2 to 4 was skipped (no client answered)'
    >>> stood_still([None, *["no client answered"] * 2])
    """
    moved = [t for t, why in enumerate(skipped) if not isinstance(why, str)]
    since = moved[-1] + 1 if moved else 0
    if len(skipped) - since < max(STILL_ROUNDS, len(skipped) // STILL):
        return None
    return f"every round from {since} to {len(skipped) - 1} was skipped ({skipped[-1]})"


def went_wrong(curves: Mapping[str, tuple[Column, Column]], glossary: Glossary) -> str | None:
    """A sentence if a loss is far above that before training, or if what was learned is lost; None otherwise.

    Lost: a loss had fallen, and in the last measurements every metric is about as before training, which is round -1.
    How far clients are apart (a spread) tells nothing.

    >>> import numpy as np
    >>> at, loss = np.array([-1, 0, 1, 2, 3]), np.array([2.31, 0.1, 2.3, 2.31, 2.3])
    >>> went_wrong({"global_loss": (at, loss), "global_accuracy": (at, 1 - 0.39 * loss)}, Glossary())
    'global_loss is 2.3, and was 0.1 after round 0 and 2.31 before training: what was learned is lost'
    >>> back = np.array([0.1, 0.9, 0.1, 0.8, 0.1])
    >>> went_wrong({"global_loss": (at, loss), "global_accuracy": (at, back)}, Glossary())
    """
    lost, kept = None, False
    for name, (round_T, value_T) in curves.items():
        if len(value_T) < 2 or round_T[0] != -1 or name.endswith("_spread"):
            continue
        first, last = float(value_T[0]), float(value_T[-1])
        if name.endswith("_loss") and last > EXPLODED * abs(first):
            return f"{name} is {last:.3g}, and was {first:.3g} before training: training has diverged"
        gain_T = (value_T - first) * (1 if glossary.higher_is_better(name) else -1)
        best = int(gain_T.argmax())
        kept = kept or bool(gain_T[-LAST:].max() > LEFT * gain_T[best])
        if name.endswith("_loss") and gain_T[best] > LEARNED * abs(first):
            then = f"{value_T[best]:.3g} after round {round_T[best]} and {first:.3g} before training"
            lost = f"{name} is {last:.3g}, and was {then}: what was learned is lost"
    return None if kept else lost
