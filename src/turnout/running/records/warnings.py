"""What a reader must be told before the numbers: runs that trained nothing or stood still in the end, losses that
exploded, what parts warn of, data that is odd.

What was known before the first round is kept with the records (tracks/oddities.py); the rest is told from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from turnout.running.records.runs import RunRecords, Runs

EXPLODED = 100  # times the loss before training
NAMED = 3  # runs
STILL, STILL_ROUNDS = 5, 3  # the last fifth of the rounds, and at least so many: then a run has stood still


def warnings_of(run: RunRecords) -> list[str]:
    """The sentences about one run."""
    return [*run.warned, *_told_by_parts(run), *_did_nothing(run), *_exploded(run)]


def warnings_in(runs: Runs) -> list[tuple[str, str]]:
    """(which runs, sentence), each sentence once; "" where it is true of all of them."""
    found: dict[str, list[str]] = {}
    for run in runs.runs:
        for words in warnings_of(run):
            found.setdefault(words, []).append(run.variant if run.seed is None else f"{run.variant} seed {run.seed}")
    return [("" if len(who) == len(runs.runs) else _listed(who), words) for words, who in found.items()]


def _listed(names: list[str]) -> str:
    """Some names, and how many more.

    >>> _listed(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _told_by_parts(run: RunRecords) -> Iterator[str]:
    """What a part warned of in some round (its column ends in _warning), the first time."""
    for name, column in run.rounds.items():
        if name.endswith("_warning"):
            said = [(t, words) for t, words in enumerate(column.tolist()) if isinstance(words, str)]
            yield from [f"{words} (round {t})" for t, words in said[:1]]


def _did_nothing(run: RunRecords) -> Iterator[str]:
    skipped = [why for why in run.rounds["skipped"].tolist() if isinstance(why, str)]
    rounds = len(run.rounds["round"])
    if rounds and len(skipped) == rounds:
        why = Counter(skipped).most_common(1)[0][0]
        yield f"nobody trained in any of the {rounds} rounds ({why}): the model is the one it began with"
    elif still := stood_still(run.rounds["skipped"].tolist()):
        yield f"{still}: the model is an old one"
    elif rounds and run.curves and all(_same(*curve) for curve in run.curves.values()):
        yield "nothing that is measured has changed since before training: look at the learning rates"


def stood_still(skipped: Sequence[object]) -> str | None:
    """In words, that the last rounds were all skipped, and why; None where they were few. A round's reason is a text.

    >>> stood_still([None, None, *["nobody answered"] * 3])
    'every round from 2 to 4 was skipped (nobody answered)'
    >>> stood_still([None, *["nobody answered"] * 2])
    """
    moved = [t for t, why in enumerate(skipped) if not isinstance(why, str)]
    since = moved[-1] + 1 if moved else 0
    if len(skipped) - since < max(STILL_ROUNDS, len(skipped) // STILL):
        return None
    return f"every round from {since} to {len(skipped) - 1} was skipped ({skipped[-1]})"


def _same(round_T: np.ndarray, value_T: np.ndarray) -> bool:
    """Whether a curve begins before training and ends with the same value."""
    return len(value_T) > 1 and round_T[0] == -1 and value_T[0] == value_T[-1]


def _exploded(run: RunRecords) -> Iterator[str]:
    for name, (round_T, value_T) in run.curves.items():
        if not name.endswith("_loss") or len(value_T) < 2 or round_T[0] != -1:
            continue
        first, last = float(value_T[0]), float(value_T[-1])
        if last > EXPLODED * abs(first):
            yield (f"{name} is {last:.3g}, and was {first:.3g} before training: training has diverged. Lower "
                   "algorithm.local.optimizer.lr, or ask for less local work")  # fmt: skip
