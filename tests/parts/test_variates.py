"""SCAFFOLD, FedGATE and VRL-SGD against SPEC §1.5: absent and partial clients, unequal sizes, mixed signs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnout as to
from same_rows import same
from turnout.errors import UserError
from turnout.running.tracks.weights import Weights
from turnout.server.state import Server
from worlds import Coarse, Given, gradient_of, kept_rows, play, ready, stopped_and_resumed, walk, world

COUNTS = [8, 12, 4, 16]
PARTIAL = (1.0, 0.5, 0.0, 0.75)  # of E = 4 steps: s = 4, 2, 0, 3
STEPS = to.Local(to.SGD(lr=0.1), steps=4, batch_size=4)
UNIFORM = to.weighting.Shares(by="uniform")
LR, P = 0.1, 18


class Turns:
    """Fractions by round, the last for ever."""

    def __init__(self, *rounds: tuple[float, ...]):
        self.rounds = rounds

    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.tensor(self.rounds[min(t, len(self.rounds) - 1)], dtype=torch.float64)[client_C]


def kept(prepared: Weights, server: Server, term: str, name: str) -> Tensor:
    return kept_rows(prepared, server, torch.arange(prepared.clients))[f"term/{term}/{name}"]


def parts() -> Tensor:
    return torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("shares", [UNIFORM, to.weighting.Shares()])
def test_scaffold_is_the_formula(option, shares):
    """g - c_k + c; c_k+ = c_k - c + (w_start - w_end) / (s η) or ∇F_k(w_start); c += Σ p_k (c_k+ - c_k), p_k = 1/N."""
    experiment = world(
        COUNTS, local=STEPS, terms=[to.terms.Scaffold(option)], weighting=to.weighting.ByShare(), shares=shares
    )
    turns = Turns(PARTIAL, (0.5, 1.0, 1.0, 0.0), PARTIAL)
    prepared = ready(experiment, **{"world.participation": turns})
    w, c, c_k = prepared.server.shared_P, torch.zeros(P, dtype=torch.float64), torch.zeros(4, P, dtype=torch.float64)
    p = torch.full((4,), 0.25, dtype=torch.float64) if shares is UNIFORM else parts()
    server = prepared.begin()
    for t in range(3):
        step, change = torch.zeros_like(c), torch.zeros_like(c)
        for k in range(4):
            end, s = walk(prepared, k, t, w, lambda x, g, at, j, k=k, c=c: g - c_k[k] + c)
            if s:
                x, y = prepared.runtime.clients.federation.train(torch.tensor([k]), t).of(0)
                new = gradient_of(prepared, w, x, y) if option == 1 else c_k[k] - c + (w - end) / (s * LR)
                step, change = step + p[k] * (end - w), change + p[k] * (new - c_k[k])
                c_k[k] = new
        w, c = w + step, c + change
        server, _ = prepared.round(server, t)
        torch.testing.assert_close(server.shared_P, w)
        torch.testing.assert_close(server.term_states["scaffold"]["c"], c)
        torch.testing.assert_close(kept(prepared, server, "scaffold", "c"), c_k)


def test_an_option_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="option"):
        to.terms.Scaffold(option=3)


def test_two_terms_need_two_names():
    """What a term keeps, sends and holds is found by its name."""
    both = [to.terms.Scaffold(), to.terms.Scaffold(name="other")]
    ready(world(COUNTS, local=STEPS, terms=both))
    with pytest.raises(UserError, match=r"different names.*scaffold, scaffold"):
        ready(world(COUNTS, local=STEPS, terms=[both[0], both[0]]))


def corrected_ends(prepared: Weights, t: int, w: Tensor, delta: Tensor) -> Tensor:
    """Where each client ends with the gradient g - δ_k."""
    return torch.stack([walk(prepared, k, t, w, lambda x, g, at, j, k=k: g - delta[k])[0] for k in range(len(delta))])


@pytest.mark.parametrize(
    ("term", "rate"), [(to.terms.FedGATE(), 1.0), (to.terms.VRLSGD(), 1.0), (to.terms.VRLSGD(), 0.5)]
)
def test_with_everybody_there_the_gates_are_the_formula(term, rate):
    """g - δ_k; δ_k += (w_new - w_k_end) / (η s): SPEC §1.5 as it stands, equal steps and uniform shares."""
    prepared = ready(world(COUNTS, local=STEPS, terms=[term], shares=UNIFORM, server=to.server.ServerSGD(rate)))
    w, delta = prepared.server.shared_P, torch.zeros(4, P, dtype=torch.float64)
    server = prepared.begin()
    for t in range(3):
        ends = corrected_ends(prepared, t, w, delta)
        w = w + rate * (ends.mean(0) - w)
        delta = delta + (w - ends) / (LR * 4)
        server, _ = prepared.round(server, t)
        torch.testing.assert_close(server.shared_P, w)
        torch.testing.assert_close(kept(prepared, server, term.name, "delta"), delta)


@pytest.mark.parametrize(
    "weighting", [to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork(), to.weighting.FedNova()]
)
@pytest.mark.parametrize("term", [to.terms.FedGATE(), to.terms.VRLSGD()])
def test_the_gates_divide_each_half_by_the_steps_it_stands_for(term, weighting):
    """δ_k += Σ p_j D_j / (η s_j) / Σ p_j - D_k / (η s_k); VRL-SGD: + (w_new - w_start - Σ a_j D_j) / (η Σ a_j s_j)."""
    turns = [PARTIAL, (0.5, 1.0, 1.0, 0.0), PARTIAL]
    experiment = world(COUNTS, local=STEPS, terms=[term], weighting=weighting, server=to.server.ServerSGD(0.5))
    prepared = ready(experiment, **{"world.participation": Turns(*turns)})
    w, delta, p = prepared.server.shared_P, torch.zeros(4, P, dtype=torch.float64), parts()
    server = prepared.begin()
    for t in range(3):
        s = 4 * torch.tensor(turns[t], dtype=torch.float64)
        present = p * (s > 0)
        if isinstance(weighting, to.weighting.CompleteOnly):
            a = p * (s == 4) * 4 / (s == 4).sum()
        elif isinstance(weighting, to.weighting.FedNova):
            tau_eff = (present * s).sum() / present.sum()
            a = torch.where(s > 0, p / s.clamp(min=1), 0.0) * tau_eff / present.sum()
        else:
            a = (
                torch.where(s > 0, p * 4 / s.clamp(min=1), 0.0)
                if isinstance(weighting, to.weighting.ByWork)
                else present
            )
        ends = corrected_ends(prepared, t, w, delta)
        here, D = a > 0, ends - w
        common = p[here] @ (D[here] / (LR * s[here, None])) / p[here].sum()
        if isinstance(term, to.terms.VRLSGD) and not isinstance(term, to.terms.FedGATE):
            common = common - 0.5 * (a @ D) / (LR * (a * s).sum())
        new = delta + common - D / (LR * s.clamp(min=1)[:, None])
        delta = torch.where(here[:, None], new, delta)
        w = w + 0.5 * (a @ D)
        server, _ = prepared.round(server, t)
        torch.testing.assert_close(server.shared_P, w)
        torch.testing.assert_close(kept(prepared, server, term.name, "delta"), delta)


def test_vrl_sgd_is_fedgate_where_the_server_applies_what_it_gets():
    """SPEC §1.5: without compression and at server rate 1; at another rate FedGATE's δ does not see it."""
    turns = Turns(PARTIAL, (0.5, 1.0, 1.0, 0.0), (0.0, 1.0, 0.25, 1.0))
    for rate in (1.0, 0.5):
        both = []
        for term in (to.terms.FedGATE(), to.terms.VRLSGD()):
            prepared = ready(world(COUNTS, local=STEPS, terms=[term], server=to.server.ServerSGD(rate)),
                             **{"world.participation": turns})  # fmt: skip
            server, _ = play(prepared, 4)
            both.append((server.shared_P, kept(prepared, server, term.name, "delta")))
        equal = all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*both, strict=True))
        assert equal == (rate == 1.0)


