"""One round against the formulas of paper 000 (SPEC §2.2): absent and partial clients, unequal sizes, mixed signs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import turnout as to
from same_rows import same
from turnout import testing
from turnout.errors import UserError
from turnout.parts.aggregation import Combined
from turnout.parts.selection import Selection
from turnout.server.late import finite_replies
from turnout.types import Message, Replies, Turnout
from worlds import Control, Given, blobs, folder_run, local_updates, play, ready, stopped_and_resumed, walk, world

COUNTS = [8, 12, 4, 16]  # 2, 3, 1 and 4 batches of 4
FRACTIONS = (1.0, 0.5, 0.0, 1.0)  # E = 4 epochs: s = 4, 2, 0, 4
E = 4


def moved(experiment: to.Experiment) -> torch.Tensor:
    prepared = ready(experiment)
    server, _ = play(prepared)
    return server.shared_P - prepared.server.shared_P


def expected(coefficient: list[float], experiment: to.Experiment) -> torch.Tensor:
    return torch.tensor(coefficient, dtype=torch.float64) @ local_updates(ready(experiment))


def shares() -> list[float]:
    return [n / sum(COUNTS) for n in COUNTS]


def test_the_default_is_fedavg_the_mean_over_those_who_replied():
    """w + Σ p_k D_k / Σ p_k over those with s_k > 0, as Flower and pfl have it; what they did counts as it is."""
    experiment = world(COUNTS, *FRACTIONS, weighting=to.Algorithm().weighting)
    p = shares()
    replied = p[0] + p[1] + p[3]
    coefficient = [p[0] / replied, p[1] / replied, 0, p[3] / replied]
    torch.testing.assert_close(moved(experiment), expected(coefficient, experiment))
    assert play(ready(experiment))[1][0].weight_sum == pytest.approx(1.0)
    assert to.Algorithm().weighting == to.weighting.FedAvg()


@pytest.mark.parametrize(
    "shares", [to.weighting.Shares(), to.weighting.Shares(by="uniform"), to.weighting.Shares(over="unbiased")], ids=str
)
def test_fedavg_is_scheme_b_with_the_missing_shares_spread(shares: to.weighting.Shares):
    """One factor for all, or each missing share spread in proportion: the same weights, also over a cohort."""
    asked = {"shares": shares, "selection": to.selection.Count(3)}
    fedavg = world(COUNTS, *FRACTIONS, weighting=to.weighting.FedAvg(), **asked)
    spread = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare(), substitution=to.substitution.Spread(), **asked)
    torch.testing.assert_close(moved(fedavg), moved(spread), rtol=0, atol=1e-15)


def test_fedavg_with_a_substitution_leaves_the_missing_to_it():
    """As with scheme A's N/K: what pays for the missing is there once."""
    fedavg = world(COUNTS, *FRACTIONS, weighting=to.weighting.FedAvg(), substitution=to.substitution.Spread())
    spread = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare(), substitution=to.substitution.Spread())
    assert torch.equal(moved(fedavg), moved(spread))


@pytest.mark.parametrize(
    "parts",
    [{"personal": to.personal.everything}, {"mixing": to.mixing.FedAMP()}, {"compression": to.compression.TopK(0.5)}],
    ids=lambda parts: next(iter(parts)),
)
def test_a_default_that_renormalises_is_refused_nowhere(parts):
    """A substitution has no effect where everything is personal, and is refused; the default is none."""
    experiment = world(COUNTS, *FRACTIONS, weighting=to.weighting.FedAvg(), **parts)
    assert play(ready(experiment))[1][0].weight_sum == pytest.approx(1.0)


def test_scheme_a_uses_the_complete_and_pays_for_the_rest():
    """a_k = (N p_k / K) [s_k = E]"""
    experiment = world(COUNTS, *FRACTIONS, weighting=to.weighting.CompleteOnly())
    p, N, K = shares(), 4, 2
    torch.testing.assert_close(moved(experiment), expected([N / K * p[0], 0, 0, N / K * p[3]], experiment))


