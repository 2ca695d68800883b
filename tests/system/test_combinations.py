"""Every part with every other: whole algorithms at random, and what must hold for each of them (SPEC §8).

A hundred here, four thousand by `make test-slow`, any others by

    COMBINATIONS=FIRST:LAST pytest -n 2 tests/system/test_combinations.py

and one by COMBINATIONS=17. A combination that fails prints its settings, its seed and the command that runs it again.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turnout as to
from combinations import COUNTS, ROUNDS, SICK, SILENT, Combination, Silent, combination, has_norm
from same_rows import same
from turnout.errors import UserError
from turnout.exchange import Departure, Download, Outbox
from turnout.layout import Slot
from turnout.parts.compression.base import Sending
from turnout.round_record import RoundRecord
from turnout.running import loop
from turnout.running.loop import begin, read_state, rounds_of
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights
from turnout.server.state import Server
from turnout.types import Replies, Tensors, Turnout, flatten, wire_bytes
from worlds import kept_rows

KILLED = 2  # the round after whose checkpoint a run is killed
EVERYBODY = torch.arange(len(COUNTS))
HINDSIGHT = ("extra/substitution_error", "extra/own_cluster")


def seeds() -> range:
    first, colon, last = os.environ.get("COMBINATIONS", "0:100").partition(":")
    return range(int(first), int(last) if colon else int(first) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_combination(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(1, 43))
def test_a_hundred_combinations(hundred: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check(seed, tmp_path / str(seed), monkeypatch)


def check(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = combination(seed)
    try:
        if found.wrong is not None:
            with pytest.raises(UserError, match=re.escape(found.wrong)):
                prepare(found.experiment())
            return
        monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        whole = check_resumed(found, folder)
        one_by_one = played(found, **{"runtime.engine": "loop", "runtime.chunk": None, "runtime.threads": 1})
        check_same(*(without_bits(found, run.numbers()) for run in (whole, one_by_one)), 1e-6)
        check_absent(found, whole)
        holds: dict[int, int] = {}
        for happened in one_by_one.rounds:
            check_round(found, happened, holds)
        check_numbers(one_by_one)
        check_promise(found, one_by_one)
    except Exception as error:
        error.add_note(str(found))
        raise


# -- runs


@dataclass(frozen=True)
class Round:
    """One round as it happened: what was sent to whom, and what came of it."""

    record: RoundRecord
    server: Server  # after it
    seed: int = 0
    slots: tuple[Slot, ...] = ()
    sent_down: dict[int, int] = field(default_factory=dict)  # bytes of the messages before it, by round
    download: Download | None = None
    turnout: Turnout | None = None
    replies: Replies | None = None
    outbox: dict[str, Tensors] = field(default_factory=dict)
    departures: list[Departure] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def departure_bytes(self) -> int:
        """What those sent who left: for terms to forget them, or to remember them where they stay in the objective."""
        out = [set(departure.client_H.tolist()) <= set(self.forgotten) for departure in self.departures]
        sent = [f.to_forget if forget else f.to_remember for f, forget in zip(self.departures, out, strict=True)]
        return sum(wire_bytes(rows) for terms in sent for rows in terms.values())

    def numbers(self) -> Tensors:
        """All that a record says in numbers, by name; who joined and left as well."""
        record = self.record
        plain = {f.name: getattr(record, f.name) for f in fields(record)}
        named = plain | {f"clients/{n}": v for n, v in record.clients.items()}
        named |= {f"extra/{n}": v for n, v in record.extra.items()}
        named["events"] = torch.tensor([hash((client, kind)) for client, kind, _ in record.events])
        named["skipped"] = hash(record.skipped)
        keep = {
            n: v for n, v in named.items() if isinstance(v, int | float | Tensor) and n not in ("seconds", *HINDSIGHT)
        }
        return {n: torch.as_tensor(v, dtype=torch.float64 if isinstance(v, float) else None) for n, v in keep.items()}


@dataclass(frozen=True)
class Played:
    """A run to its end, and what its clients keep."""

    rounds: list[Round]
    kept: Tensors

    def numbers(self) -> Tensors:
        """Everything that must not depend on how it was computed."""
        tree = flatten(self.rounds[-1].server.to_state())[0] | {f"kept/{n}": v for n, v in self.kept.items()}
        return tree | {f"{t}/{n}": v for t, r in enumerate(self.rounds) for n, v in r.numbers().items()}


@dataclass
class Listening:
    """A runtime that remembers what was sent and what came back."""

    runtime: Any
    heard: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def ask(self, client_C: Tensor, download: Download) -> tuple[Turnout, Replies | None]:
        turnout, replies = self.runtime.ask(client_C, download)
        self.heard |= {"download": download, "turnout": turnout, "replies": replies}
        return turnout, replies

    def depart(self, client_I: Tensor, outbox: Outbox) -> Departure:
        departure = self.runtime.depart(client_I, outbox)
        self.heard.setdefault("departures", []).append(departure)
        return departure

    def forget(self, client_I: Tensor) -> None:
        self.heard["forgotten"] = client_I.tolist()
        self.runtime.forget(client_I)


def spoil(track: Weights, client_I: Tensor) -> None:
    """Fill these clients' training samples with what is no number."""
    federation: Any = track.runtime.clients.federation
    x = federation.x.clone()
    x[federation.train(client_I).row_R] = torch.nan
    track.runtime.clients.federation = replace(federation, x=x)


