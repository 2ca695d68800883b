"""The score track against SPEC §4: its formulas, its readings, absent clients, new labels, the label leak."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import turnout as to
from score_worlds import COUNTS, LABELS, SETS, Arrive, ask, play, public, score_world, stream
from turnout.running.tracks.prepare import prepare
from turnout.scores.score_table import (
    PublicLabels,
    ScoreTable,
    ScoreUpdate,
    accuracy,
    beta_of,
    global_update,
    local_update,
)
from worlds import Given

FOUR = (("ant", "bee"), ("bee", "cow"), ("cow", "dog"), ("ant", "bee", "dog"))


def best(own: dict[int, list[float]], r: int) -> int:
    return max(own, key=lambda c: own[c][r])


def formula(track, state, t: int) -> Tensor:
    """SPEC 4.2, row by row and label by label, from the scores that clients would send in this round."""
    algorithm, answers, G = track.algorithm, track.public, state.table.score_RL
    replies = ask(track, state.members.ids(), t).replies
    y, n0, new = answers.shown_R.tolist(), len(answers.shown_R), G.clone()
    h, beta = {}, {}
    for reply in replies:
        labels, alpha = reply.set_l.tolist(), COUNTS[reply.client] / n0
        f = reply.f_Rl
        own = {c: (G[:, c] + alpha * f[:, i]).tolist() for i, c in enumerate(labels)}
        h[reply.client] = own

        right = [best(own, r) == y[r] for r in range(n0)]
        rows = {c: [r for r in range(n0) if y[r] == c and answers.open_R[r]] for c in labels}
        every = [r for c in labels for r in rows[c]]
        for c in labels:
            used = rows[c] if algorithm.beta == "label" else every
            beta[reply.client, c] = sum(right[r] for r in used) / len(used)
    for c in range(len(answers.names)):
        holders = [m for m in h if c in h[m]]
        for r in range(n0):
            here = [m for m in holders if algorithm.rows == "all" or y[r] in h[m]]
            if not here:
                continue
            judged = here if algorithm.combine == "average" else holders
            all_zero = not any(beta[m, c] for m in judged)
            weight = {m: beta[m, c] if len(holders) > 1 and not all_zero else 1.0 for m in here}  # 4.3 d
            total = sum(weight[m] * h[m][c][r] for m in here)
            new[r, c] = total if algorithm.combine == "sum" else total / sum(weight.values())
    return new


@pytest.mark.parametrize("rows", ["all", "labelled"])
@pytest.mark.parametrize("combine", ["average", "sum"])
@pytest.mark.parametrize("beta", ["label", "user"])
def test_4_2_the_round_is_the_formula(rows, combine, beta):
    """Three rounds: unequal sizes, one client absent, one with part of its work, labels with one, two and no holder."""
    track = prepare(score_world(1.0, 0.0, 1.0, 0.4, sets=FOUR, rows=rows, combine=combine, beta=beta))
    state, records = track.begin(), []
    for t in range(3):
        wanted = formula(track, state, t)
        state, record = track.round(state, t)
        torch.testing.assert_close(state.table.score_RL, wanted, rtol=1e-9, atol=1e-9)
        records.append(record)
    assert [r.answered for r in records] == [3, 3, 3]
    assert float(records[0].clients["work"][3]) < 1
    assert float(state.table.score_RL.abs().max()) > 0.3


def test_4_2_beta_and_alpha_of_an_example():
    """Two users share b: β 1 and ½ there, 1 for what each has alone; α = |D| / n0."""
    y = torch.tensor([0, 1, 1, 2])
    every = torch.ones(4, dtype=torch.bool)
    labels = PublicLabels(y, y, every, every, ("a", "b", "c"))
    first, second = torch.tensor([0, 1]), torch.tensor([1, 2])
    f1 = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.5, 0.5]], dtype=torch.float64)
    f2 = torch.tensor([[0.5, 0.5], [0.7, 0.3], [0.1, 0.9], [0.3, 0.7]], dtype=torch.float64)
    old = ScoreTable.blank(4, 3)
    h1 = local_update(old, first, f1, 0.5, "plain", 1.0)
    h2 = local_update(old, second, f2, 1.0, "plain", 1.0)
    b1, b2 = beta_of(h1.read("plain"), first, labels, "label"), beta_of(h2.read("plain"), second, labels, "label")
    assert b1.tolist() == [1.0, 1.0]
    assert b2.tolist() == [0.5, 1.0]
    G = global_update(old, [ScoreUpdate(first, h1, b1), ScoreUpdate(second, h2, b2)], "average").score_RL
    torch.testing.assert_close(G[:, 0], 0.5 * f1[:, 0])
    torch.testing.assert_close(G[:, 1], (1.0 * 0.5 * f1[:, 1] + 0.5 * f2[:, 0]) / 1.5)
    torch.testing.assert_close(G[:, 2], f2[:, 1])
    assert beta_of(h2.read("plain"), second, labels, "user").tolist() == [2 / 3, 2 / 3]
    assert beta_of(h2.read("plain"), second, labels, "equal").tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("growth", "decay"), [("plain", 1.0), ("plain", 0.5), ("shrunk", 1.0)])
def test_4_3_f_growth_and_decay(growth, decay):
    """G grows by α a round; (G + α f) / (1 + α) does not; decay forgets."""
    f, set_l, table = torch.full((1, 2), 0.5, dtype=torch.float64), torch.tensor([0, 1]), ScoreTable.blank(1, 2)
    wanted = 0.0
    for _ in range(5):
        h = local_update(table, set_l, f, 0.5, growth, decay)
        table = global_update(table, [ScoreUpdate(set_l, h, torch.ones(2))], "average")
        wanted = (decay * wanted + 0.25) / (1.5 if growth == "shrunk" else 1.0)
    torch.testing.assert_close(table.score_RL, torch.full((1, 2), wanted, dtype=torch.float64))
    torch.testing.assert_close(table.means(), f)


def test_all_beta_zero_is_a_plain_mean():
    """SPEC 4.3 d."""
    set_l, old = torch.tensor([0, 1]), ScoreTable.blank(1, 2)
    hs = [ScoreTable(torch.tensor([[v, v]], dtype=torch.float64), torch.ones(1, 2).double()) for v in (0.2, 0.6)]
    updates = [ScoreUpdate(set_l, h, torch.zeros(2)) for h in hs]
    torch.testing.assert_close(global_update(old, updates, "average").score_RL, torch.full((1, 2), 0.4).double())
    torch.testing.assert_close(global_update(old, updates, "sum").score_RL, torch.full((1, 2), 0.8).double())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_average_stays_between_what_is_averaged_and_has_no_order(data):
    labels = 4
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    sets = data.draw(st.lists(st.sets(st.integers(0, 3), min_size=2), min_size=1, max_size=5))
    updates = []
    for own in sets:
        set_l = torch.tensor(sorted(own))
        h = torch.rand(6, len(own), generator=g, dtype=torch.float64)
        rows = torch.rand(6, generator=g) < 0.7 if data.draw(st.booleans()) else None
        updates.append(ScoreUpdate(set_l, ScoreTable(h, torch.ones_like(h)), torch.rand(len(own), generator=g), rows))
    old = ScoreTable(torch.rand(6, labels, generator=g, dtype=torch.float64), torch.ones(6, labels).double())
    new, turned = (global_update(old, some, "average") for some in (updates, updates[::-1]))
    torch.testing.assert_close(new.score_RL, turned.score_RL)
    for r in range(6):
        for c in range(labels):
            own = [
                float(u.h.score_RL[r, u.set_l.tolist().index(c)])
                for u in updates
                if c in u.set_l.tolist() and (u.row_R is None or bool(u.row_R[r]))
            ]
            value = float(new.score_RL[r, c])
            assert value == float(old.score_RL[r, c]) if not own else min(own) - 1e-9 <= value <= max(own) + 1e-9


# -- who influences whom


@pytest.mark.parametrize("more", [{}, {"distil": to.scores.Distil(epochs=1)}, {"start": "carried", "rows": "labelled"}])
def test_8_15_with_unique_labels_users_do_not_influence_one_another(more):
    """Bitwise, whatever the other does: other data, or not there at all."""
    sets = (("ant", "bee"), ("cow", "dog"))
    worlds = [
        score_world(1.0, 1.0, sets=sets, **more),
        score_world(1.0, 1.0, sets=sets, data=stream(sets, function=Arrive(sets, shift=500)), **more),
        score_world(1.0, 0.0, sets=sets, **more),
    ]
    found = []
    for world in worlds:
        track = prepare(world)
        state, _ = play(track, 3)
        model = track.module(state, 0).state_dict()
        found.append((state.table.score_RL[:, :2], *model.values()))
    assert not torch.equal(play(prepare(worlds[0]), 3)[0].table.score_RL, play(prepare(worlds[1]), 3)[0].table.score_RL)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_overlapping_labels_do_influence():
    first = prepare(score_world())
    second = prepare(score_world(data=stream(function=Arrive(shift=500))))
    a, b = play(first, 2)[0].table.score_RL, play(second, 2)[0].table.score_RL
    assert torch.equal(a[:, 0], b[:, 0])  # ant is client 0's alone
    assert not torch.equal(a[:, 1], b[:, 1])  # bee is client 1's too


def test_an_absent_client_is_invisible():
    """Its samples are absurd, and nothing changes."""
    plain, spoilt = (
        play(prepare(score_world(1.0, 0.0, 1.0, data=stream(function=function))), 3)[0].table
        for function in (Arrive(), Arrive(spoil=1))
    )
    assert torch.equal(plain.score_RL, spoilt.score_RL)


def test_4_4_a_label_may_become_unique_or_nobodys():
    """Client 1 is away in round 1: bee and cow are others' alone (β 1); client 0 in round 2: ant stays as it was."""

    class Turns(Given):
        def fraction(self, client_C, t, full_work, seed, groups=None):
            return torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)[t][client_C]

    track = prepare(score_world().but(**{"world.participation": Turns()}))
    state = track.begin()
    for t in range(3):
        replies = {r.client: r for r in ask(track, torch.arange(3), t).replies}
        before, (state, _) = state.table.score_RL, track.round(state, t)
        if t == 1:
            alpha, f = COUNTS[0] / 40, replies[0].f_Rl
            torch.testing.assert_close(state.table.score_RL[:, 1], before[:, 1] + alpha * f[:, 1])
        if t == 2:
            assert torch.equal(state.table.score_RL[:, 0], before[:, 0])
            assert not torch.equal(state.table.score_RL[:, 1], before[:, 1])


