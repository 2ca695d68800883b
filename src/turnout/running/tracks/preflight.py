"""Warnings before the first round: settings that run but are probably not intended, a sentence each."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import torch

from turnout.data import Federation, Pooled
from turnout.experiment import Algorithm, Experiment
from turnout.layout import Layout
from turnout.parts.local import turn_out
from turnout.parts.privacy.rules import about_stopping, made_private
from turnout.parts.products import factor_pairs
from turnout.world.participation import finished

ROUNDS_TRIED, CLIENTS_TRIED = 20, 10_000
ROUNDS_SEEN = 3  # at least, to estimate how much work is lost to rounding
MUCH_LOST = 0.1  # of the clients that turn up
LISTED = 5  # classes
FEW = 20  # samples, with no warning: a test, or a first try
GAPS = 10  # classes without samples; more mean that labels are numbered badly
MKL_ALL, MKL_OFF = -1, 1  # MKL's own numbers: which settings are asked for, and conditional reproducibility is off
HOW = "for numbers to predict, set regression = true and task = Regression()"


def preflight(experiment: Experiment, algorithm: Algorithm, federation: Federation, drop_single: bool) -> list[str]:
    """Sentences about the data and the turnout; nothing is generated for it."""
    warnings, first = list[str](), torch.zeros(1, dtype=torch.int64)
    tested = len(federation.test(first, 0).row_R) > 0
    if not tested and (central := federation.central_test()) is not None:
        tested = len(central[1]) > 0
    if not tested:
        warnings.append("there are no test samples, so nothing is measured: raise test_share, or give a test set")
    if not isinstance(federation, Pooled):
        return warnings
    warnings += _about_labels(federation)
    if federation.clients <= CLIENTS_TRIED:
        warnings += _about_work(experiment, algorithm, federation, drop_single)
    return warnings


def about_privacy(experiment: Experiment, layout: Layout, clients: int) -> list[str]:
    """What a private run changes in its settings, and what of it its ε does not cover."""
    algorithm, said = experiment.algorithm, list[str]()
    if not isinstance(algorithm, Algorithm) or algorithm.privacy is None:
        return said
    said += made_private(algorithm, experiment.rounds)[1]
    delta = algorithm.privacy.delta
    if delta is not None and delta * clients >= 1:
        said.append(
            f"algorithm.privacy: delta = {delta:g} would allow to publish one of the {clients:,} clients entirely: "
            f"give less than {1 / clients:.2g}"
        )
    if list(factor_pairs(layout.shared_slots)):
        said.append(
            "algorithm.privacy: both factors of an adapter are trained, so that noise is multiplied by noise: freeze A"
        )
    return said + about_stopping(experiment.stop)


def about_products() -> list[str]:
    """A sentence if MKL rounds a product by the memory address of its operands; none where torch has no MKL."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        is_off = library.mkl_serv_cbwr_get(MKL_ALL) == MKL_OFF
    except (OSError, AttributeError):
        return []
    if not is_off:
        return []
    return ["MKL rounds products by the memory address of their operands, so the same seed gives results that are only "
            "close: import turnout before torch computes anything, and do not set MKL_CBWR to nothing"]  # fmt: skip


def _about_work(experiment: Experiment, algorithm: Algorithm, federation: Pooled, drop_single: bool) -> Iterator[str]:
    """Whether any work counts in the first rounds, and whether much of it is less than a mini-batch."""
    client_N, seed, local = torch.arange(federation.clients), experiment.seed, algorithm.local
    examples_N, groups = federation.examples(client_N), federation.groups
    tried, counts, there, lost = min(experiment.rounds, ROUNDS_TRIED), False, 0, 0
    for t in range(tried):
        done_N = finished(experiment.world.participation, client_N, t, local.full_work, seed, groups)
        turnout, _ = turn_out(client_N, done_N, examples_N, local, drop_single)
        counts = counts or bool(algorithm.weighting.counts(turnout).any())
        there_N = (done_N > 0) & (examples_N > 0)
        there, lost = there + int(there_N.sum()), lost + int((there_N & (turnout.work_C == 0)).sum())
        if counts and t + 1 >= ROUNDS_SEEN:
            break
    how = "check world.participation and the work that algorithm.local asks for"
    if not counts:
        yield f"no client's work counts in the first {tried} rounds, so nothing will be trained: {how}"
    elif lost > there * MUCH_LOST:
        yield (f"{lost / there:.0%} of the clients that turn up in the first rounds finish less than one mini-batch, "
               f"which counts as absent: {how}")  # fmt: skip


def _about_labels(federation: Pooled) -> Iterator[str]:
    train = federation.train(torch.arange(federation.clients))
    label_R = federation.y[train.row_R]
    if federation.y.is_floating_point() or federation.y.ndim != 1 or len(label_R) < FEW:
        return
    held_L = label_R.unique()
    missing, numbered = federation.classes - len(held_L), federation.labels[-1:] == (str(federation.classes - 1),)
    if len(held_L) > len(label_R) / 2:
        yield f"there are {len(held_L):,} classes among {len(label_R):,} training samples, so most occur once: {HOW}"
    elif numbered and missing > max(GAPS, len(held_L)):
        yield (f"the largest label makes {federation.classes:,} classes, but training samples are of {len(held_L):,} "
               "of them: number the labels from 0 without gaps")  # fmt: skip
    else:
        tested_L = held_L if federation.central is None else federation.central[1].unique()
        untrained = tested_L[~torch.isin(tested_L, held_L)].tolist()
        names = [federation.labels[i] if i < len(federation.labels) else str(i) for i in untrained]
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        listed = f"class{'es' * (len(names) > 1)} {', '.join(names[:LISTED])}{more}"
        if names:
            yield f"no client has training samples of {listed}, which cannot be learned, but there are test samples"