def played(found: Combination, *absent: int, **changes: Any) -> Played:
    """All rounds without a folder and without evaluation."""
    track = prepare(found.experiment().but(**changes))
    spoil(track, torch.tensor([*absent, *([SICK] if found.sick else [])], dtype=torch.int64))
    listening = Listening(track.runtime)
    track = replace(track, runtime=listening)  # type: ignore[arg-type]
    server, rounds, sent_down = track.begin(), [], {}
    for t in range(ROUNDS):
        listening.heard = {}
        server, record = track.round(server, t)
        if t in server.outbox.messages:
            listening.heard["outbox"] = server.outbox.messages[t]
        about = (found.seed, track.model.layout.shared_slots, dict(sent_down))
        rounds.append(Round(record, server, *about, **listening.heard))
        log = server.compression
        if "length_M" in log and log["round_M"][-1:].tolist() == [t]:
            sent_down[t] = int(log["length_M"][-1])
    return Played(rounds, kept_rows(track, server, EVERYBODY))


# -- killed and resumed, loop and absent


def check_resumed(found: Combination, folder: Path) -> Played:
    """A run, killed in the round after a checkpoint and resumed, is the run that nobody disturbed."""
    whole, killed, kinds = folder / "whole", folder / "killed", "records.sqlite*"
    whole.mkdir(parents=True)
    track = begin(found.experiment(), whole, resume=False)
    spoil(track, torch.tensor([SICK] if found.sick else [], dtype=torch.int64))
    rounds = []
    for t, step in enumerate(rounds_of(track, whole)):
        if t == KILLED:
            shutil.copytree(whole, killed)
        elif t == KILLED + 1:
            for path in whole.glob(kinds):
                shutil.copy(path, killed)
        values = torch.tensor(list(step.evaluation.values.values()) if step.evaluation is not None else [])
        assert torch.isfinite(values).all(), f"round {t} was evaluated as {step.evaluation}"
        rounds.append(step.record)
    again = begin(found.experiment(), killed, resume=True)
    spoil(again, torch.tensor([SICK] if found.sick else [], dtype=torch.int64))
    assert len(list(rounds_of(again, killed))) == ROUNDS - KILLED - 1
    assert same(whole / "records.sqlite", killed / "records.sqlite") == []
    first, second = (end_of(t, f, rounds) for t, f in ((track, whole), (again, killed)))
    check_same(first.numbers(), second.numbers(), 0.0)
    return first