def test_4_4_joining_brings_a_new_label_and_leaving_leaves_its_scores():
    events = [to.Join(2, 1), to.Leave(2, 3)]
    track = prepare(score_world(rounds=5, events=events))
    state, tables, records = track.begin(), [], []
    for t in range(5):
        state, record = track.round(state, t)
        tables.append(state.table)
        records.append(record)
    assert [r.members for r in records] == [2, 3, 3, 2, 2]
    assert [e[:2] for r in records for e in r.events] == [(2, "join"), (2, "leave")]
    dog = 3
    assert float(tables[0].evidence_RL[:, dog].max()) == 0
    assert float(tables[0].read("plain")[:, dog].max()) == -math.inf
    assert float(tables[1].evidence_RL[:, dog].min()) > 0
    assert torch.equal(tables[2].score_RL[:, dog], tables[4].score_RL[:, dog])
    with pytest.raises(to.UserError, match="client 2 has not trained a model yet"):
        track.module(state, 2)


def test_nobody_there_changes_nothing():
    track = prepare(score_world(0.0, 0.0, 0.0))
    before = track.begin()
    state, (record,) = play(track)
    assert record.skipped == "no client answered"
    assert torch.equal(state.table.score_RL, before.table.score_RL)
    assert track.evaluate(state, 0).values == {}


