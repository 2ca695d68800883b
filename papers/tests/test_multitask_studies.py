"""The studies of MTFL: what they decide on made-up curves, what they plan, and all four end to end."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import turnout as to
from turnout.data.partition import IID
from turnout.errors import UserError
from turnout.models import mtfl_cifar_cnn, mtfl_mnist_mlp
from turnout_papers.recipes.multitask import cifar_multitask, mnist_adam, of_classes
from turnout_papers.studies import activations, adam, gradients, personal
from turnout_papers.studies.drawing import draw
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves, Study

STUDIES = {s.name: s for s in (adam.STUDY, personal.STUDY, gradients.STUDY, activations.STUDY)}


def line(first: float, last: float, rounds: int = 100) -> Curve:
    return Curve(np.arange(-1, rounds), np.linspace(first, last, rounds + 1))


def over_seeds(curve_of, seeds: int = 5) -> dict[int, Curve]:
    return {seed: curve_of(0.001 * seed) for seed in range(seeds)}


def personal_curves(gap: float, central: float) -> Curves:
    """MT-FedAdam ends `gap` above FedAdam, which it equals at first; independent clients in between."""
    ends = {"MT-FedAdam": 0.7 + gap, "FedAdam": 0.7, "Independent": 0.7 + gap / 2}
    own, shared = {}, {}
    for classes, noisy in personal.CASES:
        for method, end in ends.items():
            name = personal.variant(classes, noisy, method)
            own[name] = over_seeds(lambda e, end=end: line(0.1, end + e))
            if method != "Independent":
                last = 0.7 + (central if method == "MT-FedAdam" else 0)
                shared[name] = over_seeds(lambda e, last=last: line(0.1, last + e))
    return Curves(own, more={"global_accuracy": Curves(shared)})


def test_personal_claims_on_made_up_accuracies():
    found = personal.STUDY.decide("small", personal_curves(gap=0.1, central=-0.03))
    assert len(found) == 12
    assert all(claim.holds for claim in found)
    worse = personal.STUDY.decide("small", personal_curves(gap=-0.1, central=-0.08))
    assert not any(claim.holds for claim in worse)
    rows = {(r.case, r.metric): r for r in personal.rows("small", personal_curves(0.1, 0.0))}
    assert rows["4 classes", "personal MT-FedAdam"].published == 78
    assert rows["4 classes, noise", "MT over independent"].published == 16
    assert rows["4 classes, noise, BatchNorm first layer only", "personal MT-FedAdam"].ours == "not run"


def adam_curves(fedavg: int | None, fedadam: int | None) -> Curves:
    """Rounds at which each method crosses the target; half the settings of FedAvg never do."""
    curves: dict[str, dict[int, Curve]] = {}
    size = adam.SIZES["small"]

    def crossing(at: int | None) -> Curve:
        round_T = np.arange(-1, size.rounds if at is None else at)
        return Curve(round_T, np.where(round_T == (at or 0) - 1, 0.95, 0.2) if at else np.full(len(round_T), 0.2))

    for case in adam.cases("small"):
        for setting in adam.settings("small"):
            at = fedadam if setting.rate is None else fedavg if setting.rate in (0.1, 0.3) else None
            curves[adam.variant(case, setting.name)] = {s: crossing(at) for s in (100, 101)}
        for method, at in (("FedAvg", fedavg), ("FedAdam", fedadam)):
            curves[adam.variant(case, method)] = {s: crossing(at) for s in range(5)}
    sent = {name: {s: spending(name, c) for s, c in found.items()} for name, found in curves.items()}
    return Curves(curves, more=dict.fromkeys(("bytes_up", "bytes_down"), Curves(sent)))


def spending(name: str, curve: Curve) -> Curve:
    rounds = len(curve.round_T) - 1
    return Curve(np.arange(rounds), np.full(rounds, 3.0 if "FedAdam" in name else 1.0))


@pytest.mark.parametrize(
    ("fedavg", "fedadam", "rounds", "nbytes"),
    [
        (40, 10, True, True),
        (20, 10, True, False),
        (10, 20, False, False),
        (None, 30, True, True),  # 180 rounds are more bytes than thrice 30
        (None, 70, True, False),  # but not than thrice 70: FedAvg may have got there with less
        (None, None, False, False),
    ],
)
def test_adam_claims_weigh_rounds_and_bytes(fedavg, fedadam, rounds, nbytes):
    """FedAdam sends three times as much: it must be more than three times as fast to save bytes."""
    found = adam.STUDY.decide("small", adam_curves(fedavg, fedadam))
    assert [claim.holds for claim in found][:-1] == [rounds, nbytes] * 4
    sooner = fedadam is not None and (fedavg is None or fedadam <= fedavg)
    assert found[-1].holds == (sooner or fedadam == fedavg)  # the same or fewer rounds in every scenario


def test_settings_are_chosen_on_other_seeds_than_they_are_judged_on():
    curves = adam_curves(20, 10)
    parts = adam.judged("small", curves)
    assert {seed for part in parts for seed in part.seed_range} == set(range(5))
    assert set(adam.plan("small").parts[0].seed_range) == {100, 101}
    case = adam.cases("small")[0]
    chosen = adam.chosen("small", case, "FedAvg", curves)
    assert chosen.rate in (0.1, 0.3)
    assert parts[0].variants[adam.variant(case, "FedAvg")].algorithm.local.optimizer.lr == chosen.rate


def test_gradient_and_neuron_claims_on_made_up_curves():
    ends = {"MT-FedAdam": 0.1, "FedAdam": 0.5, "Independent": 0.01}
    runs = {m: over_seeds(lambda e, end=end: line(1.0, end + e)) for m, end in ends.items()}
    more = dict.fromkeys(gradients.MORE, Curves(runs))
    found = gradients.STUDY.decide("small", Curves(runs, more=more))
    assert [claim.outcome for claim in found] == ["holds"] * 4 + ["level"] * 8  # noisy and others alike
    noisy = {m: over_seeds(lambda e: line(2.0 + e, 0.1)) for m in ends}
    louder = more | {name: Curves(noisy) for name in gradients.MORE if name.endswith("_noisy")}
    found = gradients.STUDY.decide("small", Curves(runs, more=louder))
    assert [claim.holds for claim in found] == [True] * 12
    turned = Curves(runs | {"FedAdam": runs["MT-FedAdam"], "MT-FedAdam": runs["FedAdam"]})
    found = gradients.STUDY.decide("small", Curves(turned.curves, more=dict.fromkeys(gradients.MORE, turned)))
    assert [claim.holds for claim in found][:4] == [False] * 4
    shares = {"mean": 0.6, "variance": 0.7, "both": 0.45}
    more = {}
    for name, s in shares.items():
        flat = over_seeds(lambda e, s=s: line(s + e, s + e))
        more[activations.column(name)] = Curves(dict.fromkeys(activations.METHODS, flat))
    assert [c.holds for c in activations.STUDY.decide("small", Curves(runs, more=more))] == [True, True, False]


def test_iid_is_the_same_share_of_every_class():
    """IID: "every worker the same share of every class", in the recipe and in the study, at every scale."""
    for scale in ("smoke", "small", "paper"):
        for case in adam.cases(scale):
            data = adam.experiment(case, adam.settings(scale)[0], scale).world.data
            assert (data.partition == IID(stratified=True)) == case.iid
    for experiment in mnist_adam(iid=True).values():
        assert experiment.world.data.partition == IID(stratified=True)
    data = adam.experiment(adam.cases("small")[0], adam.settings("small")[0], "small").world.data.load(0)
    clients = torch.arange(data.clients)
    train = data.train(clients, 0)
    for label, total in enumerate(data.y.bincount().tolist()):
        held = torch.tensor([int((train.of(c)[1] == label).sum()) for c in clients.tolist()])
        assert (held - total / data.clients).abs().max() < 1


def test_the_published_settings():
    """SPEC 6.5: α, β1, β2; batches of 20; W, C, E; noise of variance 4 on a fifth of the clients."""
    made = cifar_multitask(classes=2)
    optimizer = made["MT-FedAdam"].algorithm.local.optimizer
    assert (optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.eps) == (0.01, 0.99, 0.9999, 1e-8)
    assert made["MT-FedAdam"].algorithm.share_personal
    assert not made["FedAdam"].algorithm.share_personal
    noise = made["FedAdam"].world.data
    assert (noise.share, noise.std**2, noise.data.clients) == (0.2, 4.0, 200)
    assert mnist_adam()["FedAvg"].algorithm.local.batch_size == 20
    assert {c.clients for c in adam.cases("paper")} == {200, 400}
    assert adam.TABLE_1_ADAM["MNIST", False, 200, 1.0, "FedAdam"] == 35
    mnist, cifar = adam.plan("paper").parts
    assert (len(mnist.variants), mnist.seeds) == ((8 + 5) * (5 * 3 + 5), 3)  # E = 1 to 5, and five more readings
    assert (len(cifar.variants), cifar.seeds) == (8 * (5 * 3 + 5), 1)
    assert {e.rounds for e in cifar.variants.values()} == {100}
    assert {e.rounds for n, e in mnist.variants.items() if n.startswith("MNIST IID")} == {200}


def test_what_the_text_leaves_open_is_run_in_every_reading():
    """MNIST non-IID, W = 200, C = 0.5: first weights of torch, He and Glorot; classes drawn, or shards dealt."""
    cases = [c for c in adam.cases("paper") if c.name.startswith("MNIST non-IID W=200 C=0.5")]
    assert {(c.split, c.weights) for c in cases} == set(adam.READINGS)
    assert len(cases) == 6
    for case in cases:
        made = adam.experiment(case, adam.TunedSetting("FedAdam", 1), "paper")
        assert made.world.data.partition == (to.partition.Shards(2) if case.split == "shards" else of_classes(2))
        torch.manual_seed(0)
        network = case.model.build((1, 28, 28), 10)
        first = network.linear1
        deviation = {"torch": (1 / 784 / 3) ** 0.5, "he": (2 / 784) ** 0.5, "glorot": (2 / (784 + 200)) ** 0.5}
        assert float(first.weight.detach().std()) == pytest.approx(deviation[case.weights], rel=0.02)
        assert bool(first.bias.any()) == (case.weights == "torch")
        assert bool((network.norm1.weight == 1).all())


def test_the_authors_code_as_a_named_variant():
    """SPEC 1.3, MTFL items 10 and 11: noise and BatchNorm as the code has them, not as the paper prints them."""
    for name, experiment in cifar_multitask(variant="code").items():
        assert experiment.world.data.std == 0.2
        assert experiment.model == mtfl_cifar_cnn(variant="code")
        assert experiment.but(model=mtfl_cifar_cnn(), **{"world.data.std": 2.0}) == cifar_multitask()[name]
    assert mnist_adam(variant="code")["FedAvg"].model == mtfl_mnist_mlp(variant="code")
    with pytest.raises(UserError, match="did you mean 'paper'"):
        cifar_multitask(variant="papr")


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_smoke(study: Study, tmp_path: Path):
    """From the plan to findings and pictures; the second stage of `adam` included."""
    found = run_study(study, "smoke", tmp_path / "out", quiet=True, jobs=1)
    assert found.rows
    assert found.claims
    assert not any("not run" in claim.evidence for claim in found.claims)
    assert not any(row.ours == "not run" for row in found.rows)
    json.loads(found.to_json())
    drawn = list((tmp_path / "out").glob("*.svg"))
    assert drawn
    for path in drawn:
        assert ElementTree.fromstring(path.read_text(encoding="utf-8")).tag.endswith("svg")


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_without_its_files_a_study_says_so(study: Study):
    plan = study.plan("paper")
    missing = {name: "CIFAR-10 is not in the data folder" for part in plan.parts for name in part.variants}
    missing |= {adam.variant(case, method): "not there" for case in adam.cases("paper") for method in adam.METHODS}
    curves = Curves({}, missing, {metric: Curves({}, missing) for metric in study.more})
    if study.then is not None:
        assert list(study.then("paper", curves)) == []
    assert all(row.ours == "not run" for row in study.rows("paper", curves))
    assert all(claim.evidence.startswith("not run") for claim in study.decide("paper", curves))
    assert draw(study, "paper", curves) == {}
