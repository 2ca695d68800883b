"""Private scores against the formula: absent and partial clients, labels that some have, noise at both ends."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnout as to
from same_rows import same
from score_worlds import ask, play, score_world
from turnout.cli import main
from turnout.errors import UserError
from turnout.parts.privacy.accountant import epsilon_of
from turnout.parts.privacy.factorisation import factorise
from turnout.parts.privacy.noise import draw_noise
from turnout.running.loop import begin, read_state, rounds_of
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.records import Records
from turnout.running.tracks.prepare import prepare
from turnout.scores.exchange import BuildRequest
from turnout.scores.privacy import release_of, released_update
from turnout.scores.round import ScoreServer
from turnout.scores.runtimes import LocalScores
from turnout.scores.track import ScoreTrack
from worlds import folder_run, stopped_and_resumed

FOUR = (("ant", "bee"), ("bee", "cow"), ("cow", "dog"), ("ant", "bee", "dog"))
TURNOUT = (1.0, 0.0, 1.0, 0.4)  # one is absent, one does part of the work
SILENT = 1e-12  # a noise multiplier without effect
C, N0 = (
    4.2,
    5.0,
)  # softmax scores of 40 samples are 4.47 long at least where a client has two labels, shorter with three


def private(**settings) -> to.Private:
    return to.Private(**({"clip": C, "n0": N0, "delta": 1e-3, "noise_multiplier": SILENT} | settings))


def world(*turnout: float, **settings) -> to.Experiment:
    given = {"sets": FOUR, "beta": "equal", "privacy": private()}
    return score_world(*(turnout or TURNOUT), **(given | settings))


def sent(track: ScoreTrack, t: int, client_C: Tensor | None = None) -> dict[int, Tensor]:
    """What clients would send without noise, as [R, 4]."""
    plain = prepare(track.experiment.but(**{"algorithm.privacy": None, "algorithm.selection": to.selection.Everyone()}))
    found = {}
    for reply in ask(plain, torch.arange(4) if client_C is None else client_C, t).replies:
        found[reply.client] = torch.zeros(len(track.public.true_R), 4, dtype=torch.float64)
        found[reply.client][:, reply.set_l] = reply.f_Rl
    return found


def clipped(matrix: Tensor, length: float = C) -> Tensor:
    return matrix * min(1.0, length / float(matrix.norm()))


# -- what is clipped, summed and divided


@pytest.mark.parametrize("rows", ["all", "labelled"])
@pytest.mark.parametrize(("growth", "decay"), [("mean", 1.0), ("mean", 0.5), ("shrunk", 0.5)])
@pytest.mark.parametrize("noise_at", ["server", "client"])
def test_the_round_is_the_formula(rows, growth, decay, noise_at):
    """G = decay G + Σ_m clip(f_m) / n0; evidence by how many participants have the label, on rows they may score."""
    track = prepare(world(rows=rows, growth=growth, decay=decay, privacy=private(noise_at=noise_at)))
    state = track.begin()
    score, evidence = (torch.zeros(len(track.public.true_R), 4, dtype=torch.float64) for _ in range(2))
    for t in range(3):
        total, count = torch.zeros_like(score), torch.zeros_like(score)
        lengths = []
        for client, f in sent(track, t).items():
            mine = [("ant", "bee", "cow", "dog").index(name) for name in FOUR[client]]
            mask = torch.isin(track.public.shown_R, torch.tensor(mine)) if rows == "labelled" else f[:, 0] == f[:, 0]
            f = f if noise_at == "client" else f * mask[:, None]  # a device does not know which rows have its labels
            lengths.append(float(f.norm()))
            total += clipped(f) * mask[:, None]
            count[:, mine] += mask[:, None].double()
        assert sorted(sent(track, t)) == [0, 2, 3]
        assert rows == "labelled" or min(lengths) < C < max(lengths)  # one is clipped, one is not
        here = count > 0
        whole = torch.where(here, decay + count / N0, 1.0) if growth == "shrunk" else 1.0
        score = (torch.where(here, decay, 1.0) * score + total / N0) / whole
        evidence = (torch.where(here, decay, 1.0) * evidence + count / N0) / whole
        state, record = track.round(state, t)
        torch.testing.assert_close(state.table.score_RL, score, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(state.table.evidence_RL, evidence)
        assert record.counted == 3


def test_what_clients_learn_is_the_noised_sum_over_the_public_number_of_participants(monkeypatch):
    """Each label of theirs: (Σ_t Σ_m f_m + noise) / Σ_t participants that have it, and nothing of the rest."""
    track = prepare(world(distil=to.scores.Distil(1), privacy=private(noise_multiplier=0.3)))
    asked, learn = [], track.runtime.learn
    monkeypatch.setattr(track.runtime, "learn", lambda request: asked.append(request) or learn(request))
    state, total, count = track.begin(), torch.zeros(40, 4).double(), torch.zeros(40, 4).double()
    for t in range(2):
        for client, f in sent(track, t).items():
            total += clipped(f)
            count[:, [("ant", "bee", "cow", "dog").index(name) for name in FOUR[client]]] += 1
        total += 0.3 * C * draw_noise(track.experiment.seed, t, "scores", total)
        state, _ = track.round(state, t)
        for client, mean_Rl in asked[-1].mean.items():
            mine = [("ant", "bee", "cow", "dog").index(name) for name in FOUR[client]]
            torch.testing.assert_close(mean_Rl, (total / count)[:, mine])
        assert sorted(asked[-1].mean) == [0, 2, 3]
    assert float((total / count).min()) < 0  # noise made some negative, and distillation took it


@pytest.mark.parametrize("noise", ["gaussian", "banded", "blt"])
def test_noise_is_added_to_the_sum(noise):
    """Σ_t x_t + z C (C⁻¹ z)_t by the dense inverse; independent noise only where a participant has the label."""
    how = private(noise=noise, noise_multiplier=0.7, min_separation=2)
    track = prepare(world(1.0, 1.0, 0.0, 0.0, rounds=6, privacy=how))
    quiet = prepare(world(1.0, 1.0, 0.0, 0.0, rounds=6, privacy=replace(how, noise_multiplier=SILENT)))
    coef_T = factorise(noise, 6, 2).coefficients(6)
    C_TT = torch.stack([torch.cat([torch.zeros(i), coef_T[: 6 - i]]) for i in range(6)], 1).double()
    state, silent = track.begin(), quiet.begin()
    z_TP = torch.stack([draw_noise(0, t, "scores", state.table.score_RL) for t in range(6)]).flatten(1)
    noise_TRL = (torch.linalg.inv(C_TT) @ z_TP).view(6, *state.table.score_RL.shape)
    added = torch.zeros_like(state.table.score_RL)
    for t in range(6):
        state, record = track.round(state, t)
        silent, _ = quiet.round(silent, t)
        assert record.skipped == (None if t % 2 == 0 else "no client answered")  # 0 and 1 rest, the others are absent
        if t % 2 == 0:
            added += 0.7 * C * noise_TRL[t] / N0 * torch.tensor([1.0, 1.0, 1.0, float(noise != "gaussian")])
        torch.testing.assert_close(state.table.score_RL - silent.table.score_RL, added, rtol=1e-6, atol=1e-9)
    assert bool((state.table.evidence_RL[:, 3] == 0).all())  # nobody has scored it, so it is never read


def test_a_client_adds_its_own_noise_and_sends_nothing_else():
    """f = clip(f) + z C N(0, 1) by client and round; sample counts, losses and epochs stay at home."""
    how = private(noise_at="client", noise_multiplier=0.3)
    track = prepare(world(distil=to.scores.Distil(1), privacy=how))
    answer = track.runtime.build(BuildRequest(1, 0.02, torch.arange(4), key=9))
    for reply in answer.replies:
        labels = [("ant", "bee", "cow", "dog").index(name) for name in FOUR[reply.client]]
        f = clipped(sent(track, 1)[reply.client][:, labels])
        torch.testing.assert_close(reply.f_Rl, f + 0.3 * C * draw_noise(9, 1, f"client {reply.client}", f))
        assert (reply.examples, reply.loss, reply.epochs, reply.training, reply.scoring) == (1, 0, 0, 0, 0)
    assert torch.equal(answer.turnout.progress_C, answer.turnout.work_C)  # and not steps, which depend on samples
    state, (record,) = play(track)
    total = torch.zeros(40, 4).double()
    for reply in track.runtime.build(BuildRequest(0, 0.02, torch.arange(4), key=track.experiment.seed)).replies:
        total[:, reply.set_l] += reply.f_Rl
    torch.testing.assert_close(state.table.score_RL, total / N0)  # as they are: the server clips and adds nothing
    assert record.train_loss is None
    assert bool(record.clients["loss"].isnan().all() & record.clients["epochs"].isnan().all())
    assert record.clients["examples"].tolist() == [1, 1, 1, 1]
    assert "distilled_accuracy" not in record.clients
    assert "personal_accuracy" not in track.evaluate(state, 0).values
    with pytest.raises(AssertionError, match="never sent without"):
        ask(track, torch.arange(4), 0)
    with pytest.raises(UserError, match=r"evaluate\.personal asks clients for outputs .* without noise"):
        prepare(track.experiment.but(**{"evaluate.personal": True}))


def test_global_scores_depend_on_clients_only_through_what_was_released():
    """Two worlds in which the clipped sums are the same have the same global scores, to the bit."""
    track = prepare(world(privacy=private(noise_multiplier=1.0)))
    state, _ = play(track, 2)
    replies = ask(track, torch.arange(4), 2).replies
    swapped = [replace(r, examples=r.examples + 7, loss=9.0, epochs=1.0) for r in replies]
    tables = [
        released_update(state.table, release_of(some, track.algorithm, track.public, state.privacy, 2, 0),
                        track.algorithm)
        for some in (replies, swapped)
    ]  # fmt: skip
    assert torch.equal(tables[0].score_RL, tables[1].score_RL)


# -- participation, ε and the budget


@pytest.mark.parametrize("noise_at", ["server", "client"])
def test_epsilon_is_the_formula_and_the_participation_is_enforced(tmp_path: Path, noise_at):
    """ε of k participations: δ(ε) of a Gaussian mechanism with μ = √k / z, k = min(most, rounds / b)."""
    how = private(noise_multiplier=2.0, min_separation=2, most=3, noise_at=noise_at)
    run = folder_run(world(1.0, 0.6, 1.0, 0.0, rounds=9, privacy=how), tmp_path / "run")
    with run.records() as records:
        rows, rounds = records.clients(), records.rounds()
    took: dict[int, list[int]] = {}
    for client, t, size in zip(rows["client"].tolist(), rows["round"].tolist(), rows["bytes_up"].tolist(), strict=True):
        if size > 0:  # NaN without a reply
            took.setdefault(client, []).append(t)
    assert {client: len(when) for client, when in took.items()} == {0: 3, 1: 3, 2: 3}
    assert min(b - a for when in took.values() for a, b in pairwise(when)) >= 2
    released = rounds["counted"] > 0
    assert rounds["epsilon"][released].tolist() == pytest.approx(
        [epsilon_of(math.sqrt(min(3, t // 2 + 1)) / 2.0, 1e-3) for t in rounds["round"][released].tolist()]
    )
    most = [max(sum(s <= t for s in when) for when in took.values()) for t in rounds["round"][released].tolist()]
    assert rounds["epsilon_realised"][released].tolist() == pytest.approx(
        [epsilon_of(math.sqrt(k) / 2.0, 1e-3) for k in most]
    )


def test_a_run_that_would_exceed_its_budget_stops_before_that_round(tmp_path: Path):
    once = epsilon_of(1 / 1.5, 1e-3)
    experiment = world(rounds=9, privacy=private(noise_multiplier=1.5, epsilon=once * 1.9))
    run = folder_run(experiment, tmp_path / "run")
    done = run.rounds()
    assert epsilon_of(math.sqrt(done) / 1.5, 1e-3) <= once * 1.9 < epsilon_of(math.sqrt(done + 1) / 1.5, 1e-3)
    why = json.loads((tmp_path / "run" / "state.json").read_text())["why"]
    assert why.startswith(f"the privacy budget ε = {once * 1.9:g} is spent: round {done} would raise it to")


@pytest.mark.parametrize("how", [{"noise": "banded"}, {"noise": "blt"}, {"noise_at": "client"}], ids=str)
def test_a_run_that_was_interrupted_continues_its_noise_and_its_ledger(tmp_path: Path, how):
    experiment = to.Experiment(
        world=to.World(
            to.data.Arriving(to.data.Digits(), (("3", "5"), ("5", "8"), ("8", "9")), per_label=6, public=10),
            to.participation.Dropout(0.3),
        ),
        model=to.models.MLP(6),
        algorithm=to.scores.Scores(
            beta="equal", start="carried", distil=to.scores.Distil(1),
            privacy=private(noise_multiplier=1.0, min_separation=2, most=3, **how),
        ),
        rounds=7,
    )  # fmt: skip
    folder_run(experiment, tmp_path / "whole")
    stopped_and_resumed(experiment, tmp_path / "parts", after=3)
    assert same(*(tmp_path / name / "records.sqlite" for name in ("whole", "parts"))) == []


def test_more_rounds_on_resume_keep_the_noise_and_stop_at_the_budget(tmp_path: Path):
    experiment = world(rounds=3, privacy=private(noise_multiplier=None, epsilon=2.0, noise_at="client"))
    folder_run(experiment, tmp_path / "run")
    more = to.run(experiment.but(rounds=5), tmp_path / "run", resume=True, quiet=True)
    assert more.rounds() == 3
    with more.records() as records:
        assert records.rounds()["epsilon"][-1] == pytest.approx(2.0)


# -- the key


@pytest.mark.parametrize("noise_at", ["server", "client"])
def test_the_noise_cannot_be_computed_from_experiment_or_records(tmp_path: Path, noise_at):
    """With a secret key two runs of one experiment differ by noise alone; the key is in one file."""
    how = private(noise_multiplier=1.0, noise_at=noise_at)
    tables = []
    for name, secret in (("a", True), ("b", True), ("c", False)):
        run = folder_run(world(rounds=2, privacy=replace(how, secret=secret)), tmp_path / name)
        track = prepare(run.experiment)
        checkpoint = read_state(track, tmp_path / name)
        assert checkpoint is not None
        tables.append(track.unpack(checkpoint.state).table.score_RL)
    assert not any(torch.allclose(tables[i], tables[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    key = (tmp_path / "a" / "noise.key").read_text().strip()
    forms = key.encode(), bytes.fromhex(key), bytes.fromhex(key)[::-1], str(int(key, 16)).encode()
    for path in (path for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != "noise.key"):
        assert not any(form in path.read_bytes() for form in forms), path
    assert not (tmp_path / "c" / "noise.key").exists()


class Killed(Exception):
    """The process ends."""


def test_a_release_is_stored_before_clients_receive_it_and_is_sent_again(tmp_path: Path, monkeypatch):
    """Killed while clients learn, with other scores when it runs again: they learn what was released at first."""
    experiment = world(rounds=3, distil=to.scores.Distil(1), privacy=private(noise_multiplier=1.0, secret=True))
    learn, build, seen = LocalScores.learn, LocalScores.build, []

    def killed(self, request):
        seen.append(request.mean)
        if len(seen) == 2:
            raise Killed
        return learn(self, request)

    def other(self, request):
        answer = build(self, request)
        return replace(answer, replies=[replace(r, f_Rl=r.f_Rl.flip(0)) for r in answer.replies[1:]])

    monkeypatch.setattr(LocalScores, "learn", killed)
    with pytest.raises(Killed):
        to.run(experiment, tmp_path, quiet=True)
    assert rounds_done(tmp_path) == 1
    monkeypatch.setattr(LocalScores, "build", other)
    steps = rounds_of(begin(experiment, tmp_path, resume=True), tmp_path)
    step = next(steps)
    assert step.record.round == 1
    assert sorted(seen[2]) == [2, 3]  # client 0 does not answer now
    assert all(torch.equal(seen[2][client], seen[1][client]) for client in seen[2])
    rest = list(steps)
    assert [step.record.round for step in rest] == [2]
    with Records.read(tmp_path / "records.sqlite") as records:
        realised = records.rounds()["epsilon_realised"].tolist()
    assert realised == pytest.approx([epsilon_of(math.sqrt(k), 1e-3) for k in (1, 2, 3)])


def test_a_stored_release_is_used_where_no_client_answers_or_is_asked():
    track = prepare(world(rounds=3, privacy=private(noise_multiplier=1.0)))
    stored: list[ScoreServer] = []
    wanted, record = track.round(track.begin(), 0, stored.append)
    assert len(stored) == 1
    absent = prepare(world(0.0, 0.0, 0.0, 0.0, rounds=3, privacy=private(noise_multiplier=1.0)))
    found, again = absent.round(absent.unpack(absent.pack(stored[0])), 0)
    assert again.skipped == "no client answered"
    assert again.extra["epsilon"] == record.extra["epsilon"]
    for name in ("score_RL", "evidence_RL"):
        assert torch.equal(getattr(found.table, name), getattr(wanted.table, name))
    assert found.release == {}
    assert found.selection["client"].tolist() == [0, 2, 3]
    gone = replace(stored[0], members=stored[0].members.minus(torch.arange(4)))
    assert torch.equal(absent.round(gone, 0)[0].table.score_RL, wanted.table.score_RL)


# -- what goes with it


@dataclass(frozen=True)
class ByLoss(to.selection.Selection):
    """Asks by what was replied."""

    def choose(self, members, t, seed, state=None):
        return members.ids()

    def observe(self, state, applied):
        return state


REFUSED = {
    "β by label": ({"beta": "label"}, "use beta = 'equal'"),
    "β by user": ({"beta": "user"}, "use beta = 'equal'"),
    "literal sum": ({"combine": "sum"}, "use combine = 'average'"),
    "by loss": ({"selection": ByLoss()}, "use Everyone, Fraction or Count"),
    "two places": ({"selection": to.selection.MinSeparation(2)}, r"set privacy\.min_separation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_reveals_more_is_refused_with_an_alternative(name):
    settings, instead = REFUSED[name]
    world(**settings | {"privacy": None})  # goes without privacy
    with pytest.raises(UserError, match=instead):
        world(**settings)


def test_noise_at_clients_is_refused_where_it_has_no_meaning():
    for settings in ({"noise": "blt", "min_separation": 2}, {"quantile": 0.5}):
        with pytest.raises(UserError, match="let the server add the noise"):
            private(noise_at="client", **settings)
    with pytest.raises(UserError, match="noise_at = 'client' is for scores"):
        to.Algorithm(privacy=private(noise_at="client"))
    with pytest.raises(UserError, match="noise_at"):
        private(noise_at="nowhere")


def test_what_is_changed_says_so():
    experiment = world(growth="plain", privacy=private(noise="blt", min_separation=2), decay=0.5)
    track = prepare(experiment.but(stop=to.Stop(target=0.9)))
    assert track.algorithm.growth == "mean"
    for words in ("count alike", "read per participant", "less than its full gain", "stop.target"):
        assert any(words in sentence for sentence in track.warnings), words
    assert not any("privacy" in sentence for sentence in prepare(world(privacy=None)).warnings)


def test_the_clipping_length_follows_the_quantile():
    """C <- C exp(-η (b - γ)), b the share of matrices that are not longer."""
    how = private(quantile=0.5, clip_noise=1e-9, noise_multiplier=1e-10)
    track = prepare(world(privacy=how))
    lengths = [float(f.norm()) for f in sent(track, 0).values()]
    short = sum(length <= C for length in lengths)
    assert 0 < short < 3
    state, _ = play(track)
    assert state.privacy["clip"] == pytest.approx(C * math.exp(-0.2 * (short / 3 - 0.5)))


def test_a_file_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = """
    rounds = 3
    [world.data]
    kind = "arriving"
    data = "digits"
    labels = [["3", "5"], ["5", "8"], ["8", "9"]]
    per_label = 5
    public = 10
    [algorithm]
    kind = "scores"
    beta = "equal"
    growth = "mean"
    privacy = { clip = 3.0, n0 = 3, epsilon = 8, delta = 1e-3, NOISE }
    """
    for name, noise in (("central", 'noise = "banded", min_separation = 2'), ("local", 'noise_at = "client"')):
        (tmp_path / f"{name}.toml").write_text(text.replace("NOISE", noise))
        out = tmp_path / name
        assert main(["run", str(tmp_path / f"{name}.toml"), "--out", str(out), "--quiet"]) == 0
        assert to.open_run(out).experiment.algorithm.privacy.clip == 3.0
        assert main(["privacy", str(out)]) == 0
        shown = capsys.readouterr().out
        assert "ε = 8 after all 3 rounds" in shown
        assert ("the global scores" if name == "central" else "all that clients send") in shown
        assert main(["show", str(out)]) == 0
        assert "ε (δ = 0.001)" in capsys.readouterr().out
