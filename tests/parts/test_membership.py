"""Joining late and leaving for good against SPEC §2.4, §2.5 and §7.3: unequal sizes, absent and partial clients."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import turnout as to
from turnout.errors import UserError
from turnout.parts.membership.departure import Bounds, should_exclude
from turnout.server.state import Left, Server
from turnout.types import Turnout, flatten
from turnout.world.members import Members
from worlds import local_updates, play, ready, world

COUNTS = [8, 12, 4, 16]
FRACTIONS = (1.0, 0.5, 0.0, 1.0)  # E = 4 epochs: s = 4, 2, 0, 4
E, N = 4, sum(COUNTS)
P = [n / N for n in COUNTS]


class Until:
    """Everybody completes everything, except that one client is absent from a round on."""

    def __init__(self, client: int, t: int):
        self.client, self.t = client, t

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.where((client_C == self.client) & torch.tensor(t >= self.t), 0.0, 1.0).double()


def town(*events: object, fractions: tuple[float, ...] = (), rounds: int = 6, **algorithm) -> to.Experiment:
    """The blobs of worlds.py with events, and with a learning rate that follows the clock."""
    local = algorithm.pop("local", to.Local(to.SGD(lr=0.1), epochs=E, batch_size=4, schedule=to.InverseClock()))
    made = world(COUNTS, *fractions, local=local, **algorithm)
    return dataclasses.replace(made, world=dataclasses.replace(made.world, events=events), rounds=rounds)


def moved(experiment: to.Experiment) -> Tensor:
    prepared = ready(experiment)
    server, _ = play(prepared)
    return server.shared_P - prepared.server.shared_P


def expected(coefficient: list[float], experiment: to.Experiment) -> Tensor:
    return torch.tensor(coefficient, dtype=torch.float64) @ local_updates(ready(experiment))


def weights(record) -> list[float]:
    return record.clients["weight"].tolist()


# -- joining


def test_a_newcomer_is_boosted_under_scheme_c():
    """SPEC §2.4: a_l = boost · (E / s_l) p_l, shares over the new set; here l = 1 finishes half, and 2 is absent."""
    experiment = town(to.Join(1, 0), fractions=FRACTIONS)
    torch.testing.assert_close(moved(experiment), expected([P[0], 3 * E / 2 * P[1], 0, P[3]], experiment))
    vanilla = town(to.Join(1, 0), fractions=FRACTIONS, membership=to.Membership(join="vanilla"))
    torch.testing.assert_close(moved(vanilla), expected([P[0], E / 2 * P[1], 0, P[3]], vanilla))
    slower = town(to.Join(1, 0), fractions=FRACTIONS, membership=to.Membership(boost=5.0))
    torch.testing.assert_close(moved(slower), expected([P[0], 5 * E / 2 * P[1], 0, P[3]], slower))


def test_the_objective_shifts_the_clock_restarts_and_the_boost_decays_on_its_own_clock():
    """SPEC §8 item 13: shares sum to 1; boost 3, 1.5, 1.222...; lr back at η0 with every arrival."""
    _, records = play(ready(town(to.Join(3, 2), to.Join(0, 4))), 6)
    assert [r.members for r in records] == [2, 2, 3, 3, 4, 4]
    assert [r.lr for r in records] == [0.1, 0.05, 0.1, 0.05, 0.1, 0.05]
    assert [r.clock for r in records] == [0, 1, 0, 1, 0, 1]
    for record, members in zip(
        records, [[1, 2], [1, 2], [1, 2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]], strict=True
    ):
        size = [COUNTS[c] for c in members]
        assert record.clients["client"].tolist() == members
        assert record.clients["share"].tolist() == pytest.approx([n / sum(size) for n in size])
    boosts = [[r.clients["weight"][i] / r.clients["share"][i] for i in range(r.members)] for r in records[2:]]
    assert [b[-1] for b in boosts] == pytest.approx([3, 1.5, 1 + 2 / 9, 1 + 2 / 16])
    assert [b[0] for b in boosts[2:]] == pytest.approx([3, 1.5])
    assert records[2].events[0][:2] == (3, "join")
    assert "fast-reboot, boost 3" in records[2].events[0][2]


def test_rule_24_scheme_a_boosts_a_newcomer_only_if_it_is_complete():
    a = town(to.Join(1, 0), fractions=FRACTIONS, weighting=to.weighting.CompleteOnly())
    torch.testing.assert_close(moved(a), expected([2 * P[0], 0, 0, 2 * P[3]], a))
    b = town(to.Join(3, 0), fractions=FRACTIONS, weighting=to.weighting.CompleteOnly())
    torch.testing.assert_close(moved(b), expected([2 * P[0], 0, 0, 3 * 2 * P[3]], b))


def test_rules_6_and_29_a_boost_is_for_ones_own_share_not_for_what_is_borrowed():
    """weight_c = boost_c share_c + borrowed_c, then the scheme's scale."""
    experiment = town(to.Join(1, 0), fractions=FRACTIONS, substitution=to.substitution.Spread())
    present = P[0] + P[1] + P[3]
    lent = [p / present * P[2] for p in P]
    torch.testing.assert_close(
        moved(experiment), expected([P[0] + lent[0], E / 2 * (3 * P[1] + lent[1]), 0, P[3] + lent[3]], experiment)
    )