def test_scheme_b_uses_work_as_it_is():
    """a_k = p_k, D_k = 0 for the absent; the missing mass keeps the old model."""
    experiment = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare())
    p = shares()
    torch.testing.assert_close(moved(experiment), expected([p[0], p[1], 0, p[3]], experiment))


def test_scheme_c_scales_by_work():
    """a_k = (E / s_k) p_k, 0 where s_k = 0."""
    experiment = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByWork())
    p = shares()
    torch.testing.assert_close(moved(experiment), expected([p[0], E / 2 * p[1], 0, p[3]], experiment))


@pytest.mark.parametrize("over", ["normalised", "unbiased"])
@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_fednova_normalises_by_steps(over: str, scale_at: str):
    """w + τ_eff Σ p̂_k D_k / a_k, a_k local steps, τ_eff = Σ p̂_k a_k: p̂ of those present, which make up for the rest.

    (SPEC §1.5.) So it is the same with a substitution that spreads the missing shares.
    """
    parts = {"weighting": to.weighting.FedNova(), "shares": to.weighting.Shares(over=over), "scale_at": scale_at}
    experiment = world(COUNTS, *FRACTIONS, **parts)
    p, a = shares(), [8, 6, 0, 16]
    present = p[0] + p[1] + p[3]
    p_hat = [p[0] / present, p[1] / present, 0, p[3] / present]
    tau = sum(p_hat[k] * a[k] for k in range(4))
    coefficient = [tau * p_hat[k] / a[k] if a[k] else 0 for k in range(4)]
    torch.testing.assert_close(moved(experiment), expected(coefficient, experiment))
    torch.testing.assert_close(
        moved(world(COUNTS, *FRACTIONS, substitution=to.substitution.Spread(), **parts)), moved(experiment)
    )


def test_scheme_c_is_fednova_with_tau_fixed_to_the_full_work():
    """SPEC §8 item 2, in steps: equal sizes and E steps asked."""
    local = to.Local(to.SGD(lr=0.1), steps=E, batch_size=4)
    counts, fractions = [8, 8, 8], (1.0, 0.5, 0.25)
    c = world(counts, *fractions, local=local, weighting=to.weighting.ByWork())
    D = local_updates(ready(c))
    steps = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(moved(c), E * ((1 / 3) * D / steps[:, None]).sum(0))


def test_full_turnout_makes_the_schemes_one():
    """SPEC §8 item 1."""
    first, *others = (
        moved(world(COUNTS, weighting=w))
        for w in (to.weighting.FedAvg(), to.weighting.CompleteOnly(), to.weighting.ByShare(), to.weighting.ByWork())
    )
    for other in others:
        torch.testing.assert_close(first, other, rtol=0, atol=1e-15)


def test_uniform_and_unbiased_shares():
    experiment = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare(), shares=to.weighting.Shares(by="uniform"))
    torch.testing.assert_close(moved(experiment), expected([1 / 4, 1 / 4, 0, 1 / 4], experiment))
    everyone = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare(), shares=to.weighting.Shares(over="unbiased"))
    torch.testing.assert_close(moved(everyone), moved(world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare())))


def test_unbiased_shares_over_a_cohort():
    """a_k = n_k / n · N / |cohort| for the two who are asked."""
    experiment = world(
        COUNTS,
        weighting=to.weighting.ByShare(),
        shares=to.weighting.Shares(over="unbiased"),
        selection=to.selection.Count(2),
    )
    prepared = ready(experiment)
    chosen = experiment.algorithm.selection.choose(prepared.server.members, 0, 0).tolist()
    coefficient = [COUNTS[c] / sum(COUNTS) * 4 / 2 if c in chosen else 0.0 for c in range(4)]
    torch.testing.assert_close(moved(experiment), expected(coefficient, experiment))


def test_server_learning_rate_and_cap():
    plain = world(COUNTS, *FRACTIONS)
    torch.testing.assert_close(moved(plain.but(**{"algorithm.server.lr": 0.25})), 0.25 * moved(plain))
    capped = plain.but(**{"algorithm.max_weight": 0.2, "algorithm.scale_at": "server"})
    p = shares()
    torch.testing.assert_close(moved(capped), expected([min(p[0], 0.2), min(2 * p[1], 0.2), 0, min(p[3], 0.2)], plain))


