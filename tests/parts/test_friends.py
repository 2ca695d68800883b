"""Friends against the loops of SPEC §5.2 and §5.3, its invariants (§8: 5, 6, 17) and the rules of §7.3."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import turnout as to
from same_rows import same
from turnout import testing
from turnout.errors import UserError
from turnout.parts.substitution import friends
from turnout.parts.substitution.base import Substitutes
from turnout.parts.substitution.similarity_table import Pairs
from turnout.parts.updates import Updates
from turnout.running.config.read import from_table, load
from turnout.running.config.write import to_toml
from turnout.running.records.records import Records
from turnout.types import Message, Turnout
from worlds import EXACT, folder_run, local_updates, play, ready, world

COUNTS = [8, 12, 4, 16]


class Days:
    """A participation that a test writes down: a row of fractions a round, the last one for ever."""

    def __init__(self, *rows: tuple[float, ...]):
        self.rows = torch.tensor(rows, dtype=torch.float64)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return self.rows[min(t, len(self.rows) - 1)][client_C]


def turnout_of(work_C: Tensor, full: float = 4.0) -> Turnout:
    return Turnout(torch.arange(len(work_C)), work_C, full, work_C, torch.full_like(work_C, full))


def updates_of(t: int, present_C: Tensor, update_CP: Tensor, work_C: Tensor | None = None) -> Updates:
    work_C = present_C * 4.0 if work_C is None else work_C
    client_R = present_C.nonzero().squeeze(1).flip(0)  # replies come in any order
    start_P, turnout = torch.zeros(update_CP.shape[1]), turnout_of(work_C.double())
    return Updates(t, 0, client_R, update_CP[client_R], start_P, turnout, client_R)


def random_rounds(seed: int, clients: int, rounds: int, width: int = 6) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(present, updates, work) of several rounds; updates of clients with the same remainder by 3 are alike."""
    g = torch.Generator().manual_seed(seed)
    kind_GP = torch.randn(3, width, generator=g, dtype=torch.float64)
    found = []
    for _ in range(rounds):
        present_C = torch.rand(clients, generator=g) < 0.6
        present_C[int(torch.randint(0, clients, (), generator=g))] = True
        noise_CP = torch.randn(clients, width, generator=g, dtype=torch.float64)
        work_C = present_C * torch.randint(1, 5, (clients,), generator=g)
        found.append((present_C, kind_GP[torch.arange(clients) % 3] + 0.7 * noise_CP, work_C.double()))
    return found


class ByTheBook:
    """SPEC §5.2 and §5.3 as loops over clients; candidates are looked at every round, for every client."""

    def __init__(self, clients: int, part: to.substitution.Friends):
        self.K, self.part, self.t = clients, part, 0
        self.R = [[0.0] * clients for _ in range(clients)]
        self.N = [[0] * clients for _ in range(clients)]  # rounds in which two met
        self.W = [[0.0] * clients for _ in range(clients)]  # what those meetings weigh in their mean
        self.C = [set(range(clients)) - {k} for k in range(clients)]

    def score(self, a: Tensor, b: Tensor) -> float:
        return min(1.0, max(0.0, 0.5 * (float(a @ b / (a.norm() * b.norm())) + 1)))

    def observe(self, S: list[int], D: Tensor, work: Tensor) -> int:
        compared = 0
        for i in S:
            for j in S:
                if i < j and (j in self.C[i] or i in self.C[j]) and D[i].norm() > 0 and D[j].norm() > 0:
                    w = float(min(work[i], work[j])) / 4 if self.part.weight_by_work else 1.0
                    r, before = self.score(D[i], D[j]), self.W[i][j]
                    self.R[i][j] = self.R[j][i] = (before * self.R[i][j] + w * r) / (before + w)
                    self.W[i][j] = self.W[j][i] = before + w
                    self.N[i][j] = self.N[j][i] = self.N[i][j] + 1
                    compared += 1
        self.t += compared > 0
        self.judge()
        return compared

    def judge(self) -> None:
        if self.part.candidates is None or not self.t:
            return
        theta = self.part.candidates.theta(self.t, self.K)
        for k in range(self.K):
            judged = [i for i in self.C[k] if self.N[k][i] >= self.part.candidates.min_common]
            best = max((self.R[k][i] for i in judged), default=0.0)
            self.C[k] -= {i for i in judged if best - self.R[k][i] >= theta}

    def leave(self, gone: int) -> None:
        """Its row and column go (§5.6). C_k is never empty (§5.3): whoever loses its last candidate has all again."""
        for k in range(self.K):
            self.R[k][gone] = self.R[gone][k] = self.W[k][gone] = self.W[gone][k] = 0.0
            self.N[k][gone] = self.N[gone][k] = 0
        for k in range(self.K):
            met = {i for i in range(self.K) if self.N[k][i]}
            if met and not met & self.C[k]:
                self.C[k] = set(range(self.K)) - {k}
        self.judge()

    def friend(self, k: int, S: list[int]) -> int:
        for among in ([i for i in S if i in self.C[k]], S):
            known = [i for i in among if self.N[k][i] >= self.part.min_common]
            if known:
                return max(known, key=lambda i: (self.R[k][i], -i))
        return -1


PARTS = [
    to.substitution.Friends(),
    to.substitution.Friends(min_common=3),
    to.substitution.Friends(weight_by_work=True),
    to.substitution.Friends(candidates=to.substitution.Candidates(theta_scale=0.03, min_common=1)),
    to.substitution.Friends(candidates=to.substitution.Candidates(theta_scale=0.06, min_common=3), min_common=2),
]