def test_a_label_whose_holders_were_away_is_behind_unless_scores_are_means():
    """One column has been added to twice: plain argmax prefers it, per unit of evidence it does not."""
    f = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    table = ScoreTable.blank(1, 3)
    for own, part in (([0, 1], f), ([1, 2], torch.tensor([[0.4, 0.6]], dtype=torch.float64))):
        set_l = torch.tensor(own)
        h = local_update(table, set_l, part, 0.5, "plain", 1.0)
        table = global_update(table, [ScoreUpdate(set_l, h, torch.ones(2))], "average")
    assert int(table.of(torch.tensor([0, 1])).read("plain").argmax()) == 1
    assert int(table.of(torch.tensor([0, 1])).read("mean").argmax()) == 0


# -- the label leak


def test_8_15_rows_all_does_not_depend_on_the_public_labels():
    """Permute y0: with equal β nothing changes, bitwise; with β by accuracy only overlapping labels do."""
    tables = {}
    for beta in ("equal", "label"):
        for permuted in (False, True):
            track = prepare(score_world(beta=beta, permuted=permuted))
            tables[beta, permuted] = play(track, 3)[0].table.score_RL
    assert torch.equal(tables["equal", False], tables["equal", True])
    assert torch.equal(tables["label", False][:, [0, 3]], tables["label", True][:, [0, 3]])  # held by one client each
    assert not torch.equal(tables["label", False], tables["label", True])