def test_scaling_at_the_server_is_the_same_without_compression():
    at_client = world(COUNTS, *FRACTIONS)
    torch.testing.assert_close(moved(at_client), moved(at_client.but(**{"algorithm.scale_at": "server"})))


def test_dropout_spreads_the_missing_share_in_proportion():
    p = shares()
    b = world(COUNTS, *FRACTIONS, weighting=to.weighting.ByShare(), substitution=to.substitution.Spread())
    present = 1 - p[2]
    torch.testing.assert_close(moved(b), expected([p[0] / present, p[1] / present, 0, p[3] / present], b))


def test_scheme_a_with_a_substitution_drops_its_factor():
    """SPEC §7.3 item 1: complete clients get p_k and what is missing is spread over them; no N/K."""
    p = shares()
    a = world(COUNTS, *FRACTIONS, weighting=to.weighting.CompleteOnly(), substitution=to.substitution.Spread())
    present = p[0] + p[3]
    torch.testing.assert_close(moved(a), expected([p[0] / present, 0, 0, p[3] / present], a))


def test_linear_loss_scheme_c_is_unbiased_and_the_others_are_not():
    """SPEC §8 item 3: with a constant gradient c_k, C moves by -η E Σ_active p_k c_k whatever s."""
    g = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    x = torch.ones(12, 1)
    owner = torch.arange(3).repeat_interleave(4)
    data = to.data.Own(x, g[owner].float(), owner, test=(x, x), test_share=0.0, classes=1)
    task = to.tasks.Task(loss=lambda output, target: (output * target).squeeze(1))
    model = torch.nn.Linear(1, 1, bias=False)

    def step(weighting: to.weighting.Weighting) -> float:
        local = to.Local(to.SGD(lr=0.1), steps=E, batch_size=4)
        experiment = to.Experiment(
            to.World(data, Given(1.0, 0.5, 0.25)), model, to.Algorithm(local, weighting=weighting), task,
            runtime=to.runtime.InProcess(precision="float64", threads=1),
        )  # fmt: skip
        return float(moved(experiment))

    full = -0.1 * E * float((g / 3).sum())
    assert step(to.weighting.ByWork()) == pytest.approx(full)
    assert step(to.weighting.ByShare()) == pytest.approx(-0.1 * float((g / 3 * torch.tensor([4, 2, 1])).sum()))
    assert step(to.weighting.CompleteOnly()) == pytest.approx(-0.1 * E * 3 * float(g[0] / 3))


def test_an_absent_client_is_invisible():
    """Fill its data with NaN and nothing changes."""
    plain = world(COUNTS, *FRACTIONS)
    own = blobs(COUNTS)
    prepared = ready(plain)
    poisoned = ready(plain)
    rows = torch.tensor([i for i, c in enumerate(own.owner.tolist()) if c == 2])
    poisoned.runtime.clients.federation.x[rows] = float("nan")
    (a, ra), (b, rb) = play(prepared, 3), play(poisoned, 3)
    assert torch.equal(a.shared_P, b.shared_P)
    assert [r.train_loss for r in ra] == [r.train_loss for r in rb]


def test_a_short_batch_is_not_filled_up_with_another_clients_sample():
    """Rows 0 to 7 are client 0's, who is absent; the others' batches of 4 and 3 are padded, and a mask hides no NaN."""
    plain = world([8, 7, 5], 0.0, 1.0, 1.0)
    prepared, poisoned = ready(plain), ready(plain)
    poisoned.runtime.clients.federation = dataclasses.replace(
        poisoned.runtime.clients.federation,
        x=poisoned.runtime.clients.federation.x.clone().index_fill(0, torch.arange(8), torch.nan),
    )
    assert torch.equal(play(prepared)[0].shared_P, play(poisoned)[0].shared_P)


def test_work_is_a_fraction_in_full_precision():
    _, (record,) = play(ready(world([12], 0.34)))  # 4 of 12 mini-batches
    assert record.clients["work"].tolist() == [4 / 12]


