"""Parts together, rule by rule of SPEC §7.3, and the degenerate cases of §7.4.

Rules about one part's own doings are tested with that part; the number is in the name wherever that is, and
`test_every_rule_has_a_test` finds them all.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turnout as to
from turnout.errors import UserError
from turnout.parts.substitution.friends import similarity
from turnout.running.config.read import from_table
from turnout.types import flatten
from worlds import Given, blobs, local_updates, own_models, play, ready, world

COUNTS = [8, 12, 4, 16]
FRACTIONS = (1.0, 0.5, 0.0, 1.0)
E = 4
NORM = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


class Scripted:
    """A participation written down round by round; the last row repeats."""

    def __init__(self, *rounds: tuple[float, ...]):
        self.rounds = torch.tensor(rounds, dtype=torch.float64)

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return self.rounds[min(t, len(self.rounds) - 1)][client_C]


def with_norm(*fractions: float, **algorithm) -> to.Experiment:
    return dataclasses.replace(world(COUNTS, *fractions, **algorithm), model=NORM)


def test_every_rule_has_a_test():
    """SPEC §7.3 counts 29 rules; a test's name carries the number of the rule it pins."""
    found: set[int] = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            for listed in re.findall(r"rules?_((?:\d+_?(?:and_)?)+)", name):
                found |= {int(number) for number in re.findall(r"\d+", listed)}
    assert sorted(set(range(1, 30)) - found) == []


# -- similarity


def pairs_of(experiment: to.Experiment, rounds: int = 1) -> Tensor:
    server, _ = play(ready(experiment), rounds)
    return similarity(server.substitution)[1]


def test_rules_9_and_10_similarity_is_of_shared_parameters_not_of_layers_at_home_nor_of_statistics():
    """r_ij = ½ (cos(D_i, D_j) + 1) over the shared columns alone; BatchNorm's buffers are not among them."""
    experiment = with_norm(substitution=to.substitution.Friends(), personal=to.personal.batch_norm)
    prepared = ready(experiment)
    server, _ = play(prepared)
    layout = prepared.model.layout
    assert layout.shared == 5 * 6 + 6 + 6 * 3 + 3
    update_CP = updates_of(experiment)
    assert update_CP.shape[1] == layout.shared
    unit = update_CP / update_CP.norm(dim=1, keepdim=True)
    expected = 0.5 * (unit @ unit.T + 1)
    found = similarity(server.substitution)[1]
    off = ~torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close(found[off], expected[off].to(found.dtype))


def updates_of(experiment: to.Experiment) -> Tensor:
    """What the server is sent in the first round, in the order of the clients."""
    prepared = ready(experiment)
    kept = []

    class Listening:
        def __getattr__(self, name: str):
            return getattr(prepared.runtime, name)

        def ask(self, client_C, download):
            turnout, replies = prepared.runtime.ask(client_C, download)
            kept.append(replies)
            return turnout, replies

    dataclasses.replace(prepared, runtime=Listening()).round(prepared.begin(), 0)
    (replies,) = kept
    return replies.message.tensors["update"][replies.client_R.argsort()]


def test_rule_9_adam_shrinks_cosines_towards_the_middle_and_keeps_their_order():
    """Clients 0 and 1 hold the same kind of data, 2 another: the friend stays the friend."""
    g = torch.Generator().manual_seed(0)
    centre = torch.randn(2, 5, generator=g)[torch.tensor([0, 0, 1])].repeat_interleave(20, 0)
    x = centre + 0.5 * torch.randn(60, 5, generator=g)
    owner = torch.arange(3).repeat_interleave(20)
    y = torch.where(owner < 2, 0, 1)
    data = to.data.Own(x, y, owner, test=(x, y), test_share=0.0, classes=3)
    found = {}
    for optimizer in (to.SGD(lr=0.1), to.Adam(lr=0.01)):
        local = to.Local(optimizer, epochs=2, batch_size=5)
        experiment = to.Experiment(
            to.World(data), algorithm=to.Algorithm(local, substitution=to.substitution.Friends()),
            runtime=to.runtime.InProcess(device="cpu", precision="float64", threads=1),
        )  # fmt: skip
        found[type(optimizer).__name__] = pairs_of(experiment, 2)
    for pairs in found.values():
        assert pairs[0, 1] > pairs[0, 2]
        assert pairs[0, 1] > pairs[1, 2]


# -- Adam and the clock