def test_8_15_the_literal_reading_knows_labels_that_no_model_does():
    """Scores drawn at random: 50 % is what they are worth. rows = labelled + sum makes the middle user nearly perfect,
    because two users add to the true label of its rows and one to the other; permute the labels and it is gone."""
    sets = [torch.tensor(own) for own in ([0, 1], [1, 2], [2, 3])]
    true_R = torch.arange(400) % 4
    every = torch.ones(400, dtype=torch.bool)
    found = {}
    for shown in ("true", "permuted"):
        shown_R = true_R[torch.randperm(400, generator=torch.Generator().manual_seed(1))] if shown != "true" else true_R
        for rows in ("all", "labelled"):
            table, g = ScoreTable.blank(400, 4), torch.Generator().manual_seed(0)
            for _ in range(10):
                updates = []
                for set_l in sets:
                    f = torch.randn(400, 2, generator=g, dtype=torch.float64).softmax(1)
                    h = local_update(table, set_l, f, 0.5, "plain", 1.0)
                    mask = torch.isin(shown_R, set_l) if rows == "labelled" else None
                    updates.append(ScoreUpdate(set_l, h, torch.full((2,), 0.7), mask))
                table = global_update(table, updates, "sum")
            found[shown, rows] = accuracy(table.of(sets[1]).read("plain"), sets[1], true_R, every)
    assert found["true", "labelled"] > 0.95
    assert abs(found["true", "all"] - 0.5) < 0.08
    assert abs(found["permuted", "labelled"] - 0.5) < 0.08


def test_paper_literal_is_the_printed_form():
    literal = to.scores.paper_literal()
    assert (literal.rows, literal.combine, literal.held_out) == ("labelled", "sum", 0.0)
    made = to.scores.Scores()
    assert (made.rows, made.combine, made.beta, made.scores) == (
        "all", "average", "label", "softmax",
    )  # fmt: skip
    track = prepare(score_world().but(algorithm=to.scores.paper_literal()))
    assert bool(track.public.tested_R.all())


def test_half_of_every_label_is_held_out_and_beta_does_not_see_it():
    track = prepare(score_world())
    labels = track.public
    assert bool((labels.open_R ^ labels.tested_R).all())
    assert labels.true_R[labels.tested_R].bincount().tolist() == [5, 5, 5, 5]
    score = torch.randn(40, 2, dtype=torch.float64)
    other = torch.where(labels.tested_R[:, None], score.flip(1), score)
    set_l = torch.tensor([1, 2])
    assert torch.equal(beta_of(score, set_l, labels, "label"), beta_of(other, set_l, labels, "label"))


# -- accuracies and bytes


def test_accuracies_and_bytes_of_a_record():
    track = prepare(score_world(1.0, 0.0, 1.0))
    state, (record,) = play(track)
    asked = ask(track, torch.arange(3), 0)
    labels = track.public
    for reply in asked.replies:
        rows = [r for r in range(40) if labels.tested_R[r] and int(labels.true_R[r]) in reply.set_l.tolist()]
        guess = [int(reply.set_l[int(reply.f_Rl[r].argmax())]) for r in rows]
        wanted = sum(a == int(labels.true_R[r]) for a, r in zip(guess, rows, strict=True)) / len(rows)
        assert float(record.clients["local_accuracy"][reply.client]) == pytest.approx(wanted)
    rows = [r for r in range(40) if labels.tested_R[r]]
    guess = [max((float(score), c) for c, score in enumerate(state.table.score_RL[r]))[1] for r in rows]
    right = sum(a == int(labels.true_R[r]) for a, r in zip(guess, rows, strict=True)) / len(rows)
    assert track.evaluate(state, 0).values["global_accuracy"] == pytest.approx(right)
    assert record.bytes_up == record.bytes_down == 2 * (40 * 2 * 4)
    parameters = 5 * 6 + 6 + 6 * 2 + 2
    assert record.extra["weight_bytes"] == 2 * 2 * 4 * parameters
    assert torch.isnan(record.clients["local_accuracy"][1])
    assert record.extra["epoch_seconds"] > 0
    assert record.extra["inference_seconds"] > 0


def test_labelled_rows_cost_what_they_are():
    _, (record,) = play(prepare(score_world(rows="labelled")))
    assert record.bytes_up == 3 * (20 * 2 * 4)


def test_label_sets_may_grow():
    """From round 2 on client 0 has a third label: a model with three outputs, begun afresh."""

    def sets(client: int, t: int) -> tuple[str, ...]:
        return ("ant", "bee", "dog") if client == 0 and t >= 2 else SETS[client]

    track = prepare(score_world(data=growing(sets)))
    state, records = play(track, 4)
    assert [tuple(track.module(state, 0)(torch.zeros(1, 5)).shape), records[3].answered] == [(1, 3), 3]
    assert LABELS[3] == "dog"


class Growing:
    def __call__(self, client: int, t: int):
        x, names = Arrive()(client, t)
        later = client == 0 and t >= 2
        return x, ["dog" if later and i % 5 == 0 else name for i, name in enumerate(names)]


def growing(sets) -> to.data.Stream:
    return to.data.Stream(
        Growing(), clients=3, input_shape=(5,), classes=4, labels=LABELS, label_sets=sets, public=public
    )
