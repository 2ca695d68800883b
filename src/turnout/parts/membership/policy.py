"""Clients that join late, leave for good, or are hardly ever there: who is a member, and what the objective is over.

The first line of a round. Joining shifts the objective: shares are over the new members and the clock of the learning
rate starts again; for a while the newcomer's own share weighs more (fast-reboot). Who leaves is taken out of the
objective, which shifts it too (exclude), or stays in it (include): it is drawn into cohorts like anybody and is absent,
only that nobody asks it. Which of the two promises more is `decide`'s question (departure.py).

Shape letters: C clients of the cohort, I any clients, J newcomers, K clients ever asked, D dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turnout.errors import Mistake, nearest
from turnout.parts.membership.departure import check_rule, left_to_learn, should_exclude
from turnout.parts.membership.roster import Roster
from turnout.parts.membership.transition import Constants, Moment, Scene
from turnout.rng import draw
from turnout.round_log import Event as Happened
from turnout.types import State, Turnout
from turnout.world.events import Join

if TYPE_CHECKING:
    from turnout.exchange import Runtime, Server
    from turnout.experiment import Algorithm

JOINS = ("fast-reboot", "vanilla")
LEAVES = ("include", "exclude", "decide")


def boost(rounds_I: Tensor, factor: float = 3.0, decay: float = 2.0) -> Tensor:
    """Fast-reboot: boost_l(t) = 1 + (3 - 1) / (t - τ0 + 1)², by rounds t - τ0 since the newcomer joined.

    >>> boost(torch.tensor([0, 1, 2]))
    tensor([3.0000, 1.5000, 1.2222], dtype=torch.float64)
    """
    return 1 + (factor - 1) / (rounds_I + 1).to(torch.float64) ** decay


@dataclass(frozen=True)
class DropInactive:
    """Paper 001, Corollary 1: a client is dropped if y_a J > f1(T), y_a the share of asked rounds it was away.

    J, C, gamma    the constants of the bound, which the paper leaves open
    least          a client is judged once it has been asked this often
    rejoin_after   rounds until a dropped client may join again, as a newcomer; None: only by an event of the world
    """

    J: float = 1.0
    C: float = 1.0
    gamma: float = 0.0
    least: int = 10
    rejoin_after: int | None = None

    def __post_init__(self) -> None:
        if min(self.J, self.C, self.gamma) < 0 or self.least < 1:
            raise Mistake("membership.drop: J, C and gamma must not be negative, and least must be at least 1")
        if self.rejoin_after is not None and self.rejoin_after < 1:
            raise Mistake(f"membership.drop.rejoin_after must be at least 1 round, not {self.rejoin_after}")


@dataclass(frozen=True)
class Opening:
    """What the beginning of a round brought: events for its record, and numbers beside them."""

    events: Sequence[Happened] = ()
    extra: dict[str, float | str] = field(default_factory=dict)
    bytes_up: int = 0  # what those who left have sent for it


@dataclass(frozen=True)
class Membership:
    """What to do about joins and leaves.

    join      "fast-reboot": a newcomer's own share is multiplied by `boost` at first, which decays with the power
              `decay` of its rounds; "vanilla": it is not. Both restart the clock.
    gate      boost only if the gradient norm of the old objective is below this (Corollary 4.0.2)
    surveyed  how many members are asked for that norm when somebody joins; 0: it is not measured
    leave     "include", "exclude", or "decide" by `rule`: "crossing", "literal" (equation 8 as printed) or "sqrt"
              (equation 9, with `c`); `constants` of the bounds, fitted to the loss curve where none are given;
              `deadline`: the round T it is decided for, the last round where none is given
    stand_in  whether the substitution also stands in for those who have left but are included
    drop      drop clients that are hardly ever there
    """

    join: str = "fast-reboot"
    boost: float = 3.0
    decay: float = 2.0
    gate: float | None = None
    surveyed: int = 200
    leave: str = "exclude"
    rule: str = "crossing"
    c: float = 1.0
    constants: Constants | None = None
    deadline: int | None = None
    stand_in: bool = False
    drop: DropInactive | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("join", self.join, JOINS), ("leave", self.leave, LEAVES)):
            if value not in known:
                raise Mistake(f"membership.{name} = {value!r}: {nearest(value, known)}")
        check_rule(self.rule)
        if self.boost < 1 or self.decay < 0:
            raise Mistake(f"membership: boost is at least 1 and decay at least 0, not {self.boost} and {self.decay}")
        if self.gate is not None and not self.surveyed:
            raise Mistake("membership.gate needs the gradient norm: set membership.surveyed above 0")
        if self.surveyed < 0 or not self.c >= 0 or (self.deadline is not None and self.deadline < 1):
            raise Mistake("membership: surveyed and c must not be negative, and deadline must be at least 1")

    def begin(self) -> State:
        """The state before the first round."""
        return Roster().to_state()

    def begin_round(
        self, server: Server, t: int, seed: int, algorithm: Algorithm, runtime: Runtime
    ) -> tuple[Server, Opening]:
        """Let those leave and join who do so now; the server for this round, and what to record."""
        events = runtime.events(t)
        if not events and self.drop is None:
            return server, Opening()
        moment = Moment(server, Roster.from_state(server.parts["membership"]), t, algorithm, runtime)
        scene = Scene(server.members, moment.roster)
        leaving = [int(e.client) for e in events if not isinstance(e, Join)]
        joining = [int(e.client) for e in events if isinstance(e, Join)]
        for client in leaving:
            scene = self._leave(scene, client, moment)
        for client, why in self._inactive(scene, moment):
            scene = scene.excluded(client, "drop", why, t)
        joining += self._may_rejoin(scene, joining, t)
        new = [c for c in joining if c not in scene.members and c not in scene.gone]
        norm = self._old_norm(moment, seed) if new else None
        for client in joining:
            scene = self._join(scene, client, t, norm)
        if norm is not None:
            scene = scene.said({"old_gradient_norm": norm})
        server, bytes_up = scene.apply(moment)
        return server, Opening(scene.log, scene.extra, bytes_up)

    # -- joining

    def _join(self, scene: Scene, client: int, t: int, norm: float | None) -> Scene:
        if client in scene.members:
            return scene
        if client in scene.gone:
            return scene.returned(client)
        fast = self.join == "fast-reboot" and (self.gate is None or (norm is not None and norm < self.gate))
        said = "" if norm is None else f", gradient norm of the old objective {norm:.4g}"
        gate = "" if self.gate is None else f" ({'below' if fast else 'not below'} the gate {self.gate:g})"
        word = f"fast-reboot, boost {self.boost:g}" if fast else "vanilla"
        return scene.joined(client, word + said + gate, t if fast else None)

    def _old_norm(self, moment: Moment, seed: int) -> float | None:
        """The gradient norm of the objective so far at the current weights, over those of at most `surveyed` members
        who answer; None where nobody is asked or answers."""
        members, runtime, t = moment.server.members, moment.runtime, moment.t
        if not self.surveyed or not len(members):
            return None
        count = min(self.surveyed, len(members))
        client_I = members.at(draw(count, len(members), t, seed, "survey"))
        shares = replace(moment.algorithm.shares, over="normalised")
        share_I = shares.of(runtime.examples(client_I), len(members), None)
        gradient_P = runtime.gradient(moment.server, client_I, share_I, t)
        return None if gradient_P is None else float(gradient_P.norm())

    def boost_of(self, state: State, client_C: Tensor, t: int) -> Tensor:
        """What each client's own share is multiplied by: a newcomer's falls from `boost` to 1, on its own clock."""
        factor_C = torch.ones(len(client_C), dtype=torch.float64)
        newcomer_J = state["newcomer_J"]
        if not len(newcomer_J):
            return factor_C
        at_J = torch.searchsorted(client_C, newcomer_J).clamp(max=len(client_C) - 1)
        here_J = client_C[at_J] == newcomer_J
        own_J = boost(t - state["since_J"], self.boost, self.decay)
        return factor_C.index_copy(0, at_J[here_J], own_J[here_J])

    # -- leaving

    def _leave(self, scene: Scene, client: int, moment: Moment) -> Scene:
        if client not in scene.members:
            return scene.not_waiting(client).noted(client, "leave", "was dropped before")
        if self.leave == "decide":
            return self._decide(scene, client, moment)
        if self.leave == "include":
            return scene.included(client, "include")
        return scene.excluded(client, "leave", "exclude", moment.t)

    def _decide(self, scene: Scene, client: int, moment: Moment) -> Scene:
        """Include or exclude, with the numbers that decided in the record."""
        tau0, T = moment.clock, (self.deadline or moment.t + 1) - moment.server.origin
        bounds = moment.bounds(client, self.constants)
        if bounds is None:
            return scene.excluded(client, "leave", "exclude: too early to fit a loss curve", moment.t)
        numbers = asdict(bounds) | {"tau0": tau0, "T": T}
        shown = numbers | {"f0(T)": bounds.include(T, tau0), "f1(T)": bounds.exclude(T, tau0)}
        why = f"{self.rule} rule, " + ", ".join(f"{name} {value:.6g}" for name, value in shown.items())
        scene = scene.said({f"decide_{name}": float(value) for name, value in numbers.items()})
        if should_exclude(bounds, tau0, T, self.rule, self.c):
            return scene.excluded(client, "leave", f"exclude: {why}", moment.t)
        return scene.included(client, f"include: {why}")

    # -- hardly ever there

    def _inactive(self, scene: Scene, moment: Moment) -> list[tuple[int, str]]:
        """Members whose absence costs more than their data brings, and why."""
        drop, ledger = self.drop, scene.roster.ledger
        if drop is None or not len(ledger.client_K):
            return []
        tau0, T = moment.clock, (self.deadline or moment.t + 1) - moment.server.origin
        bound = left_to_learn(drop.C, drop.gamma, tau0, T, moment.algorithm.local.full_work)
        costly_K = ledger.absent_K / ledger.asked_K * drop.J > bound
        out_K = costly_K & (ledger.asked_K >= drop.least) & scene.members.which(ledger.client_K)
        rows = zip(*(v[out_K].tolist() for v in (ledger.client_K, ledger.absent_K, ledger.asked_K)), strict=True)
        found = [(client, f"away in {absent} of the {asked} rounds it was asked") for client, absent, asked in rows]
        return found[: len(scene.members) - 1]

    def _may_rejoin(self, scene: Scene, joining: list[int], t: int) -> list[int]:
        if self.drop is None or self.drop.rejoin_after is None:
            return []
        due_D = scene.roster.when_D + self.drop.rejoin_after <= t
        return [c for c in scene.roster.dropped_D[due_D].tolist() if c not in joining]

    # -- after the round

    def observe(self, state: State, clock: int, turnout: Turnout, loss_C: Tensor, share_C: Tensor) -> State:
        """Learn what the rules need from those who were asked; `loss_C` is inf for those who sent none."""
        if self.leave != "decide" and self.drop is None:
            return state
        roster = Roster.from_state(state)
        heard_C = torch.isfinite(loss_C)
        own_C = torch.where(heard_C, share_C, 0.0)
        mean = float((own_C * torch.where(heard_C, loss_C, 0.0)).sum() / own_C.sum().clamp(min=1e-300))
        asked_C = ~torch.isin(turnout.client_C, roster.gone_L)
        client_C, present_C = turnout.client_C[asked_C], turnout.present_C[asked_C]
        ledger = roster.ledger.after(client_C, present_C, loss_C[asked_C])
        return replace(roster.heard(clock, mean), ledger=ledger).to_state()

    def lendable(self, state: State, client_C: Tensor, share_C: Tensor) -> Tensor:
        """The shares a substitution may give away: not those of the included who are gone, unless `stand_in`."""
        if self.stand_in or not len(state["gone_L"]):
            return share_C
        return torch.where(torch.isin(client_C, state["gone_L"]), 0.0, share_C)
