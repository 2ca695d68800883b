"""APFL against SPEC §1.5, and clients' own models as the personal evaluation sees them."""

from __future__ import annotations

import pytest
import torch

import turnout as to
from turnout.errors import UserError
from worlds import blobs, own_models, play, ready, walk, world

COUNTS = [8, 12, 4, 16]
PARTIAL = (1.0, 0.5, 0.0, 0.75)
LR, P = 0.1, 18


def mine(prepared, name):
    return prepared.runtime.clients.store.gather(torch.arange(4))[f"term/apfl/{name}"]


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_is_the_formula(adaptive):
    """v -= η α ∇f(v̄), v̄ = α v + (1 - α) w; α -= η (<v - w, α ∇f(v̄) + (1 - α) ∇f(w)> + 0.02 α), first step, clipped."""
    local = to.Local(to.SGD(lr=LR), steps=4, batch_size=4)
    prepared = ready(
        world(COUNTS, *PARTIAL, local=local, terms=[to.terms.APFL(0.75, adaptive)], weighting=to.weighting.ByShare())
    )
    w, p = prepared.server.shared_P, torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    v, alpha, begun = torch.zeros(4, P, dtype=torch.float64), [0.75] * 4, [False] * 4
    server = prepared.begin()
    for t in range(3):
        ends = []
        for k in range(4):

            def beside(x, g, at, j, k=k):
                if not begun[k]:
                    v[k], begun[k] = x, True
                mixed, apart, a = at(alpha[k] * v[k] + (1 - alpha[k]) * x), v[k] - x, alpha[k]
                v[k] = v[k] - LR * a * mixed
                if adaptive and j == 0:
                    slope = float(apart @ (a * mixed + (1 - a) * g)) + 0.02 * a
                    alpha[k] = min(1.0, max(0.0, a - LR * slope))
                return g

            ends.append(walk(prepared, k, t, w, beside)[0])
        w = w + p @ (torch.stack(ends) - w)
        server, _ = prepared.round(server, t)
        torch.testing.assert_close(server.shared_P, w)
        torch.testing.assert_close(mine(prepared, "v"), v)
        torch.testing.assert_close(mine(prepared, "alpha")[:, 0], torch.tensor(alpha, dtype=torch.float64))
    assert mine(prepared, "begun")[:, 0].tolist() == [1, 1, 0, 1]
    flat, _ = own_models(prepared, server, torch.arange(4))(torch.arange(4))
    own = torch.tensor(alpha, dtype=torch.float64)[:, None] * v + (1 - torch.tensor(alpha))[:, None] * w
    own[2] = w  # never there: it would begin with what it downloads
    torch.testing.assert_close(flat, own)


def test_the_shared_model_is_fedavg_s_and_a_client_alone_with_alpha_1_trains_by_itself():
    plain, _ = play(ready(world(COUNTS, *PARTIAL)), 3)
    prepared = ready(world(COUNTS, *PARTIAL, terms=[to.terms.APFL(1.0, adaptive=False)]))
    server, _ = play(prepared, 3)
    torch.testing.assert_close(plain.shared_P, server.shared_P)
    alone = ready(world(COUNTS, *PARTIAL, personal=to.personal.everything))
    play(alone, 3)
    torch.testing.assert_close(mine(prepared, "v")[[0, 1, 3]],
                               alone.runtime.clients.store.gather(torch.tensor([0, 1, 3]))["personal"])  # fmt: skip


def test_personal_accuracy_is_that_of_the_mixture(tmp_path):
    data = blobs(COUNTS)
    data = to.data.Own(data.x, data.y, data.owner, test=data.test, test_share=0.25)
    experiment = world(COUNTS, *PARTIAL, terms=[to.terms.APFL()]).but(**{"world.data": data})
    run = to.run(experiment, tmp_path / "run", quiet=True)
    with run.records() as records:
        assert {"global_accuracy", "personal_accuracy", "personal_loss"} <= set(records.metrics())
    prepared = ready(experiment)
    server, _ = play(prepared, 3)
    measured = prepared.evaluate(server, 2)
    client, loss = measured.per_client["personal_loss"]
    for k in client.tolist():
        x, y = prepared.runtime.clients.federation.test(torch.tensor([k]), 2).of(0)
        module = run.model(client=k).double()
        expected = torch.nn.functional.cross_entropy(module(x.double()), y).item()
        assert float(loss[k]) == pytest.approx(expected, rel=1e-5)


def test_an_alpha_that_is_no_part_is_refused():
    with pytest.raises(UserError, match="alpha"):
        to.terms.APFL(alpha=1.5)