def test_rule_22_states_are_never_boosted_and_messages_are():
    """A boost is applied to the decoded message, at the server; running statistics stay a plain mean."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    servers = []
    for join in ("fast-reboot", "vanilla"):
        experiment = dataclasses.replace(town(to.Join(3, 0), membership=to.Membership(join=join)), model=model)
        servers.append(play(ready(experiment))[0])
    assert not torch.equal(servers[0].shared_P, servers[1].shared_P)
    for name in servers[0].states:
        assert torch.equal(servers[0].states[name], servers[1].states[name])


def test_the_gradient_norm_of_the_old_objective_is_recorded_and_may_be_a_gate():
    """|∇ Σ_{old} p_k F_k(w)| by ordinary autograd; Corollary 4.0.2 boosts below a threshold."""
    prepared = ready(town(to.Join(3, 1), membership=to.Membership(gate=1e9)))
    server, records = play(prepared)
    module = prepared.template.double()
    torch.nn.utils.vector_to_parameters(server.shared_P, module.parameters())
    total = torch.zeros(())
    for client in range(3):
        x, y = prepared.runtime.clients.federation.train(torch.tensor([client]), 0).of(0)
        total = total + COUNTS[client] / 24 * torch.nn.functional.cross_entropy(module(x.double()), y)
    norm = torch.cat([g.reshape(-1) for g in torch.autograd.grad(total, list(module.parameters()))]).norm()
    _, after = prepared.round(server, 1)
    assert after.extra["old_gradient_norm"] == pytest.approx(float(norm))
    assert "below the gate" in after.events[0][2]
    assert weights(after)[3] == pytest.approx(3 * P[3])
    shut = ready(town(to.Join(3, 1), membership=to.Membership(gate=float(norm) * 0.99)))
    _, records = play(shut, 2)
    assert weights(records[1])[3] == pytest.approx(P[3])
    assert "not below" in records[1].events[0][2]
    unmeasured = ready(town(to.Join(3, 1), membership=to.Membership(surveyed=0)))
    assert "old_gradient_norm" not in play(unmeasured, 2)[1][1].extra
    with pytest.raises(UserError, match="surveyed"):
        to.Membership(gate=1.0, surveyed=0)


def test_only_those_who_are_there_answer_for_the_old_objective():
    """An absent client, and one whose loss is no number, say nothing; where nobody answers there is no norm."""

    def norm(*fractions: float, spoilt: int | None = None) -> object:
        prepared = ready(town(to.Join(3, 1), fractions=fractions))
        if spoilt is not None:
            rows = prepared.runtime.clients.federation.train(torch.tensor([spoilt])).row_R
            x = prepared.runtime.clients.federation.x.clone().index_fill(0, rows, torch.nan)
            prepared.runtime.clients.federation = dataclasses.replace(prepared.runtime.clients.federation, x=x)
        return prepared.round(prepared.begin(), 1)[1].extra.get("old_gradient_norm")

    without_1 = norm(1.0, 0.0, 1.0, 0.0)
    assert without_1 != norm(1.0, 1.0, 1.0, 0.0)
    assert without_1 == norm(1.0, 0.0, 1.0, 0.0, spoilt=1)
    assert norm(0.0, 0.0, 0.0, 1.0) is None
    with pytest.raises(UserError, match="client 1 in round 1"):  # its training is refused, its answer was left out
        norm(1.0, 1.0, 1.0, 0.0, spoilt=1)


# -- leaving


@pytest.mark.parametrize(
    ("weighting", "over", "selection"),
    [
        (to.weighting.ByWork(), "normalised", to.selection.Everyone()),
        (to.weighting.CompleteOnly(), "normalised", to.selection.Everyone()),
        (to.weighting.ByShare(), "unbiased", to.selection.Count(2)),
        (to.weighting.CompleteOnly(), "normalised", to.selection.Count(2)),
        (to.weighting.FedNova(), "unbiased", to.selection.Count(3)),
    ],
)
def test_include_is_to_be_absent_for_ever_without_being_asked(weighting, over, selection):
    """SPEC §2.5: n_l stays in the denominator, l contributes nothing, no reset of the learning rate."""
    parts = {"weighting": weighting, "shares": to.weighting.Shares(over=over), "selection": selection}
    left = town(to.Leave(1, 2), membership=to.Membership(leave="include"), **parts)
    away = town(**parts)
    away = dataclasses.replace(away, world=dataclasses.replace(away.world, participation=Until(1, 2)))
    (a, records), (b, _) = play(ready(left), 6), play(ready(away), 6)
    assert torch.equal(a.shared_P, b.shared_P)
    assert a.origin == 0
    assert all(1 not in r.clients["client"].tolist() for r in records[2:] if r.asked)
    assert [r.lr for r in records] == [0.1 / (t + 1) for t in range(6)]
    assert [r.members for r in records] == [4, 4, 3, 3, 3, 3]


def test_include_leaves_a_share_missing_and_exclude_renormalises():
    """SPEC §8 item 13: include, the shares of those present sum to less than 1; exclude, to 1, and lr restarts."""
    _, kept = play(ready(town(to.Leave(1, 2), membership=to.Membership(leave="include"))), 4)
    assert weights(kept[2]) == pytest.approx([P[0], P[2], P[3]])
    assert kept[2].weight_sum == pytest.approx(1 - P[1])
    assert kept[2].events == ((1, "leave", "include"),)
    _, out = play(ready(town(to.Leave(1, 2))), 4)
    assert weights(out[2]) == pytest.approx([8 / 28, 4 / 28, 16 / 28])
    assert [r.lr for r in out] == [0.1, 0.05, 0.1, 0.05]
    assert out[2].events == ((1, "leave", "exclude"),)


def test_exclude_is_a_world_without_that_client():
    """From the round it leaves in, everything is as if it had never been among the clients."""
    out = ready(town(to.Leave(1, 0), fractions=FRACTIONS))
    never = ready(dataclasses.replace(town(to.Join(1, 5), fractions=FRACTIONS), rounds=6))
    assert torch.equal(play(out, 5)[0].shared_P, play(never, 5)[0].shared_P)


def test_rule_5_a_friend_in_the_place_of_one_who_left_only_where_asked():
    """include + substitution: the departed share is lent with `stand_in`, and stays missing without."""
    for stand_in in (False, True):
        experiment = town(
            to.Leave(1, 0),
            fractions=FRACTIONS,
            substitution=to.substitution.Spread(),
            membership=to.Membership(leave="include", stand_in=stand_in),
        )
        missing, present = P[2] + (P[1] if stand_in else 0), P[0] + P[3]
        coefficient = [P[0] + P[0] / present * missing, 0, 0, P[3] + P[3] / present * missing]
        torch.testing.assert_close(moved(experiment), expected(coefficient, experiment))
    with pytest.raises(UserError, match="lends"):
        to.Algorithm(membership=to.Membership(leave="include", stand_in=True))


def test_an_included_client_comes_back_and_an_excluded_one_is_a_newcomer():
    """SPEC §2.6."""
    _, kept = play(ready(town(to.Leave(1, 2), to.Join(1, 4), membership=to.Membership(leave="include"))), 6)
    assert [r.lr for r in kept] == [0.1 / (t + 1) for t in range(6)]
    assert weights(kept[4]) == pytest.approx(P)
    assert kept[4].events == ((1, "return", "was included all along"),)
    _, out = play(ready(town(to.Leave(1, 2), to.Join(1, 4))), 6)
    assert out[4].lr == 0.1
    assert weights(out[4]) == pytest.approx([P[0], 3 * P[1], P[2], P[3]])


def test_an_excluded_newcomer_that_rejoins_has_what_is_left_of_its_one_boost():
    """Or a device could leave and join in every round, and always have three shares."""
    for again in (3, 5):
        _, records = play(ready(town(to.Join(1, 1), to.Leave(1, 2), to.Join(1, again), rounds=7)), 7)
        assert weights(records[1])[1] == pytest.approx(3 * P[1])
        boosts = [weights(r)[1] / P[1] for r in records[again:]]
        assert boosts == pytest.approx([1 + 2 / (again - 1 + n + 1) ** 2 for n in range(len(boosts))])
        assert [r.clock for r in records[again:]] == list(range(len(boosts)))
        roster = play(ready(town(to.Join(1, 1), to.Leave(1, 2), to.Join(1, again), rounds=7)), 7)[0].roster
        assert (roster.newcomer_J.tolist(), roster.since_J.tolist()) == ([1], [1])


def test_what_an_excluded_client_kept_is_forgotten_and_an_included_one_keeps_it():
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    for leave, forgotten in (("exclude", True), ("include", False)):
        experiment = town(to.Leave(1, 2), membership=to.Membership(leave=leave), personal=to.personal.batch_norm)
        prepared = ready(dataclasses.replace(experiment, model=model))
        play(prepared, 4)
        store = prepared.runtime.clients.store
        first, row = store.initial["personal"], store.gather(torch.tensor([1]))["personal"][0]
        assert torch.equal(first, row) == forgotten


@dataclasses.dataclass(frozen=True)
class Remembers(to.substitution.NoSubstitution):
    """A substitution with something to forget."""

    def begin(self, clients, width):
        return {"seen": torch.zeros(clients)}

    def observe(self, state, applied):
        return {"seen": state["seen"].index_fill(0, applied.client_R, 1.0)}

    def forget(self, state, client_L):
        return {"seen": state["seen"].index_fill(0, client_L, 0.0)}


def test_what_is_remembered_of_clients_that_left_is_of_those_asked_for():
    left = Left(torch.tensor([2, 5, 9]), {"scaffold": {"c": torch.tensor([[2.0], [5.0], [9.0]])}})
    some = left.among(torch.tensor([9, 2, 7]))
    assert (some.client_L.tolist(), some.rows["scaffold"]["c"].tolist()) == ([2, 9], [[2.0], [9.0]])
    assert left.among(torch.arange(10)).client_L.tolist() == [2, 5, 9]


def test_rule_5_parts_forget_the_excluded():
    server, _ = play(ready(town(to.Leave(1, 2), substitution=Remembers())), 4)
    assert server.substitution["seen"].tolist() == [1, 0, 1, 1]
    server, _ = play(
        ready(town(to.Leave(1, 2), substitution=Remembers(), membership=to.Membership(leave="include"))), 4
    )
    assert server.substitution["seen"].tolist() == [1, 1, 1, 1]


def test_decide_says_what_it_decided_from_which_numbers():
    for deadline in (6, 400):
        rule = to.Membership(leave="decide", deadline=deadline)
        _, records = play(ready(town(to.Leave(1, 4), membership=rule)), 5)
        said = records[4].extra
        names = ("D", "V", "gamma", "Gamma_l", "E", "noise")
        bounds = Bounds(**{name: said[f"decide_{name}"] for name in names})
        exclude = should_exclude(bounds, tau0=4, T=deadline)
        assert (said["decide_tau0"], said["decide_T"]) == (4, deadline)
        ((client, kind, detail),) = records[4].events
        assert (client, kind) == (1, "leave")
        assert detail.startswith("exclude: crossing rule" if exclude else "include: crossing rule")
        assert f"V {bounds.V:.6g}" in detail
        assert (records[4].lr == 0.1) == exclude
        loss = [float(r.clients["loss"][1]) for r in records[:4]]
        assert bounds.Gamma_l == pytest.approx(loss[-1] - min(loss))
        assert pytest.approx(P[1] * loss[-1]) == bounds.D


def test_decide_with_constants_of_ones_own_and_too_early():
    given = to.membership.Constants(D=1.0, V=1.0, gamma=1.0, Gamma_l=50.0)
    for rule in ("crossing", "literal", "sqrt"):
        for deadline in (4, 5000):
            chosen = to.Membership(leave="decide", rule=rule, constants=given, deadline=deadline)
            server, _ = play(ready(town(to.Leave(1, 3), membership=chosen)), 4)
            wanted = should_exclude(Bounds(1.0, 1.0, 1.0, 50.0, float(E)), 3, deadline, rule)
            assert (server.origin == 3) == wanted
    _, records = play(ready(town(to.Leave(1, 1), membership=to.Membership(leave="decide"))), 2)
    assert "too early" in records[1].events[0][2]


def test_the_deadline_is_the_last_round_unless_given():
    prepared = ready(town(membership=to.Membership(leave="decide"), rounds=17))
    assert prepared.experiment.algorithm.membership.deadline == 17


@pytest.mark.parametrize("deadline", [1, 3, 6])
@pytest.mark.parametrize("rule", ["crossing", "literal", "sqrt"])
def test_past_the_deadline_who_leaves_stays_in_the_objective(deadline: int, rule: str):
    """No round is left in which a restart could pay; the objective may even have shifted after the deadline (T < 0)."""
    membership = to.Membership(leave="decide", rule=rule, deadline=deadline)
    server, records = play(ready(town(to.Join(3, 4), to.Leave(1, 8), membership=membership, rounds=9)), 9)
    assert records[8].events == ((1, "leave", f"include: the deadline, round {deadline}, has passed"),)
    assert (records[8].clock, server.origin, records[8].weight_sum) == (4, 4, pytest.approx(1 + 2 / 25 * P[3] - P[1]))


def test_past_the_deadline_nobody_is_dropped():
    """γ = 0, the default: at the deadline nothing but the square of no rounds is left."""
    drop = to.membership.DropInactive(least=1)
    for deadline, out in ((1, []), (2, []), (6, [2])):
        membership = to.Membership(drop=drop, deadline=deadline)
        _, records = play(ready(town(to.Join(0, 2), fractions=FRACTIONS, membership=membership, rounds=6)), 6)
        assert [e[0] for r in records for e in r.events if e[1] == "drop"] == out


# -- hardly ever there


def test_who_is_hardly_ever_there_is_dropped_and_may_rejoin():
    """001 Cor. 1 with y_a = 1 for client 2: dropped once the others have answered 1.5 times on average, so after two
    rounds, back as a newcomer by an event, judged again."""
    drop = to.membership.DropInactive(J=1.0, C=1.0, least=1.5)
    experiment = town(
        to.Leave(2, 4), to.Join(2, 5), fractions=FRACTIONS, membership=to.Membership(drop=drop, deadline=1000), rounds=9
    )
    _, records = play(ready(experiment), 9)
    events = [(r.round, *e[:2]) for r in records for e in r.events]
    assert events == [(2, 2, "drop"), (4, 2, "leave"), (5, 2, "join"), (7, 2, "drop")]
    assert records[2].events[0][2] == "away in 2 of the 2 rounds it was asked"
    assert records[2].clock == 0
    assert weights(records[2]) == pytest.approx([8 / 36, 12 / 36, 16 / 36])
    patient = town(fractions=FRACTIONS, membership=to.Membership(drop=dataclasses.replace(drop, C=1e9)))
    assert not any(r.events for r in play(ready(patient), 6)[1])


class Rare:
    """Some clients answer one round in `every`, the others with a probability of their own."""

    def __init__(self, rare: set[int], every: int, away: float = 0.0, outage: int = 0):
        self.rare, self.every, self.away, self.outage = rare, every, away, outage

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        usual_C = to.participation.Dropout(self.away).fraction(client_C, t, full_work, seed)
        rare_C = torch.isin(client_C, torch.tensor(sorted(self.rare), dtype=torch.int64))
        found_C = torch.where(rare_C, float(t % self.every == 0), usual_C).double()
        return found_C * float(t >= self.outage)


def dropped(participation: object, rounds: int, **algorithm: object) -> set[int]:
    """Who of twenty clients is dropped, by the default rule unless another is given."""
    membership = to.Membership(drop=algorithm.pop("drop", to.membership.DropInactive()))
    made = world([4] * 20, local=to.Local(steps=2, batch_size=4), membership=membership, **algorithm)
    made = dataclasses.replace(made, world=dataclasses.replace(made.world, participation=participation))
    _, records = play(ready(dataclasses.replace(made, rounds=rounds)), rounds)
    return {client for r in records for client, kind, _ in r.events if kind == "drop"}


@pytest.mark.parametrize("away", [0.1, 0.5, 0.8])
def test_clients_that_are_away_now_and_then_are_not_dropped_by_default(away: float):
    """Whatever the dropout, as long as it is everybody's: nobody is there a tenth as often as the others."""
    assert dropped(Rare(set(), 1, away), 100) == set()