def end_of(track: Weights, folder: Path, records: list[RoundRecord]) -> Played:
    checkpoint = read_state(track, folder)
    assert checkpoint is not None
    server = track.unpack(checkpoint.state)
    return Played([Round(record, server) for record in records], kept_rows(track, server, EVERYBODY))


def check_absent(found: Combination, whole: Played) -> None:
    """Who never replied is invisible: its data may be anything, and hindsight and evaluation leave no trace."""
    replied = torch.zeros(len(COUNTS), dtype=torch.bool)
    for happened in whole.rounds:
        columns = happened.record.clients
        if "loss" in columns:
            replied[columns["client"][~columns["loss"].isnan()]] = True
        in_flight = found.settings["algorithm.closing"].uses_late
        if in_flight or "old_gradient_norm" in happened.record.extra:  # whoever is there may have been asked
            replied |= ~((EVERYBODY == SILENT) & isinstance(found.settings["world.participation"], Silent))
    absent = (~replied).nonzero().squeeze(1).tolist()
    other = played(found, *absent, **{"evaluate.substitution": False})
    check_same(whole.numbers(), other.numbers(), 0.0)


def without_bits(found: Combination, numbers: Tensors) -> Tensors:
    """What must agree to rounding: not the last bits of messages. A bias below BatchNorm has no gradient but rounding,
    so there even which of its entries are the largest, and how long a message that says so is, depends on it; and with
    that how many of the last messages are together no larger than the model, so that they are kept."""
    by_length = ("length_M", "round_M", "bytes_up", "bytes_down")
    hidden = ("byte_B", *by_length) if has_norm(found.settings) else ("byte_B",)
    return {name: value for name, value in numbers.items() if not name.endswith(hidden)}