@pytest.mark.parametrize("part", PARTS, ids=["plain", "thrice", "by-work", "pruned", "pruned-late"])
@pytest.mark.parametrize("seed", range(3))
def test_friends_are_those_of_the_loops(part: to.substitution.Friends, seed: int) -> None:
    """SPEC §5.2: R, N, φ, and the pairs compared; §5.3: candidates. Vectorised is the loop."""
    clients = 9
    book, state = ByTheBook(clients, part), part.begin(clients, 6)
    share_C = torch.arange(1.0, clients + 1, dtype=torch.float64)
    share_C /= share_C.sum()
    for t, (present_C, update_CP, work_C) in enumerate(random_rounds(seed, clients, rounds=20)):
        S = present_C.nonzero().squeeze(1).tolist()
        if t == 3:
            update_CP[S[0]] = 0.0  # |D| = 0: the pair is skipped
        here = updates_of(t, present_C, update_CP, work_C)
        state = part.observe(state, here)
        compared = book.observe(S, update_CP, work_C)
        lent = part.lend(state, share_C, present_C, here)
        friend = [-1 if k in S else book.friend(k, S) for k in range(clients)]
        assert lent.friend_C.tolist() == friend
        assert lent.extra["pairs_compared"] == compared
        borrowed = [0.0] * clients
        for k in set(range(clients)) - set(S):
            for i in S:
                spread = float(share_C[i] / share_C[S].sum())
                borrowed[i] += float(share_C[k]) * (spread if friend[k] < 0 else float(friend[k] == i))
        torch.testing.assert_close(lent.borrowed_C, torch.tensor(borrowed, dtype=torch.float64))
    client_K, similarity_KK = friends.similarity(state)
    expected = torch.tensor(book.R, dtype=torch.float64)[client_K][:, client_K]
    met_KK = torch.tensor(book.N)[client_K][:, client_K] > 0
    torch.testing.assert_close(similarity_KK[met_KK], expected[met_KK])
    assert torch.isnan(similarity_KK[~met_KK]).all()
    if part.candidates is not None:
        assert sum(map(len, book.C)) < clients * (clients - 1), "nothing was dropped: the test says nothing"


PRUNED = to.substitution.Friends(candidates=to.substitution.Candidates(theta_scale=0.06, min_common=2))


@pytest.mark.parametrize("seed", range(6))
def test_when_a_friend_leaves_the_next_best_is_the_best(seed: int) -> None:
    """§5.3: C_k is judged by the best of those in it. The best friends of some who are away leave, one after another:
    candidates, comparisons and stand-ins go on as in the loops."""
    clients, left = 9, {8: 0, 12: 3, 15: 1}
    book, state = ByTheBook(clients, PRUNED), PRUNED.begin(clients, 6)
    share_C, gone = torch.full((clients,), 1 / clients, dtype=torch.float64), []
    for t, (present_C, update_CP, work_C) in enumerate(random_rounds(seed, clients, rounds=24)):
        if t in left:
            state = PRUNED.forget(state, torch.tensor([left[t]]))
            book.leave(left[t])
            gone.append(left[t])
        present_C[gone] = False
        present_C[[4, 7]] = present_C[[4, 7]] & torch.tensor(t not in range(6, 14))  # away when 0, 1 and 3 leave
        S = present_C.nonzero().squeeze(1).tolist()
        here = updates_of(t, present_C, update_CP, work_C)
        state = PRUNED.observe(state, here)
        assert state["compared"] == book.observe(S, update_CP, work_C), t
        lent = PRUNED.lend(state, share_C, present_C, here)
        assert lent.friend_C.tolist() == [-1 if k in S else book.friend(k, S) for k in range(clients)], t


def test_a_client_away_when_its_only_candidate_leaves_has_the_others_again() -> None:
    """0 and 1 are alike, and so are 2 and 3: after a while only such pairs are compared. 1 leaves while 0 is away."""
    angle = torch.tensor([0.0, 0.01, 1.0, 1.05])
    update_CP = torch.stack([angle.cos(), angle.sin()], 1).double()
    part = to.substitution.Friends(
        candidates=to.substitution.Candidates(theta_scale=0.02, min_common=1, rounds=1, friends=1)
    )
    everyone, no_1 = torch.ones(4, dtype=torch.bool), torch.tensor([True, False, True, True])
    state = part.begin(4, 2)
    for t, compared in enumerate((6, 2, 2)):
        state = part.observe(state, updates_of(t, everyone, update_CP))
        assert state["compared"] == compared
    state = part.observe(part.forget(state, torch.tensor([1])), updates_of(3, no_1 & (torch.arange(4) > 0), update_CP))
    for t in (4, 5):
        state = part.observe(state, updates_of(t, no_1, update_CP))
        assert state["compared"] == 3, "0 takes 2 and 3 for candidates again, and so they are compared"


@pytest.mark.parametrize("seed", range(3))
def test_to_be_forgotten_for_want_of_room_is_to_leave(seed: int) -> None:
    """Six of seven are remembered: when the seventh comes, whoever was not seen for longest goes, as if it had left."""
    tight, wide = replace(PRUNED, remember=6), PRUNED
    states = {part: part.begin(7, 6) for part in (tight, wide)}
    rounds = random_rounds(seed, 7, rounds=16)
    share_C = torch.full((7,), 1 / 7, dtype=torch.float64)
    for t, (present_C, update_CP, work_C) in enumerate(rounds):
        present_C[6] = t >= 10
        present_C[0] = t < 7  # a friend of 3 and 6, and the one not seen for longest when 6 comes
        present_C[3] = t not in (8, 9, 10)  # away then
        present_C[[1, 2, 4, 5]] |= torch.tensor(t in (8, 9))
        here = updates_of(t, present_C, update_CP, work_C)
        if t == 10:
            states[wide] = wide.forget(states[wide], torch.tensor([0]))
        lent = []
        for part in states:
            states[part] = part.observe(states[part], here)
            lent.append(part.lend(states[part], share_C, present_C, here))
        assert lent[0].friend_C.tolist() == lent[1].friend_C.tolist(), t
        assert lent[0].extra == lent[1].extra, t


