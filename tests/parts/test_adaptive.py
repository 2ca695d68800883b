"""Adam on the clients against torch's own (SPEC §6.3, §7.3 rules 11 to 15), and the server's adaptive steps."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import turnout as to
from alone import fresh, moments_of, torch_adam, train_alone, weights_of
from turnout import testing
from turnout.errors import UserError
from turnout.parts.compression.base import Dense
from turnout.running.config.read import from_table
from worlds import play, ready, world

COUNTS, FRACTIONS = [8, 12, 4, 16], (1.0, 0.5, 0.0, 1.0)
MLP = to.models.MLP(6, 4)
ADAM = to.Adam(lr=0.02, beta1=0.9, beta2=0.99)


def adam_world(counts=COUNTS, fractions=FRACTIONS, optimizer=ADAM, **algorithm) -> to.Experiment:
    local = to.Local(optimizer, epochs=4, batch_size=4)
    return dataclasses.replace(world(counts, *fractions, local=local, **algorithm), model=MLP)


@pytest.mark.parametrize("moments", ["federated", "local"])
def test_8_10_one_client_federated_adam_is_ordinary_adam_run_on(moments):
    """The step count and both moments are carried, so rounds leave no trace."""
    prepared = ready(adam_world([12], (1.0,), dataclasses.replace(ADAM, moments=moments)))
    server, _ = play(prepared, 5)
    module = fresh(prepared)
    optimizer = torch_adam(prepared, module)
    steps = sum(train_alone(prepared, 0, t, module, optimizer) for t in range(5))
    torch.testing.assert_close(server.shared_P, weights_of(prepared, module), rtol=1e-9, atol=1e-11)
    if moments == "federated":
        m, v = moments_of(prepared, module, optimizer)
        torch.testing.assert_close(server.states["moment/first"], m, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(server.states["moment/second"], v, rtol=1e-9, atol=1e-12)
        assert float(server.states["moment/count"]) == steps == 60


def after_a_round(prepared, client):
    """W_k, M_k, V_k and n_k of a client after round 0."""
    module = fresh(prepared)
    optimizer = torch_adam(prepared, module)
    steps = train_alone(prepared, client, 0, module, optimizer)
    return weights_of(prepared, module), *moments_of(prepared, module, optimizer), float(steps)


@pytest.mark.parametrize(
    ("weighting", "factor"),
    [
        (to.weighting.ByShare(), [1, 1, 0, 1]),
        (to.weighting.ByWork(), [1, 2, 0, 1]),
        (to.weighting.CompleteOnly(), [2, 0, 0, 2]),
    ],
    ids=["B", "C", "A"],
)
def test_7_3_rule_11_weights_linear_moments_and_step_convex(weighting, factor):
    """W moves by Σ a_k D_k with the scheme's a_k; M, V and n are means by p_k over those who count."""
    prepared = ready(adam_world(weighting=weighting))
    server, _ = play(prepared, 1)
    p = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    clients = [k for k in range(4) if factor[k]]
    found = {k: after_a_round(prepared, k) for k in clients}
    start = weights_of(prepared, fresh(prepared))
    moved = sum(factor[k] * p[k] * (found[k][0] - start) for k in clients)
    torch.testing.assert_close(server.shared_P, start + moved, rtol=1e-8, atol=1e-10)
    omega = {k: p[k] / sum(p[j] for j in clients) for k in clients}
    for place, name in ((1, "first"), (2, "second"), (3, "count")):
        mean = torch.as_tensor(sum(omega[k] * found[k][place] for k in clients))
        torch.testing.assert_close(server.states[f"moment/{name}"], mean, rtol=1e-8, atol=1e-12)


