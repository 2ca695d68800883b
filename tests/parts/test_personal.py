"""Personal layers (SPEC §6, §7.3 rules 9, 10, 16 to 19, §8 items 10 to 12): what stays home, what is measured of it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import tomllib

import pytest
import torch

import turnout as to
from alone import fresh, torch_adam, train_alone, weights_of
from same_rows import same
from turnout.engine.batches import address_batches
from turnout.errors import UserError
from turnout.rng import key as address
from turnout.running import stop_rules
from turnout.running.config.read import from_table
from turnout.running.config.write import to_toml
from turnout.types import Samples
from worlds import Given, folder_run, own_models, play, ready, stopped_and_resumed, world

COUNTS, FRACTIONS = [8, 13, 4, 16], (1.0, 0.5, 0.0, 1.0)  # 13 = 3 batches of 4 and one of 1, which is dropped
ADAM = to.Adam(lr=0.02, beta1=0.9, beta2=0.99, eps=1e-3)  # (a bias before BatchNorm has gradient 0: keep it calm)
NORMED = to.models.MLP(6, 4, batch_norm=True)


def personal_world(personal=to.personal.batch_norm, optimizer=ADAM, fractions=FRACTIONS, **algorithm) -> to.Experiment:
    local = to.Local(optimizer, epochs=4, batch_size=4)
    experiment = world(COUNTS, *fractions, local=local, personal=personal, **algorithm)
    return dataclasses.replace(experiment, model=NORMED, evaluate=to.Evaluate(recovery=False))


def with_tests(experiment: to.Experiment, noisy: tuple[int, ...] = ()) -> to.Experiment:
    """The same with test samples of each client's own, and some of the clients known to be noisy."""
    g = torch.Generator().manual_seed(5)
    owner = torch.arange(5).repeat_interleave(torch.tensor([10, 16, 8, 20, 12]))
    x = torch.randn(len(owner), 5, generator=g) + 0.3 * owner[:, None]
    own = to.data.Own(x, torch.randint(0, 3, (len(owner),), generator=g), owner, test_share=0.4)
    return dataclasses.replace(experiment, world=to.World(Marked(own, noisy), Given(1.0, 0.5, 0.0, 1.0, 1.0)))


@dataclasses.dataclass(frozen=True)
class Marked:
    data: to.data.Own
    noisy: tuple[int, ...]

    def load(self, seed, data_dir=None):
        found = self.data.load(seed, data_dir)
        marks = torch.tensor([c in self.noisy for c in range(found.clients)])
        return dataclasses.replace(found, noisy=marks if self.noisy else None)


def own_module(prepared, server, client: int) -> torch.nn.Module:
    return prepared.module(server, client).double()


def test_8_10_all_personal_is_independent_training():
    """Nothing is sent; each client is an ordinary run of Adam on its own data, the absent one has not moved."""
    prepared = ready(personal_world(to.personal.everything))
    server, records = play(prepared, 3)
    assert all(r.bytes_up == r.bytes_down == 0 for r in records)
    for client in range(4):
        module = fresh(prepared)
        optimizer = torch_adam(prepared, module)
        for t in range(3):
            train_alone(prepared, client, t, module, optimizer)
        own_cP, states = own_models(prepared, server, torch.tensor([client]))(torch.tensor([0]))
        torch.testing.assert_close(own_cP[0], weights_of(prepared, module), rtol=1e-7, atol=1e-9)
        for name, value in module.named_buffers():
            torch.testing.assert_close(states[name][0], value, rtol=1e-7, atol=1e-9)