@given(seed=st.integers(0, 10**6), clients=st.integers(2, 9), scheme=st.sampled_from("BC"))
@settings(max_examples=30, deadline=None)
def test_lending_a_share_is_copying_an_update(seed: int, clients: int, scheme: str) -> None:
    """SPEC §5.2 step 4 and §8 item 5: Σ q_j D_j = Σ_S p_k D_k + Σ_¬S p_k D_φ(k), and Σ q = 1; D scaled under C."""
    part = to.substitution.Friends()
    state, g = part.begin(clients, 6), torch.Generator().manual_seed(seed)
    share_C = torch.rand(clients, generator=g, dtype=torch.float64) + 0.1
    share_C /= share_C.sum()
    for t, (present_C, update_CP, work_C) in enumerate(random_rounds(seed, clients, rounds=4)):
        scale_C = torch.where(present_C, 4 / work_C.clamp(min=1), 0.0) if scheme == "C" else present_C.double()
        sent_CP = update_CP * scale_C[:, None]
        here = updates_of(t, present_C, sent_CP, work_C)
        state = part.observe(state, here)
        lent = part.lend(state, share_C, present_C, here)
        weight_C = torch.where(present_C, share_C, 0.0) + lent.borrowed_C
        mean_P = (share_C[present_C] @ sent_CP[present_C]) / share_C[present_C].sum()
        copied_P = torch.zeros(6, dtype=torch.float64)
        for k in range(clients):
            friend = int(lent.friend_C[k])
            own = sent_CP[k] if present_C[k] else mean_P if friend < 0 else sent_CP[friend]
            copied_P += share_C[k] * own
        torch.testing.assert_close(weight_C @ sent_CP, copied_P)
        assert float(weight_C.sum()) == pytest.approx(1.0)


def moved(experiment: to.Experiment, rounds: int = 1) -> Tensor:
    prepared = ready(experiment)
    return play(prepared, rounds)[0].shared_P - prepared.server.shared_P


def days(*rows: tuple[float, ...], **algorithm: object) -> to.Experiment:
    """A world whose turnout changes from round to round, with friends."""
    experiment = world(
        COUNTS, **{"weighting": to.weighting.ByShare(), "substitution": to.substitution.Friends()} | algorithm
    )
    return experiment.but(**{"world.participation": Days(*rows)})


def test_without_dropout_friends_are_fedavg_and_without_history_they_are_dropout() -> None:
    """SPEC §8 item 5; leaving an absent share unused is neither."""
    everyone, one_away = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 0.0, 1.0)
    plain = {
        name: days(everyone, substitution=part)
        for name, part in (("f", to.substitution.Friends()), ("u", to.substitution.NoSubstitution()))
    }
    assert torch.equal(moved(plain["f"], 3), moved(plain["u"], 3))
    away = {
        s: moved(days(one_away, substitution=s))
        for s in (to.substitution.Friends(), to.substitution.Spread(), to.substitution.NoSubstitution())
    }
    assert torch.equal(away[to.substitution.Friends()], away[to.substitution.Spread()])
    assert not torch.allclose(away[to.substitution.Spread()], away[to.substitution.NoSubstitution()])


def second_round(experiment: to.Experiment) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """What round 1 moves, every client's own update from where it starts, and the record's columns."""
    prepared = ready(experiment)
    server, _ = play(prepared, 1)
    after, record = prepared.round(server, 1)
    layout = prepared.model.layout
    weights = layout.unpack(server.shared_P)
    with torch.no_grad():
        for name, value in prepared.template.double().named_parameters():
            value.copy_(weights[name])
    return after.shared_P - server.shared_P, local_updates(prepared, t=1), dict(record.clients)


ROW_0 = (1.0, 1.0, 1.0, 1.0)
ROW_1 = (1.0, 0.5, 0.0, 1.0)  # client 1 does half, client 2 is away


def expected_friend(experiment: to.Experiment, k: int, present: list[int]) -> int:
    """From the updates of round 0, in which all met."""
    D = local_updates(ready(experiment))
    scores = {i: float(torch.cosine_similarity(D[k], D[i], dim=0)) for i in present}
    return max(scores, key=lambda i: (scores[i], -i))


def test_rule_1_scheme_a_gives_every_other_share_to_a_complete_friend() -> None:
    """§7.3: complete clients get p_k, every other client is substituted by a complete friend; no N/K."""
    experiment = days(ROW_0, ROW_1, weighting=to.weighting.CompleteOnly())
    change, D, columns = second_round(experiment)
    p, q = [n / sum(COUNTS) for n in COUNTS], [0.0] * 4
    for k in (0, 3):
        q[k] += p[k]
    for k in (1, 2):
        friend = expected_friend(experiment, k, [0, 3])
        q[friend] += p[k]
        assert int(columns["friend"][k]) == friend
    assert columns["friend"][[0, 3]].tolist() == [-1, -1]
    torch.testing.assert_close(change, torch.tensor(q, dtype=torch.float64) @ D)


@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_rule_2_scheme_c_substitutes_the_normalised_update(scale_at: str) -> None:
    """§7.3: weight of j = (E/s_j) (p_j + Σ substituted p_k); only s = 0 is dropout."""
    experiment = days(ROW_0, ROW_1, weighting=to.weighting.ByWork(), scale_at=scale_at)
    change, D, columns = second_round(experiment)
    friend = expected_friend(experiment, 2, [0, 1, 3])
    q = [n / sum(COUNTS) for n in COUNTS]
    q[friend] += q[2]
    coefficient = torch.tensor([q[0], 2 * q[1], 0.0, q[3]], dtype=torch.float64)
    torch.testing.assert_close(change, coefficient @ D)
    assert columns["friend"].tolist() == [-1, -1, friend, -1]