def test_rule_15_the_clock_restarts_at_a_shift_and_moments_go_on():
    """The schedule is an object of its own: η0/(clock + 1) restarts with an arrival; m, v and n are kept."""
    local = to.Local(to.Adam(lr=0.02), epochs=2, batch_size=4, schedule=to.InverseClock())
    experiment = world(COUNTS, local=local)
    experiment = experiment.but(rounds=4, **{"world.events": (to.Join(3, 2),)})
    prepared = ready(experiment)
    server, records = play(prepared, 2)
    before = {name: value.clone() for name, value in server.states.items()}
    shifted, _ = prepared.round(server, 2)
    assert [r.lr for r in records] == [0.02, 0.01]
    _, record = ready(experiment).round(server, 2)
    assert (record.lr, record.clock) == (0.02, 0)
    assert float(before["moment/count"]) > 0
    assert float(shifted.states["moment/count"]) > float(before["moment/count"])
    assert (before["moment/second"] > 0).any()


# -- elastic and compression


def test_rule_21_fisher_sums_are_not_scaled_by_unfinished_work():
    """Under scheme C the update of a client with s = E/2 counts twice; its u and v, at its own weights, once."""
    found = {}
    for weighting in (to.weighting.ByShare(), to.weighting.ByWork()):
        experiment = world(COUNTS, *FRACTIONS, weighting=weighting, terms=(to.terms.Elastic(0.1),))
        server, _ = play(ready(experiment))
        found[type(weighting).__name__] = server
    for name in ("U", "V", "Z"):
        a, b = (server.term_states["elastic"][name] for server in found.values())
        assert torch.equal(a, b), f"{name} was scaled"
    assert not torch.equal(found["ByShare"].shared_P, found["ByWork"].shared_P)


def test_rule_23_the_server_s_rate_comes_before_what_it_kept_back():
    """A_G = R_G + η_g Σ a_k M_k; M_G = ST(A_G): in round 1 only the new sum is multiplied."""
    local = to.Local(to.SGD(lr=0.1), epochs=1, batch_size=16)
    half = world(COUNTS, local=local, compression=to.compression.SparseTernary(0.3), server=to.server.ServerSGD(0.5))
    prepared = ready(half)
    first, _ = play(prepared)
    kept_back = first.compression["left_P"].clone()
    assert kept_back.abs().max() > 0
    sums = []

    class Watched(to.server.ServerSGD):
        def step(self, update_P, state, aggregate):
            sums.append(update_P.clone())
            return super().step(update_P, state, aggregate)

    watched = dataclasses.replace(prepared, algorithm=dataclasses.replace(prepared.algorithm, server=Watched(0.5)))
    second, _ = watched.round(first, 1)
    moved = second.shared_P - first.shared_P
    torch.testing.assert_close(moved + second.compression["left_P"], kept_back + 0.5 * sums[0])


# -- what stays home


def test_rule_18_a_dropped_client_keeps_its_layers_and_nothing_is_substituted_in_them():
    """Its share goes to a friend; its own BatchNorm is as it was, and it is evaluated with the new shared weights."""
    experiment = with_norm(substitution=to.substitution.Friends(), personal=to.personal.batch_norm)
    there, away = (1.0,) * 4, (1.0, 1.0, 0.0, 1.0)
    prepared = ready(experiment.but(**{"world.participation": Scripted(there, away)}))
    first, _ = play(prepared)
    before = prepared.runtime.clients.store.gather(torch.tensor([2]))
    second, record = prepared.round(first, 1)
    after = prepared.runtime.clients.store.gather(torch.tensor([2]))
    assert int(record.clients["friend"][2]) >= 0
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"{name} of the absent client has moved"
    flat, states = own_models(prepared, second, torch.tensor([2]))(torch.tensor([0]))
    shared = prepared.model.layout.shared
    assert torch.equal(flat[0, :shared], second.shared_P)
    assert torch.equal(flat[0, shared:], after["personal"][0])
    assert torch.equal(states["1.running_mean"], after["state/1.running_mean"])


# -- weights


def test_rule_25_with_momentum_the_factor_is_the_ratio_of_the_sums_of_coefficients():
    """a(s) = (s - ρ (1 - ρ^s)/(1 - ρ)) / (1 - ρ): E/s becomes a(E)/a(s) (test_round.py has constant gradients)."""
    local = to.Local(to.SGD(lr=0.1, momentum=0.9), steps=6, batch_size=4)
    experiment = world(COUNTS, 1.0, 0.5, 0.0, 1.0, local=local).but(**{"algorithm.scale_at": "server"})
    _, (record,) = play(ready(experiment))

    def coefficients(s: int) -> float:
        return sum(sum(0.9**i for i in range(s - j)) for j in range(s))

    share, weight = record.clients["share"], record.clients["weight"]
    assert float(weight[0] / share[0]) == pytest.approx(1)
    assert float(weight[1] / share[1]) == pytest.approx(coefficients(6) / coefficients(3))


