"""Compression in the round: SPEC §3.3 to 3.6, invariants 7 to 9 and 16 of §8, and the rules of §7.3 that name it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import turnout as to
from encoded import bytes_rows
from same_rows import same
from turnout.cli import main
from turnout.errors import UserError
from turnout.layout import Slot
from turnout.parts.compression.base import Sending, dense_bytes
from turnout.parts.compression.codec.messages import message_of
from turnout.parts.compression.codec.sparse import Ternary
from turnout.parts.compression.lossy import BroadcastLog
from turnout.parts.substitution import friends
from turnout.running.result import open_run
from turnout.running.tracks.weights import Weights
from turnout.server.state import Server
from turnout.types import Message
from worlds import blobs, local_updates, play, ready, world

COUNTS = [8, 12, 4, 16]
E = 4
BN = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))


class Days:
    """A participation that a test writes down: a row of fractions a round, repeated."""

    def __init__(self, *fractions: tuple[float, ...]):
        self.fractions = torch.tensor(fractions, dtype=torch.float64)

    def fraction(self, client_C, t, full_work, seed, groups=None):
        return self.fractions[t % len(self.fractions)][client_C]


AWAY = Days((1, 0.5, 1, 1), (1, 0, 0.25, 0), (0, 0, 0, 0), (1, 0, 0, 0.5), (0.75, 1, 0, 0), (1, 0, 1, 0), (0, 0, 1, 1))


def away(compression, **algorithm) -> to.Experiment:
    """Four clients, absent now and then, one round with nobody."""
    experiment = world(COUNTS, compression=compression, **algorithm)
    return experiment.but(**{"world.participation": AWAY})


def st(x_P: torch.Tensor, keep: float, slots: tuple[Slot, ...]) -> torch.Tensor:
    """ST(T; q) of SPEC §3.2, tensor by tensor; μ as float32."""
    out_P = torch.zeros_like(x_P)
    for s in slots:
        own = x_P[s.start : s.start + s.size]
        k = max(-(-s.size * int(keep * 1000) // 1000), 1)
        order = sorted(range(s.size), key=lambda i: (-abs(float(own[i])), i))[:k]
        mu = own[order].abs().mean().float().double()
        for i in order:
            out_P[s.start + i] = torch.sign(own[i]) * mu
    return out_P


def updates_at(prepared: Weights, server: Server, t: int) -> torch.Tensor:
    """D_k of every client from the server's weights."""
    start = 0
    for p in prepared.template.parameters():
        p.data = server.shared_P[start : start + p.numel()].view(p.shape).clone()
        start += p.numel()
    return local_updates(prepared, t)