@pytest.mark.parametrize("scale_at", ["client", "server"])
@pytest.mark.parametrize("weighting", [to.weighting.ByWork(), to.weighting.ByShare()], ids=str)
def test_rules_2_and_3_an_incomplete_friend_scales_what_it_borrows_too(
    weighting: to.weighting.Weighting, scale_at: str
) -> None:
    """§7.3: (E/s_j) (p_j + p_k) D_j for a friend that did s_j of E; under B it is p_j + p_k, unscaled."""
    row, steps, full = (0.75, 0.5, 0.0, 0.25), [6, 6, 0, 4], [8, 12, 4, 16]  # whoever stands in is incomplete
    experiment = days(ROW_0, row, weighting=weighting, scale_at=scale_at)
    change, D, columns = second_round(experiment)
    friend = expected_friend(experiment, 2, [0, 1, 3])
    q = [n / sum(COUNTS) for n in COUNTS]
    q[friend] += q[2]
    by_work = weighting == to.weighting.ByWork()
    scale = [full[k] / steps[k] if by_work and steps[k] else float(steps[k] > 0) for k in range(4)]
    torch.testing.assert_close(change, torch.tensor([scale[k] * q[k] for k in range(4)], dtype=torch.float64) @ D)
    assert columns["friend"].tolist() == [-1, -1, friend, -1]


def test_rule_3_scheme_b_substitutes_the_update_as_it_is() -> None:
    experiment = days(ROW_0, ROW_1)
    change, D, _ = second_round(experiment)
    q = torch.tensor([n / sum(COUNTS) for n in COUNTS], dtype=torch.float64)
    q[expected_friend(experiment, 2, [0, 1, 3])] += q[2]
    q[2] = 0
    torch.testing.assert_close(change, q @ D)


@pytest.mark.parametrize("alike", [(3, 20, 35), (17, 33), (31, 32), (16, 15)], ids=str)
def test_of_equals_the_lowest_client_stands_in_in_whatever_block_it_is(alike: tuple[int, ...]) -> None:
    """SPEC §5.2: ties go to the lowest id. Rows are looked at in blocks of 16: equals lie in several of them."""
    part, clients = to.substitution.Friends(), 40
    update_CP = torch.eye(clients + 2)[:clients]  # no two are alike, so every other mean is 1/2
    update_CP[[39, *alike]] = torch.eye(clients + 2)[-1]
    state = part.observe(
        part.begin(clients, clients + 2), updates_of(0, torch.ones(clients, dtype=torch.bool), update_CP)
    )
    present_C = torch.arange(clients) < 39
    lent = part.lend(
        state, torch.full((clients,), 1 / clients).double(), present_C, updates_of(1, present_C, update_CP)
    )
    assert int(lent.friend_C[39]) == min(alike)


def test_rule_4_only_those_asked_can_be_missing() -> None:
    experiment = days(ROW_0, ROW_1, selection=to.selection.Count(3))
    prepared = ready(experiment)
    _, records = play(prepared, 6)
    for record in records:
        asked = record.clients["client"].tolist()
        assert len(asked) == 3
        assert {int(f) for f in record.clients["friend"]} <= {-1, *asked}
        assert record.weight_sum == pytest.approx(1.0)


def test_rule_5_a_client_that_left_is_forgotten_and_rule_6_a_newcomer_has_no_history() -> None:
    part = to.substitution.Friends()
    state = part.begin(6, 6)
    rounds = random_rounds(1, 5, 8)
    for t, (_, update_CP, _) in enumerate(rounds):
        state = part.observe(state, updates_of(t, torch.ones(5, dtype=torch.bool), update_CP))
    present_C = torch.tensor([True, True, True, True, False])
    share_C = torch.full((5,), 0.2, dtype=torch.float64)
    before = part.lend(state, share_C, present_C, updates_of(9, present_C, rounds[0][1]))
    assert int(before.friend_C[4]) == 1  # the same remainder by 3
    state = part.forget(state, torch.tensor([1]))
    assert friends.similarity(state)[0].tolist() == [0, 2, 3, 4]
    after = part.lend(state, share_C, present_C, updates_of(9, present_C, rounds[0][1]))
    assert int(after.friend_C[4]) in (0, 2, 3)
    state = part.forget(state, torch.tensor([4]))  # and whoever takes its slot starts from nothing
    one = replace(updates_of(10, present_C, rounds[0][1]), client_R=torch.tensor([5]), update_RP=rounds[0][1][:1])
    state = part.observe(state, one)
    newcomer = part.lend(state, share_C, present_C, updates_of(11, present_C, rounds[0][1]))
    assert newcomer.friend_C.tolist() == [-1] * 5
    torch.testing.assert_close(newcomer.borrowed_C, torch.tensor([0.05] * 4 + [0.0], dtype=torch.float64))


