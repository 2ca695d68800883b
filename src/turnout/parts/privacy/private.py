"""Differential privacy for each client's whole contribution, wherever parts multiply or add to it.

Each client's contribution to a round is made one vector: its decoded update with every factor of its own (work, boost,
lent shares, age) and what its terms upload; or its scores. The vector is clipped to the length C, summed, noised and
divided by a fixed number. What comes out is all that later steps see: the server step, terms, compression, broadcast.

With `noise_at = "client"` each client clips and noises its vector itself, and the server only adds up what it receives.

Shape letters: R replies, P shared parameters, S names of what was sent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.machine.memory import to_device
from turnout.parts.privacy.accountant import epsilon_of, mu_of
from turnout.parts.privacy.factorisation import BUFFERS, Factorisation, factorise
from turnout.parts.privacy.ledger import count_again, empty_ledger, took_part
from turnout.parts.privacy.noise import beside_training, draw_noise, drawn, next_noise
from turnout.parts.updates import Updates, squared_lengths
from turnout.types import Extra, State, Tensors

NOISES = ("gaussian", "banded", "blt")
FloatArray = NDArray[np.float64]  # small arrays are numpy's: torch takes several times as long
UPDATE = "update"  # the name of the update's noise beside those of uploads
Sent = Mapping[str, tuple[Tensor, Tensor]]  # by clients in a round, by name: a row each [R, ...], and its factors [R]


@dataclass(frozen=True)
class Private:
    """Clip each client's contribution, add noise to the sum, and let each client take part at most so often.

    clip              C: the longest contribution of one client to a round; the first one with `quantile`
    n0                the noised sum is divided by this in every round: about as many clients as reply
    delta             δ; below 1 / the number of clients
    epsilon           ε for all rounds together: sets the noise, or is a budget beside `noise_multiplier`; a run that
                      would exceed it stops before that round
    noise_multiplier  standard deviation of the noise in units of C, instead of `epsilon`
    noise             "gaussian": independent in each round; "banded" and "blt": correlated, so that later noise cancels
                      part of the earlier noise
    min_separation    b: a client that took part is not asked again for so many rounds, counted from one to the next
    most              k: how often a client takes part at most; None: as often as b allows
    quantile          adapt C so that this share of contributions is shorter; None: C is fixed
    clip_rate         how fast C adapts: C <- C exp(-clip_rate (share - quantile))
    clip_noise        standard deviation of the noise on the number of shorter contributions; None: n0 / 20
    beside            λ: weight of what terms upload beside the update in the vector that is clipped
    noise_at          "server": it adds noise to the sum; "client": each client does before it sends, so that the server
                      is not trusted either (scores only)
    secret            draw noise from a secret key, kept in the run's folder on the server; always with real clients,
                      unless they add it themselves. Else a simulation draws it from the seed, and is repeatable
    rounds            rounds that the noise is for; set when the experiment is prepared
    """

    clip: float
    n0: float | None = None
    delta: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    noise: str = "gaussian"
    min_separation: int = 1
    most: int | None = None
    quantile: float | None = None
    clip_rate: float = 0.2
    clip_noise: float | None = None
    beside: float = 1.0
    noise_at: str = "server"
    secret: bool = False
    rounds: int | None = None

    def __post_init__(self) -> None:
        positive = dict.fromkeys(("n0", "epsilon", "noise_multiplier", "clip_rate", "clip_noise", "beside"), "(0, inf)")
        check_settings(self, clip="(0, inf)", noise=NOISES, delta="(0, 1)", quantile="(0, 1)", **positive)
        check_settings(self, noise_at=("server", "client"))
        check_settings(self, min_separation="[1, inf)", most="[1, inf)", rounds="[1, inf)")
        if self.n0 is None:
            raise UserError(
                "privacy.n0 is not given: the noised sum is divided by a fixed number, so that no private number is in "
                "the divisor; give about as many clients as reply in a round"
            )
        if self.delta is None:
            raise UserError("privacy.delta is not given, and ε has no meaning without it: give less than 1 / clients")
        if self.epsilon is None and self.noise_multiplier is None:
            raise UserError("privacy needs epsilon (the noise follows) or noise_multiplier (ε follows): give one")
        if self.quantile is not None and self.noise != "gaussian":
            raise UserError(
                f"privacy.quantile changes the clipping length, and noise {self.noise!r} only cancels between rounds "
                "of the same length: leave quantile out, or take noise = 'gaussian'"
            )
        if self.noise_at == "client" and (self.noise != "gaussian" or self.quantile is not None):
            raise UserError(
                "privacy.noise_at = 'client': a client noises each message by itself, so noise is 'gaussian' and clip "
                "is fixed; leave quantile out and noise at its default, or let the server add the noise"
            )

    # -- before the first round

    def tied(self, rounds: int) -> Private:
        """The same for so many rounds; refused where its settings do not fit them."""
        if self.rounds not in (None, rounds):
            raise UserError(
                f"privacy.rounds = {self.rounds}, and the experiment has {rounds} rounds, which the noise is for: "
                "leave privacy.rounds out"
            )
        if self.min_separation > rounds:
            raise UserError(
                f"privacy.min_separation = {self.min_separation} is more than the {rounds} rounds there are: each "
                f"client would take part once at most; set most = 1 instead, or a separation of at most {rounds}"
            )
        return replace(self, rounds=rounds)

    def begin(self) -> State:
        """The state before the first round: noise, clipping length, and who took part. It stays as it began where a
        resumed run has more rounds."""
        assert self.rounds is not None
        factorisation = factorise(self.noise, self.rounds, self.min_separation, self.most)
        multiplier = self.noise_multiplier
        if multiplier is None:
            multiplier = self.sensitivity(factorisation, self.rounds) / self._mu()
        elif self.epsilon is not None and epsilon_of(1 / multiplier, self._delta) > self.epsilon:
            raise UserError(
                f"privacy.epsilon = {self.epsilon:g} does not allow a single round with noise_multiplier = "
                f"{multiplier:g}: raise one of them, or leave noise_multiplier out"
            )
        if self.quantile is not None and multiplier >= 2 * self._clip_noise:
            raise UserError(
                f"privacy.clip_noise = {self._clip_noise:g} is too little beside a noise multiplier of "
                f"{multiplier:.4g}: raise it above {multiplier / 2:.4g}, or leave quantile out"
            )
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(factorisation).items()}
        ledger = empty_ledger(self.rounds)
        return {"multiplier": multiplier, "clip": self.clip, "factorisation": plain, "streams": {}, "ledger": ledger}

    @property
    def _delta(self) -> float:
        assert self.delta is not None
        return self.delta

    def _mu(self) -> float:
        assert self.epsilon is not None
        return mu_of(self.epsilon, self._delta)

    @property
    def _clip_noise(self) -> float:
        assert self.n0 is not None
        return self.n0 / 20 if self.clip_noise is None else self.clip_noise

    @property
    def vectors(self) -> int:
        """How many vectors of the model's length the noise keeps."""
        return {"gaussian": 0, "banded": self.min_separation - 1, "blt": BUFFERS}[self.noise]

    @property
    def participations(self) -> int:
        """How often a client takes part at most in all rounds."""
        assert self.rounds is not None
        possible = -(-self.rounds // self.min_separation)
        return possible if self.most is None else min(possible, self.most)

    # -- what it costs

    def sensitivity(self, factorisation: Factorisation, rounds: int) -> float:
        """By how much one client moves all releases together, in units of C, by the participation that is enforced."""
        return factorisation.sensitivity(rounds, self.min_separation, self.most)

    def epsilon_after(self, state: State, rounds: int) -> float:
        """ε of the first rounds, for any client that takes part at most k times, at least b rounds apart."""
        table = _factorisation(state).sensitivities(max(rounds, self.rounds or 0), self.min_separation, self.most)
        return epsilon_of(table[rounds - 1] / state["multiplier"], self._delta)

    def reason_to_stop(self, state: State, t: int) -> str | None:
        """Why round t must not run: ε would exceed its budget; None: it may."""
        if self.epsilon is None or (after := self.epsilon_after(state, t + 1)) <= self.epsilon * (1 + 1e-9):
            return None
        return f"the privacy budget ε = {self.epsilon:g} is spent: round {t} would raise it to {after:.4g}"

    # -- a round

    def prepare(self, like: Tensors, client_R: Tensor, t: int, state: State, key: int) -> Prepared:
        """The noise of round t for sums like these, and the state after it if these clients take part."""
        factorisation, streams, noise = _factorisation(state), dict(state["streams"]), Tensors()
        if self.noise_at == "server" and self._multiplier(state):
            for name, one in like.items():
                with beside_training(one.device):
                    noise[name], streams[name] = next_noise(factorisation, streams.get(name, {}), one, (key, t, name))
        after, extra = self._counted(state | {"streams": streams}, client_R, t)
        return Prepared(noise, client_R, after, extra)

    def release(
        self,
        updates: Updates,
        own_R: Tensor,
        state: State,
        key: int,
        not_negative: Collection[tuple[str, str]] = (),
        prepared: Prepared | None = None,
    ) -> Released:
        """Clip, sum and noise the replies of a round.

        own_R         the factor of each reply's own
        key           addresses the noise
        not_negative  uploads whose sums cannot be negative, as (term, name): noise may not make them so
        prepared      by `prepare`, for at least these sums; None: it is done here

        Every reply is replaced by the noised sum / R: what later steps compute of replies is a function of that sum.
        """
        sent = {UPDATE: (updates.update_RP, own_R)}
        for term, own in updates.uploads.items():
            for name, value in own.items():
                if not value.is_floating_point():
                    raise UserError(
                        f"the term {term!r} uploads whole numbers ({name!r}), which cannot be clipped and noised: "
                        "leave the term out, or algorithm.privacy"
                    )
                sent[f"{term}.{name}"] = value, torch.full_like(own_R, self.beside)
        known_R = updates.squared_R
        sums, after, extra = self.noised_sums(sent, updates.client_R, updates.t, state, key, known_R, prepared)
        replies, uploads = len(updates.client_R), dict[str, Tensors]()
        for term, own in updates.uploads.items():
            for name in own:
                total = sums[f"{term}.{name}"] / self.beside
                total = total.clamp(min=0) if (term, name) in not_negative else total
                uploads.setdefault(term, {})[name] = _rows(total, replies)
        return Released(_seen(updates, sums[UPDATE], uploads), sums[UPDATE], after, extra)

    def counted(self, updates: Updates, sum_P: Tensor, state: State) -> Released:
        """A sum of a round's replies that clients have clipped and noised, with its participations counted."""
        after, extra = self._counted(state, updates.client_R, updates.t)
        return Released(_seen(updates, sum_P, updates.uploads), sum_P, after, extra)

    def noised_sums(
        self,
        sent: Sent,
        client_R: Tensor,
        t: int,
        state: State,
        key: int,
        squared_R: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> tuple[Tensors, State, Extra]:
        """The sums over clients of what they sent in round t, clipped and noised; the next state of the part, and
        columns for the round's record. Where clients have clipped and noised it themselves, it is only summed.

        squared_R  squared lengths of the updates, where training has measured them
        prepared   as for `release`
        """
        if prepared is None:
            prepared = self.prepare({name: value[0] for name, (value, _) in sent.items()}, client_R, t, state, key)
        clip, std, sums = state["clip"], self._multiplier(state) * state["clip"], Tensors()
        length_R = self._lengths(sent, squared_R)
        kept_R = clip / np.maximum(length_R, clip)  # min(1, C / length), a factor of the sum: no matrix is clipped
        if self.noise_at == "client":
            kept_R, std = np.ones_like(kept_R), 0.0
        for name, (value, own_R) in sent.items():
            factor_R = to_device(torch.from_numpy(kept_R * own_R.numpy()), value.device, value.dtype)
            sums[name] = (factor_R @ value.flatten(1)).view(value.shape[1:])
            if std:
                sums[name].add_(drawn(prepared.noise[name]), alpha=std)
        after, extra = prepared.state, prepared.extra
        if not torch.equal(prepared.client_R, client_R):  # a reply was late, or not finite
            after, extra = self._counted(state | {"streams": after["streams"]}, client_R, t)
        if self.quantile is not None:
            after, extra = after | {"clip": self._adapted(length_R, clip, key, t)}, extra | {"clip": clip}
        return sums, after, extra

    def noised_message(self, value: Tensor, multiplier: float, key: int, t: int, client: int) -> Tensor:
        """What a client sends in round t where it adds the noise itself: clipped, and noised with a key of its own."""
        short = value * (self.clip / max(float(torch.linalg.vector_norm(value)), self.clip))
        return short + multiplier * self.clip * draw_noise(key, t, f"client {client}", value)

    def _counted(self, state: State, client_R: Tensor, t: int) -> tuple[State, Extra]:
        """The state after these clients took part in round t, and ε so far."""
        after, enforced = state | {"ledger": self._participated(state, client_R, t)}, self.epsilon_after(state, t + 1)
        realised = epsilon_of(math.sqrt(after["ledger"]["most"]) / state["multiplier"], self._delta)
        return after, {"epsilon": enforced, "epsilon_realised": min(enforced, realised)}

    def _multiplier(self, state: State) -> float:
        """Noise multiplier of the sum: with an adaptive C, z_Δ = (z⁻² - (2 σ_b)⁻²)^(-1/2), the rest is for its bit.

        >>> private = Private(1.0, n0=20, delta=1e-6, noise_multiplier=1.0, quantile=0.5, clip_noise=1.0)
        >>> round(private._multiplier({"multiplier": 1.0}) ** -2, 9)  # 1 - (2 · 1)⁻²
        0.75
        """
        multiplier = float(state["multiplier"])
        if self.quantile is None:
            return multiplier
        return (multiplier**-2 - (2 * self._clip_noise) ** -2) ** -0.5

    def _lengths(self, sent: Sent, squared_R: Tensor | None) -> FloatArray:
        """Length of each client's whole vector: all that it sent, with its factors."""
        total_R: FloatArray = np.zeros(1)
        for name, (value, own_R) in sent.items():
            known_R = squared_R if name == UPDATE and squared_R is not None else squared_lengths(value)
            total_R = total_R + known_R.cpu().numpy() * own_R.numpy() ** 2
        return np.sqrt(total_R)

    def _adapted(self, length_R: FloatArray, clip: float, key: int, t: int) -> float:
        """The next C, from the noised number of contributions that are not longer than C (Andrew et al., 2021)."""
        assert self.quantile is not None
        noise = self._clip_noise * float(draw_noise(key, t, "clip", torch.zeros(1, dtype=torch.float64)))
        surplus = float((length_R <= clip).sum()) - len(length_R) / 2 + noise
        return clip * math.exp(-self.clip_rate * (surplus / len(length_R) + 0.5 - self.quantile))

    def _participated(self, state: State, client_R: Tensor, t: int) -> State:
        """The ledger after these clients took part in round t."""
        assert self.rounds is not None
        ledger, factorisation = state["ledger"], _factorisation(state)
        if self.rounds > ledger["rounds"]:  # the run was resumed with more rounds
            ledger = count_again(ledger["client"], ledger["round"], factorisation, self.rounds)
        return took_part(ledger, factorisation, client_R, t)


@dataclass(frozen=True)
class Prepared:
    """What of a release does not depend on the updates: the server can compute it while clients train.

    noise     of each sum, in units of C · the noise multiplier
    client_R  clients that are expected to take part
    state     the next state of the part if just these do
    extra     columns for the round's record, likewise
    """

    noise: Tensors
    client_R: Tensor
    state: State
    extra: Extra


@dataclass(frozen=True)
class Released:
    """What a private round releases.

    updates  the replies as later steps see them: R rows, each the noised sum / R
    sum_P    the noised sum of the clipped contributions
    state    the next state of the part
    extra    columns for the round's record
    """

    updates: Updates
    sum_P: Tensor
    state: State
    extra: Extra


def _factorisation(state: State) -> Factorisation:
    kept = state["factorisation"]
    return Factorisation(kept["noise"], *(tuple(kept[name]) for name in ("coefs", "decay", "scale")))


def _seen(updates: Updates, sum_P: Tensor, uploads: dict[str, Tensors]) -> Updates:
    """The replies as later steps see them: each is the noised sum / R, and nothing else of them is left."""
    update_RP = _rows(sum_P, len(updates.client_R))
    return replace(updates, update_RP=update_RP, uploads=uploads, loss_R=None, states={}, hints={})


def _rows(sum_P: Tensor, replies: int) -> Tensor:
    """A sum as so many equal rows [R, ...] that add up to it."""
    return (sum_P / replies).expand(replies, *sum_P.shape)