def test_a_participation_that_does_not_fit_the_work_is_refused_before_the_first_round():
    one = world([8, 8], local=to.Local(to.SGD(), epochs=1)).but(**{"world.participation": to.participation.Traces()})
    with pytest.raises(UserError, match="at least 2"):
        ready(one)


@pytest.mark.parametrize(
    ("part", "value"),
    [("substitution", to.substitution.Spread()), ("terms", (to.terms.Proximal(),))],
    ids=["substitution", "terms"],
)
def test_a_part_that_is_about_shared_parameters_needs_some(part, value):
    experiment = world([8, 8], personal=to.personal.everything, **{part: value})
    with pytest.raises(UserError, match=f"leave algorithm.{part} out"):
        ready(experiment)


@pytest.mark.parametrize(
    ("fractions", "weighting", "why"),
    [
        ((0.0, 0.0, 0.0, 0.0), to.weighting.ByWork(), "no client answered"),
        ((0.5, 0.25, 0.0, 0.75), to.weighting.CompleteOnly(), "no client's work counts"),
        ((0.01, 0.0, 0.0, 0.0), to.weighting.ByShare(), "no client answered"),
    ],
)
def test_a_round_with_nobody_changes_nothing(fractions, weighting, why):
    """SPEC §7.4: skip, no state but the round counter changes; the clock still advances."""
    experiment = world(COUNTS, *fractions, weighting=weighting)
    experiment = experiment.but(**{"algorithm.local.schedule": to.InverseClock()})
    prepared = ready(experiment)
    server, records = play(prepared, 2)
    assert server is prepared.server
    assert [r.skipped for r in records] == [why, why]
    assert [r.lr for r in records] == [0.1, 0.05]


def test_a_client_whose_update_is_not_finite_stops_the_run_or_counts_as_absent():
    def plain() -> to.Experiment:
        return world(COUNTS, weighting=to.weighting.ByShare(), local=to.Local(to.SGD(lr=0.1), epochs=1, batch_size=4))

    poisoned = ready(plain())
    poisoned.runtime.clients.federation.x[9] = float("inf")  # a sample of client 1
    with pytest.raises(UserError, match="client 1 in round 0"):
        play(poisoned)
    poisoned = ready(plain(), **{"algorithm.nonfinite": "absent"})
    poisoned.runtime.clients.federation.x[9] = float("inf")
    server, (record,) = play(poisoned)
    p, D = shares(), local_updates(ready(plain()))
    torch.testing.assert_close(server.shared_P - poisoned.server.shared_P, p[0] * D[0] + p[2] * D[2] + p[3] * D[3])
    assert record.extra["nonfinite_clients"] == "1"


def test_replies_that_are_not_finite_are_left_out_row_by_row():
    """Of clients 4, 6, 9 the second is not finite: the others' rows stay together, of every tensor."""
    values = torch.tensor([[1.0], [torch.nan], [3.0]])
    report = {"finite": torch.tensor([True, False, True]), "loss": torch.tensor([0.1, torch.inf, 0.3])}
    message = Message({"flat": values}, torch.tensor([10, 20, 30]), decoded=values)
    replies = Replies(torch.tensor([4, 6, 9]), message, {"mean": values}, {"term": {"c": values}}, report)
    kept = finite_replies(replies, "absent", t=2)
    assert kept.client_R.tolist() == [4, 9]
    assert kept.message.bytes_C.tolist() == [10, 30]
    rows = (kept.message.tensors["flat"], kept.message.decoded, kept.states["mean"], kept.uploads["term"]["c"])
    assert all(row is not None and row.flatten().tolist() == [1.0, 3.0] for row in rows)
    assert kept.report["finite"].tolist() == [True, True]
    with pytest.raises(UserError, match=r"client 6 in round 2 is not finite \(its training loss was inf\)"):
        finite_replies(replies, "stop", t=2)
    assert finite_replies(kept, "stop", t=2) is kept


