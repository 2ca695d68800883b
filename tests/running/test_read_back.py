"""Settings that Python takes, the run's own file gives back; or it is said before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

import turnout as to
from turnout.errors import UserError
from turnout.running.config.read import build, from_table, load
from turnout.running.config.run_file import check_reads_back, check_settings
from turnout.running.config.write import to_table, to_toml

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True)
class Fussy(to.weighting.Weighting):
    """A part with every kind of setting that a person might write."""

    how: Literal["soft", "hard"] = "soft"
    level: Literal[1, 2, None] = 1
    most: int | None = 10
    word: str | None = "text"
    ways: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked(to.weighting.Weighting):
    ratio: Fraction | None = None
    scale: float = 1.0


def with_part(part: Any) -> to.Experiment:
    return to.Experiment(algorithm=to.Algorithm(weighting=part))


@pytest.mark.parametrize(
    "part",
    [
        Fussy(),
        Fussy("hard", 2, None, None, {"x": 1.0}),
        Fussy(word="none", most=0),
        Checked(scale=2.0),
    ],
)
def test_such_settings_survive(part, tmp_path: Path):
    experiment = with_part(part)
    check_settings(experiment)
    (tmp_path / "x.toml").write_text(to_toml(experiment))
    assert load(tmp_path / "x.toml") == experiment
    check_reads_back(experiment)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"how": "hrad"}, "'soft' or 'hard', not 'hrad'"), ({"level": 3}, "1 or 2 or None, not 3")],
)
def test_what_is_none_of_them_is_a_sentence(settings, sentence):
    table = {"algorithm": {"weighting": {"kind": "test_read_back:Fussy", **settings}}}
    with pytest.raises(UserError, match=sentence):
        from_table(table)
    with pytest.raises(UserError, match=sentence):
        check_settings(with_part(Fussy(**settings)))


def test_none_where_it_is_not_the_default():
    scores = to.Experiment(algorithm=to.scores.Scores(early=None))
    assert from_table(to_table(scores)) == scores
    owned = to.Experiment(to.World(to.data.Digits(clients=None, partition=None)))
    assert from_table(to_table(owned)) == owned
    assert build(str | int | None, 0, "x") == 0


@pytest.mark.parametrize("number", [np.int64(3), np.float32(0.1), np.float64(0.5), np.bool_(True)])
def test_numbers_of_numpy_are_numbers(number):
    assert to_table(number) == number.item()
    assert type(to_table(number)) is type(number.item())


def test_a_numpy_number_in_an_experiment(tmp_path: Path):
    experiment = to.Experiment(
        to.World(to.data.Synthetic(clients=int(np.int64(4)))),
        algorithm=to.Algorithm(to.Local(to.SGD(lr=np.float32(0.1)), batch_size=np.int64(7))),
        rounds=2,
    )
    to.run(experiment, tmp_path / "run", quiet=True)
    assert load(tmp_path / "run" / "experiment.toml").algorithm.local.batch_size == 7


@dataclass(frozen=True)
class ByNumber(to.weighting.Weighting):
    factors: Mapping[int, float] = field(default_factory=dict)


def test_a_file_that_would_give_another_experiment_is_refused_before_the_first_round(tmp_path: Path):
    with pytest.raises(UserError, match=r"algorithm.weighting.factors is {1: 2.0}"):
        to.run(with_part(ByNumber({1: 2.0})), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "experiment.toml").exists()


def test_a_file_that_cannot_be_read_is_a_warning():
    with pytest.warns(UserWarning, match=r"algorithm.weighting.*from Python"):
        check_reads_back(with_part(Renamed(2.0)))


@dataclass(frozen=True)
class Renamed(to.weighting.Weighting):
    """Its settings have other names than its arguments, so a file cannot make it again."""

    by: float = 1.0

    def __init__(self, factor: float):
        object.__setattr__(self, "by", factor)


def test_objects_of_ones_own_are_allowed():
    @dataclass(frozen=True)
    class Here(to.weighting.Weighting):
        strength: float = 1.0

    check_reads_back(with_part(Here()))
    check_reads_back(to.Experiment(model=lambda: None))
