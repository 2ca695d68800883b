"""What is odd about an experiment that can run all the same: a sentence each, before the first round.

Whatever cannot work is a mistake and refused; this is for what runs and means nothing, as when labels have gaps of
millions. What shows only in the end is told from the records (report/warnings.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from turnout.data import Federation, Pooled
from turnout.experiment import Algorithm, Experiment
from turnout.parts.local import turn_out
from turnout.world.participation import finished

ROUNDS_TRIED, CLIENTS_TRIED = 20, 10_000
LISTED = 5  # classes
FEW = 20  # samples, of which nothing is said: a test, or a first try
GAPS = 10  # classes without samples, from which on labels are taken for badly numbered
HOW = "if they are numbers to predict, say so with regression = true and task = Regression()"


def oddities(experiment: Experiment, algorithm: Algorithm, federation: Federation, drop_single: bool) -> list[str]:
    """Sentences about the data and about who turns up; nothing is looked at that would have to be made first."""
    found = [] if _has_test_samples(federation) else [
        "there are no test samples, so nothing is measured: raise test_share, or give a test set"
    ]  # fmt: skip
    found += _unguarded(algorithm, drop_single)
    if not isinstance(federation, Pooled):
        return found
    found += _about_labels(federation)
    if federation.clients <= CLIENTS_TRIED and not _anybody(experiment, algorithm, federation, drop_single):
        tried = min(experiment.rounds, ROUNDS_TRIED)
        found.append(f"nobody's work counts in the first {tried} rounds, so nothing will be trained: look at "
                     "world.participation and at how much work algorithm.local asks for")  # fmt: skip
    return found


def _unguarded(algorithm: Algorithm, batch_statistics: bool) -> list[str]:
    """Ways past an aggregation that keeps hostile updates out, and nothing else."""
    if getattr(algorithm.aggregation, "guards", None) != "updates":
        return []
    optimizer = algorithm.local.optimizer
    ways = [f"what the term {term.name!r} sends" for term in algorithm.terms if term.sends]
    ways += ["BatchNorm statistics"] if batch_statistics and algorithm.personal is None else []
    ways += ["personal layers that are shared"] if algorithm.share_personal else []
    ways += ["federated moments"] if optimizer.slots and optimizer.moments == "federated" else []
    name = type(algorithm.aggregation).__name__
    said = f"{name} guards the updates only: a hostile client still reaches the model by {', '.join(ways)}"
    return [f"{said} (MultiKrum leaves out whole replies)"] if ways else []


def _has_test_samples(federation: Federation) -> bool:
    first = torch.zeros(1, dtype=torch.int64)
    if len(federation.test(first, 0).row_R):
        return True
    central = federation.central_test()
    return central is not None and len(central[1]) > 0


def _anybody(experiment: Experiment, algorithm: Algorithm, federation: Pooled, drop_single: bool) -> bool:
    """Whether anybody's work counts in the first rounds."""
    client_N, seed, local = torch.arange(federation.clients), experiment.seed, algorithm.local
    examples_N, groups = federation.examples(client_N), federation.groups()
    for t in range(min(experiment.rounds, ROUNDS_TRIED)):
        done_N = finished(experiment.world.participation, client_N, t, local.full_work, seed, groups)
        turnout, _ = turn_out(client_N, done_N, examples_N, local, drop_single, t)
        if bool(algorithm.weighting.counts(turnout).any()):
            return True
    return False


def _about_labels(federation: Pooled) -> Iterator[str]:
    train = federation.train(torch.arange(federation.clients))
    label_R = federation.y[train.row_R]
    if federation.y.is_floating_point() or federation.y.ndim != 1 or len(label_R) < FEW:
        return
    held_L = label_R.unique()
    missing, numbered = federation.classes - len(held_L), federation.labels[-1:] == (str(federation.classes - 1),)
    if len(held_L) > len(label_R) / 2:
        yield f"there are {len(held_L):,} classes among {len(label_R):,} training samples, so most are seen once: {HOW}"
    elif numbered and missing > max(GAPS, len(held_L)):
        yield (f"the largest label makes {federation.classes:,} classes, but training samples are of {len(held_L):,} "
               "of them: number the labels from 0 without gaps")  # fmt: skip
    elif names := _tested_only(federation, held_L):
        yield f"nobody holds training samples of {names}: they cannot be learned, though there are test samples of them"


def _tested_only(federation: Pooled, held_L: Tensor) -> str:
    """The classes of which there are test samples and that nobody holds, by name."""
    tested_L = held_L if federation.central is None else federation.central[1].unique()
    missing = tested_L[~torch.isin(tested_L, held_L)].tolist()
    names = [federation.labels[i] if i < len(federation.labels) else str(i) for i in missing]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"class{'es' * (len(names) > 1)} {', '.join(names[:LISTED])}{more}" if names else ""