def test_the_corollary_alone_is_for_those_who_ask_for_it():
    """J = C = 1: y_a > T / (E (T - τ0))², which is 1/400 at first: one absence is too many."""
    assert len(dropped(Rare(set(), 1, 0.1), 100, drop=to.membership.DropInactive(rarely=math.inf))) > 10


def test_clients_that_are_hardly_there_are_dropped_by_default():
    """Three of twenty answer one round in thirty, and twelve of twenty (after which the others are most)."""
    for rare in ({3, 7, 11}, set(range(12))):
        assert dropped(Rare(rare, 30, 0.1), 100) == rare
    assert dropped(Rare({3, 7, 11}, 5, 0.1), 100) == set(), "one in five is not hardly ever"


def test_when_nobody_answers_for_long_that_is_nobody_s_fault():
    """Thirty rounds without anybody: all have been away in all of them, and more than 90 % of the rounds later on."""
    assert dropped(Rare(set(), 1, 0.1, outage=30), 100) == set()
    assert dropped(Rare({3}, 30, 0.1, outage=30), 100) == {3}


def test_rounds_in_which_nobody_answers_or_counts_are_remembered():
    """One of four is asked a round and 2 is never there: rounds without it are all there is to know of it."""
    drop = to.membership.DropInactive(least=1)
    counted = town(fractions=(1.0, 1.0, 0.0, 1.0), membership=to.Membership(drop=drop), rounds=12)
    server, records = play(ready(counted, **{"algorithm.selection": to.selection.Count(1)}), 12)
    asked = [int(r.clients["client"][0]) for r in records]
    last = next(t for t, r in enumerate(records) for e in r.events if e[1] == "drop")
    assert {r.skipped for r in records if 2 in r.clients["client"]} == {"no client answered"}
    assert records[last].events == ((2, "drop", f"away in {asked[:last].count(2)} of the {asked[:last].count(2)} "
                                    "rounds it was asked"),)  # fmt: skip
    ledger = server.roster.ledger
    assert dict(zip(ledger.client_K.tolist(), ledger.asked_K.tolist(), strict=True)) == {
        c: asked.count(c) for c in (0, 1, 3)
    }


