"""FedAMP against SPEC §1.5: an absent and a partial client, unequal sizes, mixed signs; and MimeLite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnout as to
from same_rows import same
from turnout import testing
from turnout.errors import UserError
from turnout.parts.mixing import distances
from turnout.running.messages import check_fits
from turnout.running.tracks.weights import Weights
from worlds import Coarse, gradient_of, own_models, play, ready, stopped_and_resumed, walk, world

COUNTS = [8, 12, 4, 16]  # 2, 3, 1 and 4 batches of 4: they train in the order 3, 1, 0, 2
TURNS = [(1.0, 0.5, 1.0, 0.75), (0.5, 1.0, 0.0, 1.0), (1.0, 0.5, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0)]
LR, P, MU = 0.1, 18, 0.3
AMP = to.mixing.FedAMP(alpha=0.25, sigma=0.8)  # others weigh less than 1 together


class Turns:
    """Fractions by round."""

    def fraction(self, client_C, t, full_work, seed, groups=None):
        return torch.tensor(TURNS[t % 4], dtype=torch.float64)[client_C]


def amp(mixing: to.mixing.FedAMP = AMP, **algorithm) -> to.Experiment:
    experiment = world(COUNTS, mixing=mixing, terms=[to.terms.Proximal(MU)], **algorithm)
    return experiment.but(**{"world.participation": Turns()})


def own(prepared: Weights, server) -> Tensor:
    everybody = torch.arange(prepared.runtime.clients.federation.clients)
    return own_models(prepared, server, everybody)(everybody)[0]


def cloud(w: dict[int, Tensor], i: int, mixing: to.mixing.FedAMP) -> Tensor:
    """u_i = Σ_{j≠i} ξ_ij w_j + ξ_ii w_i, ξ_ij = α exp(-|w_i - w_j|² / σ) / σ, ξ_ii = 1 - Σ."""
    xi = {j: mixing.alpha * torch.exp(-(w[i] - w[j]).square().sum() / mixing.sigma) / mixing.sigma for j in w if j != i}
    return sum(xi[j] * w[j] for j in xi) + (1 - sum(xi.values())) * w[i]


@pytest.mark.parametrize("weighting", [to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork()])
def test_fedamp_is_the_formula(weighting):
    """Start at u_i, local loss + λ / (2 α) |w - u_i|²; rows follow the clients, however these are sorted."""
    prepared = ready(amp(weighting=weighting))
    server, w = prepared.begin(), {}
    for t in range(4):
        starts = {k: cloud(w, k, AMP) if k in w else server.shared_P for k in range(4)}
        for k in range(4):
            end, s = walk(prepared, k, t, starts[k], lambda x, g, at, j, u=starts[k]: g + MU * (x - u))
            counts = TURNS[t][k] == 1 if isinstance(weighting, to.weighting.CompleteOnly) else s > 0
            if counts:
                w[k] = end
        server, _ = prepared.round(server, t)
        expected = torch.stack([w.get(k, server.shared_P) for k in range(4)])
        torch.testing.assert_close(own(prepared, server), expected)


def test_without_attention_clients_train_alone():
    """Without the proximal term: it acts on shared columns, and alone nothing is shared (and it is refused)."""
    without = {"algorithm.terms": ()}
    prepared, alone = (
        ready(amp(to.mixing.FedAMP(alpha=0.0))),
        ready(amp(to.mixing.SharedStart(), personal=to.personal.everything), **without),
    )
    server, _ = play(prepared, 4)
    play(alone, 4)
    free = ready(amp(to.mixing.FedAMP(alpha=0.0)), **without)
    after, _ = play(free, 4)
    torch.testing.assert_close(own(free, after), alone.runtime.clients.store.gather(torch.arange(4))["personal"])
    assert not torch.allclose(own(prepared, server), own(free, after))


def test_with_even_attention_it_is_fedavg():
    """ξ_ij = 1/N for everybody: a kernel that is flat at α / σ = 1/N, uniform shares, full turnout."""
    experiment = world(COUNTS, shares=to.weighting.Shares(by="uniform"))
    plain, _ = play(ready(experiment), 4)
    prepared = ready(experiment, **{"algorithm.mixing": to.mixing.FedAMP(alpha=1e12 / 4, sigma=1e12)})
    server, _ = play(prepared, 4)
    torch.testing.assert_close(server.shared_P, plain.shared_P)
    torch.testing.assert_close(own(prepared, server).mean(0), plain.shared_P)


def test_weights_sum_to_1_and_others_never_weigh_more():
    distance = torch.tensor([[0.0, 0.1, 0.1, torch.inf]], dtype=torch.float64)
    xi = to.mixing.FedAMP(alpha=5.0, sigma=1.0).weights(distance, torch.tensor([0]))
    torch.testing.assert_close(xi, torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64))


def test_distances_of_models_that_are_close_are_not_drowned():
    g = torch.Generator().manual_seed(0)
    near = 100 * torch.randn(40_000, generator=g)
    rows = near + 1e-2 * torch.randn(5, 40_000, generator=g)
    exact = (rows[[3, 1], None].double() - rows.double()).square().sum(2)
    torch.testing.assert_close(distances(rows, torch.tensor([3, 1]), near), exact, rtol=1e-4, atol=1e-3)


def test_who_leaves_is_out_of_every_mix_and_a_newcomer_starts_from_the_shared_model():
    events = (to.Leave(3, 2), to.Join(3, 3))
    prepared = ready(amp(), rounds=4, **{"world.events": events})
    server, _ = play(prepared, 2)
    kept = own(prepared, server)
    server, _ = prepared.round(server, 2)
    w = {0: kept[0], 1: kept[1], 2: kept[2]}  # without 3
    end, _ = walk(prepared, 0, 2, cloud(w, 0, AMP), lambda x, g, at, j: g + MU * (x - cloud(w, 0, AMP)))
    torch.testing.assert_close(own(prepared, server)[0], end)
    start = server.shared_P
    torch.testing.assert_close(own(prepared, server)[3], start)
    server, _ = prepared.round(server, 3)
    end, _ = walk(prepared, 3, 3, start, lambda x, g, at, j: g + MU * (x - start))
    torch.testing.assert_close(own(prepared, server)[3], end)


def test_vectorised_is_the_plain_loop_with_personal_layers():
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    for personal in (None, to.personal.batch_norm, to.personal.Named("3.*")):
        found = []
        for engine, chunk in (("by-hand", 3), ("vmap", 2), ("loop", 1)):
            experiment = replace(amp(personal=personal), model=net)
            prepared = ready(experiment, **{"runtime.engine": engine, "runtime.chunk": chunk})
            server, _ = play(prepared, 3)
            found.append([server.shared_P, own(prepared, server)])
        for other in found[1:]:
            for ours, theirs in zip(found[0], other, strict=True):
                torch.testing.assert_close(ours, theirs)


def test_models_are_what_the_server_could_decode_and_rows_travel_dense():
    prepared = ready(amp(weighting=to.weighting.ByWork(), compression=Coarse()))
    server, (record,) = play(prepared)
    end, _ = walk(prepared, 1, 0, prepared.server.shared_P,
                  lambda x, g, at, j: g + MU * (x - prepared.server.shared_P))  # fmt: skip
    update = (2 * (end - prepared.server.shared_P) * 8).round() / 8 / 2  # E / s = 2
    torch.testing.assert_close(own(prepared, server)[1], prepared.server.shared_P + update)
    assert (record.bytes_up, record.bytes_down) == (4 * P, 4 * 4 * P)
    plain = ready(amp(to.mixing.SharedStart(), compression=Coarse()))
    assert play(plain)[1][0].bytes_down == 4 * P


def test_resumed_is_uninterrupted(tmp_path: Path):
    events = (to.Leave(3, 2), to.Join(3, 5))
    experiment = amp(selection=to.selection.Count(3)).but(rounds=9, **{"world.events": events})
    whole = to.run(experiment, tmp_path / "whole", quiet=True)
    again = stopped_and_resumed(experiment, tmp_path / "again", after=4)
    assert same(whole.folder / "records.sqlite", again.folder / "records.sqlite") == []
    for client in range(4):
        ours, theirs = (run.model(client=client).state_dict() for run in (whole, again))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_mistakes_are_said():
    with pytest.raises(UserError, match="sigma"):
        to.mixing.FedAMP(sigma=0.0)
    with pytest.raises(UserError, match="no effect"):
        to.Algorithm(mixing=AMP, substitution=to.substitution.Spread())
    many = to.Experiment(
        to.World(to.data.Synthetic(clients=100_000)), to.models.MLP(200, 200), to.Algorithm(mixing=AMP), rounds=1
    )
    with pytest.raises(UserError, match="models"):
        check_fits(ready(many).memory(), free=16 << 30)


def test_mixings_keep_their_promises():
    testing.check_mixing(to.mixing.SharedStart())
    testing.check_mixing(AMP)

    class Shared(to.mixing.FedAMP):
        def forget(self, state, client_I):
            return state

    with pytest.raises(AssertionError, match="forget"):
        testing.check_mixing(Shared())


def test_mime_lite_is_the_formula():
    """(1 - β) g + β m; m = (1 - β) Σ p_k ∇F_k(w_start) / Σ p_k + β m over those who replied."""
    beta, steps = 0.75, to.Local(to.SGD(lr=LR), steps=4, batch_size=4)
    prepared = ready(
        world(
            COUNTS, 1.0, 0.5, 0.0, 0.75, local=steps, terms=[to.terms.MimeLite(beta)], weighting=to.weighting.ByShare()
        )
    )
    w, m, server = prepared.server.shared_P, torch.zeros(P, dtype=torch.float64), prepared.begin()
    p = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    for t in range(3):
        train = prepared.runtime.clients.federation.train
        full = [gradient_of(prepared, w, *train(torch.tensor([k]), t).of(0)) for k in (0, 1, 3)]
        ends = [walk(prepared, k, t, w, lambda x, g, at, j, m=m: (1 - beta) * g + beta * m)[0] for k in (0, 1, 3)]
        here = p[[0, 1, 3]]
        w = w + here @ (torch.stack(ends) - w)
        m = beta * m + (1 - beta) * (here / here.sum()) @ torch.stack(full)
        server, record = prepared.round(server, t)
        torch.testing.assert_close(server.shared_P, w)
        torch.testing.assert_close(server.term_states["mime-lite"]["m"], m)
        assert (record.bytes_up, record.bytes_down) == (3 * 4 * 2 * P, 3 * 4 * 2 * P)


def test_mime_lite_without_momentum_is_fedavg():
    for engine in ("by-hand", "loop"):
        plain, _ = play(ready(world(COUNTS, 1.0, 0.5, 0.0, 0.75), **{"runtime.engine": engine}), 3)
        server, _ = play(ready(world(COUNTS, 1.0, 0.5, 0.0, 0.75, terms=[to.terms.MimeLite(0.0)])), 3)
        torch.testing.assert_close(server.shared_P, plain.shared_P)
