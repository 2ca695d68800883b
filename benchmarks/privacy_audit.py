"""An attack on private rounds: how much more than the stated ε can be shown, for every allowed pair of parts, and with
single rules switched off.

    python benchmarks/privacy_audit.py             the table of docs/privacy.md; about ten minutes
    python benchmarks/privacy_audit.py --runs 4000 --only "banded, SCAFFOLD"

Neighbours: one client takes part as often as it may, in the worst rounds, and always sends the longest vector it can,
or nothing. All others send the same in both. The attacker sees every release (sums of updates and of uploads) and
every model, and knows everything else. It fits the best linear test on part of the runs and counts its errors on the
others; Clopper-Pearson intervals for all cases together at 95 % give a lower bound on μ of the Gaussian mechanism, and
so on ε (Nasr et al., 2023).

Many runs are one: the real `run_round` works on R copies of the problem side by side, in columns of one model. Each
client's vector is 1/√R as long in each copy, and the noise 1/√R as large, so each copy has the ratio of a single run.
A clipping length that adapts is one number for the whole model: there runs are made one by one, and fewer.
Rounds of scores likewise: a copy is a public sample, one of three labels is the attacked client's and another's, each
round has other participants, and where clients add the noise themselves, the attacker sees each message.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import combinations
from operator import neg
from statistics import NormalDist
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import turnout as to
from turnout.errors import UserError
from turnout.layout import Layout, lay_out
from turnout.parts.compression.base import Sending
from turnout.parts.membership.roster import Roster
from turnout.parts.privacy.accountant import epsilon_of
from turnout.parts.privacy.private import UPDATE, Private, Sent
from turnout.parts.privacy.rules import made_private
from turnout.round import run_round
from turnout.scores.exchange import BuildAnswer, BuildRequest, LearnRequest, ScoreReply
from turnout.scores.privacy import made_private_scores, noised_reply
from turnout.scores.round import ScoreContext, ScoreServer
from turnout.scores.round import run_round as score_round
from turnout.scores.score_table import PublicLabels, ScoreTable
from turnout.scores.settings import Scores
from turnout.server.state import Context, Server
from turnout.types import Replies, Tensors, Times, Turnout
from turnout.world.members import Members

EPSILON, DELTA = 1.0, 1e-5
ROUNDS, SEPARATION, CLIENTS, N0 = 8, 3, 6, 5
COPIES = 3  # columns of one run: the attacked client's, and two of others
FITTED = 0.3  # share of the runs that the test is fitted on

# What others send where 3 and 5 are missing later: their friend is 0, or, if 0 sends nothing, 1 and 2.
FRIENDLY = {
    1: (-0.5, 0.05, 0.0),
    2: (-0.5, 0.0, 0.05),
    3: (0.05, 0.5, 0.0),
    4: (0.0, -0.35, -0.35),
    5: (0.05, 0.0, 0.5),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "scheme A": {"weighting": to.weighting.CompleteOnly()},
    "scheme C": {"weighting": to.weighting.ByWork()},
    "scheme C at the server": {"weighting": to.weighting.ByWork(), "scale_at": "server"},
    "FedNova": {"weighting": to.weighting.FedNova()},
    "spread": {"substitution": to.substitution.Spread()},
    "SCAFFOLD": {"terms": [to.terms.Scaffold()]},
    "VRL-SGD": {"terms": [to.terms.VRLSGD()]},
    "FedGATE": {"terms": [to.terms.FedGATE()]},
    "MimeLite": {"terms": [to.terms.MimeLite()]},
    "elastic": {"terms": [to.terms.Elastic(0.1)]},
    "newcomer's boost": {"boosted": True},
    "FedProx": {"terms": [to.terms.Proximal(0.1)]},
    "APFL": {"terms": [to.terms.APFL()]},
    "personal layers": {"personal": to.personal.Named("bias")},
    "server Adam": {"server": to.server.ServerAdam()},
    "server Yogi": {"server": to.server.ServerYogi()},
    "server Adagrad": {"server": to.server.ServerAdagrad()},
    "ternary": {"compression": to.compression.SparseTernary(0.4)},
    "top-k": {"compression": to.compression.TopK(0.4)},
    "8 bit": {"compression": to.compression.Quantise()},
    "late replies": {"closing": to.closing.FirstReplies(share=0.8, late="use")},
    "buffer": {"closing": to.closing.Buffered(size=2)},
    "max_weight": {"max_weight": 0.2},
    "banded": {"noise": "banded"},
    "blt": {"noise": "blt"},
}


BEGIN_LATER = {0: (2, 3, 4, 5), 1: (2, 4)}  # of the score track: who is absent in the first rounds
SCORES: dict[str, dict[str, Any]] = {
    "": {},
    "shrunk": {"growth": "shrunk"},
    "banded": {"noise": "banded"},
    "blt": {"noise": "blt"},
    "noise at clients": {"noise_at": "client"},
}


@dataclass(frozen=True)
class Attacked:
    """Clients that send what the attack says, as a runtime.

    sends    whether the attacked client sends anything
    beside   whether it sends it in what its terms upload alone
    friends  whether others send what makes the attacked client the friend of two of them
    absent   who is absent, by round
    kept     what clients keep of their messages: name -> [clients, ...]
    """

    layout: Layout
    algorithm: to.Algorithm
    runs: int
    sends: bool
    beside: bool
    friends: bool
    absent: dict[int, tuple[int, ...]]
    kept: Tensors

    def events(self, t: int) -> list[Any]:
        return []

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.full_like(client_C, 10)

    def mean_examples(self, members: Members) -> float:
        return 10.0

    def commit(self, t: int, client_R: Tensor) -> None:
        pass

    def ask(self, client_C: Tensor, download: Any) -> tuple[Turnout, Replies | None]:
        """Client 0 is attacked, and does a quarter of its work; it sends 100 C in its columns."""
        work_C = torch.where(client_C == 0, 1.0, 4.0).double()
        if not isinstance(self.algorithm.weighting, to.weighting.ByWork):
            work_C = torch.full_like(work_C, 4.0)
        for client in self.absent.get(download.t, ()):
            work_C[client_C == client] = 0.0
        times = self.times(client_C, download) if self.algorithm.closing.uses_late else None
        turnout = Turnout(client_C, work_C, 4, work_C, torch.full_like(work_C, 4.0), times)
        here_R = (work_C > 0).nonzero().squeeze(1)
        client_R = client_C[here_R]
        if not len(client_R):
            return turnout, None
        row_RP = self.rows(client_R)
        scale_R = torch.ones(len(here_R)).double()
        if self.algorithm.scale_at == "client":
            scale_R = self.algorithm.weighting.client_scale(turnout)[here_R]
        beside_RP = replace(self, beside=False).rows(client_R) if self.beside else row_RP
        uploads = {term.name: self.uploads(term, beside_RP) for term in self.algorithm.terms}
        zero_R, bytes_R = torch.zeros(len(client_R)).double(), torch.zeros(len(client_R), dtype=torch.int64)
        report = {"loss": zero_R, "finite": torch.ones_like(client_R).bool()}
        report |= {"bytes_up": bytes_R, "bytes_down": bytes_R}
        sending = Sending(download.t, 0, client_R, self.layout.shared_slots)
        mine = {name: value[client_R] for name, value in self.kept.items()}
        message, mine = self.algorithm.compression.encode(row_RP * scale_R[:, None], mine, sending)
        for name, value in mine.items():
            self.kept[name][client_R] = value
        message = message.counted()
        return turnout, Replies(client_R, message, uploads={n: u for n, u in uploads.items() if u}, report=report)

    def times(self, client_C: Tensor, download: Any) -> Times:
        """In round 3 the attacked client is late for one round; it is early else and takes part all the same."""
        zero_C, timing = torch.zeros(len(client_C)).double(), download.timing()
        train_C = torch.where(client_C == 0, 1.5 if download.t == 3 else 0.0, 0.1 * client_C.double())
        closes, size = 1.0, self.algorithm.closing.buffer
        if size is not None:  # with the last reply that fills the buffer
            closes = float(torch.cat([train_C, timing.arrival_F - timing.now]).sort().values[:size][-1])
        same = {"up_C": zero_C + 1, "tier_C": torch.zeros_like(client_C)}
        return Times(zero_C, zero_C, train_C, zero_C, zero_C, late_C=train_C > closes, closes=closes, **same)

    def rows(self, client_R: Tensor) -> Tensor:
        return torch.stack([self.vector(int(client)) for client in client_R])

    def vector(self, client: int) -> Tensor:
        """What a client sends, C being 1: others half of C in their column, each with a sign of its own."""
        row = torch.zeros(self.runs, COPIES).double()
        if client == 0:
            row[:, 0] = 100.0 if self.sends and not self.beside else 0.0
        else:
            row[:, 1 + client % 2] = 0.5 * (-1) ** (client // 2)
        if self.friends and client > 0:
            row[:] = torch.tensor(FRIENDLY[client]).double()
        return (row / math.sqrt(self.runs)).flatten()

    def uploads(self, term: Any, row_RP: Tensor) -> dict[str, Tensor]:
        """As long as the update, where the term uploads anything."""
        match term.name:
            case "scaffold":
                return {"change": row_RP.clone()}
            case "mime-lite":
                return {"gradient": row_RP.clone()}
            case "elastic":
                return {"u": row_RP.abs(), "v": row_RP.clone(), "z": row_RP.new_zeros(len(row_RP), 1)}
        return {}


def algorithm_of(parts: dict[str, Any], runs: int) -> tuple[to.Algorithm, bool]:
    """The algorithm of a case as `prepare` would make it, its noise 1/√runs as large."""
    parts = dict(parts)
    noise, boosted, _ = parts.pop("noise", "gaussian"), parts.pop("boosted", False), parts.pop("beside", False)
    adaptive = {"quantile": parts.pop("quantile", None), "clip_noise": 5.0}
    stated = Private(1.0, N0, DELTA, EPSILON, noise=noise, min_separation=SEPARATION, **adaptive)
    multiplier = stated.tied(ROUNDS).begin()["multiplier"] / math.sqrt(runs)
    private = replace(stated, epsilon=None, noise_multiplier=multiplier)
    local = to.Local(to.SGD(0.1), steps=4, batch_size=4)
    algorithm = to.Algorithm(local=local, privacy=private, **({"weighting": to.weighting.ByShare()} | parts))
    experiment = to.Experiment(algorithm=algorithm).but(**made_private(algorithm, ROUNDS)[0])
    assert isinstance(experiment.algorithm, to.Algorithm)
    return experiment.algorithm, boosted


def seen(parts: dict[str, Any], runs: int, sends: bool, key: int, absent: dict[int, tuple[int, ...]]) -> Tensor:
    """What the attacker sees of each run [runs, numbers]."""
    if "scores" in parts:
        return seen_of_scores(parts["scores"], runs, sends, key, absent)
    algorithm, boosted = algorithm_of(parts, runs)
    at_home = algorithm.personal is not None
    layout = lay_out(nn.Linear(runs * COPIES, 1, bias=at_home), algorithm.personal)
    start_P = torch.zeros(layout.shared).double()
    roster = Roster(torch.tensor([0]), torch.tensor([0])) if boosted else Roster()
    server = Server(
        start_P, {}, {term.name: term.server_state(start_P) for term in algorithm.terms}, Members(CLIENTS),
        substitution=algorithm.substitution.begin(CLIENTS, layout.shared),
        compression=algorithm.compression.begin(layout.shared_slots), step=algorithm.server.begin(layout.shared),
        selection=algorithm.selection.begin(), privacy=algorithm.privacy.begin(), roster=roster,
    )  # fmt: skip
    first = algorithm.compression.residuals(layout.shared_slots)
    kept = {name: value.expand(CLIENTS, *value.shape).clone() for name, value in first.items()}
    friends = "substitution" in parts
    runtime: Any = Attacked(layout, algorithm, runs, sends, parts.get("beside", False), friends, absent, kept)
    found = []
    for t in range(ROUNDS):
        happened = run_round(server, t, Context(algorithm, runtime, 0, noise_key=key))
        server, total = happened.after, happened.total
        if total is None:
            continue
        views = [total.sum_P, total.new_P - total.start_P]
        views += [value.sum(0) for sent in total.uploads.values() for value in sent.values() if value.shape[1] > 1]
        found += [view.view(runs, COPIES).double() for view in views]
        found += [torch.tensor([[server.privacy["clip"]]]).double()] if "quantile" in parts else []
    return torch.cat(found, 1) * math.sqrt(runs)


# -- scores


@dataclass(frozen=True)
class AttackedScores:
    """Clients of the score track that send what the attack says, as a runtime; `messages` keeps those of client 0."""

    algorithm: Scores
    runs: int
    sends: bool
    absent: dict[int, tuple[int, ...]]
    messages: list[Tensor]

    def events(self, t: int) -> list[Any]:
        return []

    def examples(self, client_C: Tensor) -> Tensor:
        return torch.full_like(client_C, 10)

    def build(self, request: BuildRequest) -> BuildAnswer:
        """As `Attacked`; only 0 and 5 have the first label, and two clients each begin in rounds 0, 1 and 2."""
        client_C, private, replies = request.client_C, self.algorithm.client_noise, []
        work_C = torch.ones(len(client_C)).double()
        for client in (*self.absent.get(request.t, ()), *BEGIN_LATER.get(request.t, ())):
            work_C[client_C == client] = 0.0
        for client in client_C[work_C > 0].tolist():
            f_Rl = torch.zeros(self.runs, COPIES).double()
            if client == 0:
                f_Rl[:, 0] = 100.0 if self.sends else 0.0
            else:
                f_Rl[:, 1 + client % 2] = 0.5 * (-1) ** (client // 2)
            set_l = torch.arange(0 if client in (0, 5) else 1, COPIES)
            reply = ScoreReply(client, set_l, f_Rl[:, set_l] / math.sqrt(self.runs), 10, 0.0, 1.0, True, 0)
            if private is not None:
                reply = noised_reply(reply, private, private.begin()["multiplier"], request.key, request.t)
            if client == 0 and private is not None:
                self.messages.append(reply.f_Rl)
            replies.append(reply)
        return BuildAnswer(Turnout(client_C, work_C, 1.0, work_C, torch.ones_like(work_C)), replies)

    def learn(self, request: LearnRequest) -> list[Any]:
        return []


def seen_of_scores(
    settings: dict[str, Any], runs: int, sends: bool, key: int, absent: dict[int, tuple[int, ...]]
) -> Tensor:
    """What the attacker sees of each run: the global scores after each round, and messages where clients add noise."""
    settings = dict(settings)
    how = {name: settings.pop(name) for name in ("noise", "noise_at") if name in settings}
    stated = Private(1.0, N0, DELTA, EPSILON, min_separation=SEPARATION, **how)
    multiplier = stated.tied(ROUNDS).begin()["multiplier"] / math.sqrt(runs)
    given = Scores(
        beta="equal", scores="logits", privacy=replace(stated, epsilon=None, noise_multiplier=multiplier), **settings
    )
    algorithm = to.Experiment(algorithm=given).but(**made_private_scores(given, ROUNDS)[0]).algorithm
    assert isinstance(algorithm, Scores)
    assert algorithm.privacy is not None
    every_R, label_R = torch.ones(runs, dtype=torch.bool), torch.zeros(runs, dtype=torch.int64)
    public = PublicLabels(label_R, label_R, every_R, every_R, ("own", "first", "second"))
    table = ScoreTable.blank(runs, COPIES)
    server = ScoreServer(table, Members(CLIENTS), algorithm.selection.begin(), algorithm.privacy.begin())
    runtime: Any = AttackedScores(algorithm, runs, sends, absent, [])
    found = []
    for t in range(ROUNDS):
        server, record = score_round(server, t, ScoreContext(algorithm, public, runtime, 0, key))
        found += [server.table.score_RL] if record.skipped is None else []
    return torch.cat([*found, *runtime.messages], 1) * math.sqrt(runs)


def shown_epsilon(parts: dict[str, Any], runs: int, level: float, absent: dict[int, tuple[int, ...]]) -> float:
    """The lower bound on ε that the attack shows."""
    if "quantile" in parts:
        runs //= 10
        keys = range(1, runs + 1)
        with_it, without = (
            torch.cat([seen(parts, 1, i > 0, i, absent) for i in map(sign, keys)]) for sign in (int, neg)
        )
    else:
        with_it, without = (seen(parts, runs, sends, key, absent) for sends, key in ((True, 1), (False, 2)))
    numbers = min(with_it.shape[1], without.shape[1])
    with_it, without, fitted = with_it[:, :numbers], without[:, :numbers], int(FITTED * runs)
    apart = with_it[:fitted].mean(0) - without[:fitted].mean(0)
    noise = (torch.cov(with_it[:fitted].T) + torch.cov(without[:fitted].T)) / 2
    size = noise.diagonal().sqrt().clamp(min=1e-9)
    scaled = noise / size[:, None] / size + 1e-6 * torch.eye(numbers).double()  # sums are seen twice, in models too
    direction = torch.linalg.solve(scaled, apart / size) / size
    one, other = with_it[fitted:] @ direction, without[fitted:] @ direction
    middle = (with_it[:fitted] @ direction).mean() / 2 + (without[:fitted] @ direction).mean() / 2
    normal, errors = NormalDist(), []
    for wrong in ((one <= middle).sum(), (other > middle).sum()):
        errors.append(upper(int(wrong), len(one), level / 2))
    mu = -normal.inv_cdf(errors[0]) - normal.inv_cdf(errors[1])
    return epsilon_of(mu, DELTA) if mu > 0 else 0.0


def upper(wrong: int, of: int, level: float) -> float:
    """Clopper and Pearson's upper limit of a probability."""
    from scipy.stats import beta

    return min(1 - 1e-12, float(beta.ppf(1 - level, wrong + 1, of - wrong))) if wrong < of else 1 - 1e-12


