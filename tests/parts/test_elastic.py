"""The elastic term of paper 001 against its formulas (SPEC §3.3, §3.4, §7.3 rules 14, 17, 20, 21, §8 item 8): absent
and partial clients, unequal sizes, mixed signs, float64."""

from __future__ import annotations

import copy
import dataclasses
import tomllib
from dataclasses import replace

import pytest
import torch

import turnout as to
from alone import flat, fresh, torch_adam, train_alone, weights_of
from turnout import testing
from turnout.clients.work import finite_clients
from turnout.engine.own_samples import OwnSamples
from turnout.errors import UserError
from turnout.parts.terms.base import unwitnessed
from turnout.rng import key
from turnout.running.config.read import from_table
from turnout.running.config.write import to_toml
from turnout.types import Samples
from worlds import blobs, play, ready, world

COUNTS = [8, 12, 4, 16]
FRACTIONS = (1.0, 0.5, 0.0, 1.0)  # E = 4: s = 4, 2, 0, 4
ALL = 100  # a Fisher budget of all samples
NETS = {
    "mlp": to.models.MLP(6, 4),
    "batch norm": torch.nn.Sequential(
        torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 3)
    ),
}  # fmt: skip


def elastic_world(model="mlp", counts=COUNTS, fractions=FRACTIONS, term=None, **algorithm) -> to.Experiment:
    term = to.terms.Elastic(0.3, samples=ALL) if term is None else term
    return replace(world(counts, *fractions, terms=(term,), **algorithm), model=NETS.get(model, model))


def fisher_of(prepared, client: int, module: torch.nn.Module, rows=None, t: int = 0) -> torch.Tensor:
    """The mean over samples of the squared gradient of log p(y | x), each by ordinary autograd, in evaluation mode."""
    x, y = prepared.runtime.clients.federation.train(torch.tensor([client]), t).of(0)
    module, squares = copy.deepcopy(module).eval(), []
    for i in range(len(x)) if rows is None else rows:
        loss = torch.nn.functional.cross_entropy(module(x[i : i + 1].double()), y[i : i + 1])
        names, parameters = zip(*module.named_parameters(), strict=True)
        grads = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
        squares.append(flat(prepared, grads) ** 2)
    return torch.stack(squares).mean(0)


def trained_in_round_0(prepared, client: int) -> torch.nn.Module:
    """The final local weights of a client in the first round, which has no elastic term."""
    module = fresh(prepared)
    train_alone(prepared, client, 0, module, torch.optim.SGD(module.parameters(), lr=0.1))
    return module