@dataclasses.dataclass(frozen=True)
class Sign(to.compression.Dense):
    """A compression that loses almost everything: one bit a parameter."""

    def encode(self, update_CP, kept, sending):
        width = update_CP.shape[1]
        return Message({"update": torch.sign(update_CP)}, torch.full((len(update_CP),), width // 8)), {}


def test_rule_7_similarity_is_of_what_the_server_sees_or_of_a_sketch_that_clients_send() -> None:
    seen = {}
    for name, part in (("message", to.substitution.Friends()), ("sketch", to.substitution.Friends(client_sketch=18))):
        experiment = days(ROW_0, ROW_1, compression=Sign(), substitution=part)
        experiment = experiment.but(**{"algorithm.server.lr": 0.01})
        prepared = ready(experiment)
        server, records = play(prepared, 1)
        seen[name] = friends.similarity(server.substitution)[1][0, 1], records[0].bytes_up
    D = local_updates(ready(days(ROW_0)))
    for name, x_CP in (("message", D.sign()), ("sketch", D)):  # 18 parameters in 18 columns: nothing is lost
        assert float(seen[name][0]) == pytest.approx(
            0.5 * (1 + float(torch.cosine_similarity(x_CP[0], x_CP[1], dim=0)))
        )
    assert seen["sketch"][1] - seen["message"][1] == 4 * 18 * 4, "what clients send for it is counted"


def test_rule_8_a_meeting_counts_as_much_as_the_less_complete_of_the_two() -> None:
    part = to.substitution.Friends(weight_by_work=True)
    state = part.begin(2, 2)
    for t, (second, work) in enumerate([([1.0, 0.0], [4.0, 4.0]), ([-1.0, 0.0], [4.0, 1.0])]):
        update_CP = torch.tensor([[1.0, 0.0], second])
        state = part.observe(state, updates_of(t, torch.tensor([True, True]), update_CP, torch.tensor(work)))
    _, similarity_KK = friends.similarity(state)
    assert float(similarity_KK[0, 1]) == pytest.approx((1.0 * 1.0 + 0.25 * 0.0) / 1.25)


@pytest.mark.parametrize("least", [1, 2])
def test_rule_8_two_that_met_at_half_work_have_met(least: int) -> None:
    """N counts rounds (§5.2: N >= 1), the mean is weighted: little work makes a meeting count less, not vanish."""
    part = to.substitution.Friends(weight_by_work=True, min_common=least)
    update_CP, work_C = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]), torch.tensor([4.0, 2.0, 1.0])
    state, away_C = part.begin(3, 2), torch.tensor([False, True, True])
    share_C = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for t in range(least):
        later = part.lend(state, share_C, away_C, updates_of(t, away_C, update_CP))
        assert later.friend_C.tolist() == [-1, -1, -1], "they have not met often enough"
        state = part.observe(state, updates_of(t, torch.ones(3, dtype=torch.bool), update_CP, work_C))
    lent = part.lend(state, share_C, away_C, updates_of(least, away_C, update_CP))
    assert lent.friend_C.tolist() == [1, -1, -1]
    assert lent.borrowed_C.tolist() == pytest.approx([0.0, 0.2, 0.0])


def test_rules_9_and_10_personal_layers_and_buffers_are_not_compared() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    experiment = dataclasses.replace(days(ROW_0), model=model).but(**{"runtime.engine": "loop"})
    width = {}
    for personal in (None, to.personal.batch_norm):
        seen: list[int] = []

        @dataclasses.dataclass(frozen=True)
        class Watching(to.substitution.Friends):
            def observe(self, state, updates, seen=seen):
                seen.append(updates.update_RP.shape[1])
                return super().observe(state, updates)

        changes = {"algorithm.substitution": Watching(), "algorithm.personal": personal}
        play(ready(experiment, **changes), 1)
        width[personal] = seen
    assert width == {None: [5 * 6 + 6 + 12 + 6 * 3 + 3], to.personal.batch_norm: [5 * 6 + 6 + 6 * 3 + 3]}


def clusters(identical: bool) -> to.Experiment:
    """Two clusters of two, with uniform shares; identical data within a cluster where asked. One full batch a round."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 8, 5, generator=g), torch.randint(0, 3, (2, 8), generator=g)
    owner = torch.arange(4).repeat_interleave(8)
    features, labels = x.repeat_interleave(2, 0).flatten(0, 1), y.repeat_interleave(2, 0).flatten()
    if not identical:
        features = features + 0.3 * torch.randn(features.shape, generator=g)
    data = to.data.Own(features, labels, owner, test=(x[0], y[0]), test_share=0.0)
    local = to.Local(to.SGD(lr=0.1), steps=2, batch_size=8)
    algorithm = to.Algorithm(local, shares=to.weighting.Shares(by="uniform"), substitution=to.substitution.Friends())
    rows = Days(ROW_0, (1.0, 0.0, 1.0, 1.0), (0.0, 1.0, 1.0, 0.0), (1.0, 1.0, 0.0, 1.0))
    return to.Experiment(to.World(data, rows), to.models.Logistic(), algorithm, rounds=4, runtime=EXACT)


def test_identical_friends_give_the_full_update_exactly() -> None:
    """SPEC §8 item 6: every cluster has an active client, full batches, the same data within a cluster."""
    experiment = clusters(identical=True)
    full = experiment.but(**{"world.participation": to.participation.Always()})
    torch.testing.assert_close(moved(experiment, 4), moved(full, 4), rtol=1e-12, atol=1e-14)
    dropout = experiment.but(**{"algorithm.substitution": to.substitution.Spread()})
    assert (moved(dropout, 4) - moved(full, 4)).norm() > 1e-3


def test_hindsight_measures_the_substitution_error_and_leaves_no_trace() -> None:
    """e_t = Δ_t - mean of all (paper §4), by hand; an absent client's own layers, and the run, are as without it."""
    experiment = clusters(identical=False)
    watched = experiment.but(**{"evaluate.substitution": True})
    prepared = ready(watched)
    server, _ = play(prepared, 1)
    after, record = prepared.round(server, 1)
    with torch.no_grad():
        for name, value in prepared.template.double().named_parameters():
            value.copy_(prepared.model.layout.unpack(server.shared_P)[name])
    everyone = ready(experiment.but(**{"world.participation": to.participation.Always()}))
    everyone = dataclasses.replace(everyone, template=prepared.template)
    error = (after.shared_P - server.shared_P) - local_updates(everyone, t=1).mean(0)
    assert record.extra["substitution_error"] == pytest.approx(float(error.square().sum()), rel=1e-9)
    assert record.extra["substitution_error"] > 1e-6

    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    runs = []
    for measured in (False, True):
        changes = {"evaluate.substitution": measured, "algorithm.personal": to.personal.batch_norm}
        changes |= {"runtime.engine": "loop"}
        layered = ready(dataclasses.replace(experiment, model=model), **changes)
        layered_server, records = play(layered, 4)
        runs.append((layered_server.shared_P, layered.runtime.clients.store.gather(torch.arange(4)), records))
    assert torch.equal(runs[0][0], runs[1][0])
    for name, rows in runs[0][1].items():
        assert torch.equal(rows, runs[1][1][name])
    added = {"substitution_error"}
    assert [set(b.extra) - set(a.extra) for a, b in zip(runs[0][2], runs[1][2], strict=True)] == [added] * 4