def cases() -> dict[str, dict[str, Any]]:
    """Each option alone and with each other one that has another role."""
    found: dict[str, dict[str, Any]] = {"none": {}} | {name: OPTIONS[name] for name in OPTIONS}
    found["adaptive clip"] = {"quantile": 0.5}
    found["SCAFFOLD, Δc alone"] = {"terms": [to.terms.Scaffold()], "beside": True}
    for first, second in combinations(OPTIONS, 2):
        both = {**OPTIONS[first], **OPTIONS[second]}
        if "terms" in OPTIONS[first] and "terms" in OPTIONS[second]:
            both["terms"] = [*OPTIONS[first]["terms"], *OPTIONS[second]["terms"]]
        elif set(OPTIONS[first]) & set(OPTIONS[second]):
            continue
        with suppress(UserError):  # some pairs are refused
            algorithm_of(both, 1)
            found[f"{first}, {second}"] = both
    for name, settings in SCORES.items():
        found[f"scores{name and ', '}{name}"] = {"scores": settings}
    return found


# -- rules that are switched off


@contextmanager
def lengths_without(what: str) -> Iterator[None]:
    """Clip without a client's factors, or without what its terms upload."""
    plain = Private._lengths

    def shorter(self: Private, sent: Sent, squared_R: Tensor | None) -> Tensor:
        if what == "factors":
            sent = {name: (value, torch.ones_like(own_R)) for name, (value, own_R) in sent.items()}
        else:
            sent = {UPDATE: sent[UPDATE]}
        return plain(self, sent, squared_R)

    with patch.object(Private, "_lengths", shorter):
        yield


