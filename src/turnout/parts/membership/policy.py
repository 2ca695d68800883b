"""Clients that join late, leave for good, or are rarely present: the members, and the clients the objective is over.

Joining shifts the objective: shares are over the new members and the clock of the learning rate restarts; for a while
the newcomer's own share weighs more (fast-reboot). A client that leaves is taken out of the objective, which shifts it
too (exclude), or stays in it (include): it is still sampled but never contacted, so it always counts as absent.
`decide` chooses by the bounds in departure.py.

Shape letters: C clients of the cohort, I any clients (members ever asked, where they are judged), J newcomers, K
clients ever asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from turnout.errors import UserError, check_settings
from turnout.parts.local import Local
from turnout.parts.membership import departure
from turnout.parts.membership.departure import Bounds, Constants
from turnout.parts.membership.roster import Roster, Transition
from turnout.types import Turnout
from turnout.world.events import Event, Join
from turnout.world.members import Members


@dataclass(frozen=True)
class Outlook:
    """The beginning of a round, as the rules see it.

    t         round
    origin    the round in which the objective last shifted
    events    joins and leaves of this round
    members   the members before them
    roster    the state of the membership part
    local     the settings of local training
    share_of  computes a client's share p_l of the objective
    old_norm  measures the gradient norm of the current objective at the current weights (None if no client is asked or
              answers)
    """

    t: int
    origin: int
    events: Sequence[Event]
    members: Members
    roster: Roster
    local: Local
    share_of: Callable[[int], float]
    old_norm: Callable[[], float | None]

    @property
    def clock(self) -> int:
        """Rounds since the objective last shifted."""
        return self.t - self.origin

    def bounds(self, client: int, given: Constants | None) -> Bounds | None:
        """The constants of the bounds for a client that leaves: given, or fitted to the reported losses."""
        losses = self.roster.ledger.losses(client)
        if given is not None:
            latest, lowest = losses or (0.0, 0.0)
            Gamma_l = latest - lowest if given.Gamma_l is None else given.Gamma_l
            return Bounds(given.D, given.V, given.gamma, Gamma_l, float(self.local.full_work))
        V = departure.fit_curve(self.roster.curve)
        if V is None:
            return None
        mean = float(self.roster.loss_T[-1])  # stands for a client that has never replied
        schedule, lr = self.local.schedule, self.local.optimizer.lr
        first, now = (schedule.rate(lr, clock) for clock in (0, self.clock))
        restart = first / now if now else 1.0  # factor of a shift on the learning rate
        return departure.bounds_from(V, self.clock, restart, self.share_of(client), *(losses or (mean, mean)))


def boost(rounds_I: Tensor, factor: float = 3.0, decay: float = 2.0) -> Tensor:
    """Fast-reboot: boost_l(t) = 1 + (3 - 1) / (t - τ0 + 1)², by rounds t - τ0 since the newcomer joined.

    >>> boost(torch.tensor([0, 1, 2]))
    tensor([3.0000, 1.5000, 1.2222], dtype=torch.float64)
    """
    return 1 + (factor - 1) / (rounds_I + 1).to(torch.float64) ** decay


@dataclass(frozen=True)
class DropInactive:
    """Paper 001, Corollary 1: a client is dropped if y_a J > f1(T), y_a the share of asked rounds it was away.

    The paper leaves the constants open. With J = C = 1 the bound alone drops every client that was away once, so a
    client must also be rarely present, compared with the others.

    J, C, gamma  the constants of the bound
    rarely       only clients that answer less than this times as often as members on average; inf: the bound alone
    least        judge a client once members asked as often as it was would have answered this often on average
    """

    J: float = 1.0
    C: float = 1.0
    gamma: float = 0.0
    rarely: float = 0.1
    least: float = 10.0

    def __post_init__(self) -> None:
        check_settings(self, J="[0, inf)", C="[0, inf)", gamma="[0, inf)", rarely="(0, inf]", least="(0, inf]")

    def picks(self, asked_I: Tensor, absent_I: Tensor, bound: float) -> Tensor:
        """Mask of the members to drop, given how often each was asked and absent, and f1(T).

        >>> DropInactive(least=5).picks(torch.tensor([10, 10, 10]), torch.tensor([1, 0, 10]), bound=0.04)
        tensor([False, False,  True])
        """
        answers_I = (asked_I - absent_I).double()
        usual = float(answers_I.sum() / asked_I.sum())  # how often a member answers, on average
        judged_I = asked_I * usual >= self.least
        rare_I = answers_I < self.rarely * usual * asked_I
        return judged_I & rare_I & (absent_I / asked_I * self.J > bound)


@dataclass(frozen=True)
class Membership:
    """What to do about joins and leaves.

    join       "fast-reboot": a newcomer's own share is multiplied by `boost` at first; "vanilla": it is not. Both
               restart the clock
    boost      the newcomer's factor in its first round
    decay      the power of its rounds with which the factor decays to 1
    gate       boost only if the gradient norm of the old objective is below this (Corollary 4.0.2)
    surveyed   how many members are asked for that norm when a client joins; 0: it is not measured
    leave      "include", "exclude", or "decide" by `rule`
    rule       "crossing", "literal" (equation 8 as printed) or "sqrt" (equation 9)
    c          the constant of "sqrt"
    constants  of the bounds; None: fitted to the loss curve
    deadline   the round T it is decided for; None: the last round. After it, clients that leave are included and none
               is dropped
    stand_in   whether the substitution also stands in for clients that have left but are included
    drop       drop clients that are rarely present
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
        check_settings(self, join=("fast-reboot", "vanilla"), leave=("include", "exclude", "decide"))
        check_settings(self, rule=departure.RULES)
        check_settings(self, boost="[1, inf)", decay="[0, inf)", surveyed="[0, inf)", c="[0, inf]", deadline="[1, inf)")
        if self.gate is not None and not self.surveyed:
            raise UserError("membership.gate needs the gradient norm: set membership.surveyed above 0")

    def begin(self) -> Roster:
        """The state before the first round."""
        return Roster()

    def decide(self, outlook: Outlook) -> Transition:
        """Apply the leaves, drops and joins of a round."""
        change = Transition(outlook.members, outlook.roster)
        joining = [int(e.client) for e in outlook.events if isinstance(e, Join)]
        for event in outlook.events:
            if not isinstance(event, Join):
                change = self._leave(change, int(event.client), outlook)
        for client, why in self._inactive(change, outlook):
            change = change.exclude(client, "drop", why)
        new = [c for c in joining if c not in change.members and c not in change.included]
        norm = outlook.old_norm() if new else None
        for client in joining:
            change = self._join(change, client, outlook, norm)
        return change if norm is None else change.with_numbers({"old_gradient_norm": norm})

    def _join(self, change: Transition, client: int, outlook: Outlook, norm: float | None) -> Transition:
        if client in change.members:
            return change
        if client in change.included:
            return change.return_(client)
        below = self.gate is None or (norm is not None and norm < self.gate)
        old = len(outlook.members) > 0  # without members there is no old objective to leave quickly
        again = bool((change.roster.newcomer_J == client).any())  # or one could claim a boost in every round
        fast = self.join == "fast-reboot" and below and old and not again
        measured = "" if norm is None else f", gradient norm of the old objective {norm:.4g}"
        gate = "" if self.gate is None else f" ({'below' if below else 'not below'} the gate {self.gate:g})"
        word = f"fast-reboot, boost {self.boost:g}" if fast else "vanilla"
        return change.join(client, word + measured + gate, outlook.t if fast else None)

    def boost_of(self, roster: Roster, client_C: Tensor, t: int) -> Tensor:
        """Factor on each client's own share: a newcomer's falls from `boost` to 1."""
        factor_C, newcomer_J = torch.ones(len(client_C), dtype=torch.float64), roster.newcomer_J
        if not len(newcomer_J):
            return factor_C
        at_J = torch.searchsorted(client_C, newcomer_J).clamp(max=len(client_C) - 1)
        here_J = client_C[at_J] == newcomer_J
        own_J = boost(t - roster.since_J, self.boost, self.decay)
        return factor_C.index_copy(0, at_J[here_J], own_J[here_J])

    def _leave(self, change: Transition, client: int, outlook: Outlook) -> Transition:
        """Include or exclude a client; with `decide`, the numbers that decided go into the record."""
        if client not in change.members:
            return change.noted(client, "leave", "was dropped before")
        if self.leave == "include":
            return change.include(client, "include")
        if self.leave == "exclude":
            return change.exclude(client, "leave", "exclude")
        tau0, T = outlook.clock, self._deadline(outlook)
        if tau0 >= T:
            return change.include(client, f"include: the deadline, round {self.deadline}, has passed")
        bounds = outlook.bounds(client, self.constants)
        if bounds is None:
            return change.exclude(client, "leave", "exclude: too early to fit a loss curve")
        numbers = asdict(bounds) | {"tau0": tau0, "T": T}
        shown = numbers | {"f0(T)": bounds.include(T, tau0), "f1(T)": bounds.exclude(T, tau0)}
        why = f"{self.rule} rule, " + ", ".join(f"{name} {value:.6g}" for name, value in shown.items())
        change = change.with_numbers({f"decide_{name}": float(value) for name, value in numbers.items()})
        if departure.should_exclude(bounds, tau0, T, self.rule, self.c):
            return change.exclude(client, "leave", f"exclude: {why}")
        return change.include(client, f"include: {why}")

    def _deadline(self, outlook: Outlook) -> int:
        """T, in rounds since the objective last shifted."""
        return (self.deadline or outlook.t + 1) - outlook.origin

    def _inactive(self, change: Transition, outlook: Outlook) -> list[tuple[int, str]]:
        """Members whose absence costs more than their data is worth, and why."""
        drop, ledger = self.drop, change.roster.ledger
        here_K = change.members.which(ledger.client_K)
        if drop is None or not bool(here_K.any()):
            return []
        client_I, asked_I, absent_I = (v[here_K] for v in (ledger.client_K, ledger.asked_K, ledger.absent_K))
        T, work = self._deadline(outlook), outlook.local.full_work
        bound = departure.left_to_learn(drop.C, drop.gamma, outlook.clock, T, work)
        out_I = drop.picks(asked_I, absent_I, bound)
        rows = zip(*(v[out_I].tolist() for v in (client_I, absent_I, asked_I)), strict=True)
        inactive = [(client, f"away in {absent} of the {asked} rounds it was asked") for client, absent, asked in rows]
        return inactive[: len(change.members) - 1]

    def observe(self, roster: Roster, clock: int, turnout: Turnout, loss_C: Tensor, share_C: Tensor) -> Roster:
        """Learn what the rules need from the clients that were asked; `loss_C` is inf for those that sent none (all of
        them in a round that is skipped)."""
        if self.leave != "decide" and self.drop is None:
            return roster
        asked_C = ~torch.isin(turnout.client_C, roster.gone_L)
        client_C, present_C = turnout.client_C[asked_C], turnout.present_C[asked_C]
        roster = replace(roster, ledger=roster.ledger.after(client_C, present_C, loss_C[asked_C]))
        sent_C = torch.isfinite(loss_C)
        if not bool(sent_C.any()):
            return roster
        own_C = torch.where(sent_C, share_C, 0.0)
        mean = float((own_C * torch.where(sent_C, loss_C, 0.0)).sum() / own_C.sum().clamp(min=1e-300))
        return roster.observed(clock, mean)

    def lendable(self, roster: Roster, client_C: Tensor, share_C: Tensor) -> Tensor:
        """Shares that a substitution may give away: without `stand_in` not those of clients that left."""
        if self.stand_in or not len(roster.gone_L):
            return share_C
        return torch.where(torch.isin(client_C, roster.gone_L), 0.0, share_C)