def test_patches_are_the_clients_own_and_the_rest_is_averaged():
    """SPEC 6.3 over two rounds, by torch: shared layers and moments come down, patches and theirs stay; n is global."""
    prepared = ready(personal_world(weighting=to.weighting.ByShare(), fractions=(1.0, 1.0, 0.0, 1.0)))
    server, _ = play(prepared, 2)
    p = torch.tensor(COUNTS, dtype=torch.float64)[[0, 1, 3]]
    shared, clients = prepared.model.layout.shared, (0, 1, 3)
    modules = {k: fresh(prepared) for k in clients}
    optimizers = {k: torch_adam(prepared, modules[k]) for k in clients}
    start, total = weights_of(prepared, modules[0])[:shared], p.sum() + COUNTS[2]
    for t in range(2):
        for k in clients:
            train_alone(prepared, k, t, modules[k], optimizers[k])
        moved = sum(p[i] / total * (weights_of(prepared, modules[k])[:shared] - start) for i, k in enumerate(clients))
        start = start + moved
        put_back(prepared, modules, optimizers, start, p / p.sum())
    torch.testing.assert_close(server.shared_P, start, rtol=1e-7, atol=1e-9)
    rows = prepared.runtime.clients.store.gather(torch.arange(4))
    for k in clients:
        torch.testing.assert_close(rows["personal"][k], weights_of(prepared, modules[k])[shared:], rtol=1e-7, atol=1e-9)
        for name, value in modules[k].named_buffers():
            torch.testing.assert_close(rows[f"state/{name}"][k], value, rtol=1e-7, atol=1e-9)
    first = prepared.runtime.clients.store.initial["personal"]
    assert torch.equal(rows["personal"][2], first), "the absent client has moved"


def put_back(prepared, modules, optimizers, start_P, omega) -> None:
    """What a server and a download do: shared weights, means of the shared moments, and the mean step for all."""
    layout = prepared.model.layout
    named = {k: dict(m.named_parameters()) for k, m in modules.items()}
    for slot in layout.shared_slots:
        for key in ("exp_avg", "exp_avg_sq"):
            states = [optimizers[k].state[named[k][slot.name]] for k in modules]
            mean = sum(w * s[key] for w, s in zip(omega, states, strict=True))
            for state in states:
                state[key].copy_(mean)
        for k in modules:
            named[k][slot.name].data.copy_(start_P[slot.start : slot.start + slot.size].view(slot.shape))
    every = [[s["step"] for s in optimizers[k].state.values()] for k in modules]
    mean = sum(w * float(steps[0]) for w, steps in zip(omega, every, strict=True))
    for step in itertools.chain(*every):
        step.fill_(mean)


def test_which_part_of_batch_norm_stays_home():
    """The letters of the authors' code of paper 004: γ is y, β is b, μ is u, σ² is s."""
    scale = {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}
    moments = {f"norm{i}.{what}" for i in (1, 2) for what in ("running_mean", "running_var", "num_batches_tracked")}
    model = NORMED.build((5,), 3)
    named = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    for kind, expected in {"yb": scale, "us": moments, "usyb": scale | moments}.items():
        predicate = getattr(to.personal, kind)
        assert {name for name in named if predicate(name, model)} == expected
        written = from_table(tomllib.loads(f'[algorithm]\npersonal = "{kind}"\n')).algorithm.personal
        assert written is predicate
    assert to.personal.usyb is to.personal.batch_norm


def test_scale_or_statistics_alone_stay_home_and_the_rest_is_averaged():
    """`yb`: γ and β are the clients' own, μ and σ² one for all; `us` the other way round."""
    for kind, own, common in (("yb", "weight", "running_mean"), ("us", "running_mean", "weight")):
        prepared = ready(personal_world(getattr(to.personal, kind), fractions=(1.0, 1.0, 1.0, 1.0)))
        server, _ = play(prepared, 2)
        modules = [own_module(prepared, server, client).norm1 for client in range(4)]
        for a, b in itertools.combinations(modules, 2):
            assert not torch.allclose(getattr(a, own), getattr(b, own))
            assert torch.equal(getattr(a, common), getattr(b, common))
        assert ("norm1.running_mean" in server.states) == (kind == "yb")
    with pytest.raises(UserError, match="us keeps nothing at the client"):
        ready(dataclasses.replace(personal_world(to.personal.us), model=to.models.MLP(4)))