@pytest.mark.parametrize("scheme", ["A", "B", "C"])
def test_whoever_turns_up_has_downloaded(scheme: str):
    """0 and 3 finish, 1 does half, 2 is absent: three downloads; under A only two of them come to an update."""
    weighting = {"A": to.weighting.CompleteOnly(), "B": to.weighting.ByShare(), "C": to.weighting.ByWork()}[scheme]
    _, (record,) = play(ready(world(COUNTS, *FRACTIONS, weighting=weighting)))
    model, nothing = 4 * 18, float("nan")
    assert record.clients["bytes_down"].tolist() == pytest.approx([model, model, nothing, model], nan_ok=True)
    assert record.bytes_down == 3 * model
    up = [model, nothing if scheme == "A" else model, nothing, model]
    assert record.clients["bytes_up"].tolist() == pytest.approx(up, nan_ok=True)
    assert record.bytes_up == sum(value == model for value in up) * model


def test_downloads_of_a_round_in_which_nobody_finishes_are_counted():
    """K = 0 under A: the round is skipped, and has cost what three devices fetched: model and BatchNorm's states."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    experiment = world(COUNTS, 0.5, 0.5, 0.0, 0.25, weighting=to.weighting.CompleteOnly())
    _, (record,) = play(ready(dataclasses.replace(experiment, model=model)))
    each = 4 * (5 * 6 + 6 + 12 + 6 * 3 + 3) + 4 * 12 + 8  # parameters; mean and variance; batches counted
    assert record.skipped == "no client's work counts"
    assert (record.bytes_up, record.bytes_down) == (0, 3 * each)
    _, (silent,) = play(ready(world(COUNTS, 0.0, 0.0, 0.0, 0.0, weighting=to.weighting.CompleteOnly())))
    assert (silent.bytes_up, silent.bytes_down) == (0, 0)


def test_the_record_says_who_turned_up_and_what_they_weighed():
    _, (record,) = play(ready(world(COUNTS, *FRACTIONS)))
    p = shares()
    assert (record.asked, record.answered, record.counted, record.members) == (4, 3, 3, 4)
    assert record.work == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert record.clients["work"].tolist() == [1.0, 0.5, 0.0, 1.0]
    assert record.clients["weight"].tolist() == pytest.approx([p[0], p[1], 0, p[3]])
    assert record.weight_sum == pytest.approx(p[0] + p[1] + p[3])
    assert record.bytes_up == 3 * 4 * 18
    assert record.bytes_down == 3 * 4 * 18


def test_batch_norm_states_are_averaged_by_plain_shares_and_stay_positive():
    """SPEC §7.1: convex, never scaled by E/s; variance > 0 under every scheme."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    experiment = dataclasses.replace(world(COUNTS, 1.0, 0.25, 0.0, 0.5), model=model)
    for weighting in (
        to.weighting.ByShare(),
        to.weighting.ByWork(),
        to.weighting.CompleteOnly(),
        to.weighting.FedNova(),
    ):
        prepared = ready(experiment, **{"algorithm.weighting": weighting})
        server, _ = play(prepared, 4)
        assert (server.states["1.running_var"] > 0).all()
        assert server.states["1.num_batches_tracked"].dtype == torch.int64
    engines = []
    for engine in ("vmap", "loop"):
        prepared = ready(experiment, **{"runtime.engine": engine})
        engines.append(play(prepared, 3)[0])
    for name in engines[0].states:
        torch.testing.assert_close(engines[0].states[name], engines[1].states[name])


def test_personal_parameters_stay_home():
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    experiment = dataclasses.replace(world(COUNTS, *FRACTIONS), model=model)
    prepared = ready(experiment, **{"algorithm.personal": to.personal.batch_norm})
    server, _ = play(prepared, 2)
    assert server.shared_P.numel() == 5 * 6 + 6 + 6 * 3 + 3
    rows = prepared.runtime.clients.store.gather(torch.arange(4))
    first = prepared.runtime.clients.store.initial["personal"]
    assert not torch.equal(rows["personal"][0], rows["personal"][1])
    assert torch.equal(rows["personal"][2], first), "the absent client's layers have moved"
    assert torch.equal(rows["state/1.running_mean"][2], torch.zeros(6, dtype=torch.float64))


