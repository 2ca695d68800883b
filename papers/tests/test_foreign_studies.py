"""Other people's tables: FedProx, SCAFFOLD, FedBuff, PFLlib: their worlds by hand, their claims on made-up curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from turnout.data import EMNIST
from turnout.parts.closing import Buffered
from turnout.parts.substitution.base import Spread
from turnout.parts.weighting import ByWork, CompleteOnly, FedAvg
from turnout.running.config.dotted import Code
from turnout.running.config.read import load
from turnout.testing import check_devices, check_participation, check_partition
from turnout_papers.studies import fedbuff, fedprox, pfllib, scaffold
from turnout_papers.studies.running import run_study, studies
from turnout_papers.studies.study import Curve, Curves

SEEDS = range(5)


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(len(values)), np.array(values))


def reaching(rounds: int | None, target: float, last: int) -> Curve:
    """An accuracy that is at its target after so many rounds; None: never."""
    return curve([0.0] * (last if rounds is None else rounds - 1) + [target] * (rounds is not None))


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedbuff", "pfllib"])
def test_it_runs_at_smoke_scale(name: str, tmp_path: Path) -> None:
    found = run_study(studies()[name], "smoke", tmp_path / "out", jobs=1, quiet=True)
    assert found.rows
    assert any(claim.ran for claim in found.claims)
    assert not found.failed
    assert list((tmp_path / "out").glob("*.svg"))
    stored = next((tmp_path / "out").rglob("experiment.toml"))  # a run's own file can be read again
    assert load(stored, Code(frozenset({"turnout_papers"}))).rounds >= 1


# -- FedProx


def test_stragglers_by_hand() -> None:
    """Of ten clients round(10 (1 - share)) finish; the others 1 to E - 1 epochs, each as often, drawn every round."""
    check_participation(fedprox.Stragglers(0.9), alone=False)
    for share, finish in ((0.0, 10), (0.5, 5), (0.9, 1), (1.0, 0)):
        done = torch.stack([fedprox.Stragglers(share).fraction(torch.arange(10), t, 20, seed=3) for t in range(400)])
        assert ((done == 1).sum(1) == finish).all()
        epochs = (done[done < 1] * 20).round().long()
        assert set(epochs.tolist()) == (set(range(1, 20)) if share else set())
    by_client = (done < 1).double().mean(0)
    assert by_client.min() > 0.99
    half = torch.stack([fedprox.Stragglers(0.5).fraction(torch.arange(10), t, 20, seed=3) for t in range(400)])
    assert (half < 1).double().mean(0).sub(0.5).abs().max() < 0.1


def test_fedavg_drops_stragglers_and_fedprox_averages_them() -> None:
    kinds = {name: type(parts["weighting"]) for name, parts in fedprox.METHODS.items()}
    assert kinds == {"FedAvg": CompleteOnly, "FedProx μ=0": FedAvg, "FedProx μ=1": FedAvg, "scheme C": ByWork}
    with_late = fedprox.experiment("(1,1)", 90, "FedAvg", "paper")
    assert isinstance(with_late.algorithm.substitution, Spread)  # the mean of those that finished
    assert (with_late.world.data.clients, with_late.algorithm.selection.clients, with_late.rounds) == (30, 10, 200)
    local = with_late.algorithm.local
    assert (local.epochs, local.batch_size, local.optimizer.lr) == (20, 10, 0.01)
    assert fedprox.experiment("IID", 0, "FedAvg", "paper").world.data.iid


def test_fedprox_claims_follow_loss_and_accuracy() -> None:
    def runs(good: float) -> dict[int, Curve]:
        return {s: curve([good + 0.01 * s] * 20) for s in SEEDS}

    level = {"IID": 0.3, "(0,0)": 0.5, "(0.5,0.5)": 0.7, "(1,1)": 0.9}  # of the loss; higher with stragglers
    loss, accuracy = {}, {}
    for task, slow, method in fedprox.cases("small"):
        value = level[task] + slow / 100 * (task != "IID") * (method == fedprox.AVG) - 0.1 * (method == fedprox.PROX)
        loss[fedprox.variant(task, slow, method)] = runs(value)
        accuracy[fedprox.variant(task, slow, method)] = runs(-value)
    found = fedprox.STUDY.decide("small", Curves(accuracy, more={"global_loss": Curves(loss)}))
    outcome = {claim.claim: claim.outcome for claim in found}
    steady = {words for words in outcome if "more stable" in words}
    assert {outcome[words] for words in steady} == {"level"}  # no loss changes at all
    assert {outcome[words] for words in outcome.keys() - steady} == {"holds"}


# -- SCAFFOLD


def test_similar_clients_hold_their_share_at_random() -> None:
    label_S = torch.arange(10).repeat_interleave(100)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    check_partition(scaffold.Similar(0.1))
    for share in (0.0, 0.1, 1.0):
        rows_C = scaffold.Similar(share).split(label_S, None, 20, seed=1)
        assert sorted(torch.cat(rows_C).tolist()) == list(range(1000))
        assert {len(rows) for rows in rows_C} == {50}
        own_C = [label_S[rows].bincount(minlength=10) for rows in rows_C]
        most = torch.stack([own.max() for own in own_C]).double()
        if share == 0:
            assert (most == 50).all()  # half of one label's 100 samples
        elif share < 1:
            assert most.min() >= 40  # 45 of the sorted list, of one or two labels
            assert most.max() < 50
        else:
            assert most.max() < 15


def test_scaffold_s_cells_are_the_paper_s() -> None:
    assert len(scaffold.cells("paper")) == 39
    one = scaffold.experiment(scaffold.Cell("FedAvg", 5, 10), 0.1, "paper")
    assert isinstance(one.world.data, EMNIST)
    assert (one.world.data.clients, one.algorithm.selection.clients) == (100, 20)
    assert one.algorithm.local.full_steps(torch.tensor([1000]), False).tolist() == [25]  # five steps an epoch
    sgd = scaffold.experiment(scaffold.Cell("SGD", 1, 0), 1.0, "paper").algorithm.local
    assert (sgd.full_steps(torch.tensor([1000]), False).tolist(), sgd.batch_size) == ([1], 1000)
    published = {cell.name: cell.published for cell in scaffold.cells("paper")}
    assert (published["SCAFFOLD E=1 0 %"], published["FedAvg E=20 0 %"], published["FedProx E=10 100 %"]) == (
        77, "1000+", 308,
    )  # fmt: skip


def test_scaffold_chooses_rates_on_other_seeds_and_counts_rounds() -> None:
    cell, most = scaffold.Cell("FedAvg", 1, 0), scaffold.ROUNDS["small"]
    tuning = {
        scaffold.tuned(cell, rate): {100: reaching(rounds, 0.8, most)}
        for rate, rounds in zip(scaffold.RATES, (None, 30, 20, 40), strict=True)
    }
    assert scaffold.chosen("small", cell, Curves(tuning)) == 0.3
    assert set(scaffold.judged("small", Curves(tuning))[0].variants) == {cell.name}
    runs = {cell.name: {s: reaching(20, 0.8, most) for s in SEEDS}}
    ours = scaffold.Cell("SCAFFOLD", 1, 0)
    runs[ours.name] = {s: reaching(10, 0.8, most) for s in SEEDS}
    runs[scaffold.Cell("FedProx", 1, 0).name] = {s: reaching(None, 0.8, most) for s in SEEDS}
    found = {c.claim: c.outcome for c in scaffold.STUDY.decide("small", Curves(tuning | runs)) if c.ran}
    assert found["0 % similar, E = 1: SCAFFOLD is sooner than FedAvg"] == "holds"
    assert found["0 % similar, E = 1: FedProx is later than FedAvg"] == "holds"
    rows = {(r.case, r.metric): r for r in scaffold.rows("small", Curves(tuning | runs))}
    assert rows[cell.name, "rounds"].ours == 20
    assert rows["FedProx E=1 0 %", "rounds"].ours == most


# -- FedBuff


def test_durations_are_half_normal() -> None:
    """E|z| = √(2/π), and z² has mean 1; a client's next duration is another one."""
    check_devices(fedbuff.HalfNormal(60))
    client_C = torch.arange(50_000)
    seconds = [60 / fedbuff.HalfNormal(60).draw(client_C, t, seed=0).compute_C for t in (0, 1)]
    assert float(seconds[0].mean()) == pytest.approx((2 / np.pi) ** 0.5, abs=0.01)
    assert float(seconds[0].square().mean()) == pytest.approx(1.0, abs=0.02)
    assert abs(float(torch.corrcoef(torch.stack(seconds))[0, 1])) < 0.02


