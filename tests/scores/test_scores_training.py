"""What clients of the score track do: engines agree, early stopping, carried models, distillation."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import turnout as to
from score_worlds import SETS, Arrive, ask, play, public, score_world, stream
from turnout.engine.batches import address_batches
from turnout.running.tracks.prepare import prepare
from turnout.scores.score_table import ScoreTable, targets
from turnout.scores.training import split_off
from turnout.types import Samples

MODELS = {0: to.models.MLP(6, batch_norm=True), 1: {0: to.models.MLP(6), 2: to.models.MLP(4, activation="softmax")}}


@pytest.mark.parametrize(
    "more", [{}, {"distil": to.scores.Distil(epochs=2, batch_size=7), "start": "carried"}, {"early": None}]
)
def test_the_engine_equals_the_loop(more):
    """Three architectures, one with BatchNorm, one that changes; partial work. (A bias before BatchNorm has gradient 0:
    a smaller eps would let Adam make whole steps of its rounding.)"""
    local = to.Local(to.Adam(0.02, 0.9, 0.999, eps=1e-3), epochs=3, batch_size=5)
    world = score_world(1.0, 1.0, 0.5, models=MODELS, local=local, **more)
    tables = {}
    for engine in ("loop", "vmap", "auto"):
        track = prepare(world.but(**{"runtime.engine": engine}))
        state, records = play(track, 4)
        tables[engine] = state.table.score_RL, records[-1].clients["loss"]
    for engine in ("vmap", "auto"):
        for mine, oracle in zip(tables[engine], tables["loop"], strict=True):
            torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-10)


def test_clients_of_one_architecture_train_together_and_alone_alike():
    """All with one model: in one chunk, in chunks of one, and with two threads."""
    found = []
    for runtime in ({"chunk": 3}, {"chunk": 1}, {"threads": 2, "chunk": 2}):
        changes = {f"runtime.{name}": value for name, value in runtime.items()}
        track = prepare(score_world(1.0, 0.4, 1.0).but(**changes))
        assert len(track.runtime.clients.made) == 1
        found.append(play(track, 2)[0].table.score_RL)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-12)


def test_without_early_stopping_it_is_ordinary_training():
    """One client's scores by torch's own Adam on the same batches."""
    track = prepare(score_world(early=None))
    reply = ask(track, torch.arange(3), 0).replies[1]
    x, names = Arrive()(1, 0)
    y = torch.tensor([SETS[1].index(name) for name in names])
    architecture = track.runtime.clients.architecture(1, 0)
    module = to.models.MLP(6).build((5,), 2).double()
    flat_P = architecture.fresh(0, clients=1).flat_CP[0]
    for name, value in architecture.layout.unpack(flat_P).items():
        module.get_parameter(name).data = value.clone()
    adam = torch.optim.Adam(module.parameters(), lr=0.02)
    own = Samples(x.double(), y, torch.arange(len(x)), torch.tensor([len(x)]))
    batches = address_batches(own, torch.tensor([1]), torch.tensor([3 * 4]), 5, False, 0, 0)
    for step in range(3 * 4):
        rows = batches.row_cJB[0, step][: int(batches.size_cJ[0, step])]
        adam.zero_grad()
        cross_entropy(module(own.x[rows]), y[rows]).backward()
        adam.step()
    wanted = module(public()[0].double()).softmax(1)
    torch.testing.assert_close(reply.f_Rl, wanted.detach(), rtol=1e-7, atol=1e-9)


def test_early_stopping_of_one_epoch_changes_nothing_and_patience_ends_it():
    local = to.Local(to.Adam(0.02, 0.9, 0.999), epochs=1, batch_size=5)
    plain, early = (
        play(prepare(score_world(local=local, early=how)))[0].table.score_RL
        for how in (None, to.scores.EarlyStopping(share=0.0))
    )
    assert torch.equal(plain, early)
    wild = to.Local(to.SGD(lr=30.0), epochs=12, batch_size=5)
    _, (record,) = play(prepare(score_world(local=wild, early=to.scores.EarlyStopping(patience=2, share=0.3))))
    epochs = record.clients["epochs"]
    assert float(epochs.min()) < 12
    assert float(epochs.min()) >= 2


def test_the_best_weights_are_kept():
    """A rate that overshoots at once: the model that is kept has the lowest loss on what was set aside."""
    wild = to.Local(to.SGD(lr=30.0), epochs=6, batch_size=5)
    early = to.scores.EarlyStopping(patience=6, share=0.3)
    track = prepare(score_world(local=wild, early=early))
    losses = []
    for epochs in range(1, 7):
        short = prepare(score_world(local=to.Local(to.SGD(lr=30.0), epochs=epochs, batch_size=5), early=early))
        losses.append(_check_loss(short))
    assert _check_loss(track) == pytest.approx(min(losses))
    assert losses == sorted(losses, reverse=True)  # more epochs never make the kept model worse there


def _check_loss(track) -> float:
    ask(track, torch.arange(3), 0)
    clients, client_C = track.runtime.clients, torch.arange(3)
    (group,) = clients._pending
    samples = clients._samples(client_C, track.runtime.label_sets(client_C, 0), 0)
    _, check = split_off(samples, client_C, track.algorithm.early.share, track.experiment.seed, 0)
    x, y = check.of(0)
    output = group.architecture.trainer.gradients.outputs(group.models.flat_CP[:1], {}, x[None])[0]
    return float(cross_entropy(output, y))


def test_carried_models_go_on_while_the_architecture_stays():
    still = to.Local(to.SGD(lr=1e-12), epochs=1, batch_size=50)
    track = prepare(score_world(local=still, start="carried", models=MODELS, early=None))
    fresh = prepare(score_world(local=still, models=MODELS, early=None))
    state, weights = track.begin(), []
    for t in range(4):
        state, _ = track.round(state, t)
        weights.append(torch.cat([p.detach().reshape(-1) for p in track.module(state, 1).parameters()]))
    torch.testing.assert_close(weights[0], weights[1], atol=1e-9, rtol=0)
    assert len(weights[2]) != len(weights[1])
    torch.testing.assert_close(weights[2], weights[3], atol=1e-9, rtol=0)
    state, first = fresh.begin(), []
    for t in range(2):
        state, _ = fresh.round(state, t)
        first.append(torch.cat([p.detach().reshape(-1) for p in fresh.module(state, 1).parameters()]))
    assert not torch.allclose(first[0], first[1], atol=1e-3)


def test_carried_moments_follow_the_model():
    """Adam's moments and count go on with a carried model; a fresh one has none to go on with."""
    track = prepare(score_world(start="carried", early=None))
    play(track, 2)
    rows = track.runtime.clients.architecture(0, 0).store.gather(torch.tensor([0]))
    assert int(rows["count"]) == 2 * 3 * 3  # two rounds of three epochs of ceil(12 / 5) steps
    assert float(rows["slot/first"].abs().max()) > 0
    assert "slot/first" not in prepare(score_world()).runtime.clients.architecture(0, 0).store.initial