def test_what_a_skipped_round_leaves_in_the_ledger():
    """Asked and there but incomplete (scheme A), asked and away, asked and no number: no loss enters the curve."""
    decide = to.Membership(leave="decide")
    partial = town(fractions=(0.5, 0.5, 0.0, 0.5), membership=decide, weighting=to.weighting.CompleteOnly())
    server, records = play(ready(partial), 2)
    assert {r.skipped for r in records} == {"no client's work counts"}
    ledger = server.roster.ledger
    assert ledger.asked_K.tolist() == [2, 2, 2, 2]
    assert ledger.absent_K.tolist() == [0, 0, 2, 0]
    assert server.roster.curve == []
    assert not torch.isfinite(ledger.latest_K).any()
    spoilt = ready(town(fractions=FRACTIONS, membership=decide, nonfinite="absent"))
    federation = spoilt.runtime.clients.federation
    spoilt.runtime.clients.federation = dataclasses.replace(federation, x=torch.full_like(federation.x, torch.nan))
    server, records = play(spoilt, 1)
    assert records[0].skipped == "no update that counts is finite"
    assert server.roster.ledger.absent_K.tolist() == [0, 0, 1, 0]
    assert server.roster.curve == []


def test_what_the_rules_learn_from_a_round():
    """Counts and losses by client without those who have left; the curve is Σ p_k F_k / Σ p_k over those who report."""
    part = to.Membership(leave="decide")
    roster = dataclasses.replace(part.begin(), gone_L=torch.tensor([7]))
    client_C, p_C = torch.tensor([2, 3, 5, 7]), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    for clock, losses in enumerate([(2.0, math.inf, 4.0, math.inf), (3.0, 1.0, math.inf, math.inf)]):
        loss_C = torch.tensor(losses, dtype=torch.float64)
        work_C = torch.isfinite(loss_C).double()
        turnout = Turnout(client_C, work_C, 1.0, work_C, torch.ones(4, dtype=torch.float64))
        roster = part.observe(roster, clock, turnout, loss_C, p_C)
    ledger = roster.ledger
    assert ledger.client_K.tolist() == [2, 3, 5]
    assert (ledger.asked_K.tolist(), ledger.absent_K.tolist()) == ([2, 2, 2], [0, 1, 1])
    assert (ledger.lowest_K.tolist(), ledger.latest_K.tolist()) == ([2.0, 1.0, 4.0], [3.0, 1.0, 4.0])
    (_, first), (_, second) = roster.curve
    assert first == pytest.approx((0.1 * 2 + 0.3 * 4) / (0.1 + 0.3))
    assert second == pytest.approx((0.1 * 3 + 0.2 * 1) / (0.1 + 0.2))