def same_data(clients: int) -> to.data.Own:
    """Every client has the same samples."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 5, generator=g), torch.randint(0, 3, (8,), generator=g)
    owner = torch.arange(clients).repeat_interleave(8)
    return to.data.Own(x.repeat(clients, 1), y.repeat(clients), owner, test=(x, y), test_share=0.0)


@pytest.mark.parametrize("term", [to.terms.Scaffold(), to.terms.Scaffold(1), to.terms.FedGATE(), to.terms.VRLSGD()])
def test_identical_clients_and_full_turnout_are_fedavg(term):
    """Full batches: c_k = c and δ_k = 0, so nothing is corrected."""
    local = to.Local(to.SGD(lr=0.1), steps=3, batch_size=8)
    experiment = world([8, 8, 8], local=local).but(**{"world.data": same_data(3)})
    plain, _ = play(ready(experiment), 4)
    corrected, _ = play(ready(experiment, **{"algorithm.terms": (term,)}), 4)
    torch.testing.assert_close(corrected.shared_P, plain.shared_P)


@pytest.mark.parametrize("weighting", [to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork()])
def test_identical_clients_who_are_absent_or_slow_keep_the_gates_at_fedavg(weighting):
    """With one s for both halves of δ, what all have in common would shrink where somebody is missing, and grow
    where work is scaled; so constant gradients must leave δ at 0."""
    x, owner = torch.ones(12, 1), torch.arange(3).repeat_interleave(4)
    data = to.data.Own(x, torch.ones(12), owner, test=(x, x), test_share=0.0, classes=1)
    task = to.tasks.Task(loss=lambda output, target: (output * target).squeeze(1))
    experiment = to.Experiment(
        to.World(data, Given(1.0, 0.5, 0.0)), torch.nn.Linear(1, 1, bias=False),
        to.Algorithm(STEPS, terms=[to.terms.FedGATE()], weighting=weighting), task,
        runtime=to.runtime.InProcess(precision="float64", threads=1),
    )  # fmt: skip
    prepared = ready(experiment)
    server, _ = play(prepared, 5)
    delta = kept(prepared, server, "fedgate", "delta").cpu()
    torch.testing.assert_close(delta, torch.zeros(3, 1, dtype=torch.float64))


EVENTS = (to.Join(4, 3), to.Leave(0, 5), to.Leave(2, 6), to.Join(2, 8))
COMING = [8, 12, 4, 16, 8]


def members(prepared: Weights, server, by: str) -> Tensor:
    ids = server.objective.ids()
    size = torch.zeros(5, dtype=torch.float64)
    size[ids] = 1.0 if by == "uniform" else torch.tensor(COMING, dtype=torch.float64)[ids]
    return size / size.sum()


@pytest.mark.parametrize("by", ["uniform", "samples"])
@pytest.mark.parametrize("leave", ["exclude", "include"])
@pytest.mark.parametrize("selection", [to.selection.Everyone(), to.selection.Count(2)])
def test_scaffold_s_c_is_the_mean_of_the_members_own(by, leave, selection):
    """Always: absences, unfinished work, small cohorts, somebody joins, leaves, comes back."""
    algorithm = {"terms": [to.terms.Scaffold()], "shares": to.weighting.Shares(by=by), "selection": selection}
    experiment = world(COMING, 1.0, 0.5, 0.75, 0.0, 0.25, local=STEPS, **algorithm)
    prepared = ready(experiment, rounds=12, **{"world.events": EVENTS, "algorithm.membership.leave": leave})
    server = prepared.begin()
    for t in range(12):
        server, _ = prepared.round(server, t)
        mean = members(prepared, server, by) @ kept(prepared, server, "scaffold", "c")
        torch.testing.assert_close(server.term_states["scaffold"]["c"], mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("by", ["uniform", "samples"])
@pytest.mark.parametrize("weighting", [to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork()])
def test_the_gates_deltas_cancel_whoever_is_there(by, weighting):
    """Σ p_k δ_k = 0: absences, unfinished work, a boosted newcomer, leaves (made good as soon as somebody replies)."""
    algorithm = {"terms": [to.terms.FedGATE()], "shares": to.weighting.Shares(by=by), "weighting": weighting}
    experiment = world(COMING, 1.0, 1.0, 0.75, 0.0, 1.0, **algorithm)
    prepared = ready(experiment, rounds=12, **{"world.events": EVENTS})
    server = prepared.begin()
    for t in range(12):
        server, _ = prepared.round(server, t)
        delta = kept(prepared, server, "fedgate", "delta")
        mean = members(prepared, server, by) @ delta
        assert float(delta.abs().max()) > 1e-3
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-12)


def test_who_leaves_is_dropped_and_a_newcomer_starts_fresh():
    for term, name in ((to.terms.Scaffold(), "c"), (to.terms.FedGATE(), "delta"), (to.terms.APFL(), "v")):
        experiment = world(COMING, local=STEPS, terms=[term])
        prepared = ready(experiment, rounds=9, **{"world.events": EVENTS})
        server = prepared.begin()
        for t in range(7):
            server, _ = prepared.round(server, t)
        rows = kept(prepared, server, term.name, name)
        assert (rows[[0, 2]] == 0).all()
        assert (rows[[1, 3, 4]] != 0).any(1).all()


@pytest.mark.parametrize(
    ("term", "up", "down", "farewell"),
    [
        (to.terms.Scaffold(), 2, 2, 1),
        (to.terms.FedGATE(), 1, 2, 1),
        (to.terms.VRLSGD(), 1, 2, 1),
        (to.terms.APFL(), 1, 1, 0),
    ],
)
def test_bytes_both_ways(term, up, down, farewell):
    """In vectors of P numbers of four bytes, for each of the three who reply; a client that leaves says its variate."""
    experiment = world(COUNTS, *PARTIAL, terms=[term]).but(**{"world.events": (to.Leave(0, 1), to.Leave(2, 1))})
    _, (record, after) = play(ready(experiment), 2)
    assert (record.bytes_up, record.bytes_down) == (3 * 4 * P * up, 3 * 4 * P * down)
    assert record.clients["bytes_up"].nansum() == record.bytes_up
    assert record.clients["bytes_down"].nansum() == record.bytes_down
    assert after.bytes_up == (2 * up + farewell) * 4 * P  # client 2 was never there and has nothing to say


TERMS = [
    to.terms.Scaffold(),
    to.terms.Scaffold(1),
    to.terms.FedGATE(),
    to.terms.VRLSGD(),
    to.terms.APFL(),
    to.terms.MimeLite(),
]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name}{getattr(term, 'option', '')}")
def test_vectorised_is_the_plain_loop(term):
    """By hand, under vmap and one client at a time, in odd chunks; with BatchNorm at home or shared, and momentum."""
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    turns, local = Turns(PARTIAL, (0.5, 1.0, 1.0, 0.0)), to.Local(to.SGD(0.1, momentum=0.5), epochs=2, batch_size=5)
    experiment = replace(world(COUNTS, local=local, terms=[term, to.terms.Proximal(0.1)]), model=net)
    for personal in (None, to.personal.batch_norm):
        found = []
        for engine, chunk in (("by-hand", 3), ("vmap", 2), ("loop", 1)):
            changes = {"runtime.engine": engine, "runtime.chunk": chunk, "algorithm.personal": personal}
            prepared = ready(experiment, **changes, **{"world.participation": turns})
            server, _ = play(prepared, 3)
            found.append([server.shared_P, *prepared.runtime.clients.store.gather(torch.arange(4)).values()])
        for other in found[1:]:
            for ours, theirs in zip(found[0], other, strict=True):
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name}{getattr(term, 'option', '')}")
def test_resumed_is_uninterrupted(term, tmp_path: Path):
    experiment = world(COMING, 1.0, 0.5, 0.75, 0.0, 0.25, local=STEPS, terms=[term])
    experiment = experiment.but(**{"world.events": EVENTS}, rounds=10)
    whole = to.run(experiment, tmp_path / "whole", quiet=True)
    again = stopped_and_resumed(experiment, tmp_path / "again", after=6)
    assert same(whole.folder / "records.sqlite", again.folder / "records.sqlite") == []
    for client in range(5):
        ours, theirs = (run.model(client=client).state_dict() for run in (whole, again))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_deltas_follow_what_the_server_could_decode():
    """δ_k = Σ p_j D~_j / (η s_j) - D_k / (η s_k), D~_j as decoded with E/s taken off; bytes as encoded."""
    experiment = world(COUNTS, *PARTIAL, local=STEPS, terms=[to.terms.FedGATE()], compression=Coarse())
    prepared = ready(experiment)
    w, s = prepared.server.shared_P, [4, 2, 3]
    D = torch.stack([walk(prepared, k, 0, w)[0] - w for k in (0, 1, 3)])
    per_step = torch.tensor(s, dtype=torch.float64)[:, None] * LR
    scale = 4 / torch.tensor(s, dtype=torch.float64)[:, None]
    decoded = (D * scale * 8).round() / 8 / scale
    p = parts()[[0, 1, 3]]
    server, (record,) = play(prepared)
    common = (p / p.sum()) @ (decoded / per_step)
    torch.testing.assert_close(kept(prepared, server, "fedgate", "delta")[[0, 1, 3]], common - D / per_step)
    assert (record.bytes_up, record.bytes_down) == (3 * P, 3 * (P + 4 * P))


def test_nobody_counts_the_population_for_a_term_that_does_not_ask(monkeypatch):
    def count(self, members):
        raise AssertionError("counted")

    monkeypatch.setattr("turnout.runtimes.inprocess.InProcessRuntime.mean_examples", count)
    play(
        ready(
            world(COMING, terms=[to.terms.Proximal(), to.terms.APFL()]),
            **{"world.events": (to.Join(4, 1), to.Leave(0, 2))},
        ),
        3,
    )
    play(ready(world(COUNTS, terms=[to.terms.Scaffold()], shares=UNIFORM)), 2)
    with pytest.raises(AssertionError, match="counted"):
        play(ready(world(COUNTS, terms=[to.terms.Scaffold()])), 2)