def check_same(first: Tensors, second: Tensors, tolerance: float) -> None:
    assert first.keys() == second.keys(), f"only in one: {sorted(first.keys() ^ second.keys())}"
    for name, value in first.items():
        if value.shape == second[name].shape and torch.allclose(value, second[name], tolerance, tolerance / 100, True):
            continue
        torch.testing.assert_close(
            value, second[name], rtol=tolerance, atol=tolerance / 100, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


# -- what holds in every round


def check_round(found: Combination, happened: Round, holds: dict[int, int]) -> None:
    """`holds`: the round as of whose beginning each client holds the model, of those who have it."""
    for client, kind, detail in happened.record.events:
        if kind == "drop" or (kind == "leave" and detail.startswith("exclude")):
            holds.pop(client, None)
    if found.settings["algorithm.closing"] != to.closing.WaitForAll():
        return  # who replies in time, and what the late have cost, is in tests/world/test_clock.py
    if happened.replies is not None:
        check_bytes(found, happened, holds)
        if not happened.record.skipped:
            check_weights(found, happened)


def check_bytes(found: Combination, happened: Round, holds: dict[int, int]) -> None:
    """What is counted is what was sent, row by row: the message, and everything beside it."""
    record, replies, download = happened.record, happened.replies, happened.download
    assert replies is not None
    assert download is not None
    beside = [replies.states, replies.hints, *replies.uploads.values()]
    up_R = replies.message.bytes_C + sum(wire_bytes({n: v[0] for n, v in rows.items()}) for rows in beside)
    position_R = torch.searchsorted(record.clients["client"], replies.client_R)
    assert record.clients["bytes_up"][position_R].tolist() == up_R.tolist()
    assert record.bytes_up == int(up_R.sum()) + happened.departure_bytes()
    compression, dense = found.settings["algorithm.compression"], 4 * len(download.shared_P)
    down = wire_bytes(download.states) + replies.report["bytes_down"]
    whole = sum(wire_bytes(tensors) for tensors in download.term_states.values())
    assert (replies.report["bytes_down"] <= whole).all()  # of the terms: less for who has the latest
    fetched = [dense] * len(position_R)
    if isinstance(compression, to.compression.Dense):
        assert replies.message.bytes_C.tolist() == fetched
    else:
        check_message(compression, happened)
        if compression.directions == "both" and not found.settings["algorithm.mixing"].personal:
            fetched = [missed_by(client, happened, holds, dense) for client in replies.client_R.tolist()]
        for client, kept in zip(replies.client_R.tolist(), used(happened).tolist(), strict=True):
            holds |= {client: record.round} if kept else {}
    told_R = used(happened) * sum(map(wire_bytes, happened.outbox.values()))
    assert record.clients["bytes_down"][position_R].tolist() == (torch.tensor(fetched) + down + told_R).tolist()
    unfinished = (record.clients["work"] > 0).index_fill(0, position_R, False)
    for client, size in zip(*(record.clients[n][unfinished].tolist() for n in ("client", "bytes_down")), strict=True):
        lossy = not isinstance(compression, to.compression.Dense) and compression.directions == "both"
        model = dense if not lossy or download.start_CP is not None else missed_by(client, happened, holds, dense)
        assert 0 <= size - model - wire_bytes(download.states) <= whole
    assert record.clients["bytes_down"][record.clients["work"] == 0].isnan().all()
    assert record.bytes_down == int(record.clients["bytes_down"].nansum())


def used(happened: Round) -> Tensor:
    """Whose replies were used [R]: those that are numbers, unless the aggregation chose among them."""
    record, replies = happened.record, happened.replies
    assert replies is not None
    if not record.extra.get("left_out"):
        return replies.report["finite"]
    return record.clients["weight"][torch.searchsorted(record.clients["client"], replies.client_R)] > 0


def check_message(compression: Any, happened: Round) -> None:
    """The bytes that are counted are the message: what lies beyond them in the table does not matter."""
    replies, server = happened.replies, happened.server
    assert replies is not None
    byte_CB, width = replies.message.tensors["byte"].clone(), len(server.shared_P)
    beyond_CB = torch.arange(byte_CB.shape[1]) >= replies.message.bytes_C[:, None]
    garbled = replace(replies.message, tensors=replies.message.tensors | {"byte": byte_CB.masked_fill(beyond_CB, 171)})
    fine = replies.report["finite"].nonzero().squeeze(1)
    if not len(fine):
        return
    sending = Sending(happened.record.round, happened.seed, replies.client_R[fine], happened.slots)
    first, second = (compression.decode(m.take(fine), sending, server.shared_P) for m in (replies.message, garbled))
    assert first.shape == (len(fine), width)
    assert torch.equal(first, second)


def missed_by(client: int, happened: Round, holds: dict[int, int], dense: int) -> int:
    """The messages sent since the client last had the model, or the model where that is less or it never had it."""
    if client not in holds:
        return dense
    return min(dense, sum(size for t, size in happened.sent_down.items() if t >= holds[client]))


def check_weights(found: Combination, happened: Round) -> None:
    """SPEC §7.3 items 1 to 3, 6, 26, 28 and 29: weight_c = (boost_c share_c + borrowed_c) · the scheme's factor."""
    record, turnout, algorithm = happened.record, happened.turnout, found.experiment().algorithm
    assert turnout is not None
    share_C, weight_C = record.clients["share"], record.clients["weight"]
    counts_C = counted(found, happened)
    gone_L = happened.server.roster.gone_L
    if (private := algorithm.privacy) is not None:  # own factors / n0, and N/K after independent noise
        if len(gone_L):
            return  # the record does not say which of those who are gone were drawn
        assert private.n0 is not None
        algorithm, shared_C = replace(algorithm, aggregation=to.aggregation.WeightedSum()), torch.ones_like(share_C)
        if isinstance(algorithm.weighting, to.weighting.FedAvg) or private.noise != "gaussian":
            shared_C = factors(replace(algorithm, scale_at="client"), turnout, share_C, counts_C, len(share_C))
        weight_C = weight_C * private.n0 * share_C * shared_C
    if left_out := int(record.extra.get("left_out", 0)):  # what the others would have weighed is not in the record
        assert record.counted == int((weight_C > 0).sum()) == int(counts_C.sum()) - left_out > 0
        assert (weight_C[~counts_C] == 0).all()
        return
    assert record.counted == int(counts_C.sum()) > 0
    assert (share_C >= 0).all()
    assert (weight_C >= 0).all()
    assert (weight_C[~counts_C] == 0).all()
    if algorithm.shares.over == "normalised":
        total = float(share_C.sum())
        assert total <= 1 + 1e-12 if len(gone_L) else total == pytest.approx(1)
    if algorithm.max_weight is not None:
        scaled = algorithm.weighting.client_scale(turnout)[counts_C]  # where the server scales, the weight has it
        scaled = torch.ones_like(scaled) if algorithm.scale_at == "server" and algorithm.aggregation.linear else scaled
        assert (weight_C[counts_C] * scaled <= algorithm.max_weight * (1 + 1e-12)).all()
        return
    if len(gone_L) and not isinstance(algorithm.selection, to.selection.Everyone):
        return  # the record does not say which of those who are gone were drawn
    if len(gone_L) and isinstance(algorithm.weighting, to.weighting.FedAvg) and algorithm.shares.over == "unbiased":
        return  # nor what those who are gone stand for
    factor_C = factors(algorithm, turnout, share_C, counts_C, len(share_C) + len(gone_L))
    base_C = torch.where(counts_C, weight_C / torch.where(counts_C, factor_C, 1.0), 0.0)
    borrowed_C = base_C - torch.where(counts_C, boosts(algorithm, happened) * share_C, 0.0)
    check_borrowed(algorithm, happened, borrowed_C, counts_C)


def counted(found: Combination, happened: Round) -> Tensor:
    """Scheme A: the complete; the others: whoever did anything; never one whose reply was no number."""
    record, weighting = happened.record, found.settings["algorithm.weighting"]
    least = 1 - 1e-9 if isinstance(weighting, to.weighting.CompleteOnly) else 1e-9
    lost = [int(c) for c in str(record.extra.get("nonfinite_clients", "")).split()]
    return (record.clients["work"] >= least) & ~torch.isin(record.clients["client"], torch.tensor(lost))


def factors(algorithm: to.Algorithm, turnout: Turnout, share_C: Tensor, counts_C: Tensor, cohort: int) -> Tensor:
    """FedAvg: the cohort's Σ share (1 unless shares are unbiased) over that of who replied; A: N/K; both 1 where a
    substitution pays for the missing. B: 1; C: E/s where the server scales; FedNova: τ_eff, and 1/a too, with shares
    normalised over those who count unless a substitution pays."""
    # What is no sum has to see updates as they count: there the server scales them, not their weights.
    progress_C, at_server = turnout.progress_C, algorithm.scale_at == "server" and algorithm.aggregation.linear
    if isinstance(algorithm.weighting, to.weighting.CompleteOnly):
        return torch.full_like(share_C, 1.0 if algorithm.substitution.lends else cohort / int(counts_C.sum()))
    if isinstance(algorithm.weighting, to.weighting.FedAvg):
        total = 1.0 if algorithm.shares.over == "normalised" else float(share_C.sum())
        return torch.full_like(share_C, 1.0 if algorithm.substitution.lends else total / float(share_C[counts_C].sum()))
    if isinstance(algorithm.weighting, to.weighting.ByWork):
        return turnout.full_progress_C / progress_C if at_server else torch.ones_like(share_C)
    if isinstance(algorithm.weighting, to.weighting.FedNova):
        own_C = torch.where(counts_C, share_C, 0.0)
        tau = (own_C * progress_C).sum() / own_C.sum()
        if not algorithm.substitution.lends:  # those who are gone are drawn only where all are: shares sum to 1
            tau = tau * (1.0 if cohort > len(share_C) else share_C.sum()) / own_C.sum()
        return tau / progress_C if at_server else tau.expand_as(share_C)
    return torch.ones_like(share_C)


def boosts(algorithm: to.Algorithm, happened: Round) -> Tensor:
    """1 + 2 / (t - τ0 + 1)² for who joined in round τ0 (SPEC §2.4)."""
    roster, client_C = happened.server.roster, happened.record.clients["client"]
    boost_C = torch.ones(len(client_C), dtype=torch.float64)
    for client, since in zip(roster.newcomer_J.tolist(), roster.since_J.tolist(), strict=True):
        boost_C[client_C == client] = 1 + 2 / (happened.record.round - since + 1) ** 2
    return boost_C


def check_borrowed(algorithm: to.Algorithm, happened: Round, borrowed_C: Tensor, counts_C: Tensor) -> None:
    record, near = happened.record, {"rtol": 0.0, "atol": 1e-12}
    share_C = record.clients["share"]
    gone = 1 - float(share_C.sum()) if algorithm.membership.stand_in else 0.0
    if algorithm.shares.over == "unbiased" and len(happened.server.roster.gone_L) and gone:
        return  # what those who are gone stand for is not in the record
    if not algorithm.substitution.lends:
        torch.testing.assert_close(borrowed_C, torch.zeros_like(borrowed_C), **near)
        return
    missing_C = ~counts_C
    missing = float(share_C[missing_C].sum()) + (gone if algorithm.shares.over == "normalised" else 0.0)
    stale = float(record.extra.get("stale_weight", 0.0))
    assert float(borrowed_C.sum()) + stale == pytest.approx(missing, abs=1e-12)
    assert (borrowed_C >= -1e-12).all()
    if isinstance(algorithm.substitution, to.substitution.Friends) and not gone:
        client_C, friend_C = record.clients["client"], record.clients["friend"]
        lent_C, spread = torch.zeros_like(share_C), 0.0
        for position in missing_C.nonzero().squeeze(1).tolist():
            friend = int(friend_C[position])
            if friend < 0:
                spread += float(share_C[position])
            else:
                assert bool(counts_C[client_C == friend]), f"{friend} stands in and does not count"
                lent_C[client_C == friend] += share_C[position]
        own_C = torch.where(counts_C, share_C, 0.0)
        torch.testing.assert_close(borrowed_C, lent_C + spread * own_C / own_C.sum(), **near)
        assert (friend_C[counts_C] == -1).all()


def check_promise(found: Combination, run: Played) -> None:
    """No client of a private run takes part more often or closer than was promised, and ε is at most the stated."""
    private = found.experiment().algorithm.privacy
    if private is None:
        return
    took: dict[int, list[int]] = {}
    for record in (happened.record for happened in run.rounds if not happened.record.skipped):
        assert 0 < record.extra["epsilon_realised"] <= record.extra["epsilon"]
        assert private.epsilon is None or record.extra["epsilon"] <= private.epsilon * (1 + 1e-9)
        for client in record.clients["client"][record.clients["weight"] > 0].tolist():
            took.setdefault(client, []).append(record.round)
    for rounds in took.values():
        assert private.most is None or len(rounds) <= private.most
        assert all(later - t >= private.min_separation for t, later in pairwise(rounds))


MAY_BE_INFINITE = ("/pairs/mean", "/pairs/best", "/ledger/lowest_K", "/ledger/latest_K", "/closing/seen")


def check_numbers(run: Played) -> None:
    """Everything is finite; variances are positive under every weighting, second moments not negative."""
    tree = flatten(run.rounds[-1].server.to_state())[0] | {f"kept/{n}": v for n, v in run.kept.items()}
    for name, value in tree.items():
        bad = value.isnan() if name.endswith(MAY_BE_INFINITE) else ~torch.isfinite(value)
        assert not bad.any(), f"{name} is {value}"
        if name.endswith("running_var"):
            assert (value > 0).all(), f"{name} is {value}"
        if name.endswith("/second"):
            assert (value >= 0).all(), f"{name} is {value}"
    for t, happened in enumerate(run.rounds):
        for name, value in happened.numbers().items():
            assert name.startswith("clients/") or torch.isfinite(value).all(), f"round {t}: {name} is {value}"