def test_a_skipped_round_changes_nothing_where_no_rule_looks_at_absences():
    """SPEC §8 item 16, of everything the server carries."""
    prepared = ready(town(fractions=(0.0,) * 4, membership=to.Membership(leave="include")))
    server, _ = play(prepared, 1)
    assert same_state(server.to_state(), prepared.begin().to_state())


def same_state(a: dict, b: dict) -> bool:
    (tensors, plain), (others, rest) = flatten(a), flatten(b)
    return (
        plain == rest and tensors.keys() == others.keys() and all(torch.equal(v, others[n]) for n, v in tensors.items())
    )


def test_an_event_of_the_world_about_somebody_who_was_dropped():
    drop = to.membership.DropInactive(J=1.0, C=0.0, least=1.5)
    experiment = town(to.Leave(2, 4), to.Join(2, 5), fractions=FRACTIONS, membership=to.Membership(drop=drop))
    _, records = play(ready(experiment), 6)
    assert next(e for r in records for e in r.events if e[1] != "drop") == (2, "leave", "was dropped before")
    assert records[5].events[0][:2] == (2, "join")
    assert [r.members for r in records] == [4, 4, 3, 3, 3, 4]


# -- everything else follows


def test_nobody_left_is_a_round_skipped_and_somebody_may_come():
    experiment = town(*(to.Leave(c, 1) for c in range(4)), to.Join(2, 3), rounds=4)
    _, records = play(ready(experiment), 4)
    assert [r.skipped for r in records] == [None, "no client was asked", "no client was asked", None]
    assert records[3].members == 1
    kept = experiment.but(**{"algorithm.membership": to.Membership(leave="include")})
    _, records = play(ready(kept), 4)
    assert [r.skipped for r in records] == [None, "no client was asked", "no client was asked", None]