def test_engines_chunks_and_threads_give_the_same_rounds():
    local = to.Local(to.SGD(lr=0.1), epochs=4, batch_size=4)
    experiment = world(COUNTS, *FRACTIONS, local=local, terms=(to.terms.Proximal(0.3),))
    results = []
    for changes in (
        {"runtime.engine": "loop"},
        {"runtime.engine": "vmap"},
        {"runtime.engine": "by-hand"},
        {"runtime.chunk": 1, "runtime.threads": 2},
        {"runtime.chunk": 3, "runtime.threads": 2},
    ):
        results.append(play(ready(experiment, **changes), 3)[0].shared_P)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-13)


def test_a_model_that_cannot_be_vectorised_falls_back_to_the_loop_with_a_warning():
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x if float(x.sum()) > 0 else -x)

    experiment = dataclasses.replace(world(COUNTS), model=Branching())
    with pytest.warns(UserWarning, match="one at a time"):
        prepared = ready(experiment)
    assert type(prepared.runtime.clients.trainer.workers.first).__name__ == "Looped"
    play(prepared)


def test_momentum_scales_by_the_sum_of_its_coefficients():
    """SPEC §7.3 item 25: with momentum use FedNova's normaliser a_k. Constant gradients make it exact."""
    g = torch.tensor([1.0, -2.0], dtype=torch.float64)
    x, owner = torch.ones(8, 1), torch.arange(2).repeat_interleave(4)
    data = to.data.Own(x, g[owner].float(), owner, test=(x, x), test_share=0.0, classes=1)
    task = to.tasks.Task(loss=lambda output, target: (output * target).squeeze(1))
    local = to.Local(to.SGD(lr=0.1, momentum=0.9), steps=6, batch_size=4)
    results = []
    for fractions in ((1.0, 1.0), (1.0, 0.5)):
        experiment = to.Experiment(
            to.World(data, Given(*fractions)), torch.nn.Linear(1, 1, bias=False),
            to.Algorithm(local, weighting=to.weighting.ByWork()), task,
            runtime=to.runtime.InProcess(precision="float64", threads=1),
        )  # fmt: skip
        results.append(float(moved(experiment)))
    assert results[0] == pytest.approx(results[1])


def test_a_term_with_state_on_both_sides_is_one_small_object():
    """Full work, two rounds, by hand: round 1's gradients are corrected by what round 0 left behind."""
    local = to.Local(to.SGD(lr=0.1), steps=1, batch_size=16)
    counts = [4, 8]
    experiment = world(counts, 1.0, 1.0, local=local, terms=(Control(),), weighting=to.weighting.ByShare())
    prepared = ready(experiment)
    server, records = play(prepared, 2)
    plain = ready(experiment.but(**{"algorithm.terms": ()}))
    first, _ = play(plain, 1)
    # After a full-batch round c_k is client k's gradient at w_0 and c their plain mean.
    D0 = local_updates(plain)
    g0 = -D0 / 0.1
    c = g0.mean(0)
    moved_plain = dataclasses.replace(first)
    second, _ = prepared_round_from(plain, moved_plain)
    p = torch.tensor([4 / 12, 8 / 12], dtype=torch.float64)
    correction = (p[:, None] * (-g0 + c)).sum(0)
    torch.testing.assert_close(server.shared_P, second.shared_P - 0.1 * correction)
    assert records[0].extra["reporters"] == 2.0


def prepared_round_from(prepared, server):
    return prepared.round(server, 1)


def test_a_client_that_diverges_leaves_no_trace_where_it_counts_as_absent():
    """Neither in the terms' broadcast, nor in its own state, nor in the training loss; the run goes on."""
    experiment = world(COUNTS, terms=(Control(),)).but(**{"algorithm.nonfinite": "absent"})
    prepared = ready(experiment)
    prepared.runtime.clients.federation.x[9] = float("inf")  # a sample of client 1
    server, records = play(prepared, 3)
    assert torch.isfinite(server.shared_P).all()
    assert torch.isfinite(server.term_states["control"]["c"]).all()
    assert [r.counted for r in records] == [3, 3, 3]
    assert all(r.train_loss == r.train_loss for r in records)
    kept = prepared.runtime.clients.store.gather(torch.tensor([1, 0]))["term/control/c"]
    assert (kept[0] == 0).all()
    assert (kept[1] != 0).any()