def reported(prepared, clients) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(w_i, F_i, ...) of some clients after round 0."""
    modules = {k: trained_in_round_0(prepared, k) for k in clients}
    w = torch.stack([weights_of(prepared, modules[k]) for k in clients])
    F = torch.stack([fisher_of(prepared, k, modules[k]) for k in clients])
    return w, F


@pytest.mark.parametrize("engine", ["loop", "vmap", "by-hand"])
@pytest.mark.parametrize("model", ["mlp", "batch norm"])
def test_u_and_v_are_sums_over_those_who_reported(engine, model):
    """u_k = F_k(x), v_k = F_k(x) x at the final local weights; U, V plain sums (rules 20 and 21: no E/s, no share)."""
    prepared = ready(elastic_world(model), **{"runtime.engine": engine})
    server, _ = play(prepared, 1)
    w, F = reported(prepared, [0, 1, 3])
    down = server.term_states["elastic"]
    torch.testing.assert_close(down["U"], F.sum(0), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(down["V"], (F * w).sum(0), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(down["Z"].squeeze(), (F * w * w).sum(), rtol=1e-9, atol=1e-14)


def test_a_mean_over_reporters_and_a_budget_of_samples():
    """Few samples: the first of an addressed order, other ones each round; a client with fewer gives all of them."""
    prepared = ready(elastic_world("mlp", term=to.terms.Elastic(0.3, samples=10, reduce="mean")))
    server, _ = play(prepared, 1)
    F = []
    for k in (0, 1, 3):
        n = torch.tensor([COUNTS[k]])
        samples = Samples(torch.zeros(COUNTS[k], 1), torch.zeros(1), torch.arange(COUNTS[k]), n)
        own = OwnSamples.of(samples, torch.tensor([0]), torch.tensor([k]), key(0, "samples", 0), 10)
        rows = own.row_cm
        assert len(set(rows[0].tolist())) == rows.shape[1] == min(10, COUNTS[k])
        assert bool(own.real_cm.all())
        F.append(fisher_of(prepared, k, trained_in_round_0(prepared, k), rows[0].tolist()))
    torch.testing.assert_close(server.term_states["elastic"]["U"], torch.stack(F).mean(0), rtol=1e-9, atol=1e-14)


def test_the_gradient_is_that_of_the_sum_over_clients_by_finite_differences():
    """SPEC §8 item 8: λ (U x - V) = ∇ λ/2 Σ_i (x - w_i)ᵀ diag(F_i) (x - w_i); the recorded loss is that sum."""
    prepared = ready(elastic_world())
    server, _ = play(prepared, 1)
    _, record = prepared.round(server, 1)
    w, F = reported(prepared, [0, 1, 3])

    def loss(x):
        return 0.3 / 2 * float((F * (x - w) ** 2).sum())

    assert record.extra["elastic_loss"] == pytest.approx(loss(server.shared_P), rel=1e-9)
    x, term = torch.randn(len(server.shared_P), dtype=torch.float64), prepared.experiment.algorithm.terms[0]
    at = to.terms.At(x[None], x[None], 0.1, 0, torch.ones(1), torch.ones(1), *[None] * 3)
    found = term.transform_grad(torch.zeros_like(x[None]), at, server.term_states["elastic"], {})[0]
    for j in range(0, len(x), 7):
        step = torch.zeros_like(x).index_fill(0, torch.tensor([j]), 1e-4)
        assert float(found[j]) == pytest.approx((loss(x + step) - loss(x - step)) / 2e-4, rel=1e-5, abs=1e-9)
    assert term.loss(x, server.term_states["elastic"]) == pytest.approx(loss(x), rel=1e-9)


def second_round(prepared, client: int, server, step) -> torch.Tensor:
    """D_k of round 1 by ordinary training, `step(module, grads)` in place of the optimizer."""
    module = fresh(prepared)
    with torch.no_grad():
        for slot in prepared.model.layout.slots:
            value = server.shared_P[slot.start : slot.start + slot.size].view(slot.shape)
            dict(module.named_parameters())[slot.name].copy_(value)

    class Step(torch.optim.SGD):
        def step(self):
            with torch.no_grad():
                step(list(module.parameters()))

    train_alone(prepared, client, 1, module, Step(module.parameters(), lr=0.1))
    return weights_of(prepared, module) - server.shared_P


@pytest.mark.parametrize("kind", ["explicit", "proximal", "decoupled"])
@pytest.mark.parametrize("keep", [None, 0.4])
def test_local_steps_in_the_second_round(kind, keep):
    """x <- x - η (g + λ (U x - V)); or x <- (x - η g + η λ V)/(1 + η λ U); a_k = (E/s_k) p_k on top of either."""
    lam, lr, options = 3.0, 0.1, {"decoupled": True} if kind == "decoupled" else {"step": kind}
    prepared = ready(elastic_world(term=to.terms.Elastic(lam, samples=ALL, fisher_keep=keep, **options)))
    server, _ = play(prepared, 1)
    down, width = server.term_states["elastic"], len(server.shared_P)
    U, V = dense(down, "U", width), dense(down, "V", width)

    def step(parameters):
        x = torch.cat([p.reshape(-1) for p in parameters])
        g = torch.cat([p.grad.reshape(-1) for p in parameters])
        if kind == "explicit":
            x = x - lr * (g + lam * (U * x - V))
        elif kind == "proximal":
            x = (x - lr * g + lr * lam * V) / (1 + lr * lam * U)
        else:
            x = x - lr * g
            x = x - lr * lam * (U * x - V)
        for p, new in zip(parameters, x.split([p.numel() for p in parameters]), strict=True):
            p.copy_(new.view_as(p))

    after, _ = prepared.round(server, 1)
    p = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    D = {k: second_round(prepared, k, server, step) for k in (0, 1, 3)}
    moved = p[0] * D[0] + 4 / 2 * p[1] * D[1] + p[3] * D[3]
    torch.testing.assert_close(after.shared_P - server.shared_P, moved, rtol=1e-8, atol=1e-11)


def test_8_8_without_strength_it_is_scheme_c():
    plain = replace(world(COUNTS, *FRACTIONS), model=NETS["mlp"])
    none = ready(elastic_world(term=to.terms.Elastic(0.0)))
    (a, ra), (b, rb) = play(ready(plain), 3), play(none, 3)
    torch.testing.assert_close(a.shared_P, b.shared_P, rtol=1e-12, atol=1e-14)
    assert [(r.bytes_up, r.bytes_down) for r in ra] == [(r.bytes_up, r.bytes_down) for r in rb]


def test_8_8_a_strong_proximal_step_keeps_everybody_near_v_over_u():
    """λ -> ∞: x -> V/U where U > 0."""
    prepared = ready(
        elastic_world(fractions=(1.0, 1.0, 1.0, 1.0), term=to.terms.Elastic(1e9, samples=ALL, step="proximal"))
    )
    first, _ = play(prepared, 1)
    second, record = prepared.round(first, 1)
    U, V = first.term_states["elastic"]["U"], first.term_states["elastic"]["V"]
    stiff = U > 1e-3
    assert int(stiff.sum()) > 20
    torch.testing.assert_close(second.shared_P[stiff], (V / U)[stiff], rtol=1e-4, atol=1e-5)
    assert "elastic_warning" not in record.extra


def test_a_stiff_explicit_term_warns_when_it_becomes_so_and_once():
    prepared = ready(elastic_world(term=to.terms.Elastic(20.0, samples=ALL)))
    server, records = prepared.begin(), []
    for t in range(2):
        server, record = prepared.round(server, t)
        records.append(record.extra)
    U = play(prepared, 1)[0].term_states["elastic"]["U"]
    assert records[0]["elastic_stiffness"] == 0
    assert records[0]["elastic_loss"] == 0
    assert records[1]["elastic_stiffness"] == pytest.approx(0.1 * 20 * float(U.max()))
    assert records[1]["elastic_stiffness"] > 1
    assert "elastic_warning" in records[0]
    assert "elastic_warning" not in records[1]
    assert "elastic_warning" not in play(ready(elastic_world(term=to.terms.Elastic(1e-3))), 1)[1][0].extra


def test_an_absent_client_is_invisible_and_keeps_nothing():
    experiment = elastic_world(term=to.terms.Elastic(0.3, fisher_every=2))
    plain, poisoned = ready(experiment), ready(experiment.but(seed=0))
    own = blobs(COUNTS)
    poisoned.runtime.clients.federation.x[own.owner == 2] = float("nan")
    (a, _), (b, _) = play(plain, 3), play(poisoned, 3)
    assert torch.equal(a.shared_P, b.shared_P)
    assert poisoned.runtime.clients.store.gather(torch.arange(4))["term/elastic/held"].flatten().tolist() == [
        0,
        0,
        -1,
        0,
    ]


def test_a_skipped_round_leaves_the_sums_as_they_are():
    prepared = ready(elastic_world())
    server, _ = play(prepared, 1)
    prepared.experiment.world.participation.fractions[:] = 0
    after, record = prepared.round(server, 1)
    assert record.skipped
    assert after is server


def test_engines_chunks_and_threads_give_the_same_rounds():
    experiment = elastic_world("batch norm", term=to.terms.Elastic(0.5, samples=7))
    results = []
    for changes in (
        {"runtime.engine": "loop"},
        {"runtime.engine": "vmap"},
        {"runtime.engine": "by-hand"},
        {"runtime.chunk": 1, "runtime.threads": 2},
        {"runtime.chunk": 3, "runtime.threads": 2, "runtime.engine": "vmap"},
    ):
        results.append(play(ready(experiment, **changes), 3)[0])
    for other in results[1:]:
        torch.testing.assert_close(other.shared_P, results[0].shared_P, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(
            other.term_states["elastic"]["U"], results[0].term_states["elastic"]["U"], rtol=1e-9, atol=1e-13
        )


def test_convolutions_square_each_samples_gradient():
    """By hand, under vmap and in the loop: the same Fisher diagonal of a CNN with BatchNorm and pooling."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(30, 1, 8, 8, generator=g), torch.randint(0, 3, (30,), generator=g)
    data = to.data.Own(x, y, torch.arange(30) % 3, test=(x, y), test_share=0.0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3, padding=1), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 3),
    )  # fmt: skip
    experiment = replace(elastic_world(counts=[10, 10, 10], fractions=()), model=net).but(**{"world.data": data})
    found = [
        play(ready(experiment, **{"runtime.engine": e}), 1)[0].term_states["elastic"]
        for e in ("loop", "vmap", "by-hand")
    ]
    for other in found[1:]:
        torch.testing.assert_close(other["U"], found[0]["U"], rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(other["V"], found[0]["V"], rtol=1e-9, atol=1e-14)


def test_squared_errors_have_a_fisher_diagonal_too():
    """(2 (w x - y) x)², the mean over samples, in every engine."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 2, generator=g), torch.randn(12, generator=g)
    data = to.data.Own(x, y, torch.arange(12) % 3, test=(x, y), test_share=0.0, classes=1)
    experiment = replace(
        elastic_world(counts=[4, 4, 4], fractions=()), model=torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False)),
        task=to.tasks.Regression(),
    ).but(**{"world.data": data})  # fmt: skip
    for engine in ("loop", "vmap", "auto"):
        prepared = ready(experiment, **{"runtime.engine": engine})
        server, _ = play(prepared, 1)
        down, U = server.term_states["elastic"], torch.zeros(2, dtype=torch.float64)
        for k in range(3):
            xk, yk, w = x[k::3].double(), y[k::3].double(), prepared.server.shared_P
            for _ in range(4):  # E = 4 epochs of one batch
                w = w - 0.1 * (2 * (xk @ w - yk) @ xk) / 4
            U += ((2 * (xk @ w - yk))[:, None] * xk).square().mean(0)
        torch.testing.assert_close(down["U"], U, rtol=1e-6, atol=1e-9)


def test_rule_17_shared_parameters_only_and_statistics_stay_where_they_are():
    """With BatchNorm at home u and v have no columns for it, and the Fisher pass leaves its statistics alone."""
    personal = {"algorithm.personal": to.personal.batch_norm}
    prepared = ready(elastic_world("batch norm"), **personal)
    plain = ready(elastic_world("batch norm", term=to.terms.Elastic(0.0)), **personal)
    server, _ = play(prepared, 1)
    play(plain, 1)
    assert server.term_states["elastic"]["U"].shape == server.shared_P.shape == (5 * 6 + 6 + 6 * 3 + 3,)
    mine, theirs = (p.runtime.clients.store.gather(torch.arange(4)) for p in (prepared, plain))
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name])
    module = trained_in_round_0(prepared, 3)
    F = sum(fisher_of(prepared, k, trained_in_round_0(prepared, k)) for k in (0, 1, 3))[: len(server.shared_P)]
    torch.testing.assert_close(server.term_states["elastic"]["U"], F, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(mine["state/1.running_mean"][3], dict(module.named_buffers())["1.running_mean"])


@pytest.mark.parametrize("substitution", [to.substitution.Spread(), to.substitution.Stale(), to.substitution.Friends()])
def test_rule_20_u_and_v_are_not_substituted(substitution):
    """Whoever stands in for the absent client's update does not stand in for its Fisher information."""
    prepared, plain = ready(elastic_world(substitution=substitution)), ready(elastic_world())
    (a, _), (b, _) = play(prepared, 1), play(plain, 1)
    assert not torch.equal(a.shared_P, b.shared_P) or isinstance(substitution, to.substitution.Stale)
    torch.testing.assert_close(a.term_states["elastic"]["U"], b.term_states["elastic"]["U"])
    torch.testing.assert_close(a.term_states["elastic"]["V"], b.term_states["elastic"]["V"])


@pytest.mark.parametrize("keep", [None, 0.5])
def test_rule_20_the_last_u_and_v_of_who_has_left_may_be_kept(keep):
    """Client 3 leaves after two rounds but is included: its u and v of round 1 stay in the sums until it is back."""
    servers, gone = [], {"world.events": (to.Leave(3, 2), to.Join(3, 3))}
    for memory in (True, False):
        term = to.terms.Elastic(0.3, samples=ALL, reduce="mean", memory=memory, fisher_keep=keep)
        prepared = ready(elastic_world(term=term, membership=to.Membership(leave="include")).but(rounds=5), **gone)
        servers.append(play(prepared, 3)[0])
        if memory:
            last = prepared.runtime.clients.store.gather(torch.tensor([3]))
            back, _ = play(prepared, 4)
    width = len(back.shared_P)
    index = last["term/elastic/index"][0].long() if keep else torch.arange(width)
    for name in "UV":
        kept, without = (dense(server.term_states["elastic"], name, width) for server in servers)
        own = torch.zeros_like(kept).index_copy(0, index, last[f"term/elastic/{name.lower()}"][0])
        assert bool((own > 0).any())
        torch.testing.assert_close(kept, (2 * without + own) / 3)  # clients 0 and 1 have reported as well
    assert len(back.roster.gone_L) == 0


def dense(down, name, width):
    index = down["index"].long() if "index" in down else torch.arange(width)
    return torch.zeros(width, dtype=torch.float64).index_copy(0, index, down[name])


@pytest.mark.parametrize("decoupled", [False, True])
def test_rule_14_with_adam(decoupled):
    """The elastic gradient goes through Adam (literal), or x <- x - η λ (U x - V) after Adam's step."""
    lam, adam = 0.7, to.Adam(lr=0.02, beta1=0.9, beta2=0.99)
    local = to.Local(adam, epochs=2, batch_size=4)
    term = to.terms.Elastic(lam, samples=ALL, decoupled=decoupled)
    prepared = ready(elastic_world("mlp", [12], (1.0,), term=term, local=local))
    first, _ = play(prepared, 1)
    server, _ = prepared.round(first, 1)
    module = fresh(prepared)
    optimizer = torch_adam(prepared, module)
    train_alone(prepared, 0, 0, module, optimizer)
    parts = [(p, *(first.term_states["elastic"][n][s.start : s.start + s.size].view(s.shape) for n in "UV"))
             for s, p in zip(prepared.model.layout.slots, module.parameters(), strict=True)]  # fmt: skip
    plain_step = optimizer.step

    def step():
        if not decoupled:
            for p, U, V in parts:
                p.grad += lam * (U * p.detach() - V)
        plain_step()
        if decoupled:
            with torch.no_grad():
                for p, U, V in parts:
                    p -= adam.lr * lam * (U * p - V)

    optimizer.step = step
    train_alone(prepared, 0, 1, module, optimizer)
    torch.testing.assert_close(server.shared_P, weights_of(prepared, module), rtol=1e-8, atol=1e-10)


def test_terms_compose():
    """Proximal and elastic together: both pulls are added to the gradient, in any order."""
    one, other = to.terms.Elastic(0.5, samples=5), to.terms.Proximal(0.4)
    both = [play(ready(elastic_world().but(**{"algorithm.terms": t})), 2)[0] for t in ((one, other), (other, one))]
    torch.testing.assert_close(both[0].shared_P, both[1].shared_P, rtol=1e-10, atol=1e-13)
    alone = play(ready(elastic_world(term=one)), 2)[0]
    assert not torch.allclose(alone.shared_P, both[0].shared_P)


def test_bytes_of_u_and_v_are_counted():
    """3 reporters: P + u, v, z up; nothing more down in round 0, then U, V, Z."""
    P = 5 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3
    _, records = play(ready(elastic_world()), 2)
    assert [r.bytes_up for r in records] == [3 * 4 * (3 * P + 1)] * 2
    assert [r.bytes_down for r in records] == [3 * 4 * P, 3 * 4 * (3 * P + 1)]


def test_bytes_with_fewer_fishers_a_client_downloads_sums_once():
    """u, v in rounds 0, 3; U and V are downloaded by those who do not have the latest, and 4 bytes say which it is."""
    P = 5 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3
    prepared = ready(elastic_world(term=to.terms.Elastic(0.3, fisher_every=3)))
    server, records = prepared.begin(), []
    turnouts = {2: (1.0, 1.0, 1.0, 0.0), 3: (1.0, 0.0, 0.0, 1.0)}
    for t in range(5):
        fractions = torch.tensor(turnouts.get(t, FRACTIONS), dtype=torch.float64)
        prepared.experiment.world.participation.fractions = fractions
        server, record = prepared.round(server, t)
        records.append(record)
    sums = 4 * (2 * P + 1)
    assert [r.bytes_up for r in records] == [
        3 * (4 * P + sums), 3 * 4 * P, 3 * 4 * P, 2 * (4 * P + sums), 3 * 4 * P,
    ]  # fmt: skip
    plain = 4 * P + 4
    assert [r.bytes_down for r in records] == [
        3 * plain, 3 * (plain + sums), 3 * plain + sums, 2 * plain, 3 * (plain + sums),
    ]  # fmt: skip


def test_bytes_of_sums_for_a_device_that_does_not_finish():
    """Scheme A: 1 does half and never replies, so it never has the latest U and V and fetches them every time."""
    P = 5 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3
    term, model, sums = to.terms.Elastic(0.3, fisher_every=3), 4 * P + 4, 4 * (2 * P + 1)
    experiment = elastic_world(term=term).but(**{"algorithm.weighting": to.weighting.CompleteOnly()})
    prepared = ready(experiment)
    prepared.experiment.world.participation.fractions = torch.tensor([1.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    _, records = play(prepared, 3)
    down = [r.clients["bytes_down"].nan_to_num(0).tolist() for r in records]
    both = model + sums
    assert down == [[model, model, 0, model], [both, both, 0, both], [model, both, 0, model]]


def test_bytes_with_the_largest_entries_only():
    """k = ⌈keep P⌉ places (4 bytes), u and v each; down the union of the places."""
    P, keep = 5 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3, 0.1
    k = 8
    server, records = play(ready(elastic_world(term=to.terms.Elastic(0.3, fisher_keep=keep))), 1)
    union = len(server.term_states["elastic"]["index"])
    assert records[0].bytes_up == 3 * (4 * P + 4 * (3 * k + 1))
    assert k <= union <= 3 * k
    _, record = ready(elastic_world(term=to.terms.Elastic(0.3, fisher_keep=keep))).round(server, 1)
    assert record.bytes_down == 3 * (4 * P + 4 * (3 * union + 1))
    everything = play(ready(elastic_world(term=to.terms.Elastic(0.3, fisher_keep=1.0))), 3)[0]
    torch.testing.assert_close(
        everything.shared_P, play(ready(elastic_world(term=to.terms.Elastic(0.3))), 3)[0].shared_P
    )


@pytest.mark.parametrize(
    "term",
    [to.terms.Elastic(0.5), to.terms.Elastic(0.5, step="proximal", fisher_every=2, fisher_keep=0.3)],
    ids=["plain", "sparse"],
)
def test_resumed_is_uninterrupted(term, tmp_path):
    experiment = elastic_world(term=term).but(rounds=5)
    whole = to.run(experiment, tmp_path / "whole", quiet=True)
    to.run(experiment.but(rounds=3), tmp_path / "cut", quiet=True)
    again = to.run(experiment, tmp_path / "cut", quiet=True, resume=True)
    with whole.records() as a, again.records() as b:
        assert a.rounds()["elastic_loss"].tolist() == b.rounds()["elastic_loss"].tolist()
        assert a.rounds()["bytes_down"].tolist() == b.rounds()["bytes_down"].tolist()
        assert a.curve("global_loss")[1].tolist() == b.curve("global_loss")[1].tolist()


@pytest.mark.parametrize(
    "term",
    [
        to.terms.Elastic(),
        to.terms.Elastic(5.0, step="proximal", reduce="mean"),
        to.terms.Elastic(0.5, fisher_every=2, fisher_keep=0.5),
        to.terms.Elastic(0.5, decoupled=True, memory=True),
        to.terms.Elastic(0.0),
        to.terms.Proximal(0.5),
    ],
)
def test_promises(term):
    testing.check_term(term)


@dataclasses.dataclass(frozen=True)
class ForgetsItsKeys(to.terms.Elastic):
    def server_update(self, server_state, upload, applied):
        return {"U": upload["u"].sum(0)}, {}


def test_a_term_that_broadcasts_other_things_than_it_declares_is_caught():
    with pytest.raises(AssertionError, match=r"server_update.*'V', 'Z'"):
        testing.check_term(ForgetsItsKeys())


def test_as_a_file():
    text = to_toml(elastic_world(term=to.terms.Elastic(0.2, fisher_every=4, fisher_keep=0.1)).but(
        **{"world.data": to.data.Synthetic(clients=4), "world.participation": to.participation.Always()}))  # fmt: skip
    assert 'kind = "elastic"' in text
    assert from_table(tomllib.loads(text)).algorithm.terms == (to.terms.Elastic(0.2, fisher_every=4, fisher_keep=0.1),)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strength": -1.0}, "strength must be at least 0"),
        ({"reduce": "means"}, "mean"),
        ({"step": "prox"}, "proximal"),
        ({"samples": 0}, "at least 1"),
        ({"fisher_keep": 0.0}, "fisher_keep"),
        ({"decoupled": True, "step": "proximal"}, "leave decoupled out"),
    ],
)
def test_mistakes_are_sentences(options, words):
    with pytest.raises(UserError, match=words):
        to.terms.Elastic(**options)


def test_the_rows_of_u_and_v_are_in_the_estimate_of_memory():
    """Two more numbers a client and shared parameter; three for each of a tenth that is kept."""
    plain, full, kept = (
        ready(elastic_world(term=term))
        for term in (to.terms.Proximal(0.1), to.terms.Elastic(), to.terms.Elastic(fisher_keep=0.1))
    )
    row = plain.model.layout.shared * len(COUNTS) * 8
    assert full.memory()["cohort"] - plain.memory()["cohort"] == 2 * row
    assert 0.29 * row <= kept.memory()["cohort"] - plain.memory()["cohort"] <= 0.3 * row


def test_a_term_that_sends_more_than_it_says_is_caught():
    class Silent(to.terms.Elastic):
        sends = 0

    with pytest.raises(AssertionError, match="sends 13 numbers, `sends` says 0 each"):
        testing.check_term(Silent())


class WithMore(to.terms.Elastic):
    """Sends a number beside the rest."""


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("keep", [None, 0.4])
def test_one_number_tells_whether_all_that_is_sent_are_numbers(bad, keep):
    """Also of an entry whose weight is 0; a subclass may send more, so that all of it is looked at."""
    u_cP, w_cP = torch.rand(3, 20), torch.randn(3, 20)
    u_cP[1, 4], w_cP[1, 4], w_cP[2, 5] = bad, 0.0, bad
    u_cP[2, 5] = 2.0  # among the largest
    term = to.terms.Elastic(fisher_keep=keep)
    sent = {"elastic": term._message(u_cP, w_cP)}
    everybody = torch.ones(3, dtype=torch.bool)
    (checked,) = unwitnessed([term], sent)
    assert list(checked) == ["z"]
    assert finite_clients(everybody, checked).tolist() == [True, False, False]
    (checked,) = unwitnessed([WithMore()], {"elastic": {"u": u_cP, "more": w_cP}})
    assert finite_clients(everybody, checked).tolist() == [True, False, False]