def test_the_test_set_follows_the_objective():
    data = to.data.Synthetic(clients=4, sizes=to.data.Equal(50), test_share=0.4)
    experiment = dataclasses.replace(
        town(to.Leave(1, 2), to.Join(3, 4)), world=to.World(data, events=(to.Leave(1, 2), to.Join(3, 4)))
    )
    for leave in ("exclude", "include"):
        prepared = ready(experiment, **{"algorithm.membership": to.Membership(leave=leave)})
        server, measured = prepared.begin(), []
        for t in range(5):
            server, _ = prepared.round(server, t)
            measured.append((server, prepared.evaluate(server, t).values))
        middle, last = ([0, 2], [0, 2, 3]) if leave == "exclude" else ([0, 1, 2], [0, 1, 2, 3])
        objectives = [[0, 1, 2], [0, 1, 2], middle, middle, last]
        for (state, values), objective in zip(measured, objectives, strict=True):
            assert values["global_accuracy"] == pytest.approx(accuracy(prepared, state, objective))
        assert ("former_accuracy" in measured[1][1]) is False
        if leave == "exclude":
            assert measured[2][1]["former_accuracy"] == pytest.approx(accuracy(prepared, measured[2][0], [0, 1, 2]))
            assert "members_accuracy" not in measured[2][1]
        else:
            assert "former_accuracy" not in measured[2][1]
            assert measured[2][1]["members_accuracy"] == pytest.approx(accuracy(prepared, measured[2][0], [0, 2]))
        assert measured[4][1]["former_accuracy"] == pytest.approx(accuracy(prepared, measured[4][0], objectives[3]))