@pytest.mark.parametrize("scale_at", ["client", "server"])
def test_one_round_after_another_is_the_specification_s(scale_at):
    """§3.3: A_k = R_k + (E/s_k) D_k, M_k = ST(A_k), R_k <- A_k - M_k; A_G = R_G + η_g Σ p_k M_k, w <- w + ST(A_G).

    With scale_at = server: A_k = R_k + D_k and Σ p_k (E/s_k) M_k. The absent keep R_k; rule 23: η_g before R_G.
    """
    q, q_down, eta_g = 0.2, 0.4, 0.7
    experiment = away(to.compression.SparseTernary(q, q_down), scale_at=scale_at, server=to.server.ServerSGD(lr=eta_g))
    prepared = ready(experiment)
    slots, server = prepared.model.layout.shared_slots, prepared.begin()
    R, R_G, w = torch.zeros(4, 18).double(), torch.zeros(18).double(), server.shared_P.clone()
    p = torch.tensor(COUNTS).double() / sum(COUNTS)
    for t in range(7):
        s = AWAY.fractions[t] * E
        D = updates_at(prepared, server, t)
        server, record = prepared.round(server, t)
        total = torch.zeros(18).double()
        for k in (s > 0).nonzero().squeeze(1).tolist():
            at_client, at_server = (E / s[k], 1.0) if scale_at == "client" else (1.0, E / s[k])
            A = R[k] + at_client * D[k]
            M = st(A, q, slots)
            R[k] = A - M
            total += p[k] * at_server * M
        if record.skipped is None:
            A_G = R_G + eta_g * total
            M_G = st(A_G, q_down, slots)
            R_G, w = A_G - M_G, w + M_G
        torch.testing.assert_close(server.shared_P, w, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(server.compression["left_P"], R_G, rtol=1e-6, atol=1e-8)
    rows = prepared.runtime.clients.store.gather(torch.arange(4))
    torch.testing.assert_close(rows["residual/left"], R, rtol=1e-6, atol=1e-8)
    assert rows["residual/round"].tolist() == [5, 4, 6, 6]


@pytest.mark.parametrize(
    "compression",
    [
        to.compression.SparseTernary(0.2, 0.4),
        to.compression.TopK(0.2),
        to.compression.Quantise(),
        to.compression.SparseTernary(0.3, scope="model"),
    ],
    ids=["ternary", "top-k", "quantise", "model"],
)
def test_8_9_who_was_away_holds_the_server_s_weights_to_the_last_bit(compression):
    """Messages as the bytes in the log, replayed in order; dense where that is no more. Bytes down are their length."""
    prepared = ready(away(compression), **{"runtime.precision": "float32"})
    slots, server = prepared.model.layout.shared_slots, prepared.begin()
    dense = dense_bytes(slots)
    held: dict[int, tuple[int, torch.Tensor]] = {}
    replayed = 0
    for t in range(14):
        log, shared_P = BroadcastLog.from_state(server.compression), server.shared_P
        server, record = prepared.round(server, t)
        for k in (AWAY.fractions[t % 7] > 0).nonzero().squeeze(1).tolist():
            since, weights_P = held.get(k, (-1, torch.zeros_like(shared_P)))
            missed = log.missed(since, dense)
            if missed is None:
                weights_P, fetched = shared_P.clone(), dense
            else:
                fetched, replayed = sum(len(message) for _, message in missed), replayed + len(missed)
                weights_P = compression.received(weights_P, missed, Sending(0, 0, torch.zeros(1), slots))
            assert torch.equal(weights_P, shared_P), (t, k)
            assert record.clients["bytes_down"][k] == fetched
            held[k] = (t, weights_P)
    assert replayed > 5


def test_a_device_that_does_not_finish_fetches_what_it_missed_since_its_last_reply():
    """Scheme A: 0 and 3 always finish, 1 finishes only in round 0, 2 is away in between. What a device gets in a round
    that it does not finish is not kept, as nothing of that round is."""
    rows = [(1, 1, 1, 1), (1, 0.5, 0, 1), (1, 0.5, 0, 1), (1, 0.25, 0.5, 1), (1, 1, 1, 1), (1, 0.5, 1, 1)]
    experiment = away(to.compression.SparseTernary(0.2, 0.4), weighting=to.weighting.CompleteOnly())
    prepared = ready(experiment.but(**{"world.participation": Days(*rows)}))
    server, dense, replied = prepared.begin(), 4 * 18, {}
    for t, row in enumerate(rows):
        log = BroadcastLog.from_state(server.compression)
        server, record = prepared.round(server, t)
        for k, fraction in enumerate(row):
            owed = int(log.owed(torch.tensor([replied.get(k, -1)]), dense)[0])
            assert record.clients["bytes_down"][k] == owed if fraction else record.clients["bytes_down"][k].isnan()
        assert record.bytes_down == int(record.clients["bytes_down"].nansum())
        replied |= {k: t for k, fraction in enumerate(row) if fraction == 1}
    assert 0 < log.owed(torch.tensor([4]), dense) < dense, "the last download was a message, not the model"


def test_the_log_is_cut_at_the_size_of_the_model():
    prepared = ready(away(to.compression.SparseTernary(0.5)))
    server, _ = play(prepared, 12)
    log, dense = BroadcastLog.from_state(server.compression), dense_bytes(prepared.model.layout.shared_slots)
    assert 0 < len(log.byte_B) == int(log.length_M.sum()) <= dense
    assert len(log.round_M) < 10
    assert log.since == int(log.round_M[0]) or log.since == int(log.round_M[0]) - 1  # round 2 sent nothing
    assert log.missed(log.since - 1, dense) is None
    assert log.missed(12, dense) == []


@dataclasses.dataclass(frozen=True)
class Listening(to.compression.SparseTernary):
    """Keeps every message it encodes."""

    heard: list[Message] = dataclasses.field(default_factory=list)

    def encode(self, update_CP, kept, sending):
        message, kept = super().encode(update_CP, kept, sending)
        self.heard.append(message)
        return message, kept


def test_measured_bytes_are_the_length_of_the_encodings():
    compression = Listening(0.2)
    prepared = ready(away(compression))
    slots = prepared.model.layout.shared_slots
    _, records = play(prepared, 7)
    sent = [record for record in records if record.skipped is None]
    for message, record in zip(compression.heard, sent, strict=True):
        rows = bytes_rows(message)
        assert record.bytes_up == sum(map(len, rows))
        again = Ternary(0.2).read(message_of(rows, Ternary(0.2).longest(slots)), slots, torch.float64)
        sending = Sending(0, 0, torch.zeros(1), slots)
        assert torch.equal(again, compression.decode(message, sending, torch.zeros(1).double()))


def test_8_16_rounds_with_nobody_leave_the_state_alone():
    """§3.6: R_G is not flushed."""
    prepared = ready(away(to.compression.SparseTernary(0.2)))
    server = prepared.begin()
    for t in range(2):
        server, _ = prepared.round(server, t)
    before = prepared.runtime.clients.store.gather(torch.arange(4))
    after, record = prepared.round(server, 2)
    assert record.skipped == "no client answered"
    assert after is server
    assert all(torch.equal(v, before[n]) for n, v in prepared.runtime.clients.store.gather(torch.arange(4)).items())


def test_an_absent_client_is_invisible_with_residuals_too():
    plain, poisoned = ready(away(to.compression.SparseTernary(0.2))), ready(away(to.compression.SparseTernary(0.2)))
    a, _ = play(plain, 2)
    owner = blobs(COUNTS).owner
    b, _ = play(poisoned, 2)
    poisoned.runtime.clients.federation.x[owner == 1] = float("nan")  # away in rounds 2 and 3
    for t in (2, 3):
        (a, _), (b, _) = plain.round(a, t), poisoned.round(b, t)
    assert torch.equal(a.shared_P, b.shared_P)


def test_dense_is_a_bypass_and_keeping_everything_is_not():
    """SPEC §3.2: q = 1 still ternarises. §8 item 8: without compression it is scheme C."""
    plain = play(ready(away(to.compression.Dense())), 4)[0].shared_P
    torch.testing.assert_close(play(ready(away(to.compression.TopK(1.0))), 4)[0].shared_P, plain, rtol=1e-6, atol=1e-6)
    assert (play(ready(away(to.compression.SparseTernary(1.0))), 4)[0].shared_P - plain).abs().max() > 1e-3
    prepared = ready(away(to.compression.Dense()))
    assert prepared.server.compression == {}
    assert prepared.runtime.clients.store.initial == {}


def test_old_residuals_fade_or_are_dropped():
    """§3.6: A_k = decay^(rounds away) R_k + D_k; none after `reset_after` rounds."""
    slots, generator = (Slot("w", (10,), 0, 10),), torch.Generator().manual_seed(0)
    left_CP, update_CP = torch.randn(3, 10, generator=generator), torch.randn(3, 10, generator=generator)
    kept = {"left": left_CP, "round": torch.tensor([6, 4, 2])}  # away for 0, 2 and 4 rounds
    sending = Sending(7, 0, torch.arange(3), slots)
    for options, factor in (
        ({}, [1, 1, 1]),
        ({"residual_decay": 0.5}, [1, 0.25, 0.0625]),
        ({"reset_after": 3}, [1, 1, 0]),
    ):
        compression = to.compression.SparseTernary(0.2, **options)
        message, after = compression.encode(update_CP.clone(), {n: v.clone() for n, v in kept.items()}, sending)
        expected = torch.tensor(factor)[:, None] * left_CP + update_CP
        got = compression.decode(message, sending, left_CP) + after["left"]
        torch.testing.assert_close(got, expected)
        assert after["round"].tolist() == [7, 7, 7]


def test_one_way_only():
    """directions = "up": the server's own change, downloads as they are."""
    prepared = ready(away(to.compression.SparseTernary(0.2, directions="up")))
    _, records = play(prepared, 4)
    assert all(r.bytes_down == r.counted * 4 * 18 for r in records)
    assert all(0 < r.bytes_up < r.counted * 4 * 18 for r in records if r.skipped is None)
    assert prepared.server.compression == {}


def test_7_3_rule_13_adam_s_moments_stay_home_or_travel_dense():
    adam = to.Local(to.Adam(lr=0.01), epochs=4, batch_size=4)
    prepared = ready(away(to.compression.SparseTernary(0.2), local=adam))
    assert prepared.experiment.algorithm.local.optimizer.moments == "local"
    server, records = play(prepared, 4)
    assert not any(name.startswith("moment/") for name in server.states)
    federated = dataclasses.replace(adam, optimizer=to.Adam(lr=0.01, moments="federated"))
    server, dense = play(ready(away(to.compression.SparseTernary(0.2), local=federated)), 4)
    assert (server.states["moment/second"] >= 0).all()
    assert (server.states["moment/second"] > 0).sum() > 12
    assert dense[0].bytes_up - 4 * 4 * (2 * 18 + 1) == pytest.approx(records[0].bytes_up, abs=8)


def test_7_3_rule_16_patches_and_statistics_are_outside():
    """Residuals and messages are as wide as what is shared; running statistics travel dense, by their mean."""
    experiment = dataclasses.replace(away(to.compression.SparseTernary(0.2)), model=BN)
    prepared = ready(experiment, **{"algorithm.personal": to.personal.batch_norm})
    _, records = play(prepared, 7)
    width = 5 * 6 + 6 + 6 * 3 + 3
    assert prepared.runtime.clients.store.initial["residual/left"].shape == (width,)
    assert records[0].bytes_up < 4 * 4 * width / 4
    shared = ready(experiment)
    server, records = play(shared, 7)
    statistics = 4 * 6 + 4 * 6 + 8
    assert (server.states["1.running_var"] > 0).all()
    assert records[0].bytes_up > 4 * statistics
    assert records[0].bytes_down == 4 * (4 * (width + 12) + statistics)


def test_7_3_rule_22_who_arrives_or_was_excluded_gets_the_whole_model():
    """Included and back: the messages it missed. Excluded and back: nothing is left of it, on either side."""
    dense = 4 * 18
    bytes_down = {}
    for leave in ("include", "exclude"):
        events = [to.Leave(1, 2), to.Join(1, 4), to.Leave(3, 1)]
        experiment = world(COUNTS, compression=to.compression.SparseTernary(0.1), membership=to.Membership(leave=leave))
        prepared = ready(experiment.but(rounds=6, **{"world.events": events}))
        server = prepared.begin()
        for t in range(6):
            server, record = prepared.round(server, t)
            client = record.clients["client"].tolist()
            bytes_down[leave, t] = dict(zip(client, record.clients["bytes_down"].tolist(), strict=True))
            if t == 3:
                left_P = prepared.runtime.clients.store.gather(torch.tensor([1]))["residual/left"][0]
                assert bool((left_P == 0).all()) == (leave == "exclude")
    assert set(bytes_down["include", 0].values()) == {dense}
    assert bytes_down["exclude", 4][1] == dense
    one_by_one = [bytes_down["include", t][0] for t in (2, 3, 4)]
    assert bytes_down["include", 4][1] == sum(one_by_one) < dense  # it holds the model as of the beginning of round 1
    assert bytes_down["exclude", 5][1] < dense


def test_7_3_rule_7_friends_by_what_arrives_or_by_a_sketch():
    """Clusters survive the compression; a sketch of the update as trained sees them better, and is counted."""
    data = to.data.Digits(clients=8, partition=to.partition.Clustered(clusters=2), test_share=0.0)
    local = to.Local(to.SGD(lr=0.1), epochs=2, batch_size=10)
    margins, up = {}, {}
    for name, size in (("message", 0), ("sketch", 256)):
        algorithm = to.Algorithm(
            local,
            compression=to.compression.SparseTernary(0.02),
            substitution=to.substitution.Friends(client_sketch=size),
        )
        prepared = ready(
            to.Experiment(to.World(data), to.models.MLP(20), algorithm, runtime=to.runtime.InProcess(threads=1))
        )
        server, records = play(prepared, 4)
        _, alike = friends.similarity(server.substitution)
        group, away_from_oneself = prepared.runtime.clients.federation.groups, ~torch.eye(8, dtype=torch.bool)
        mates = (group[:, None] == group) & away_from_oneself
        margins[name] = float(alike[mates].mean() - alike[~mates & away_from_oneself].mean())
        up[name] = records[0].bytes_up
    assert margins["sketch"] > margins["message"] > 0.01
    assert up["sketch"] - up["message"] == 8 * 4 * 256


def test_a_client_that_is_not_finite_does_not_spoil_its_company():
    poisoned = ready(world(COUNTS, compression=to.compression.SparseTernary(0.2), nonfinite="absent"))
    poisoned.runtime.clients.federation.x[9] = float("inf")  # a sample of client 1
    server, (record,) = play(poisoned)
    assert record.extra["nonfinite_clients"] == "1"
    assert torch.isfinite(server.shared_P).all()
    assert (poisoned.runtime.clients.store.gather(torch.tensor([1]))["residual/left"] == 0).all()


def test_a_large_population_costs_what_its_cohort_costs():
    """Residuals are rows of the client store: only those who were ever there have one."""
    data = to.data.Synthetic(clients=20_000, sizes=to.data.Equal(20))
    algorithm = to.Algorithm(
        to.Local(to.SGD(lr=0.1), epochs=1, batch_size=10),
        compression=to.compression.SparseTernary(0.1),
        selection=to.selection.Count(20),
    )
    prepared = ready(
        to.Experiment(to.World(data), to.models.Logistic(), algorithm, runtime=to.runtime.InProcess(threads=1))
    )
    _, records = play(prepared, 3)
    assert len(prepared.runtime.clients.store) <= 60
    assert all(r.counted == 20 for r in records)


FILE = """
rounds = {rounds}
evaluate = {{every = 3}}
model = {{kind = "mlp", hidden = [8], batch_norm = true}}
[world]
data = {{kind = "synthetic", clients = 12, sizes = {{kind = "pareto", cap = 40}}}}
participation = {{kind = "traces", first = 8}}
[algorithm]
local = {{epochs = 2, batch_size = 5}}
personal = "batch-norm"
selection = {{kind = "count", clients = 5}}
[algorithm.compression]
{compression}
"""


@pytest.mark.parametrize(
    "compression",
    [
        'kind = "sparse-ternary"\nkeep = 0.1\nkeep_down = 0.2\nreset_after = 3',
        'kind = "top-k"\nkeep = 0.1\nscope = "model"',
        'kind = "quantise"',
    ],
    ids=lambda text: text.split('"')[1],
)
def test_resumed_is_uninterrupted(compression: str, tmp_path: Path):
    """Residuals, the server's and clients', and the log of messages are in the checkpoint."""
    file = tmp_path / "small.toml"
    for rounds, out in ((6, "run"), (15, "run"), (15, "whole")):
        file.write_text(FILE.format(rounds=rounds, compression=compression))
        assert main(["run", str(file), "--out", str(tmp_path / out), "--resume", "--quiet"]) == 0
    assert same(tmp_path / "whole" / "records.sqlite", tmp_path / "run" / "records.sqlite") == []
    ours, theirs = (open_run(tmp_path / out).model().state_dict() for out in ("run", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to.compression.SparseTernary(0), "keep must be above 0"),
        (lambda: to.compression.SparseTernary(0.1, 1.5), "keep_down must be above 0"),
        (lambda: to.compression.TopK(0.1, scope="layer"), "known are model, tensor"),
        (lambda: to.compression.TopK(0.1, directions="down"), "directions is 'down'"),
        (lambda: to.compression.TopK(0.1, residual_decay=1.5), "residual_decay must be"),
        (lambda: to.compression.TopK(0.1, reset_after=0), "reset_after must be at least 1"),
        (lambda: to.compression.Quantise("up"), "rounding is 'up'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()