@contextmanager
def messages_not_clipped() -> Iterator[None]:
    """Clients that add the noise themselves send scores of any length."""
    plain = Private.noised_message

    def longer(self: Private, value: Tensor, multiplier: float, key: int, t: int, client: int) -> Tensor:
        return value + plain(self, torch.zeros_like(value), multiplier, key, t, client)

    with patch.object(Private, "noised_message", longer):
        yield


@contextmanager
def all_parts() -> Iterator[None]:
    """No part is refused."""
    with patch("turnout.parts.compatibility.check_private"):
        yield


@contextmanager
def no_separation() -> Iterator[None]:
    """Clients are asked in every round, whatever was promised."""
    from turnout.parts.selection import MinSeparation

    with patch.object(MinSeparation, "choose", lambda self, members, t, seed, state=None: members.ids()):
        yield


@contextmanager
def same_noise() -> Iterator[None]:
    """Every round has the same noise, as if it were run again with other replies."""
    import turnout.parts.privacy.noise as module

    plain = module.draw_noise
    with patch.object(module, "draw_noise", lambda key, t, name, like: plain(key, 0, name, like)):
        yield


def broken() -> dict[str, tuple[dict[str, Any], Any, dict[int, tuple[int, ...]]]]:
    """Parts, the rule that is off, and who is absent when."""
    at_clients = SCORES["noise at clients"]
    return {
        "E/s outside the clip": (OPTIONS["scheme C at the server"], lengths_without("factors"), {}),
        "boost outside the clip": ({"boosted": True}, lengths_without("factors"), {}),
        "Δc outside the clip": ({"terms": [to.terms.Scaffold()], "beside": True}, lengths_without("uploads"), {}),
        "separation not enforced": ({}, no_separation(), {}),
        "separation not enforced, banded": ({"noise": "banded"}, no_separation(), {}),
        "Stale": ({"substitution": to.substitution.Stale()}, all_parts(), dict.fromkeys(range(1, ROUNDS), (0,))),
        "Friends": ({"substitution": to.substitution.Friends()}, all_parts(), dict.fromkeys(range(1, ROUNDS), (3, 5))),
        "the same noise twice": ({}, same_noise(), {3: (0,)}),
        "scores, separation not enforced": ({"scores": {}}, no_separation(), {}),
        "scores, the same noise twice": ({"scores": {}}, same_noise(), {3: (0,)}),
        "scores, noise at clients, separation not enforced": ({"scores": at_clients}, no_separation(), {}),
        "scores, noise at clients, not clipped": ({"scores": at_clients}, messages_not_clipped(), {}),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30_000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    allowed = {name: parts for name, parts in cases().items() if given.only in name}
    level = 0.05 / len(cases())
    found = {name: shown_epsilon(parts, given.runs, level, {}) for name, parts in allowed.items()}
    for name in sorted(found, key=lambda name: -found[name])[:10]:
        print(f"{name:45}{found[name]:6.3f}")
    above = [name for name, value in found.items() if value > EPSILON]
    print(f"{len(found)} allowed cases, stated ε = {EPSILON:g}, δ = {DELTA:g}, {given.runs:,} runs: the attack shows "
          f"at most {max(found.values(), default=0):.3f}; above the stated: {', '.join(above) or 'none'}")  # fmt: skip
    for name, (parts, off, absent) in broken().items():
        if given.only in name:
            with off:
                print(f"rule off: {name:52}{shown_epsilon(parts, given.runs, level, absent):6.3f}")


if __name__ == "__main__":
    main()