def accuracy(prepared, server: Server, clients: list[int]) -> float:
    own = prepared.runtime.clients.federation.test(torch.tensor(clients), 0)
    module = prepared.module(server, None).double()
    guess = module(own.x[own.row_R].double()).argmax(1)
    return float((guess == own.y[own.row_R]).double().mean())


def test_an_official_test_set_is_cut_to_the_labels_that_members_hold():
    x, y = torch.randn(12, 2), torch.tensor([0, 0, 1, 1, 2, 2] * 2)
    owner = [0, 0, 1, 1, 2, 2] * 2
    data = to.data.Own(x, y, owner, test=(x, y), test_share=0.0).load(0)
    some = Members(3, torch.tensor([1]))
    assert data.central_test(some)[1].unique().tolist() == [0, 2]
    assert len(data.central_test()[1]) == len(data.central_test(Members(3))[1]) == 12
    numbers = to.data.Own(x, x[:, 0], owner, test=(x, x[:, 0]), test_share=0.0).load(0)
    assert len(numbers.central_test(some)[1]) == 12


def test_made_data_pools_the_members_of_its_sample():
    data = to.data.Synthetic(clients=6, sizes=to.data.Equal(20)).load(0)

    def own(client: int) -> tuple[Tensor, Tensor]:
        return torch.full((4, 2), float(client)), torch.zeros(4).long()

    made = to.data.Loader(own, clients=6, input_shape=(2,), classes=2, test_share=0.5).load(0)
    some = Members(6, torch.tensor([0, 4]))
    assert made.central_test(some)[0][:, 0].unique().tolist() == [1, 2, 3, 5]
    assert len(made.central_test()[0]) == 12
    assert len(data.central_test(some)[0]) == 8
    assert made.central_test(Members(6, torch.arange(6))) is None