def test_rules_26_and_28_what_a_share_is_of():
    """By samples or uniform; over the cohort asked, or n_c / n · N / |cohort|; the same where everybody is asked."""
    found = {}
    for by in ("samples", "uniform"):
        for over in ("normalised", "unbiased"):
            for asked in (to.selection.Everyone(), to.selection.Count(2)):
                shares = to.weighting.Shares(by, over)
                _, (record,) = play(ready(world(COUNTS, shares=shares, selection=asked)))
                found[by, over, len(record.clients["client"])] = record.clients
    n, N = sum(COUNTS), len(COUNTS)
    for (by, over, cohort), columns in found.items():
        size = [COUNTS[c] if by == "samples" else 1 for c in columns["client"].tolist()]
        total = n if by == "samples" else N
        whole = sum(size) if over == "normalised" else total * cohort / N
        assert columns["share"].tolist() == pytest.approx([s / whole for s in size]), (by, over, cohort)


def test_rule_27_the_score_track_has_no_substitution():
    """Similarity of users by shared label columns is in no paper: what is not built is refused, with what there is."""
    with pytest.raises(UserError, match="substitution"):
        from_table({"algorithm": {"kind": "scores", "substitution": "friends"}})


# -- §7.4


@pytest.mark.parametrize(
    ("fractions", "algorithm"),
    [
        ((0.0,) * 4, {}),
        ((0.5, 0.25, 0.0, 0.75), {"weighting": to.weighting.CompleteOnly()}),
        ((0.5, 0.25, 0.0, 0.75), {"weighting": to.weighting.CompleteOnly(), "substitution": to.substitution.Friends()}),
    ],
    ids=["nobody is there", "nobody is complete under A", "nor with friends"],
)
def test_7_4_a_round_without_anybody_keeps_every_state(fractions, algorithm):
    """R_G, U, V, moments, similarities: byte by byte what they were; the round and the clock go on."""
    experiment = with_norm(
        local=to.Local(to.Adam(), epochs=E, batch_size=4, schedule=to.InverseClock()),
        terms=(to.terms.Proximal(),), **({"substitution": to.substitution.Friends()} | algorithm),
    )  # fmt: skip
    prepared = ready(experiment.but(**{"world.participation": Scripted((1.0,) * 4, fractions)}))
    server, _ = play(prepared)
    state = {name: value.clone() for name, value in flatten(server.to_state())[0].items()}
    kept = prepared.runtime.clients.store.gather(torch.arange(4))
    for t in (1, 2):
        server, record = prepared.round(server, t)
        assert record.skipped
        assert record.lr == pytest.approx(0.01 / (t + 1))
    for name, value in flatten(server.to_state())[0].items():
        assert torch.equal(value, state[name]), name
    for name, value in prepared.runtime.clients.store.gather(torch.arange(4)).items():
        assert torch.equal(value, kept[name]), name


def test_7_4_without_any_member_the_round_is_skipped():
    experiment = world([8, 8]).but(rounds=4, **{"world.events": (to.Leave(0, 1), to.Leave(1, 2))})
    _, records = play(ready(experiment), 4)
    assert [r.skipped for r in records] == [None, None, "no client was asked", "no client was asked"]
    assert [r.members for r in records] == [2, 1, 0, 0]


def test_7_4_round_0_has_no_history_and_friends_are_dropout():
    """R = N = 0: the mean fallback (SPEC §8 item 5)."""
    results = [
        play(ready(world(COUNTS, *FRACTIONS, substitution=s)))[0].shared_P
        for s in (to.substitution.Friends(), to.substitution.Spread())
    ]
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_7_4_an_update_of_nothing_stays_in_the_sum_and_has_no_direction():
    """|D_k| = 0: client 1's loss does not depend on the weights, so it moves nothing and is like nobody."""
    data = blobs(COUNTS)
    x = torch.where(torch.as_tensor(data.owner)[:, None] == 1, 0.0, data.x)
    model = nn.Linear(5, 3, bias=False)
    experiment = world(COUNTS, substitution=to.substitution.Friends())
    experiment = dataclasses.replace(
        experiment, model=model, world=to.World(dataclasses.replace(data, x=x), Given(1.0, 1.0, 1.0, 1.0))
    )
    prepared = ready(experiment)
    server, (record,) = play(prepared)
    assert record.clients["weight"][1] == pytest.approx(12 / 40)
    pairs = similarity(server.substitution)[1]
    assert pairs[1].isnan().all()
    assert not pairs[0, 2].isnan()
    expected = torch.tensor([8, 12, 4, 16], dtype=torch.float64) / 40 @ local_updates(ready(experiment))
    torch.testing.assert_close(server.shared_P - prepared.server.shared_P, expected)