def test_a_term_may_put_a_new_tensor_in_its_state():
    class Counting(to.terms.LocalTerm):
        name = "counting"

        def client_state(self, initial_P):
            return {"n": torch.zeros(1)}

        def transform_grad(self, grad_cP, at, server_state, client_state):
            client_state["n"] = client_state["n"] + 1
            return grad_cP

    for model in (None, torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))):
        experiment = world(COUNTS, terms=(Counting(),))
        if model is not None:
            experiment = dataclasses.replace(experiment, model=model)
        prepared = ready(experiment)
        play(prepared)
        rows = prepared.runtime.clients.store.gather(torch.arange(4))
        assert rows["term/counting/n"].squeeze(1).tolist() == [8, 12, 4, 16]


@pytest.mark.parametrize("field", ["strong_convexity", "expected_work", "full_work", "gamma"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_the_rate_of_the_theorem_needs_numbers_above_0(field: str, value: float):
    fields = {"strong_convexity": 1.0, "expected_work": 2.0, "full_work": 4.0, "gamma": 400.0} | {field: value}
    with pytest.raises(UserError, match=f"{field} must be above 0, not {value}"):
        to.schedules.TheoryRate(**fields)


# -- what parts of one's own may need


@dataclass(frozen=True)
class FedDyn(to.terms.LocalTerm, to.terms.ServerShift, to.terms.SelectiveDownload):
    """FedDyn (Acar et al., 2021): local gradient g - h_k + α (w - w_start); the server moves by -h / α."""

    alpha: float = 0.5
    name: str = "feddyn"

    def server_state(self, initial_P):
        return {"h": torch.zeros_like(initial_P)}

    def broadcast(self, server_state):
        return {}

    def client_state(self, initial_P):
        return {"h": torch.zeros_like(initial_P)}

    def transform_grad(self, grad_cP, at, server_state, client_state):
        return grad_cP.sub_(client_state["h"]).add_(at.x_cP - at.start_cP, alpha=self.alpha)

    def finish(self, at, server_state, client_state):
        return {}, {"h": client_state["h"] - self.alpha * (at.x_cP - at.start_cP)}

    def _next(self, server_state, aggregate):
        moved_RP = aggregate.models() - aggregate.start_P
        return server_state["h"] - self.alpha * moved_RP.sum(0) / aggregate.objective_size

    def server_shift(self, server_state, aggregate):
        return -self._next(server_state, aggregate) / self.alpha

    def server_update(self, server_state, upload, applied):
        return {"h": self._next(server_state, applied)}, {}


def test_a_term_may_move_the_model_beside_the_sum():
    testing.check_term(FedDyn())
    prepared = ready(
        world(COUNTS, terms=[FedDyn()], weighting=to.weighting.ByShare(), shares=to.weighting.Shares(by="uniform"))
    )
    w = prepared.server.shared_P
    ends = [walk(prepared, k, 0, w, lambda x, g, at, j: g + 0.5 * (x - w))[0] for k in range(4)]
    server, _ = play(prepared)
    mean = torch.stack(ends).mean(0)
    h = -0.5 * (mean - w)
    torch.testing.assert_close(server.shared_P, mean - h / 0.5)
    torch.testing.assert_close(server.term_states["feddyn"]["h"], h)


@dataclass(frozen=True)
class MomentumWithDecay:
    """FedAvgM with weight decay: it needs the weights, not only the sum."""

    decay: float = 0.1

    def begin(self, width):
        return {"m": torch.zeros(width)}

    def step(self, update_P, state, aggregate):
        m = 0.9 * state["m"] + update_P
        return m - self.decay * aggregate.start_P, {"m": m}


def test_a_server_step_sees_the_weights_and_the_replies():
    testing.check_server_step(MomentumWithDecay())
    (a, _), (b, _) = (play(ready(world(COUNTS, server=step))) for step in (to.server.ServerSGD(), MomentumWithDecay()))
    start = ready(world(COUNTS)).server.shared_P
    torch.testing.assert_close(b.shared_P, a.shared_P - 0.1 * start)


@dataclass(frozen=True)
class SignSGD(to.SGD):
    """A subclass of SGD with a step of its own."""

    def step(self, x_cP, grad_cP, slots, count_c, lr):
        x_cP.sub_(grad_cP.sign(), alpha=lr)


def test_a_subclass_of_sgd_takes_its_own_steps():
    local = to.Local(SignSGD(lr=0.1), steps=1, batch_size=8)
    prepared = ready(world(COUNTS, local=local))
    server, _ = play(prepared)
    moved = (server.shared_P - prepared.server.shared_P) / 0.1
    assert moved.abs().max() <= 1 + 1e-9
    assert (moved.abs() > 0.2).any()


@dataclass(frozen=True)
class WithoutTheLongest:
    """Leaves out the longest update, as Krum and its like leave out some."""

    linear: ClassVar[bool] = False

    def combine(self, updates, weight_R):
        used_R = torch.ones(len(weight_R), dtype=torch.bool)
        used_R[updates.update_RP.norm(dim=1).argmax()] = len(weight_R) == 1
        kept = weight_R[used_R].to(updates.update_RP)
        sum_P = kept @ updates.update_RP[used_R] * (weight_R.sum() / kept.sum()).to(kept)
        return Combined(sum_P, used_R, {"left_out": int((~used_R).sum())})


def test_a_reply_that_the_aggregation_does_not_use_leaves_no_trace():
    """Its weight is 0, its control variate is not merged, its client keeps what it had."""
    prepared = ready(world(COUNTS, terms=[to.terms.Scaffold()], aggregation=WithoutTheLongest()))
    server, (record,) = play(prepared)
    assert record.extra["left_out"] == 1
    assert record.counted == 3
    out = int((record.clients["weight"] == 0).nonzero())
    c_k = prepared.runtime.clients.store.gather(torch.arange(4))["term/scaffold/c"]
    assert (c_k[out] == 0).all()
    share = record.clients["share"].to(c_k)
    torch.testing.assert_close(server.term_states["scaffold"]["c"], share @ c_k)


@dataclass(frozen=True)
class HighestLoss(Selection):
    """Power of choice: of those whose loss is known, the one that is worst off; everybody in the first round."""

    def choose(self, members, t, seed, state):
        if not len(state["loss"]):
            return members.ids()
        return state["client"][state["loss"].argmax()][None]

    def begin(self):
        return {"client": torch.empty(0, dtype=torch.int64), "loss": torch.empty(0)}

    def observe(self, state, applied):
        return {"client": applied.client_R, "loss": applied.loss_R}


def test_a_selection_may_remember_losses(tmp_path):
    experiment = world(COUNTS, selection=HighestLoss())
    _, (first, second, _) = play(ready(experiment), 3)
    assert second.clients["client"].tolist() == [int(first.clients["loss"].argmax())]
    resumed = stopped_and_resumed(experiment, tmp_path / "resumed", after=1)
    whole = folder_run(experiment, tmp_path / "whole")
    assert same(resumed.folder / "records.sqlite", whole.folder / "records.sqlite") == []


def test_who_replied_stands_for_the_shares_of_all_whatever_they_sum_to():
    """Unbiased shares sum to 0.6 here, those who replied have 0.3. FedNova: τ_eff = (0.1 · 4 + 0.2 · 2) / 0.3 = 8/3."""
    share_C, counts_C = torch.tensor([0.1, 0.3, 0.2]).double(), torch.tensor([True, False, True])
    steps_C = torch.tensor([4.0, 0.0, 2.0]).double()
    turnout = Turnout(torch.arange(3), steps_C, 4.0, steps_C, torch.full((3,), 4.0).double())
    for weighting, alone in ((to.weighting.FedAvg(), 1.0), (to.weighting.FedNova(), 8 / 3)):
        for lent, factor in ((False, 0.6 / 0.3), (True, 1.0)):
            found_C = weighting.server_scale(share_C, counts_C, turnout, lent)
            torch.testing.assert_close(found_C, torch.full((3,), factor * alone).double())