def test_unbiased_shares_follow_membership():
    """a_k = n_k / n · N / |cohort| over those the objective is over, kept up by changes."""
    experiment = town(
        to.Leave(1, 2),
        shares=to.weighting.Shares(over="unbiased"),
        selection=to.selection.Count(2),
        weighting=to.weighting.ByShare(),
    )
    prepared = ready(experiment)
    _, records = play(prepared, 4)
    for record in records:
        n, members = (N, 4) if record.round < 2 else (28, 3)
        size = [COUNTS[c] / n * members / 2 for c in record.clients["client"].tolist()]
        assert record.clients["share"].tolist() == pytest.approx(size)
    assert prepared.runtime.mean_examples(Members(4, torch.tensor([0, 3]))) == 8.0


def test_engines_agree_on_every_event():
    events = (to.Leave(1, 1), to.Join(3, 2), to.Join(1, 3), to.Leave(0, 4))
    results = []
    for engine in ("loop", "vmap", "by-hand"):
        experiment = town(*events, fractions=(1.0, 0.5, 0.75, 1.0), terms=(to.terms.Proximal(0.2),))
        prepared = ready(experiment, **{"runtime.engine": engine})
        results.append(play(prepared, 6)[0].shared_P)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-13)


def test_a_million_clients_cost_no_more_than_those_who_move():
    data = to.data.Synthetic(clients=1_000_000, sizes=to.data.Equal(20), central_clients=5)
    events = (to.events.RandomEvents(joins=2.0, leaves=2.0, returns=1.0, waiting=50), to.Leave(999_999, 2))
    experiment = to.Experiment(
        to.World(data, events=events),
        algorithm=to.Algorithm(selection=to.selection.Count(5), membership=to.Membership(leave="include", surveyed=4)),
        rounds=4,
    )
    prepared = ready(experiment)
    server, records = play(prepared, 4)
    assert records[3].asked == 5
    assert len(server.members.removed_L) < 70
    assert len(server.objective) >= 1_000_000 - 50


def test_wrong_settings_are_refused_with_a_sentence():
    for settings, says in [
        ({"join": "slow"}, "fast-reboot"), ({"leave": "includ"}, "include"), ({"rule": "cube"}, "crossing"),
        ({"boost": 0.5}, "boost"), ({"deadline": 0}, "deadline"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=says):
            to.Membership(**settings)
    with pytest.raises(UserError, match="gamma"):
        to.membership.Constants(1.0, 1.0, 0.0)
    with pytest.raises(UserError, match=r"rarely.*must be above 0"):
        to.membership.DropInactive(rarely=0.0)


def test_nobody_is_boosted_where_nobody_was_there_before():
    """A federation that begins with joins has no old objective that its newcomers have to catch up with."""
    events = [to.Join(client, 0) for client in range(4)]
    _, (first, _) = play(ready(town(*events)), 2)
    assert len(first.events) == 4
    assert first.weight_sum == pytest.approx(1)