def test_8_11_patches_do_not_depend_on_other_clients_patches():
    """Within a round: other clients' patches are replaced, and client 0's come out the same."""
    results = []
    for spoil in (False, True):
        prepared = ready(personal_world())
        server, _ = play(prepared, 1)
        if spoil:
            rows = prepared.runtime.clients.store.gather(torch.tensor([1, 3]))
            rows = {n: v + 1 if n == "personal" or n.endswith(("mean", "var")) else v for n, v in rows.items()}
            prepared.runtime.clients.store.scatter(torch.tensor([1, 3]), rows)
        prepared.round(server, 1)
        results.append(prepared.runtime.clients.store.gather(torch.tensor([0])))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


SCHEMES = [to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork(), to.weighting.FedNova()]
HOMES = [{}, {"personal": to.personal.batch_norm}, {"personal": to.personal.batch_norm, "share_personal": True}]


@pytest.mark.parametrize("weighting", SCHEMES, ids=lambda w: type(w).__name__)
@pytest.mark.parametrize(
    "substitution", [to.substitution.NoSubstitution(), to.substitution.Spread()], ids=lambda s: type(s).__name__
)
def test_8_11_running_variances_stay_positive_under_every_scheme(weighting, substitution):
    """Whatever is boosted or scaled, variances are means: at the server, at home, and shared (rules 16, 18)."""
    for i, (home, optimizer) in enumerate(itertools.product(HOMES, (to.SGD(lr=0.3), ADAM))):
        chosen = {"personal": None} | home | {"optimizer": optimizer, "fractions": (1.0, 0.25, 0.0, 0.5)}
        scale_at = "server" if i % 2 else "client"
        experiment = personal_world(weighting=weighting, substitution=substitution, scale_at=scale_at, **chosen)
        prepared = ready(experiment)
        server, _ = play(prepared, 2)
        rows = prepared.runtime.clients.store.gather(torch.arange(4))
        found = {**server.states, **rows}
        variances = [v for name, v in found.items() if name.endswith("running_var")]
        assert variances
        assert all(bool((v > 0).all()) for v in variances)
        assert all(bool((v >= 0).all()) for name, v in found.items() if name.endswith("second"))


def test_7_3_rules_9_and_16_only_shared_parameters_are_columns_of_the_update():
    """Similarity, compression and weighted sums see neither patches nor buffers."""
    prepared = ready(personal_world())
    widths = []

    class Looking(to.substitution.NoSubstitution):
        def observe(self, state, updates):
            widths.append(updates.update_RP.shape[1])
            return state

    looked = ready(personal_world(substitution=Looking()))
    play(looked)
    assert widths == [prepared.model.layout.shared] == [5 * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3]


def test_shared_personal_layers_are_averaged_counted_and_complete_the_central_model():
    """SPEC 6.4 b: uploads of patches are counted; CA is measured with their mean over those who count."""
    experiment = personal_world(share_personal=True)
    prepared = ready(experiment)
    server, (record,) = play(prepared, 1)
    rows, p = prepared.runtime.clients.store.gather(torch.tensor([0, 1, 3])), torch.tensor([8.0, 13.0, 16.0]).double()
    mean = ((p / p.sum())[:, None] * rows["personal"]).sum(0)
    torch.testing.assert_close(server.states["personal/parameters"], mean)
    shared, patches = prepared.model.layout.shared, 2 * (6 + 4)
    statistics = 2 * (6 + 4) * 4 + 2 * 8
    assert record.bytes_up == 3 * (4 * (3 * shared + 1 + patches) + statistics)
    assert record.bytes_down == 3 * 4 * (3 * shared + 1)
    asked = ready(experiment.but(**{"algorithm.newcomers": "average"}))
    assert play(asked, 1)[1][0].bytes_down == 3 * (4 * (3 * shared + 1 + patches) + statistics)
    module = own_module(prepared, server, None)
    torch.testing.assert_close(dict(module.named_parameters())["norm1.weight"].double(), mean[:6])
    x, y = prepared.runtime.clients.federation.central_test()
    correct = (module(x.double()).argmax(1) == y).double().mean()
    assert prepared.evaluate(server, 0).values["global_accuracy"] == pytest.approx(float(correct))
    alone = ready(personal_world())
    assert "global_accuracy" not in alone.evaluate(alone.begin(), -1).values, "half a model is not a central model"