def test_updates_and_seconds_to_the_target() -> None:
    size = fedbuff.SIZES["small"]
    assert [size.per_step(method) for method in fedbuff.METHODS] == [10, 8, 2, 1]
    steps = {"FedAvg": 30, "FedAvg over-selection": 30, "FedBuff": 50, "asynchronous": 200}
    runs = {m: {s: reaching(n + s, size.target, 1000) for s in SEEDS} for m, n in steps.items()}
    looks = {m: {s: {"seconds": 0.5 * np.arange(1, 1001)} for s in SEEDS} for m in steps}
    curves = Curves(runs, looks=looks)
    assert fedbuff.updates("small", curves, "FedBuff")[1] == 51 * 2
    assert fedbuff.seconds("small", curves, "FedBuff")[1] == 25.5
    rows = {(r.case, r.metric): r for r in fedbuff.rows("small", curves)}
    assert rows["FedAvg", "updates over FedBuff's"].ours == pytest.approx(
        np.mean([10 * (30 + s) / (2 * (50 + s)) for s in SEEDS])
    )
    assert rows["FedAvg", "updates over FedBuff's"].published == 3.3
    assert rows["asynchronous", "seconds over FedBuff's"].ours == pytest.approx(
        np.mean([(200 + s) / (50 + s) for s in SEEDS])
    )
    outcome = [claim.outcome for claim in fedbuff.STUDY.decide("small", curves)]
    assert outcome == ["holds", "refuted", "holds", "refuted", "holds", "holds"]
    closing = fedbuff.experiment("FedBuff", fedbuff.Rates(0.1, 1.0), "paper").algorithm.closing
    assert closing == Buffered(size=10, concurrency=100)


