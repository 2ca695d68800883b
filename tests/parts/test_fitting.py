"""What is no part is refused where it is given, with a sentence: texts, classes, parts of another role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout as to
from turnout.errors import nearest
from turnout.parts.terms.base import LocalTerm
from turnout.testing import check_term

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a text": (lambda: to.Algorithm(weighting="C"), r"algorithm\.weighting is the text 'C'.*FedAvg\(\)"),
    "a class": (
        lambda: to.Algorithm(substitution=to.substitution.Friends),
        r"algorithm\.substitution is the class Friends",
    ),
    "another role": (
        lambda: to.Algorithm(weighting=to.substitution.Friends()),
        r"algorithm\.weighting is an object of class Frie",
    ),
    "the optimizer": (lambda: to.Algorithm(to.SGD(0.1)), r"algorithm\.local is an object of class SGD.*Local\(\)"),
    "torch's": (lambda: to.Local(torch.optim.SGD), r"algorithm\.local\.optimizer is the class SGD"),
    "no term": (lambda: to.Algorithm(terms=[object()]), r"algorithm\.terms .*it has no name.*terms\.LocalTerm"),
    "a pattern": (lambda: to.Algorithm(personal="head.*"), r"personal = 'head\.\*' .*personal\.Named"),
    "data": (lambda: to.World((torch.zeros(2, 3), torch.zeros(2))), r"world\.data is an object of class tuple"),
    "a spelling": (lambda: to.World(participation="dropout"), r"world\.participation is the text"),
    "no world": (lambda: to.Experiment(to.data.Digits()), r"world is an object of class Digits.*World\("),
    "half a round": (lambda: to.Experiment(rounds=2.5), "rounds must be a whole number, not 2.5"),
    "a setting": (lambda: to.Experiment().but(**{"algorithm.local.epoch": 2}), "did you mean 'epochs'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_no_part_is_refused_where_it_is_given(name: str) -> None:
    make, sentence = MISTAKES[name]
    with pytest.raises(to.UserError, match=sentence):
        make()


def test_a_name_like_none_is_answered_with_all() -> None:
    assert nearest("xyz", ["b", "a"]) == "known are a, b"


@dataclass(frozen=True)
class Shapeless(LocalTerm):
    name: str = "shapeless"

    def transform_grad(self, grad_cP, at, server_state, client_state):
        return grad_cP.sum(1)


def test_a_gradient_of_another_shape_is_found_by_the_check() -> None:
    with pytest.raises(AssertionError, match="transform_grad"):
        check_term(Shapeless())


def of(**changes: Any) -> to.Experiment:
    return to.Experiment(to.World(to.data.Digits(clients=5)), to.models.MLP(8), rounds=1).but(**changes)


VALUES: dict[str, tuple[Callable[[], to.Experiment], str]] = {
    "epochs": (lambda: of(algorithm=to.Algorithm(to.Local(epochs=2.0))), r"local\.epochs must be a whole number"),
    "steps": (lambda: of(algorithm=to.Algorithm(to.Local(epochs=None, steps=2.5))), r"local\.steps must be a whole"),
    "no epochs": (lambda: of(algorithm=to.Algorithm(to.Local(epochs=float("nan")))), r"Local\.epochs must be"),
    "a cohort": (lambda: of(algorithm=to.Algorithm(selection=to.selection.Count(2.5))), r"selection\.clients must be"),
    "a partition": (
        lambda: of(world=to.World(to.data.Digits(clients=5, partition="iid"))),
        r"partition must be .*IID\(\.\.\.\)",
    ),
    "sizes": (
        lambda: of(world=to.World(to.data.Digits(clients=5, sizes=10))),
        r"sizes must be .*Equal\(\.\.\.\) or None, not 10",
    ),
    "a target": (lambda: of(stop=to.Stop(target="x")), r"stop\.target must be a number or None, not 'x'"),
    "a term": (
        lambda: of(algorithm=to.Algorithm(terms=[to.terms.Proximal(True)])),
        r"terms\.0\.mu must be a number",
    ),
    "threads": (lambda: of(runtime=to.runtime.InProcess(threads=1.5)), r"runtime\.threads must be a whole number"),
    "nothing to train": (lambda: of(model=torch.nn.Flatten()), "no parameter that can be trained"),
    "a recipe": (lambda: "digits", "was given 'digits'"),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_another_type_is_refused_before_the_first_round(name: str, tmp_path: Path) -> None:
    make, sentence = VALUES[name]
    with pytest.raises(to.UserError, match=sentence):
        to.run(make(), tmp_path / "run", quiet=True)


def test_numbers_of_numpy_and_classes_that_nobody_can_read_are_taken(tmp_path: Path) -> None:
    local = to.Local(to.SGD(np.float64(0.1)), epochs=np.int64(1))  # type: ignore[arg-type]
    to.run(of(algorithm=to.Algorithm(local)), tmp_path / "run", quiet=True)