def test_7_3_rule_12_with_coefficients_of_sum_one_the_model_is_the_mean_of_the_models():
    """SPEC 6.3 step 6: W_i <- Σ ω_k W_k,i, which is the delta form exactly when Σ a_k = 1."""
    prepared = ready(adam_world(COUNTS, (1.0, 1.0, 1.0, 1.0)))
    server, _ = play(prepared, 1)
    p = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    mean = sum(p[k] * after_a_round(prepared, k)[0] for k in range(4))
    torch.testing.assert_close(server.shared_P, mean, rtol=1e-8, atol=1e-10)
    spread = ready(adam_world(substitution=to.substitution.Spread(), weighting=to.weighting.ByShare()))
    mean = sum(p[k] / (1 - p[2]) * after_a_round(spread, k)[0] for k in (0, 1, 3))
    torch.testing.assert_close(play(spread, 1)[0].shared_P, mean, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("count", ["carry", "reset", "none"])
def test_bias_correction_carried_reset_or_off(count):
    """SPEC 6.4 c, written out: n goes on, starts anew every round, or is not used. One entry, constant gradient."""
    b1, b2, lr, eps, g = 0.9, 0.99, 0.1, 1e-8, -3.0
    x, owner = torch.ones(8, 1), torch.zeros(8, dtype=torch.int64)
    data = to.data.Own(x, torch.full((8,), g), owner, test=(x, x), test_share=0.0, classes=1)
    task = to.tasks.Task(loss=lambda output, target: (output * target).squeeze(1))
    local = to.Local(to.Adam(lr, b1, b2, eps, count=count), steps=3, batch_size=8)
    prepared = ready(dataclasses.replace(
        world([8]), world=to.World(data), model=torch.nn.Linear(1, 1, bias=False), task=task,
        algorithm=to.Algorithm(local),
    ))  # fmt: skip
    server, _ = play(prepared, 2)
    w, m, v = float(prepared.server.shared_P), 0.0, 0.0
    for step in range(6):
        n = {"carry": step + 1, "reset": step % 3 + 1, "none": None}[count]
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        first, second = (m, v) if n is None else (m / (1 - b1**n), v / (1 - b2**n))
        w -= lr * first / (second**0.5 + eps)
    assert float(server.shared_P) == pytest.approx(w, rel=1e-12)
    assert ("moment/count" in server.states) == (count == "carry")


def test_bytes_count_the_moments():
    """Three times the model both ways, and the step count; local moments cost nothing."""
    width = 5 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3
    _, (record,) = play(ready(adam_world()))
    assert record.bytes_up == record.bytes_down == 3 * 4 * (3 * width + 1)
    _, (record,) = play(ready(adam_world(optimizer=dataclasses.replace(ADAM, moments="local"))))
    assert record.bytes_up == record.bytes_down == 3 * 4 * width


class Other:
    """A compression that is not `Dense`, though it does the same."""

    residuals, begin, encode, decode = Dense.residuals, Dense.begin, Dense.encode, Dense.decode
    held, catch_up, broadcast = Dense.held, Dense.catch_up, Dense.broadcast
    missed, received, longest, reported = Dense.missed, Dense.received, Dense.longest, Dense.reported


def test_7_3_rule_13_under_compression_moments_stay_home_unless_asked():
    def moments(**algorithm) -> str:
        return ready(adam_world(**algorithm)).experiment.algorithm.local.optimizer.moments

    assert moments() == "federated"
    assert moments(compression=Other()) == "local"
    assert moments(compression=Other(), optimizer=dataclasses.replace(ADAM, moments="federated")) == "federated"


def pull(p, start):
    """The gradient of μ/2 |w - w_start|² on top of the loss's own."""
    return lambda grad: grad + 0.7 * (p.detach() - start)


def test_7_3_rules_14_and_15_terms_come_before_adam_and_the_schedule_is_separate():
    """The proximal gradient is part of g; α is the schedule's rate; moments are kept throughout."""
    local = to.Local(ADAM, epochs=4, batch_size=4, schedule=to.InverseClock())
    experiment = dataclasses.replace(world([12], 1.0, local=local, terms=(to.terms.Proximal(0.7),)), model=MLP)
    prepared = ready(experiment)
    server, _ = play(prepared, 3)
    module = fresh(prepared)
    optimizer = torch_adam(prepared, module)
    for t in range(3):
        hooks = [p.register_hook(pull(p, p.detach().clone())) for p in module.parameters()]
        optimizer.param_groups[0]["lr"] = ADAM.lr / (t + 1)
        train_alone(prepared, 0, t, module, optimizer)
        for hook in hooks:
            hook.remove()
    torch.testing.assert_close(server.shared_P, weights_of(prepared, module), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["server-adam", "server-yogi", "server-adagrad"])
def test_server_steps_follow_reddi_et_al(kind):
    """Algorithm 2 there: m <- β1 m + (1 - β1) Δ; v by kind, from τ²; w <- w + η m / (√v + τ). Over two real rounds."""
    step = from_table({"algorithm": {"server": kind}}).algorithm.server
    prepared = ready(world(COUNTS, *FRACTIONS, server=step))
    plain = ready(world(COUNTS, *FRACTIONS))
    w, m = prepared.server.shared_P, 0.0
    v = torch.full_like(w, step.tau**2)
    server = prepared.begin()
    for t in range(2):
        at_w, _ = plain.round(dataclasses.replace(plain.server, shared_P=w), t)
        delta = at_w.shared_P - w
        m = step.beta1 * m + (1 - step.beta1) * delta
        v = {
            "server-adam": step.beta2 * v + (1 - step.beta2) * delta**2,
            "server-yogi": v - (1 - step.beta2) * delta**2 * torch.sign(v - delta**2),
            "server-adagrad": v + delta**2,
        }[kind]
        w = w + step.lr * m / (v.sqrt() + step.tau)
        server, _ = prepared.round(server, t)
    torch.testing.assert_close(server.shared_P, w)


@dataclasses.dataclass(frozen=True)
class Averaging(to.SGD):
    def step(self, x_cP, grad_cP, slots, count_c, lr):
        x_cP.sub_(grad_cP.mean(0), alpha=lr)


def test_an_optimizer_that_mixes_clients_is_caught():
    with pytest.raises(AssertionError, match="depends on other clients"):
        testing.check_optimizer(Averaging())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to.Adam(lr=0), "above 0"),
        (lambda: to.Adam(lr="0.1"), "Adam.lr must be above 0, not '0.1'"),
        (lambda: to.Adam(beta1=1.0), "beta1 must be"),
        (lambda: to.Adam(moments="federate"), "federated"),
        (lambda: to.Adam(count="carried"), "carry"),
        (lambda: to.server.ServerYogi(tau=0), "tau must be above 0"),
    ],
)
def test_mistakes_are_sentences(make, words):
    with pytest.raises(UserError, match=words):
        make()