@pytest.mark.parametrize(
    ("part", "own"),
    [
        (to.substitution.Friends(), 1.0),
        (to.substitution.Spread(), 0.25),
        (to.substitution.Stale(), 1.0),
        (to.substitution.NoSubstitution(), None),
    ],
    ids=lambda v: type(v).__name__,
)
def test_hindsight_says_whether_stand_ins_are_of_the_same_cluster(part: object, own: float | None) -> None:
    """Per method: a friend's cluster, the cluster's part of those present where a share is spread."""
    data = to.data.Digits(clients=8, partition=to.partition.Clustered(clusters=4))
    experiment = to.Experiment(
        to.World(data, Days((1.0,) * 8, (1.0, 0.0) * 4)), to.models.Logistic(),
        to.Algorithm(to.Local(to.SGD(lr=0.1), epochs=2), substitution=part, shares=to.weighting.Shares("uniform")),
        rounds=2, runtime=EXACT, evaluate=to.Evaluate(substitution=True),
    )  # fmt: skip
    _, records = play(ready(experiment), 2)
    assert records[1].extra.get("own_cluster") == (None if own is None else pytest.approx(own))
    assert records[0].extra["substitution_error"] < 1e-20
    assert records[1].extra["substitution_error"] > 1e-8


@pytest.mark.parametrize(
    "weighting",
    [to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork(), to.weighting.FedNova()],
    ids=str,
)
@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_hindsight_of_a_full_turnout_is_no_error(weighting: to.weighting.Weighting, scale_at: str) -> None:
    experiment = world(COUNTS, weighting=weighting, scale_at=scale_at).but(**{"evaluate.substitution": True})
    _, (record,) = play(ready(experiment))
    assert record.extra["substitution_error"] < 1e-25
    partial = days(ROW_1, weighting=weighting, scale_at=scale_at).but(**{"evaluate.substitution": True})
    assert play(ready(partial))[1][0].extra["substitution_error"] > 1e-6


# -- stale


@pytest.mark.parametrize("scale_at", ["client", "server"])
@pytest.mark.parametrize("weighting", [to.weighting.ByShare(), to.weighting.ByWork(), to.weighting.FedNova()], ids=str)
def test_stale_uses_the_last_update_as_it_was_scaled_then(weighting: to.weighting.Weighting, scale_at: str) -> None:
    """Round 0: client 1 does half, all are there. Round 1: client 1 is away; its old update has its share."""
    experiment = days(
        (1.0, 0.5, 1.0, 1.0),
        (1.0, 0.0, 1.0, 1.0),
        substitution=to.substitution.Stale(),
        weighting=weighting,
        scale_at=scale_at,
    )
    old = local_updates(ready(experiment))[1]
    change, D, columns = second_round(experiment)
    p = torch.tensor([n / sum(COUNTS) for n in COUNTS], dtype=torch.float64)
    steps = [8, 6, 4, 16]  # client 1 made 6 of 12
    if isinstance(weighting, to.weighting.FedNova):
        here = [0, 2, 3]
        tau = sum(float(p[k]) * steps[k] for k in here) / float(p[here].sum())
        expected = sum(tau * p[k] * D[k] / steps[k] for k in here) + tau * p[1] * old / steps[1]
    else:
        expected = sum(p[k] * D[k] for k in (0, 2, 3)) + p[1] * old * (2 if weighting == to.weighting.ByWork() else 1)
    torch.testing.assert_close(change, expected)
    assert columns["friend"].tolist() == [-1, 1, -1, -1]


def test_stale_weights_are_the_authors_average_of_models() -> None:
    """w_{t+1} = Σ p_k w_k, the last local weights for those away (SPEC §1.3 item 10); one never seen is spread."""
    experiment = days((1.0, 1.0, 0.0, 1.0), (1.0, 0.0, 0.0, 1.0), substitution=to.substitution.Stale(form="weights"))
    prepared = ready(experiment)
    first = prepared.server.shared_P
    old = first + local_updates(prepared)[1]
    server, _ = play(prepared, 1)
    change, D, columns = second_round(experiment)
    p = torch.tensor([n / sum(COUNTS) for n in COUNTS], dtype=torch.float64)
    here = p[0] + p[3]
    models = {0: server.shared_P + D[0], 3: server.shared_P + D[3]}
    average = sum(p[k] * (1 + p[2] / here) * models[k] for k in (0, 3)) + p[1] * old
    torch.testing.assert_close(server.shared_P + change, average)
    assert columns["friend"].tolist() == [-1, 1, -1, -1]


def test_stale_forgets_and_grows() -> None:
    part = to.substitution.Stale()
    state = part.begin(10, 2)
    for t in range(6):
        here = replace(updates_of(t, torch.tensor([True]), torch.full((1, 2), float(t))), client_R=torch.tensor([t]))
        state = part.observe(state, here)
    turnout = turnout_of(torch.tensor([0.0] * 6 + [4.0], dtype=torch.float64))
    share_C, counts_C = torch.full((7,), 1 / 7, dtype=torch.float64), turnout.present_C

    def given(state: dict) -> Substitutes:
        return part.lend(state, share_C, counts_C, replace(here, turnout=turnout))

    torch.testing.assert_close(given(state).rows_sum(torch.ones(7)), torch.full((2,), 15 / 7))
    lent = given(part.forget(state, torch.tensor([5])))
    torch.testing.assert_close(lent.rows_sum(torch.ones(7)), torch.full((2,), 10 / 7))
    assert lent.friend_C.tolist() == [0, 1, 2, 3, 4, -1, -1]
    assert float(lent.borrowed_C[6]) == pytest.approx(1 / 7)


