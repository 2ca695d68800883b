"""Labels are names; data that arrives; a public set around any data; every mistake in a sentence."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import turnout as to
from score_worlds import LABELS, SETS, Arrive, play, public, score_world, stream
from turnout.running import stop_rules
from turnout.running.config.read import from_table
from turnout.running.tracks.prepare import prepare

DIGITS = to.data.Digits()
PAIRS = (("3", "5"), ("5", "8"), ("8", "9"))


def arriving(**changes) -> to.data.Arriving:
    return to.data.Arriving(DIGITS, **({"labels": PAIRS, "per_label": 10, "public": 40} | changes))


# -- names


class Says:
    """Clients that call things by other names: one shouts, one counts."""

    def __init__(self, words: dict[int, dict[str, object]]):
        self.words = words

    def __call__(self, client: int, t: int):
        x, names = Arrive()(client, t)
        said = [self.words.get(client, {}).get(name, name) for name in names]
        return x, said


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (("Bee", "cow"), "client 1 has a label 'Bee', and the public set has none of that name"),
        (("bee", 2), "client 1 has a label 2"),
        (("bee", 2), "numbers mean something else to every client"),
        (("bee", "bee"), "client 1 names a label twice"),
        (("bee",), "client 1 has 1 label"),
    ],
)  # fmt: skip
def test_other_names_and_numbers_are_refused(said, wanted):
    with pytest.raises(to.UserError, match=re.escape(wanted)):
        prepare(score_world(data=stream(label_sets=(SETS[0], said, SETS[2]))))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ({1: {"bee": "Bee"}}, "client 1 has a label 'Bee'"),
        ({2: {"cow": 2, "dog": 3}}, "client 2 has a label 2"),
        ({1: {"bee": "dog"}}, "client 1, round 0, holds a sample of 'dog', which is not among its labels (bee, cow)"),
    ],
)
def test_samples_with_other_names_are_refused(words, wanted):
    with pytest.raises(to.UserError, match=re.escape(wanted)):
        play(prepare(score_world(data=stream(function=Says(words)))))


# -- mistakes


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: score_world(rows="some"), "algorithm.rows = 'some'"),
        (lambda: score_world(combine="mean"), "algorithm.combine = 'mean'"),
        (lambda: score_world(held_out=1.0), "algorithm.held_out is a share in [0, 1)"),
        (lambda: score_world(decay=2.0), "algorithm.decay is in [0, 1]"),
        (lambda: score_world(held_out=0.0, distil=to.scores.Distil()), "needs public samples that stay unseen"),
        (lambda: to.scores.Distil(epochs=0), "distillation needs epochs"),
        (lambda: to.scores.EarlyStopping(patience=0), "early stopping needs patience"),
        (lambda: to.scores.Uses(0, to.models.MLP(3), since=-1), "cannot change its model in round -1"),
        (lambda: to.scores.Scores(local=to.Local(to.Adam(moments="federated"))), "scores are federated, not moments"),
        (lambda: prepare(score_world(models={7: to.models.MLP(3)})), "algorithm.models names client 7"),
        (lambda: prepare(score_world(models=[to.scores.Uses(0, to.models.MLP(n)) for n in (3, 4)])),
         "client 0 has two models from the same round on"),
        (lambda: prepare(score_world(models={0: torch.nn.Linear(5, 3), 1: torch.nn.Linear(4, 2)})),
         "the model cannot take samples of shape (5,)"),
        (lambda: prepare(score_world(models={0: to.models.MLP(3), 1: {9: to.models.CNN((4,))}}, rounds=10)),
         "a convolutional model takes images"),
        (lambda: prepare(score_world().but(task=to.tasks.Regression())), "scores are of labels"),
        (lambda: prepare(score_world().but(start="w.safetensors")), "start is about federated weights"),
        (lambda: prepare(score_world().but(**{"evaluate.recovery": True})), "evaluate.recovery is about federated"),
        (lambda: prepare(score_world(data=to.data.Digits())), "scores are exchanged on public samples"),
        (lambda: stream(label_sets=None), "public samples and each client's labels go together"),
        (lambda: stream(label_sets=SETS[:2]), "3 clients and 2 label sets"),
        (lambda: prepare(score_world(data=stream(public=(public()[0], ["Ant"] * 40)))), "did you mean 'ant'"),
        (lambda: arriving(labels=()), "labels = "),
        (lambda: arriving(mix=0.0), "mix must be above 0"),
        (lambda: arriving(per_label=0), "per_label and public are at least 1"),
        (lambda: arriving(names=("a",)), "3 clients and 1 names"),
        (lambda: arriving(dips=(to.data.Dip(3, 0),)), "there is no client 3 to have a dip"),
        (lambda: to.data.Dip(0, 0, 0.0), "a share is above 0"),
        (lambda: arriving(public=500).load(), "too few for 500 public ones"),
        (lambda: arriving(labels=(("3", "five"),)).load(), "client 0 has a label 'five'"),
        (lambda: to.data.Arriving(to.data.Synthetic(clients=3), PAIRS).load(), "labelled set"),
        (lambda: from_table({"algorithm": {"kind": "scores", "row": "all"}}), "unknown setting algorithm.row"),
        (lambda: from_table({"algorithm": {"kind": "score"}}), "there is no algorithm of kind 'score': did you mean"),
        (lambda: stop_rules.metric_of(score_world().but(**{"stop.metric": "global_loss"})),
         "stop.metric = 'global_loss' is not measured here: known are consensus_accuracy, global_accuracy"),
    ],
)  # fmt: skip
def test_mistakes_are_said(make, wanted):
    with pytest.raises(to.UserError, match=re.escape(wanted)):
        make()


# -- data that arrives


def test_every_round_brings_other_samples_of_ones_own_labels():
    found = arriving().load(seed=1)
    assert found.labels == ("3", "5", "8", "9")
    seen = []
    for t in range(3):
        samples = found.train(torch.arange(3), t)
        assert samples.count_C.tolist() == [20, 20, 20]
        for client, rows in enumerate(samples.row_R.split(20)):
            own = [PAIRS[client].index(found.labels[int(i)]) for i in found.y[rows]]
            assert own == [0] * 10 + [1] * 10
        seen.append(samples.row_R)
        again = found.train(torch.tensor([1]), t)
        assert torch.equal(again.row_R, samples.row_R[20:40])  # whoever else is asked
    assert not torch.equal(seen[0], seen[1])


def test_public_and_private_samples_are_disjoint_and_clients_share_none():
    found = arriving().load(seed=0)
    private = torch.cat(list(found.private.values()))
    assert len(private.unique()) == len(private)
    rows = {tuple(x.flatten().tolist()) for x in found.public.x}
    overlap = [tuple(found.x[i].flatten().tolist()) in rows for i in private.tolist()]
    assert sum(overlap) <= 2  # two pictures of the set may be equal
    assert found.public.y_R.bincount().tolist() == [40, 40, 40, 40]
    other = arriving().load(seed=1)
    assert not torch.equal(other.public.x, found.public.x)
    assert other.fingerprint() != found.fingerprint()


def test_too_few_samples_come_again():
    found = arriving(per_label=200, public=100).load(seed=0)
    rows = found.train(torch.tensor([1]), 0).row_R
    assert len(rows) == 400
    assert len(rows.unique()) < 200


def test_the_mix_shifts_and_a_dip_is_once():
    found = arriving(mix=1.0, dips=(to.data.Dip(1, 2, share=0.1),)).load(seed=0)

    def count(client: int, t: int) -> list[int]:
        y = found.train(torch.tensor([client]), t).of(0)[1]
        return [int((y == label).sum()) for label in found.public.label_set(client, t)]

    counts = [[count(c, t) for t in range(6)] for c in range(3)]
    assert len({tuple(n) for n in counts[0]}) > 3
    assert sum(counts[1][2]) <= 3
    assert all(19 <= sum(n) <= 21 for t, n in enumerate(counts[1]) if t != 2)


def test_the_same_world_can_federate_weights():
    """A stream with a public set is a world like any other: FedAvg runs on it, tested on the public samples."""
    experiment = to.Experiment(
        to.World(arriving()), to.models.MLP(8), rounds=2, runtime=to.runtime.InProcess(device="cpu")
    )
    track = prepare(experiment)
    state, record = track.round(track.begin(), 0)
    assert record.answered == 3
    assert track.evaluate(state, 0).values["global_accuracy"] > 0
    assert LABELS[0] == "ant"


def test_satellites_are_imported_when_they_are_used():
    """The core knows the kinds of satellites by name; their modules are imported with the first use of such a kind."""
    satellites = "[name for name in sys.modules if name.startswith(('turnout.scores', 'turnout.deploy'))]"
    lines = [
        "import sys", "from turnout.running.config.read import from_table", "from_table({'rounds': 3})",
        f"assert {satellites} == [], {satellites}",
        "from_table({'algorithm': {'kind': 'scores'}, 'runtime': {'kind': 'flower'}})",
        "assert {'turnout.scores.settings', 'turnout.deploy.settings'} <= set(sys.modules)",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