@pytest.mark.parametrize("newcomers", ["initial", "average"])
def test_7_3_rule_19_newcomers_begin_with_initial_values_or_the_average(newcomers):
    prepared = ready(personal_world(share_personal=True, newcomers=newcomers))
    server, _ = play(prepared, 2)
    flat, states = own_models(prepared, server, torch.tensor([2, 0]))(torch.tensor([0, 1]))
    first = prepared.runtime.clients.store.initial["personal"]
    average = server.states["personal/parameters"]
    shared = prepared.model.layout.shared
    torch.testing.assert_close(flat[0, shared:], average if newcomers == "average" else first)
    expected = server.states["personal/norm1.running_var"] if newcomers == "average" else torch.ones(6).double()
    torch.testing.assert_close(states["norm1.running_var"][0], expected)
    assert torch.equal(flat[1, shared:], prepared.runtime.clients.store.gather(torch.tensor([0]))["personal"][0])
    prepared.runtime.forget(torch.tensor([0]))  # excluded for good, and back again
    returned, _ = own_models(prepared, server, torch.tensor([0]))(torch.tensor([0]))
    torch.testing.assert_close(returned[0, shared:], flat[0, shared:])


def statistics_by_hand(module: torch.nn.Module, batches: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """SPEC §7.3 item 19: one pass in which only statistics move. Each layer normalises by its batch (γ and β as they
    are); its running mean is the mean of the batches' means, its running variance that of their unbiased variances."""
    seen: dict[str, list[torch.Tensor]] = {}
    for x in batches:
        h = x.double()
        for i in (1, 2):
            h = getattr(module, f"linear{i}")(h)
            norm, mean, var = getattr(module, f"norm{i}"), h.mean(0), h.var(0, correction=0)
            seen.setdefault(f"norm{i}.running_mean", []).append(mean)
            seen.setdefault(f"norm{i}.running_var", []).append(h.var(0, correction=1))
            h = torch.relu((h - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias)
    return {name: torch.stack(values).mean(0).detach() for name, values in seen.items()}


@pytest.mark.parametrize("batch_size", [4, 20])
def test_7_3_rule_19_or_with_statistics_of_their_own_samples(batch_size):
    """Of 2, absent so far, and of 1 (13 samples: a last batch of one is dropped), excluded for good and back again."""
    prepared = ready(personal_world(newcomers="calibrated"), **{"algorithm.local.batch_size": batch_size})
    server, _ = play(prepared, 2)
    prepared.runtime.forget(torch.tensor([1]))
    flat, states = own_models(prepared, server, torch.tensor([0, 1, 2]))(torch.tensor([0, 1, 2]))
    store, shared = prepared.runtime.clients.store, prepared.model.layout.shared
    assert torch.equal(flat[1:, shared:], store.initial["personal"].expand(2, -1)), "only statistics are calibrated"
    for i, client in ((1, 1), (2, 2)):
        x, y = prepared.runtime.clients.federation.train(torch.tensor([client]), 0).of(0)
        order = address_batches(
            Samples(x, y, torch.arange(len(x)), torch.tensor([len(x)])), torch.tensor([client]),
            torch.tensor([-(-(len(x) - 1) // batch_size)]), batch_size, True, address(0, "calibration"), 0,
        )  # fmt: skip
        rows = [row[:size] for row, size in zip(order.row_cJB[0], order.size_cJ[0].tolist(), strict=True)]
        fresh = copy.deepcopy(prepared.template).double()
        fresh.load_state_dict(prepared.model.layout.unpack(flat[i]), strict=False)
        for name, expected in statistics_by_hand(fresh, [x[row] for row in rows]).items():
            torch.testing.assert_close(states[name][i], expected)
    kept = store.gather(torch.tensor([0]))
    for name in ("norm1.running_mean", "norm2.running_var"):
        assert torch.equal(states[name][0], kept[f"state/{name}"][0]), "who has been there keeps what it has"


def test_7_3_rule_19_calibrated_newcomers_train_on_from_there():
    """After one step on all samples with momentum 0.1: 0.9 of the calibrated mean and 0.1 of the batch's, the same. In
    all engines, in whatever chunks, and from the first evaluation on; nothing more is sent."""
    local = to.Local(to.SGD(lr=0.1), steps=1, batch_size=20)
    experiment = personal_world(newcomers="calibrated").but(**{"algorithm.local": local})
    ends = []
    for engine, chunk in (("loop", 1), ("vmap", 3), ("by-hand", 2)):
        prepared = ready(experiment, **{"runtime.engine": engine, "runtime.chunk": chunk})
        before = own_models(prepared, prepared.begin(), torch.arange(4))(torch.arange(4))[1]
        server, (record,) = play(prepared, 1)
        rows = prepared.runtime.clients.store.gather(torch.tensor([0, 3]))
        torch.testing.assert_close(rows["state/norm1.running_mean"], before["norm1.running_mean"][[0, 3]])
        torch.testing.assert_close(rows["state/norm2.running_var"], before["norm2.running_var"][[0, 3]])
        ends.append(server.shared_P)
        plain = ready(experiment, **{"runtime.engine": engine, "algorithm.newcomers": "initial"})
        assert play(plain, 1)[1][0].bytes_down == record.bytes_down
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-10, atol=1e-13)


def test_calibration_does_not_remember_what_the_initial_model_has_seen():
    """A model that comes with statistics (of 7 batches, all means 5) gives newcomers those of their own samples."""
    experiment = personal_world(newcomers="calibrated")
    module = copy.deepcopy(ready(experiment).template)
    for norm in (module.norm1, module.norm2):
        norm.running_mean.fill_(5.0)
        norm.num_batches_tracked.fill_(7)
    found = [
        own_models(prepared, prepared.begin(), torch.arange(4))(torch.arange(4))[1]
        for prepared in (ready(experiment), ready(experiment.but(model=module)))
    ]
    for name in ("norm1.running_mean", "norm2.running_var", "norm1.num_batches_tracked"):
        torch.testing.assert_close(found[1][name], found[0][name])


def test_calibrated_runs_resume(tmp_path):
    experiment = toml_world().but(rounds=6, **{
        "algorithm.share_personal": False, "algorithm.newcomers": "calibrated",
        "algorithm.selection": to.selection.Count(3), "world.events": (to.Join(4, 3),),
    })  # fmt: skip
    assert from_table(tomllib.loads(to_toml(experiment))) == experiment
    whole = folder_run(experiment, tmp_path / "whole")
    halves = stopped_and_resumed(experiment, tmp_path / "halves", after=3)
    assert same(whole.folder / "records.sqlite", halves.folder / "records.sqlite") == []


def test_8_12_personal_accuracy_is_each_clients_own_model_on_its_own_test_data():
    """After download, before training; measured twice it is equal; mean, worst tenth, spread, noisy and clean."""
    prepared = ready(with_tests(personal_world(), noisy=(1, 4)))
    server, _ = play(prepared, 2)
    found, again = prepared.evaluate(server, 1), prepared.evaluate(server, 1)
    assert found.values == again.values
    client_C, value_C = found.per_client["personal_accuracy"]
    expected = []
    for client in client_C.tolist():
        x, y = prepared.runtime.clients.federation.test(torch.tensor([client]), 1).of(0)
        expected.append(float((own_module(prepared, server, client)(x.double()).argmax(1) == y).double().mean()))
    assert value_C.tolist() == pytest.approx(expected)
    mean, deviation = sum(expected) / 5, float(torch.tensor(expected).double().std(correction=0))
    assert found.values["personal_accuracy"] == pytest.approx(mean)
    assert found.values["personal_accuracy_worst"] == pytest.approx(min(expected))
    assert found.values["personal_accuracy_spread"] == pytest.approx(deviation)
    assert found.values["personal_accuracy_noisy"] == pytest.approx((expected[1] + expected[4]) / 2)
    assert found.values["personal_accuracy_clean"] == pytest.approx((expected[0] + expected[2] + expected[3]) / 3)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_personal_accuracy_does_not_depend_on_engine_or_chunks(engine, monkeypatch):
    by_hand, other = (ready(with_tests(personal_world()), **{"runtime.engine": e}) for e in ("by-hand", engine))
    expected = by_hand.evaluate(play(by_hand, 1)[0], 0).per_client["personal_loss"][1]
    monkeypatch.setattr("turnout.clients.metrics.ROOM", 1)  # one client at a time
    torch.testing.assert_close(other.evaluate(play(other, 1)[0], 0).per_client["personal_loss"][1], expected)


def test_without_anything_personal_everybodys_model_is_the_global_one():
    experiment = with_tests(personal_world(None)).but(**{"evaluate.personal": True, "evaluate.per_client": True})
    prepared = ready(experiment)
    found = prepared.evaluate(play(prepared, 1)[0], 0)
    assert found.per_client["personal_accuracy"][1].tolist() == found.per_client["client_accuracy"][1].tolist()
    assert {"global_accuracy", "personal_accuracy", "personal_accuracy_worst"} <= found.values.keys()


def test_a_million_clients_do_not_need_a_million_models():
    data = to.data.Synthetic(clients=1_000_000, sizes=to.data.Equal(30), test_share=0.2)
    experiment = to.Experiment(
        to.World(data), algorithm=to.Algorithm(selection=to.selection.Count(5), personal=to.personal.Named("*.bias")),
        evaluate=to.Evaluate(clients=20), runtime=to.runtime.InProcess(device="cpu", threads=1),
    )  # fmt: skip
    prepared = ready(experiment)
    server, _ = play(prepared, 2)
    assert len(prepared.evaluate(server, 1).per_client["personal_accuracy"][0]) == 20
    assert len(prepared.runtime.clients.store) <= 10


def test_recovery_is_the_accuracy_before_and_after_local_training():
    """Fig. 3 (a): before training is what was measured after the last round; alone, training is never undone."""
    prepared = ready(with_tests(personal_world(), noisy=(1,)).but(**{"evaluate.recovery": True}))
    server, _ = play(prepared, 1)
    measured = prepared.evaluate(server, 0).per_client["personal_loss"]
    _, record = prepared.round(server, 1)
    before_C = record.clients["before_loss"]
    there_C = ~before_C.isnan()
    torch.testing.assert_close(before_C[there_C], measured[1][there_C])
    assert there_C.tolist() == [True, True, False, True, True]
    assert record.extra["before_loss"] == pytest.approx(float(before_C[there_C].mean()))
    assert record.extra["after_loss_noisy"] == pytest.approx(float(record.clients["after_loss"][1]))
    alone = ready(with_tests(personal_world(to.personal.everything)).but(**{"evaluate.recovery": True}))
    _, records = play(alone, 3)
    for first, second in itertools.pairwise(records):
        torch.testing.assert_close(first.clients["after_loss"], second.clients["before_loss"], equal_nan=True)


def test_gradient_magnitudes_are_means_over_entries_and_steps():
    """One full-batch step of plain SGD: mean |∂F/∂w| of each parameter, personal ones too, by ordinary autograd."""
    local = to.Local(to.SGD(lr=0.1), steps=1, batch_size=16)
    experiment = dataclasses.replace(personal_world(optimizer=to.SGD()), evaluate=to.Evaluate(gradients=True))
    prepared = ready(experiment, **{"algorithm.local": local})
    _, (record,) = play(prepared)
    x, y = prepared.runtime.clients.federation.train(torch.tensor([3]), 0).of(0)
    module = fresh(prepared).train()
    torch.nn.functional.cross_entropy(module(x.double()), y).backward()
    for name, parameter in module.named_parameters():
        found = float(record.clients[f"gradient_{name}"][3])
        assert found == pytest.approx(float(parameter.grad.abs().mean()), rel=1e-9, abs=1e-12)
    there = record.clients["gradient_output.weight"][[0, 3]]  # half of one step is none
    assert record.extra["gradient_output.weight"] == pytest.approx(float(there.mean()))


@pytest.mark.parametrize("home", [{"personal": None}, {"share_personal": True, "newcomers": "average"}])
def test_neurons_that_move_less_with_their_own_batch_norm(home):
    """Inequality (10) of paper 004 for the first layer, written out, from the models themselves."""
    experiment = with_tests(personal_world(**home)).but(**{"evaluate.activations": True})
    prepared = ready(experiment)
    server, (first,) = play(prepared, 1)
    assert first.clients["neurons_mean_norm1"].isnan().all(), "nobody has trained yet"
    _, record = prepared.round(server, 1)
    client = 3
    x = prepared.runtime.clients.federation.test(torch.tensor([client]), 1).of(0)[0].double()
    local = fresh(prepared)
    train_alone(prepared, client, 0, local, torch_adam(prepared, local))
    averaged = own_module(prepared, server, None)
    z, z_bar = (module.eval().linear1(x).detach() for module in (local, averaged))
    shift, growth = z_bar.mean(0) - z.mean(0), z_bar.var(0, correction=0) - z.var(0, correction=0)
    (g, b, m, v), (g_, b_, m_, v_) = (values(module.norm1) for module in (local, averaged))
    mean = (g * shift / v.sqrt()).abs() < (b - g_ * (m + shift - m_) / v_.sqrt() - b_).abs()
    variance = (g**2 * growth / v).abs() < (g**2 - g_**2 * (v + growth) / v_).abs()
    assert float(record.clients["neurons_mean_norm1"][client]) == pytest.approx(float(mean.double().mean()))
    assert float(record.clients["neurons_variance_norm1"][client]) == pytest.approx(float(variance.double().mean()))
    both = (mean & variance).double().mean()
    assert float(record.clients["neurons_both_norm1"][client]) == pytest.approx(float(both))
    assert 0 <= record.extra["neurons_mean_norm2"] <= 1


def values(norm: torch.nn.BatchNorm1d) -> tuple[torch.Tensor, ...]:
    return norm.weight.detach(), norm.bias.detach(), norm.running_mean, norm.running_var + norm.eps


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    """Patches, their moments and what clients have seen are in the checkpoint."""
    home = {"share_personal": True, "newcomers": "average"}
    experiment = toml_world(**home).but(**{"evaluate.activations": True, "evaluate.recovery": True})
    whole = folder_run(experiment.but(rounds=4), tmp_path / "whole")
    folder_run(experiment.but(rounds=2), tmp_path / "cut")
    cut = to.run(experiment.but(rounds=4), tmp_path / "cut", resume=True, quiet=True)
    assert same(whole.folder / "records.sqlite", cut.folder / "records.sqlite") == []
    own, central = whole.model(client=1).state_dict(), whole.model().state_dict()
    assert not torch.equal(own["norm1.weight"], central["norm1.weight"])
    assert torch.equal(own["linear1.weight"], central["linear1.weight"])
    assert from_table(tomllib.loads(to_toml(experiment))) == experiment


def toml_world(**algorithm) -> to.Experiment:
    data = to.data.Noisy(to.data.Digits(clients=6, sizes=to.data.Equal(20), partition=to.partition.Classes(2)))
    local = to.Local(to.Adam(), epochs=1, batch_size=8)
    chosen = to.Algorithm(local, personal=to.personal.batch_norm, selection=to.selection.Fraction(0.5), **algorithm)
    runtime = to.runtime.InProcess(device="cpu", threads=1)
    return to.Experiment(to.World(data), to.models.MLP(8, batch_norm=True), chosen, runtime=runtime)


def test_stopping_by_clients_own_accuracy(tmp_path):
    experiment = toml_world().but(rounds=5, stop=to.Stop(target=0.0, metric="personal_accuracy_clean"))
    run = folder_run(experiment, tmp_path / "run")
    assert run.rounds() == 1
    assert run.stopped() == "personal_accuracy_clean reached 0"
    assert {"personal_accuracy", "personal_accuracy_noisy"} <= set(run.records().metrics())


def test_noisy_clients_are_known():
    data = to.data.Noisy(to.data.Digits(clients=10, sizes=to.data.Equal(20)), share=0.3)
    federation = data.load(seed=3)
    assert federation.noisy.nonzero().squeeze(1).tolist() == data.clients(10, 3).tolist()
    assert to.data.Digits(clients=2).load(0).noisy is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": to.models.MLP(6)}, "batch-norm keeps nothing at the client.*plain FedAvg"),
        ({"algorithm.personal": to.personal.Named("head.*")}, "keeps nothing at the client"),
        ({"evaluate.activations": True}, "newcomers = 'average'"),
        ({"evaluate.activations": True, "model": to.models.MLP(6), "algorithm.personal": None}, "has none"),
        (
            {"algorithm.personal": to.personal.everything, "algorithm.local.optimizer.moments": "federated"},
            "nothing is",
        ),
        ({"algorithm.newcomers": "average"}, "share_personal"),
        ({"algorithm.newcomers": "averaged"}, "did you mean 'average'"),
        ({"algorithm.newcomers": "calibrated", "algorithm.personal": to.personal.Named("output.*")}, "BatchNorm"),
        ({"algorithm.newcomers": "calibrated", "algorithm.personal": None}, "personal BatchNorm statistics"),
    ],
)
def test_mistakes_are_sentences_before_the_first_round(changes, words):
    with pytest.raises(UserError, match=words):
        ready(personal_world(), **changes)


def test_an_option_without_effect_is_a_mistake():
    with pytest.raises(UserError, match="no effect"):
        to.Algorithm(share_personal=True)
    with pytest.raises(UserError, match="not measured here"):
        stop_rules.metric_of(personal_world().but(**{"stop.metric": "global_accuracy"}))
    with pytest.raises(UserError, match="own must be measured"):
        stop_rules.metric_of(personal_world().but(**{"evaluate.personal": False}))


def test_a_chunk_of_one_client_with_layers_of_its_own_is_no_common_start():
    """It starts from one row, as a chunk with a common start does, but its dense layers must not be factored."""
    few = to.Local(to.SGD(lr=0.1), steps=1, batch_size=2)
    plain = world([8, 12, 4], local=few, personal=to.personal.Named("output.*"))
    experiment = dataclasses.replace(plain, model=to.models.MLP(40))
    found = []
    for chunk in (1, 3):
        prepared = ready(experiment, **{"runtime.chunk": chunk})
        server, _ = play(prepared, 2)
        found.append((server.shared_P, prepared.runtime.clients.store.gather(torch.arange(3))["personal"]))
    for alone, together in zip(*found, strict=True):
        torch.testing.assert_close(alone, together)