def test_a_store_that_does_not_fit_is_refused_before_the_first_round() -> None:
    from turnout.running.messages import check_fits

    data = to.data.Synthetic(clients=1_000_000)
    experiment = to.Experiment(
        to.World(data), to.models.MLP(100),
        to.Algorithm(substitution=to.substitution.Stale(), selection=to.selection.Count(1000)), rounds=500,
    )  # fmt: skip
    with pytest.raises(UserError, match="stand-ins"):
        check_fits(ready(experiment).memory(), free=8 << 30)
    friendly = experiment.but(**{"algorithm.substitution": to.substitution.Friends()})
    assert ready(friendly).memory()["stand-ins"] == 600_000_000  # 10,000² means and counts of 4 and 2 bytes
    weighted = friendly.but(**{"algorithm.substitution.weight_by_work": True})
    assert ready(weighted).memory()["stand-ins"] == 1_000_000_000  # and weights of 4


# -- the tables


def test_similarity_is_symmetric_in_range_and_the_mean_of_history() -> None:
    """SPEC §8 item 17, in float32 as in a run."""
    part, clients = to.substitution.Friends(), 7
    state, scores = part.begin(clients, 6), {}
    for t, (present_C, update_CP, _) in enumerate(random_rounds(5, clients, 40)):
        here = updates_of(t, present_C, update_CP.float())
        state = part.observe(state, here)
        S = present_C.nonzero().squeeze(1).tolist()
        for i in S:
            for j in S:
                cosine = torch.cosine_similarity(update_CP[i], update_CP[j], dim=0)
                scores.setdefault((i, j), []).append(0.5 * (float(cosine) + 1))
    _, similarity_KK = friends.similarity(state)
    off = ~torch.eye(clients, dtype=torch.bool)
    assert torch.equal(similarity_KK[off], similarity_KK.T[off])
    assert ((similarity_KK[off] >= 0) & (similarity_KK[off] <= 1)).all()
    for (i, j), history in scores.items():
        if i != j:
            assert float(similarity_KK[i, j]) == pytest.approx(sum(history) / len(history), abs=1e-6)


def test_many_replies_compared_by_several_threads_are_the_plain_formula() -> None:
    """Two rounds of 700: three blocks at once, whose pairs are nobody else's."""
    part, g = to.substitution.Friends(), torch.Generator().manual_seed(5)
    state, rounds = part.begin(700, 32), [torch.randn(700, 32, generator=g) for _ in range(2)]
    for t, update_CP in enumerate(rounds):
        state = part.observe(state, updates_of(t, torch.ones(700, dtype=torch.bool), update_CP))
    assert state["compared"] == 700 * 699 // 2
    unit = [torch.nn.functional.normalize(update_CP) for update_CP in rounds]
    expected = sum((x @ x.T + 1) / 2 for x in unit) / 2
    client_I, found = friends.similarity(state)
    assert client_I.tolist() == list(range(700))
    apart = ~torch.eye(700, dtype=torch.bool)
    torch.testing.assert_close(found[apart], expected[apart])


def test_ties_go_to_the_lowest_client_and_near_ties_to_the_most_work() -> None:
    update_CP = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.1], [1.0, 0.0]])
    everyone, share_C = torch.ones(4, dtype=torch.bool), torch.full((4,), 0.25, dtype=torch.float64)
    here = torch.tensor([False, True, True, True])
    work = torch.tensor([0.0, 1.0, 4.0, 2.0])
    for part, friend in (
        (to.substitution.Friends(), 1),
        (to.substitution.Friends(near_tie=1e-6), 3),
        (to.substitution.Friends(near_tie=0.1), 2),
    ):
        state = part.observe(part.begin(4, 2), updates_of(0, everyone, update_CP))
        assert part.lend(state, share_C, here, updates_of(1, here, update_CP, work)).friend_C[0] == friend


def test_the_least_recently_seen_make_room() -> None:
    part, clients = to.substitution.Friends(remember=4), 8
    state = part.begin(clients, 6)
    rounds = random_rounds(0, clients, 3)
    for t, who in enumerate(([0, 1, 2], [1, 2, 3], [4, 5, 1])):
        present_C = torch.zeros(clients, dtype=torch.bool).index_fill(0, torch.tensor(who), True)
        state = part.observe(state, updates_of(t, present_C, rounds[t][1]))
    client_K, similarity_KK = friends.similarity(state)
    kept = client_K.tolist()
    assert {1, 4, 5} <= set(kept) <= {1, 2, 3, 4, 5}
    assert len(kept) == 4
    other = next(c for c in kept if c not in (1, 4, 5))
    row = similarity_KK[kept.index(other)]
    assert torch.isnan(row[[kept.index(4), kept.index(5)]]).all(), "they took the place of others, not their history"
    assert not torch.isnan(row[kept.index(1)])
    crowd = part.observe(state, updates_of(4, torch.ones(clients, dtype=torch.bool), rounds[0][1]))
    assert len(friends.similarity(crowd)[0]) == 4, "more replied than are remembered"


def test_pruning_leaves_only_pairs_of_a_kind_to_compare() -> None:
    """Two kinds of clients: in the end only pairs of a kind are compared, and their means go on as before."""
    g = torch.Generator().manual_seed(0)
    clients, width = 40, 50
    kind_CP = torch.eye(20, width).repeat(2, 1)  # client i and i + 20 are alike
    pruned, plain = (
        to.substitution.Friends(candidates=to.substitution.Candidates(theta_scale=0.05)),
        to.substitution.Friends(),
    )
    states = {part: part.begin(clients, width) for part in (pruned, plain)}
    everyone, compared = torch.ones(clients, dtype=torch.bool), []
    for t in range(12):
        update_CP = kind_CP + 0.01 * torch.randn(clients, width, generator=g)
        for part in states:
            states[part] = part.observe(states[part], updates_of(t, everyone, update_CP))
        compared.append(states[pruned]["compared"])
    assert compared[0] == clients * (clients - 1) / 2
    assert compared[-1] == clients / 2
    a, b = (friends.similarity(states[part])[1] for part in (pruned, plain))
    mates = (torch.arange(20), torch.arange(20) + 20)
    torch.testing.assert_close(a[mates], b[mates])