# -- PFLlib


def test_pfllib_s_settings_are_the_leaderboard_s() -> None:
    one = pfllib.experiment("practical", "FedAMP", "paper")
    assert (one.world.data.clients, one.algorithm.local.batch_size, one.algorithm.local.full_work) == (20, 10, 1)
    model = one.model.build((1, 28, 28), 10)
    assert [tuple(p.shape) for p in model.parameters() if p.ndim > 1] == [
        (32, 1, 5, 5), (64, 32, 5, 5), (512, 1024), (10, 512),
    ]  # fmt: skip


def test_own_models_are_read_from_their_own_metric() -> None:
    common, own = {}, {}
    for split in pfllib.SPLITS:
        for place, method in enumerate(pfllib.METHODS):
            name = pfllib.variant(split, method)
            common[name] = {s: curve([0.1, 0.5 + 0.01 * s - 0.02 * place, 0.3]) for s in SEEDS}
            own[name] = {s: curve([0.1, 0.9 + 0.01 * s, 0.8]) for s in SEEDS}
    curves = Curves(common, more={"personal_accuracy": Curves(own)})
    rows = {(r.case, r.metric): r for r in pfllib.rows("small", curves)}
    assert rows["practical APFL", "best accuracy, %"].ours == pytest.approx(92.0)
    assert rows["practical FedAvg", "best accuracy, %"].ours == pytest.approx(52.0)
    assert rows["practical FedAvg", "in round"].ours == 2
    assert rows["pathological APFL", "best accuracy, %"].published is None  # that is of Fashion-MNIST
    paper = {(r.case, r.metric): r for r in pfllib.rows("paper", curves)}
    assert paper["pathological APFL", "best accuracy, %"].published == "99.41 ± 0.02"
    outcome = {claim.claim: claim.outcome for claim in pfllib.STUDY.decide("small", curves)}
    assert outcome["practical: FedAMP's own models are above FedAvg's common one"] == "holds"
    assert outcome["pathological: FedAvg is above FedProx"] == "holds"
    assert outcome["FedAvg is better in the practical split than in the pathological one"] == "level"
