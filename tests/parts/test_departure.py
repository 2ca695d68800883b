"""The rules for a client that leaves (paper 000 Cor. 4.0.3) and for one that is hardly there (001 Cor. 1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from turnout.errors import UserError
from turnout.parts.local import Local
from turnout.parts.membership.departure import (
    RULES,
    Bounds,
    Constants,
    bounds_from,
    fit_curve,
    left_to_learn,
    should_exclude,
)
from turnout.parts.membership.policy import Membership, Outlook
from turnout.parts.membership.roster import ClientHistory, Roster
from turnout.parts.optimizers import SGD
from turnout.parts.schedules import InverseClock
from turnout.world.members import Members

positive = st.floats(0.01, 100.0)


@given(
    D=positive, V=positive, gamma=positive, Gamma_l=positive, E=positive, tau0=st.integers(1, 100), x=st.integers(1, 99)
)
def test_the_rules_are_the_formulas(D, V, gamma, Gamma_l, E, tau0, x):
    """SPEC §2.5: f0, f1, eq. (8) as printed (min over all τ >= τ0) by brute force, (9), and the crossing rule."""
    T, bounds = tau0 + x, Bounds(D, V, gamma, Gamma_l, E)

    def f0(tau: float) -> float:
        return ((tau - tau0) * D + V) / (tau * E + gamma)

    def f1(tau: float) -> float:
        return (V / (tau0 * E + gamma) + Gamma_l) / ((tau - tau0) * E + gamma)

    assume(abs(f0(T) - f1(T)) > 1e-9)
    assert should_exclude(bounds, tau0, T) == (f0(T) >= f1(T))
    every = [f0(tau) for tau in (*range(tau0, T + 1), *(10**n for n in range(3, 16)))]  # (8) has no upper end
    assume(abs(min(every) - f1(T)) > 1e-9 * (1 + f1(T)))
    assert should_exclude(bounds, tau0, T, "literal") == (min(every) >= f1(T))
    assert should_exclude(bounds, tau0, T, "sqrt", c=2.0) == (T - tau0 >= 2 * math.sqrt(Gamma_l * tau0))


def test_equation_8_looks_beyond_the_deadline():
    """f0 falls to D / E = 1 in the end, below f1(T) = 4/3; up to T = 20 it is at least 2."""
    bounds = Bounds(D=1.0, V=31.0, gamma=1.0, Gamma_l=9.0, E=1.0)
    assert min(bounds.include(tau, 10) for tau in range(10, 21)) > bounds.exclude(20, 10) > 1
    assert should_exclude(bounds, 10, 20, "crossing")
    assert not should_exclude(bounds, 10, 20, "literal")


@pytest.mark.parametrize("rule", RULES)
@given(D=positive, V=positive, gamma=positive, Gamma_l=positive, tau0=st.integers(0, 50), past=st.integers(0, 200))
def test_past_the_deadline_nothing_is_left_to_win_by_a_restart(rule, D, V, gamma, Gamma_l, tau0, past):
    """T <= τ0, and T may even lie before the last shift, below 0: the client stays, the other bound is endless."""
    assert not should_exclude(Bounds(D, V, gamma, Gamma_l, 1.0), tau0, tau0 - past, rule)
    assert left_to_learn(C=V, gamma=0.0, tau0=tau0, T=tau0 - past, E=5) == math.inf


@given(Gamma_l=positive, more=positive, tau0=st.integers(1, 90), later=st.integers(0, 9))
def test_sqrt_rule_is_monotone(Gamma_l, more, tau0, later):
    """SPEC §8 item 14: at fixed T a later τ0 or a larger Γ_l never turns include into exclude."""
    bounds, larger = (Bounds(1.0, 1.0, 1.0, g, 1.0) for g in (Gamma_l, Gamma_l + more))
    if not should_exclude(bounds, tau0, 100, "sqrt"):
        assert not should_exclude(larger, tau0, 100, "sqrt")
        assert not should_exclude(bounds, tau0 + later, 100, "sqrt")


def test_the_crossing_is_near_the_square_root():
    """[mine in SPEC §2.5] T - τ0 ≈ √(Γ_l τ0 / D) where those terms lead."""
    bounds = Bounds(D=0.01, V=1e-6, gamma=1e-6, Gamma_l=1.0, E=1.0)
    for tau0 in (100, 400, 1600):
        crossing = next(x for x in range(1, 10**4) if should_exclude(bounds, tau0, tau0 + x))
        # D x² = Γ_l (x + τ0)
        exact = (1 + math.sqrt(1 + 4 * 0.01 * tau0)) / 0.02
        assert crossing == math.ceil(exact - 1e-6)
        assert exact == pytest.approx(math.sqrt(tau0 / 0.01), rel=1.0)


def test_noise_bounds_what_a_restart_costs():
    quiet, noisy = Bounds(1.0, 4.0, 1.0, 0.0, 1.0), Bounds(1.0, 4.0, 1.0, 0.0, 1.0, noise=4.0)
    assert quiet.exclude(10, 10) == pytest.approx(4 / 11)
    assert noisy.exclude(10, 10) == 4.0
    assert should_exclude(quiet, 10, 11)
    assert not should_exclude(noisy, 10, 11)
    assert should_exclude(noisy, 10, 20)


def test_an_unknown_rule_is_refused():
    with pytest.raises(UserError, match="crossing"):
        Membership(leave="decide", rule="crosing")


@given(floor=st.floats(0, 2), V=st.floats(0.5, 50), rounds=st.integers(3, 40))
def test_the_fit_finds_the_curve_it_is_about(floor, V, rounds):
    fit = fit_curve([(tau, floor + V / (tau + 1)) for tau in range(rounds)])
    assert fit == pytest.approx(V, rel=1e-6)


def test_the_fit_needs_three_rounds_leaves_out_the_first_and_never_rises():
    assert fit_curve([(0, 3.0), (1, 2.0)]) is None
    assert fit_curve([]) is None
    assert fit_curve([(tau, float(tau)) for tau in range(5)]) == 0.0
    far = [(tau, (100.0 if tau < 4 else 1.0) + 2.0 / (tau + 1)) for tau in range(9)]
    assert fit_curve(far) == 2.0


def test_the_fit_is_least_squares_over_the_later_half():
    """Losses that are off the curve in turn: any other rounds would give another line."""
    curve = [(tau, 1.0 + 6.0 / (tau + 1) + 0.02 * (-1) ** tau * tau) for tau in range(9)]
    V, _ = np.polyfit([1 / (tau + 1) for tau, _ in curve[4:]], [loss for _, loss in curve[4:]], 1)
    assert fit_curve(curve) == pytest.approx(V)


def test_the_latest_and_the_lowest_loss_of_who_leaves_are_its_own_or_the_mean():
    """The losses are 1 + 8 / (τ + 1). Client 4 reported 1, 1/2, 3/4; client 7 never replied."""
    history = ClientHistory()
    for loss in (1.0, 0.5, 0.75):
        there = torch.tensor([True, False])
        history = history.after(torch.tensor([4, 7]), there, torch.tensor([loss, math.inf]).double())
    clock_T = torch.arange(4)
    roster = Roster(clock_T=clock_T, loss_T=1.0 + 8.0 / (clock_T.double() + 1), ledger=history)
    local = Local(SGD(lr=0.1), schedule=InverseClock())
    ahead = Outlook(13, 10, (), Members(9), roster, local, share_of=lambda client: 0.25, old_norm=lambda: None)
    assert ahead.bounds(4, None) == Bounds(D=0.25 * 0.75, V=8.0, gamma=1.0, Gamma_l=0.25, E=1.0, noise=8.0)
    assert ahead.bounds(7, None) == Bounds(D=0.25 * 3.0, V=8.0, gamma=1.0, Gamma_l=0.0, E=1.0, noise=8.0)
    given = Constants(D=1.0, V=2.0, gamma=3.0)
    assert ahead.bounds(4, given) == Bounds(1.0, 2.0, 3.0, 0.25, float(local.full_work))


def test_constants_from_reports():
    """f0 begins where the curve is above its floor; f1 where it was at first, under a rate that restarts."""
    bounds = bounds_from(6.0, tau0=29, restart=30.0, share=0.1, latest=1.5, lowest=1.0)
    assert bounds.include(29, 29) == pytest.approx(6.0 / 30)
    assert bounds.exclude(29, 29) == 6.0
    constant = bounds_from(6.0, tau0=29, restart=1.0, share=0.1, latest=1.5, lowest=1.5)
    assert constant.exclude(29, 29) == pytest.approx(6.0 / 30)  # a constant rate has nothing to lose by a shift


@given(C=positive, E=st.integers(1, 10), tau0=st.integers(0, 90))
def test_what_is_left_to_learn_is_that_of_the_corollary(C, E, tau0):
    """001 Cor. 1: f1(T) = C~ / (E (T - τ0) + γ~)², C~ = T C; more local work leaves less."""
    T, gamma = 100, 2.0
    left = left_to_learn(C, gamma, tau0, T, E)
    assert left == pytest.approx(T * C / (E * (T - tau0) + gamma) ** 2)
    assert left_to_learn(C, gamma, tau0, T, E + 1) < left
