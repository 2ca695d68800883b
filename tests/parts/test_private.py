"""Private rounds against the formula: absent and partial clients, every factor inside the clip, noise as a stream."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnout as to
from parity import RUNTIMES, RuntimeComparison, acceptable
from same_rows import same
from turnout.errors import UserError
from turnout.parts.privacy.accountant import epsilon_of
from turnout.parts.privacy.factorisation import factorise
from turnout.parts.privacy.ledger import count_again
from turnout.parts.privacy.noise import draw_noise, next_noise
from turnout.parts.selection import MinSeparation
from turnout.running.config.read import load
from turnout.running.loop import begin, rounds_of
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.records import Records
from turnout.runtimes.crew import WORKERS
from turnout.world.members import Members
from worlds import folder_run, local_updates, play, ready, stopped_and_resumed, walk, world

COUNTS = [8, 12, 4, 16]
FRACTIONS = (1.0, 0.5, 0.0, 1.0)  # of 4 steps: 4, 2, none, 4
STEPS = to.Local(to.SGD(lr=0.1), steps=4, batch_size=4)
SILENT = 1e-12  # a noise multiplier without effect
C, N0 = 0.2, 5.0


def private(**settings) -> to.Private:
    return to.Private(**({"clip": C, "n0": N0, "delta": 1e-3, "noise_multiplier": SILENT} | settings))


def clipped(vector: Tensor, length: float = C) -> Tensor:
    return vector * min(1.0, length / float(vector.norm()))


def moved(experiment: to.Experiment) -> Tensor:
    prepared = ready(experiment)
    return play(prepared)[0].shared_P - prepared.server.shared_P


def epsilons(run: to.Run) -> list[float]:
    """ε of the rounds that released something."""
    with run.records() as records:
        return [e for e in records.rounds()["epsilon"].tolist() if not math.isnan(e)]


# -- what is clipped, summed and divided


@pytest.mark.parametrize(
    ("weighting", "factors", "after"),
    [
        (to.weighting.FedAvg(), [1, 1, 0, 1], 1.0),
        (to.weighting.ByShare(), [1, 1, 0, 1], 1.0),
        (to.weighting.ByWork(), [1, 2, 0, 1], 1.0),  # E / s inside the clip
        (to.weighting.CompleteOnly(), [1, 0, 0, 1], 4 / 2),  # N / K after the noise
        (to.weighting.FedNova(), [1 / 4, 1 / 2, 0, 1 / 4], (10 / 3) * (4 / 3)),  # τ_eff N / K after the noise
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_factors_of_a_clients_own_are_inside_the_clip_and_common_ones_after_it(weighting, factors, after, scale_at):
    experiment = world(COUNTS, *FRACTIONS, weighting=weighting, local=STEPS, scale_at=scale_at)
    parts = [f * u for f, u in zip(factors, local_updates(ready(experiment)), strict=True) if f]
    clip = (min(float(u.norm()) for u in parts) + max(float(u.norm()) for u in parts)) / 2  # one is longer, one is not
    expected = sum(clipped(u, clip) for u in parts) * after / N0
    torch.testing.assert_close(moved(experiment.but(**{"algorithm.privacy": private(clip=clip)})), expected)


def test_the_boost_of_a_newcomer_and_lent_shares_are_inside_the_clip():
    events = [to.Join(client=3, round=0)]
    experiment = world(
        COUNTS, *FRACTIONS, local=STEPS, weighting=to.weighting.ByShare(), substitution=to.substitution.Spread(),
        privacy=private(),
    ).but(**{"world.events": events})  # fmt: skip
    updates = local_updates(ready(experiment))
    lent = 1 / 3  # the missing share, spread over three
    expected = sum(clipped((own + lent) * updates[k]) for k, own in ((0, 1.0), (1, 1.0), (3, 3.0))) / N0
    torch.testing.assert_close(moved(experiment), expected)


def test_scaffold_is_clipped_as_one_vector_and_its_variate_comes_from_the_noised_sum():
    """(Δ, λ Δc) is clipped together; c = Σ clipped Δc / N."""
    experiment = world(
        COUNTS, *FRACTIONS, local=STEPS, weighting=to.weighting.ByShare(), terms=[to.terms.Scaffold()],
        privacy=private(beside=0.5),
    )  # fmt: skip
    prepared = ready(experiment)
    server, _ = play(prepared)
    step, variate = torch.zeros(18).double(), torch.zeros(18).double()
    for k in (0, 1, 3):
        end, s = walk(prepared, k, 0, prepared.server.shared_P)
        update = end - prepared.server.shared_P
        change = -update / (s * 0.1)
        both = clipped(torch.cat([update, 0.5 * change]))
        step, variate = step + both[:18], variate + both[18:] / 0.5
    torch.testing.assert_close(server.shared_P - prepared.server.shared_P, step / N0)
    torch.testing.assert_close(server.term_states["scaffold"]["c"], variate / 4)


@pytest.mark.parametrize("noise", ["gaussian", "banded", "blt"])
def test_a_reply_that_is_not_finite_is_neither_summed_nor_counted(noise):
    """The round is prepared for all replies that are expected, and client 1's turns out not to be usable."""
    settings = {"noise": noise, "noise_multiplier": 0.7, "min_separation": 2}
    sick = ready(world(COUNTS, local=STEPS, nonfinite="absent", privacy=private(**settings)))
    federation = sick.runtime.clients.federation
    federation.x[federation.train(torch.tensor([1]), 0).row_R] = torch.nan
    away = ready(world(COUNTS, 1.0, 0.0, 1.0, 1.0, local=STEPS, privacy=private(**settings)))
    (found, (record,)), (expected, _) = play(sick), play(away)
    assert record.extra["nonfinite_clients"] == "1"
    torch.testing.assert_close(found.shared_P, expected.shared_P, rtol=0, atol=0)
    for server in (found, expected):
        assert server.privacy["ledger"]["client"].tolist() == [0, 2, 3]
        assert server.selection["client"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("noise", ["gaussian", "banded", "blt"])
def test_noise_is_added_to_the_sum_before_the_server_step(noise):
    """w = Σ_t η_s (Σ clipped u + z C (C⁻¹ z)_t) / n0, by the dense inverse; nothing is added where nobody replied."""
    experiment = world(
        COUNTS, 1.0, 1.0, 1.0, 1.0, local=STEPS, server=to.server.ServerSGD(lr=2.0),
        privacy=private(noise=noise, noise_multiplier=0.7, min_separation=2, secret=False),
    ).but(rounds=6)  # fmt: skip
    quiet = ready(experiment.but(**{"algorithm.privacy.noise_multiplier": SILENT}))
    prepared = ready(experiment)
    noisy, silent = prepared.begin(), quiet.begin()
    coef_T = factorise(noise, 6, 2).coefficients(6)
    C_TT = torch.stack([torch.cat([torch.zeros(i), coef_T[: 6 - i]]) for i in range(6)], 1).double()
    z_TP = torch.stack([draw_noise(experiment.seed, t, "update", noisy.shared_P) for t in range(6)])
    noise_TP = torch.linalg.inv(C_TT) @ z_TP
    for t in (0, 2, 4):  # the clients rest in between
        shared_P = noisy.shared_P
        noisy, record = prepared.round(noisy, t)
        silent, _ = quiet.round(replace(silent, shared_P=shared_P), t)
        assert record.counted == 4
        expected = 2.0 * 0.7 * C * noise_TP[t] / N0
        torch.testing.assert_close(noisy.shared_P - silent.shared_P, expected, rtol=1e-6, atol=1e-9)
        resting, record = prepared.round(noisy, t + 1)
        assert record.skipped == "no client was asked"
        assert torch.equal(resting.shared_P, noisy.shared_P)


@pytest.mark.parametrize("noise", ["banded", "blt"])
def test_a_stream_has_the_covariance_of_the_inverse(noise):
    """Over 20,000 columns: C (C⁻¹ z) is white."""
    factorisation, like, stream, rows = factorise(noise, 12, 4), torch.zeros(20_000).double(), {}, []
    for t in range(12):
        row, stream = next_noise(factorisation, stream, like, (1, t, "x"))
        rows.append(row)
    coef_T = factorisation.coefficients(12)
    C_TT = torch.stack([torch.cat([torch.zeros(i), coef_T[: 12 - i]]) for i in range(12)], 1).double()
    white_TP = C_TT @ torch.stack(rows)
    assert float((white_TP @ white_TP.T / 20_000 - torch.eye(12)).abs().max()) < 5 * math.sqrt(2 / 20_000)
    assert len(stream) <= 5  # the round, and 3 vectors or one matrix of buffers


def test_what_later_steps_see_of_the_replies_is_the_noised_sum():
    """Moving data between clients without changing the sum changes nothing that a term, a selection or a step sees."""
    seen = []

    class Looks(to.terms.LocalTerm):
        name = "looks"

        def finish(self, at, server_state, client_state):
            return {"ends": at.x_cP}, client_state

        def server_update(self, server_state, upload, applied):
            seen.append((upload["ends"], applied.update_RP, applied.loss_R, applied.states, applied.hints))
            return server_state, {}

    play(ready(world(COUNTS, *FRACTIONS, local=STEPS, terms=[Looks()], privacy=private(noise_multiplier=1.0))))
    ends, updates, loss, states, hints = seen[0]
    assert bool((ends == ends[:1]).all())
    assert bool((updates == updates[:1]).all())
    assert (loss, states, hints) == (None, {}, {})


def test_sums_of_squares_stay_above_zero_after_the_noise():
    experiment = world(
        COUNTS, local=STEPS, terms=[to.terms.Elastic(1e-3)], privacy=private(noise_multiplier=5.0, clip=1.0)
    )
    server, _ = play(ready(experiment))
    state = server.term_states["elastic"]
    assert float(state["U"].min()) == 0.0  # some were negative
    assert float(state["V"].min()) < 0.0


# -- the clipping length


def test_the_clipping_length_follows_the_quantile():
    """C <- C exp(-η (b - γ)), b the share of contributions that are not longer."""
    settings = {"quantile": 0.5, "clip_noise": 1e-9, "noise_multiplier": 1e-10, "clip_rate": 0.2}
    experiment = world(COUNTS, *FRACTIONS, local=STEPS, weighting=to.weighting.ByShare(), privacy=private(**settings))
    prepared = ready(experiment)
    lengths = local_updates(prepared)[[0, 1, 3]].norm(dim=1)
    short = int((lengths <= C).sum())
    assert 0 < short < 3
    server, records = play(prepared)
    assert server.privacy["clip"] == pytest.approx(C * math.exp(-0.2 * (short / 3 - 0.5)))
    assert records[0].extra["clip"] == C
    for t in range(1, 60):
        server, _ = prepared.round(server, t)
    after = local_updates(prepared)  # about as long in every round: the problem is convex and the steps are short
    assert float(after[[0, 1, 3]].norm(dim=1).min()) / 3 < server.privacy["clip"] < 3 * float(after.norm(dim=1).max())


def test_the_noise_of_the_bit_is_paid_by_the_sum():
    adaptive = private(noise_multiplier=1.0, quantile=0.5, clip_noise=1.0)
    z = adaptive._multiplier(adaptive.tied(3).begin())
    assert z**-2 + 2.0**-2 == pytest.approx(1.0)
    with pytest.raises(UserError, match="clip_noise"):
        private(noise_multiplier=2.0, quantile=0.5, clip_noise=1.0).tied(3).begin()


# -- participation, ε and the budget


def test_min_separation_skips_who_took_part_recently_or_often_enough():
    selection = MinSeparation(2, most=2, of=to.selection.Everyone())

    class Applied:
        def __init__(self, t: int, *clients: int):
            self.t, self.client_R = t, torch.tensor(clients)

    state, asked = selection.begin(), []
    for t, who in enumerate([(0, 2), (1,), (0,), (3, 1), (), (2,)]):
        asked.append(selection.choose(Members(4), t, 0, state).tolist())
        assert set(who) <= set(asked[-1])
        state = selection.observe(state, Applied(t, *who)) if who else state
    assert asked == [[0, 1, 2, 3], [1, 3], [0, 2, 3], [1, 2, 3], [2], [2, 3]]
    assert selection.choose(Members(4), 6, 0, state).tolist() == [3]
    assert selection.choose(Members(3), 6, 0, state).tolist() == []


@pytest.mark.parametrize("closing", [None, to.closing.Buffered(size=2), to.closing.FirstReplies(share=0.5, late="use")])
def test_no_client_takes_part_more_often_or_closer_than_promised(tmp_path: Path, closing):
    """With 30 % dropout, late replies and joins; the record has ε of every round that released something."""
    experiment = to.Experiment(
        world=to.World(to.data.Synthetic(clients=12), to.participation.Dropout(0.3)),
        algorithm=to.Algorithm(
            local=STEPS, selection=to.selection.Count(4), privacy=private(epsilon=4, min_separation=3, most=4)
        ),
        rounds=20,
    )
    if closing is not None:
        experiment = experiment.but(**{"world.devices": to.devices.Tiers(), "algorithm.closing": closing})
    experiment = experiment.but(**{"algorithm.privacy.noise_multiplier": None})
    run = folder_run(experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        rows, rounds = records.clients(), records.rounds()
    took: dict[int, list[int]] = {}
    for client, t, weight in zip(rows["client"].tolist(), rows["round"].tolist(), rows["weight"].tolist(), strict=True):
        if weight and weight > 0:
            took.setdefault(client, []).append(t)
    assert max(map(len, took.values())) == 4
    assert min(b - a for who in took.values() for a, b in pairwise(who)) >= 3
    released = rounds["counted"] > 0
    assert released.sum() >= 12
    assert (rounds["epsilon"][released] <= 4 * (1 + 1e-9)).all()
    assert rounds["epsilon"][released].max() == pytest.approx(4.0)
    assert (rounds["epsilon_realised"][released] <= rounds["epsilon"][released]).all()
    assert run.final("global_accuracy") > 0


def test_epsilon_of_the_realised_turnout_is_that_of_the_client_that_took_part_most():
    draw, factorisation = torch.Generator().manual_seed(0), factorise("blt", 30, 3)
    client_M, round_M = torch.randint(0, 4, (40,), generator=draw), torch.randint(0, 30, (40,), generator=draw)
    pairs = torch.stack([client_M, round_M]).unique(dim=1)
    largest = max(factorisation.realised(pairs[1][pairs[0] == c], 30) for c in range(4))
    assert math.sqrt(count_again(*pairs, factorisation, 30)["most"]) == pytest.approx(largest)


def test_a_run_that_would_exceed_its_budget_stops_before_that_round(tmp_path: Path):
    once = epsilon_of(1 / 1.5, 1e-3)
    experiment = world(COUNTS, local=STEPS, privacy=private(noise_multiplier=1.5, epsilon=once * 1.9)).but(rounds=9)
    run = folder_run(experiment, tmp_path / "run")
    epsilon = epsilons(run)
    assert epsilon == pytest.approx([epsilon_of(math.sqrt(t + 1) / 1.5, 1e-3) for t in range(len(epsilon))])
    assert epsilon[-1] <= once * 1.9 < epsilon_of(math.sqrt(len(epsilon) + 1) / 1.5, 1e-3)
    why = json.loads((tmp_path / "run" / "state.json").read_text())["why"]
    assert why.startswith(f"the privacy budget ε = {once * 1.9:g} is spent: round {len(epsilon)} would raise it to")
    assert run.final("global_accuracy") > 0
    to.run(experiment, tmp_path / "run", resume=True, quiet=True)
    assert to.open_run(tmp_path / "run").rounds() == len(epsilon)  # nothing more, and nothing lost


@pytest.mark.parametrize("noise", ["gaussian", "banded", "blt"])
def test_a_run_that_was_interrupted_continues_its_noise_and_its_ledger(tmp_path: Path, noise):
    experiment = world(
        COUNTS, *FRACTIONS, local=STEPS, terms=[to.terms.Scaffold()],
        privacy=private(noise_multiplier=1.0, noise=noise, min_separation=2, most=3),
    ).but(rounds=8)  # fmt: skip
    folder_run(experiment, tmp_path / "whole")
    stopped_and_resumed(experiment, tmp_path / "parts", after=4)
    assert same(*(tmp_path / name / "records.sqlite" for name in ("whole", "parts"))) == []


def test_more_rounds_on_resume_keep_the_noise_and_stop_at_the_budget(tmp_path: Path):
    """The noise was calibrated for 4 rounds: a fifth would cost more than was promised."""
    experiment = world(COUNTS, local=STEPS, privacy=private(noise_multiplier=None, epsilon=2.0)).but(rounds=4)
    folder_run(experiment, tmp_path / "run")
    more = to.run(experiment.but(rounds=6), tmp_path / "run", resume=True, quiet=True)
    assert more.rounds() == 4
    assert epsilons(more)[-1] == pytest.approx(2.0)


# -- the key


def test_the_noise_cannot_be_computed_from_experiment_records_or_messages(tmp_path: Path):
    """With a secret key two runs of one experiment differ by noise alone, and the key is in one file of mode 600."""
    experiment = world(COUNTS, local=STEPS, privacy=private(noise_multiplier=1.0, secret=True))
    first, second = folder_run(experiment, tmp_path / "a"), folder_run(experiment, tmp_path / "b")
    assert first.experiment == second.experiment
    models = [next(iter(run.model().parameters())) for run in (first, second)]
    assert not torch.allclose(*models)
    by_seed = world(COUNTS, local=STEPS, privacy=private(noise_multiplier=1.0))
    other = next(iter(folder_run(by_seed, tmp_path / "c").model().parameters()))
    assert not any(torch.allclose(other, model) for model in models)
    key = (tmp_path / "a" / "noise.key").read_text().strip()
    assert stat.S_IMODE((tmp_path / "a" / "noise.key").stat().st_mode) == 0o600
    raw = bytes.fromhex(key)
    number = str(int(key, 16)).encode()
    for path in (path for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != "noise.key"):
        content = path.read_bytes()
        assert not any(form in content for form in (key.encode(), raw, raw[::-1], number)), path
    assert not (tmp_path / "c" / "noise.key").exists()


def test_a_secret_run_stores_each_release_before_the_next_round_and_needs_its_key_to_resume(tmp_path: Path):
    experiment = world(COUNTS, local=STEPS, privacy=private(noise_multiplier=1.0, secret=True))
    steps = rounds_of(begin(experiment, tmp_path, resume=False), tmp_path)
    next(steps)
    steps.close()
    assert rounds_done(tmp_path) == 1  # long before a checkpoint is due
    kept = (tmp_path / "noise.key").read_text()
    (tmp_path / "noise.key").unlink()
    with pytest.raises(UserError, match="cannot be continued without it"):
        to.run(experiment, tmp_path, resume=True, quiet=True)
    (tmp_path / "noise.key").write_text(kept)
    assert to.run(experiment, tmp_path, resume=True, quiet=True).rounds() == 3


# -- settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delta": None, "epsilon": 1.0}, "delta is not given"),
        ({"clip": 0}, "clip"),
        ({"n0": None}, "n0 is not given"),
        ({"n0": 0}, "n0"),
        ({"noise_multiplier": None}, "epsilon .* or noise_multiplier"),
        ({"noise": "laplace"}, "noise"),
        ({"noise": "banded", "quantile": 0.5}, "leave quantile out"),
        ({"delta": 1.5}, "delta"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_with_a_sentence(settings, words):
    with pytest.raises(UserError, match=words):
        private(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("clip = 1, n0 = 5, epsilon = 8", "privacy.delta is not given"),
        ("clip = 0, n0 = 5, epsilon = 8, delta = 1e-3", "privacy.clip must be above 0, not 0"),
        ("clip = 1, epsilon = 8, delta = 1e-3", "privacy.n0 is not given"),
        ('clip = 1, n0 = "auto", epsilon = 8, delta = 1e-3', "privacy.n0 must be a number, not 'auto'"),
        ("clip = 1, n0 = 5, epsilon = 8, delta = 1e-3, min_separation = 9", "9 is more than the 4 rounds there are"),
        ("clip = 1, n0 = 5, epsilon = 8, delta = 1e-3, rounds = 9", "privacy.rounds = 9, and the experiment has 4"),
        ("clip = 1, n0 = 5, epsilon = 8, delta = 1e-3, seperation = 2", "unknown setting algorithm.privacy.seperation"),
    ],
)
def test_settings_in_a_file_are_refused_with_a_sentence(tmp_path: Path, settings, words):
    file = tmp_path / "private.toml"
    data = 'data = { kind = "synthetic", clients = 10 }'
    file.write_text(f"rounds = 4\n[world]\n{data}\n[algorithm]\nprivacy = {{ {settings} }}\n")
    with pytest.raises(UserError, match=words) as refused:
        ready(load(file))
    assert "\n" not in str(refused.value)


def test_a_delta_that_allows_to_publish_a_client_is_warned_of():
    warned = [ready(world(COUNTS, privacy=private(delta=delta))).warnings for delta in (0.3, 0.2)]
    assert "give less than 0.25" in " ".join(warned[0])
    assert "delta" not in " ".join(warned[1])


def test_settings_that_do_not_fit_the_run_are_refused_before_it():
    with pytest.raises(UserError, match="min_separation = 4 is more than the 3 rounds"):
        ready(world(COUNTS, privacy=private(min_separation=4)))
    with pytest.raises(UserError, match="does not allow a single round"):
        ready(world(COUNTS, privacy=private(noise_multiplier=0.1, epsilon=1.0)))


def test_it_is_written_and_read_as_toml(tmp_path: Path):
    experiment = to.Experiment(
        algorithm=to.Algorithm(
            selection=to.selection.Count(5),
            privacy=to.Private(1.0, n0=5, delta=1e-5, epsilon=2.0, noise="blt", min_separation=3, most=4),
        ),
        rounds=6,
    )
    run = folder_run(experiment, tmp_path / "run")
    assert to.open_run(tmp_path / "run").experiment == experiment
    assert epsilons(run)[-1] <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    "name",
    ["plain loop", pytest.param("two processes", marks=pytest.mark.slow), pytest.param("Ray", marks=pytest.mark.slow)],
)
def test_noise_is_the_same_on_every_runtime(name):
    """Only the server draws: results differ by rounding of the clients' work at most, and not at all where it moves."""
    experiment = to.Experiment(
        world=to.World(to.data.Synthetic(clients=12), to.participation.Dropout(0.3)),
        algorithm=to.Algorithm(
            local=STEPS, terms=[to.terms.Scaffold()], selection=to.selection.Count(5),
            privacy=private(noise_multiplier=1.0, noise="blt", min_separation=2),
        ),
        rounds=4,
    )  # fmt: skip
    elsewhere = RUNTIMES[name]
    with WORKERS.reused():
        assert acceptable(RuntimeComparison(experiment).with_(elsewhere), elsewhere)