def test_a_model_that_only_a_program_can_make():
    """A module with pretrained weights begins every round with them."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 2))
    still = to.Local(to.SGD(lr=1e-12), epochs=1, batch_size=50)
    track = prepare(score_world(models={0: module}, local=still, early=None))
    state, _ = play(track, 2)
    torch.testing.assert_close(track.module(state, 0).state_dict(), module.state_dict(), atol=1e-6, rtol=0)


def test_targets_are_the_mean_scores_of_ones_own_labels():
    table = ScoreTable(torch.tensor([[1.0, 3.0, 9.0]]).double(), torch.tensor([[2.0, 2.0, 1.0]]).double())
    mean = table.of(torch.tensor([0, 1])).means()
    torch.testing.assert_close(targets(mean, "softmax"), torch.tensor([[0.25, 0.75]]).double())
    torch.testing.assert_close(targets(mean, "logits"), torch.tensor([[0.5, 1.5]]).double().softmax(1))


def test_distillation_teaches_the_consensus_and_does_not_see_what_is_held_out():
    """After many passes the model says what the table says on the open samples; other held-out samples change
    nothing in it."""
    distil = to.scores.Distil(epochs=150, batch_size=10, lr=0.02)
    track = prepare(score_world(distil=distil, beta="equal"))
    state, (record,) = play(track)
    labels, module = track.public, track.module(state, 1).double()
    wanted = targets(state.table.of(torch.tensor([1, 2])).means(), "softmax")[labels.open_R]
    found = module(public()[0].double()[labels.open_R]).softmax(1).detach()
    assert float((found - wanted).abs().mean()) < 0.05
    assert not torch.isnan(record.clients["distilled_accuracy"]).any()

    x, names = public()
    moved = torch.where(labels.tested_R[:, None], x.flip(0) * 2, x)
    other = prepare(score_world(distil=distil, beta="equal", data=stream(public=(moved, names))))
    state, _ = play(other)
    again = other.module(state, 1).double()
    for a, b in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scores", ["softmax", "logits"])
def test_logits_are_scores_before_the_softmax(scores):
    track = prepare(score_world(scores=scores, distil=to.scores.Distil(epochs=1)))
    replies = ask(track, torch.arange(3), 0).replies
    sums = replies[0].f_Rl.sum(1)
    assert torch.allclose(sums, torch.ones_like(sums)) == (scores == "softmax")
    state, records = play(track, 2)
    assert float(records[1].clients["consensus_accuracy"].mean()) > 0.4
    assert 0 <= track.evaluate(state, 1).values["personal_accuracy"] <= 1


def test_scores_that_are_no_numbers_stop_the_run_or_count_as_absent():
    broken = to.Local(to.SGD(lr=1e200), epochs=2, batch_size=5)
    world = score_world(local=broken, early=None)
    with pytest.raises(to.UserError, match="scores of client 0 in round 0 are not finite"):
        play(prepare(world))
    track = prepare(world.but(**{"algorithm.nonfinite": "absent"}))
    state, (record,) = play(track)
    assert record.skipped == "no scores are finite"
    assert float(state.table.evidence_RL.max()) == 0