@given(seed=st.integers(0, 10**6), size=st.integers(3, 40), width=st.integers(1, 130))
@settings(max_examples=25, deadline=None)
def test_a_sketch_folds_every_column_once_with_a_sign(seed: int, size: int, width: int) -> None:
    from turnout.parts.substitution.projection import sketch

    units = sketch(torch.eye(width), size, seed, t=3)
    assert (units.abs().sum(1) == 1).all()
    assert ((units != 0).sum(1) == 1).all()
    load_D = (units != 0).sum(0)
    assert int(load_D.max()) <= -(-width // size)
    x_RP = torch.randn(70, width, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(sketch(x_RP, size, seed, t=3), x_RP @ units, rtol=1e-4, atol=1e-5)


def test_cosines_of_sketches_are_off_by_one_over_the_root_of_their_size() -> None:
    """And by less in a mean over rounds, for which signs are drawn anew."""
    from turnout.parts.substitution.projection import sketch

    g = torch.Generator().manual_seed(0)
    x_RP = torch.randn(30, 5000, generator=g)
    x_RP[1::2] += x_RP[::2]
    upper = torch.ones(30, 30, dtype=torch.bool).triu(1)
    exact = torch.nn.functional.normalize(x_RP)
    errors = []
    for t in range(16):
        short = torch.nn.functional.normalize(sketch(x_RP, 400, 0, t))
        errors.append((short @ short.T - exact @ exact.T)[upper])
    assert 0.8 / 20 < float(errors[0].std()) < 1.2 / 20
    mean = torch.stack(errors).mean(0)
    assert float(mean.std()) < 1.3 / 20 / 4
    assert abs(float(mean.mean())) < 0.002


def test_many_replies_are_compared_by_their_projection() -> None:
    """Above `project_above` products; two kinds of clients are told apart either way."""
    g = torch.Generator().manual_seed(1)
    kind = torch.arange(40) % 4
    update_CP = torch.randn(4, 3000, generator=g)[kind] + torch.randn(40, 3000, generator=g)
    present_C = torch.arange(40) >= 4
    everyone = torch.ones(40, dtype=torch.bool)
    share_C = torch.full((40,), 1 / 40, dtype=torch.float64)
    exact, projected = to.substitution.Friends(), to.substitution.Friends(project_above=1e5, project_to=500)
    similarities = {}
    for part in (exact, projected):
        state = part.observe(part.begin(40, 3000), updates_of(0, everyone, update_CP))
        lent = part.lend(state, share_C, present_C, updates_of(1, present_C, update_CP))
        assert (kind[lent.friend_C[:4]] == kind[:4]).all()
        similarities[part] = friends.similarity(state)[1]
    off = ~torch.eye(40, dtype=torch.bool)
    error = float((similarities[exact] - similarities[projected])[off].abs().mean())
    assert 0 < error < 0.05


# -- in a run


@pytest.mark.parametrize(
    "part",
    [
        to.substitution.Friends(candidates=to.substitution.Candidates(theta_scale=0.05, min_common=1)),
        to.substitution.Stale(),
        to.substitution.Stale("weights"),
    ],
    ids=["friends", "update", "weights"],
)
def test_resumed_is_uninterrupted(part: object, tmp_path: Path) -> None:
    base = world([8, 12, 4, 16, 8, 8], substitution=part).but(
        **{"world.participation": to.participation.Dropout(0.4), "evaluate.substitution": True}
    )
    folder_run(base.but(rounds=9), tmp_path / "whole")
    folder_run(base.but(rounds=4), tmp_path / "halves")
    to.run(base.but(rounds=9), tmp_path / "halves", resume=True, quiet=True)
    assert same(tmp_path / "whole" / "records.sqlite", tmp_path / "halves" / "records.sqlite") == []
    with Records.read(tmp_path / "whole" / "records.sqlite") as records:
        assert "substitution_error" in records.rounds()
        assert set(records.clients()["friend"].tolist()) > {-1}


def test_friends_in_a_file(tmp_path: Path) -> None:
    experiment = to.Experiment().but(
        **{
            "algorithm.substitution": to.substitution.Friends(
                candidates=to.substitution.Candidates(theta_scale=0.1), project_above=math.inf
            )
        }
    )
    (tmp_path / "e.toml").write_text(to_toml(experiment))
    assert load(tmp_path / "e.toml") == experiment
    short = from_table({"algorithm": {"substitution": {"kind": "stale", "form": "weights"}}})
    assert short.algorithm.substitution == to.substitution.Stale(form="weights")
    assert from_table({"algorithm": {"substitution": "friends"}}).algorithm.substitution == to.substitution.Friends()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: to.substitution.Friends(remember=1), "remember must be at least 2"),
        (lambda: to.substitution.Friends(near_tie=-1.0), "near_tie"),
        (lambda: to.substitution.Candidates(theta_scale=0.0), "theta_scale"),
        (lambda: to.substitution.Candidates(min_common=0), "at least 1"),
        (lambda: to.substitution.Stale("old"), "known are update, weights"),
    ],
)
def test_mistakes_are_sentences(make, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()


@dataclasses.dataclass(frozen=True)
class KeepsTheMemory(to.substitution.Stale):
    """Broken: keeps a view of what the next round writes over."""

    def observe(self, state, updates):
        return state | {"client": updates.client_R, "rows": updates.update_RP}


def test_a_broken_substitution_is_caught() -> None:
    with pytest.raises(AssertionError, match="copy what is kept"):
        testing.check_substitution(KeepsTheMemory())


def test_an_empty_table_knows_nobody() -> None:
    pairs = Pairs.empty(weighted=False)
    assert pairs.find(torch.tensor([3])).tolist() == [-1]
