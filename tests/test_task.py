"""Tasks: the formulas, one number per sample, and the sentences for outputs that do not fit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.models import MLP, Logistic
from turnout.rng import rng
from turnout.running.config.read import load
from turnout.running.config.write import to_toml
from turnout.running.tracks.building import check_model
from turnout.tasks import (
    Classification,
    Metric,
    MetricInfo,
    NextCharacter,
    Regression,
    Task,
    TaskSpec,
    metric_infos,
)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng(0, "test", *shape), dtype=torch.float64)


def test_classification_is_minus_the_log_of_the_labels_probability() -> None:
    output_BK, label_B = normal(7, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected = [
        -math.log(math.exp(o[y]) / sum(math.exp(v) for v in o)) for o, y in zip(output_BK, label_B, strict=True)
    ]
    loss_B = Classification().loss(output_BK, label_B)
    assert torch.allclose(loss_B, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_accuracy_is_one_for_each_right_sample() -> None:
    output_BK = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.2, 0.8]])
    assert Classification().metrics["accuracy"](output_BK, torch.tensor([1, 1, 1])).tolist() == [1, 0, 1]


@settings(deadline=None)
@given(real=st.integers(1, 5), padding=st.integers(0, 4))
def test_padding_changes_neither_loss_nor_accuracy(real: int, padding: int) -> None:
    task, output_BTK = NextCharacter(), normal(2, real + padding, 6)
    target_BT = torch.arange(2 * (real + padding)).reshape(2, -1) % 6
    padded_BT = torch.where(torch.arange(real + padding) < real, target_BT, -1)
    for value in (task.loss, task.metrics["accuracy"]):
        assert torch.allclose(value(output_BTK, padded_BT), value(output_BTK[:, :real], target_BT[:, :real]))


def test_next_character_is_the_mean_over_positions() -> None:
    output_BTK, target_BT = normal(3, 5, 4), torch.arange(15).reshape(3, 5) % 4
    each = [Classification().loss(output_BTK[b], target_BT[b]).mean() for b in range(3)]
    assert torch.allclose(NextCharacter().loss(output_BTK, target_BT), torch.stack(each))


def test_a_sample_of_padding_only_counts_nothing_and_has_no_gradient() -> None:
    output_BTK, target_BT = normal(2, 3, 4), torch.tensor([[-1, -1, -1], [0, 1, 2]])
    gradient = grad(lambda output: NextCharacter().loss(output, target_BT).sum())(output_BTK)
    assert NextCharacter().loss(output_BTK, target_BT)[0] == 0
    assert gradient[0].abs().max() == 0
    assert gradient[1].abs().min() > 0


@pytest.mark.parametrize("output_shape", [(6,), (6, 1)])
def test_regression_compares_sample_with_sample(output_shape: tuple[int, ...]) -> None:
    output, target_B = normal(6).reshape(output_shape), normal(6) + 1
    error_B = output.flatten() - target_B
    assert torch.allclose(Regression().loss(output, target_B), error_B**2)
    assert torch.allclose(Regression().metrics["mae"](output, target_B), error_B.abs())


def test_regression_with_several_outputs_is_their_mean() -> None:
    output_BK, target_BK = torch.zeros(1, 2), torch.tensor([[1.0, 3.0]])
    assert Regression().loss(output_BK, target_BK).tolist() == [5]
    assert Regression().metrics["mae"](output_BK, target_BK).tolist() == [2]


CASES = [
    (Classification(), normal(3, 4, 5), torch.arange(12).reshape(3, 4) % 5),
    (NextCharacter(), normal(3, 2, 4, 5), torch.arange(24).reshape(3, 2, 4) % 6 - 1),
    (Regression(), normal(3, 4, 1), normal(3, 4)),
]


@pytest.mark.parametrize(("task", "output", "target"), CASES, ids=lambda v: type(v).__name__)
def test_clients_side_by_side_give_what_each_gives_alone(task: TaskSpec, output: Tensor, target: Tensor) -> None:
    def mean_loss(o: Tensor, y: Tensor) -> Tensor:
        return task.loss(o, y).mean()

    together = vmap(grad(mean_loss))(output, target)
    alone = torch.stack([grad(mean_loss)(o, y) for o, y in zip(output, target, strict=True)])
    assert torch.allclose(together, alone, atol=1e-12)
    for metric in task.metrics.values():
        assert vmap(metric)(output, target).shape == output.shape[:2]


@pytest.mark.parametrize(("task", "output", "target"), CASES, ids=lambda v: type(v).__name__)
def test_fitting_outputs_pass_and_every_task_names_its_main_metric(
    task: TaskSpec, output: Tensor, target: Tensor
) -> None:
    task.check_output(tuple(output[0].shape), target[0])
    assert task.main in task.metrics


LABELS = torch.tensor([0, 9, 4])


@pytest.mark.parametrize(
    ("task", "shape", "target", "says"),
    [
        (Classification(), (3, 5), LABELS, "gives 5 scores but the data has 10 labels"),
        (Classification(), (3, 5, 10), LABELS, r"gives \(3, 5, 10\) for targets \(3,\)"),
        (Classification(), (2, 10), LABELS, "must agree"),
        (Classification(), (3, 10), LABELS.double(), "whole numbers"),
        (Classification(), (3, 10), LABELS - 1, "number the labels from 0"),
        (NextCharacter(), (3, 10), LABELS, "for one label per text use Classification"),
        (NextCharacter(), (1, 3, 9), LABELS[None], "gives 9 scores"),
        (NextCharacter(), (2, 3, 10), LABELS[None], "must agree"),
        (Regression(), (3, 2), LABELS.double(), "one output per number"),
        (Regression(), (4, 1), LABELS.double(), "one output per number"),
        (Regression(), (2, 3), torch.zeros(3, 2), r"gives \(2, 3\) and the data \(3, 2\)"),
    ],
)
def test_an_output_that_does_not_fit_is_a_sentence(
    task: TaskSpec, shape: tuple[int, ...], target: Tensor, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        task.check_output(shape, target)


def test_own_loss_and_metrics_are_used_as_given() -> None:
    def hinge(output: Tensor, target: Tensor) -> Tensor:
        return (1 - output[:, 0] * target).clamp(min=0)

    def side(output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] * target > 0).double()

    task = Task(loss=hinge, metrics={"side": side}, main="side", higher_is_better=True)
    task.check_output((3, 1), torch.tensor([1.0, -1.0, 1.0]))
    assert task.loss(torch.tensor([[0.5], [2.0]]), torch.tensor([1.0, -1.0])).tolist() == [0.5, 3.0]
    assert (task.main, list(task.metrics)) == ("side", ["side"])


def averaged(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target).square().mean()


def per_sample(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target).square()


def broken(output: Tensor, target: Tensor) -> Tensor:
    return output @ target


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task(loss=averaged), r"loss gives \(\) for 4 samples.*reduction='none'"),
        (Task(loss=per_sample, metrics={"late": averaged}, main="late"), "metric 'late' gives"),
        (Task(loss=lambda output, target: 0.5), "gives float for 4 samples"),  # type: ignore[arg-type, return-value]
        (Task(loss=broken), "loss fails on an output of shape"),
    ],
)
def test_a_loss_that_is_not_per_sample_is_a_sentence(task: Task, says: str) -> None:
    with pytest.raises(UserError, match=says):
        task.check_output((4, 1), torch.zeros(4))


def test_a_task_must_know_its_main_metric_and_have_a_loss() -> None:
    with pytest.raises(UserError, match="did you mean 'error'"):
        Task(loss=per_sample, metrics={"error": per_sample}, main="eror")
    with pytest.raises(UserError, match="is a function"):
        Task(loss="mse")  # type: ignore[arg-type]


def test_a_metric_says_which_way_is_better_and_its_unit() -> None:
    metrics = {"surprise": Metric(per_sample, higher_is_better=False), "hits": Metric(per_sample, unit="percent")}
    task = Task(loss=per_sample, metrics=metrics, main="hits")
    assert task.higher_is_better  # the metric's own word, not the default of a task
    assert metric_infos(task) == {
        "hits": MetricInfo(True, "percent"),
        "surprise": MetricInfo(False, "number"),
        "loss": MetricInfo(False, "number"),
    }
    assert list(metric_infos(task)) == ["hits", "surprise", "loss"]
    with pytest.raises(UserError, match="did you mean 'percent'"):
        Metric(per_sample, unit="percents")
    with pytest.raises(UserError, match="a metric is a function"):
        Metric("mse")  # type: ignore[arg-type]


def test_of_a_plain_function_the_task_or_a_whole_well_known_name_says_it() -> None:
    plain = dict.fromkeys(("main", "mae", "accuracy", "lossless", "error_free"), per_sample)
    found = metric_infos(Task(loss=per_sample, metrics=plain, main="main"))
    lower = {name for name, info in found.items() if not info.higher_is_better}
    assert lower == {"main", "mae", "loss"}  # no part of a name says anything
    assert {name for name, info in found.items() if info.unit == "percent"} == {"accuracy"}
    assert (
        metric_infos(Task(loss=per_sample, metrics=plain, main="main", higher_is_better=True))["main"] == MetricInfo()
    )


def test_a_metric_goes_into_a_file_and_back(tmp_path: Path) -> None:
    metrics = {"late": Metric(averaged, higher_is_better=False, unit="seconds"), "plain": per_sample}
    experiment = Experiment(task=Task(loss=per_sample, metrics=metrics, main="late"))
    (tmp_path / "mine.toml").write_text(to_toml(experiment))
    assert load(tmp_path / "mine.toml") == experiment


def test_check_model_runs_the_model_and_leaves_it_as_it_was() -> None:
    model = MLP(5, batch_norm=True).build((3,), classes=4)
    model.get_submodule("norm1").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_model(Classification(), model, torch.ones(2, 3), torch.tensor([0, 3]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.children()] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("model", "x", "says"),
    [
        (Logistic().build((3,), classes=2), torch.ones(2, 3), "gives 2 scores but the data has 4 labels"),
        (Logistic().build((5,), classes=4), torch.ones(2, 3), r"cannot take samples of shape \(3,\)"),
        (nn.Embedding(2, 4), torch.tensor([0, 2]), "cannot take samples"),
    ],
)
def test_check_model_says_what_does_not_fit(model: nn.Module, x: Tensor, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_model(Classification(), model, x, torch.tensor([0, 3]))
