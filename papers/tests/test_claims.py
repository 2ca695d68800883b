"""Three outcomes of a claim, and how many seeds would decide an open one: against scipy and a simulation."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from turnout.statistics import LEVEL, sign_test
from turnout_papers.studies.adam import BytesSpent, cheaper
from turnout_papers.studies.claims import (
    Claim,
    above,
    at_look,
    better,
    either,
    level_at,
    same,
    seeds_to_decide,
    seeds_to_sign,
    signed_ranks,
    sooner,
    within,
)
from turnout_papers.studies.departures import spearman
from turnout_papers.studies.running import Findings
from turnout_papers.studies.study import Curve, Curves, Study, last_fifth, unrest
from turnout_papers.studies.tables import cell, markdown, tally

seeds = st.lists(st.floats(-100, 100).map(lambda v: round(v, 3)), min_size=2, max_size=12)


def with_moments(mean: float, deviation: float, n: int) -> dict[int, float]:
    """n values of exactly this mean and standard deviation."""
    value = np.random.default_rng(n).normal(size=n)
    value = (value - value.mean()) / value.std(ddof=1)
    return dict(enumerate((mean + deviation * value).tolist()))


# -- outcomes


@given(seeds)
def test_the_bound_decides_on_either_side(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-2)
    claim, opposite = above("up", dict(enumerate(values))), above("down", {s: -v for s, v in enumerate(values)})
    greater, less = (stats.ttest_1samp(values, 0.0, alternative=side).pvalue for side in ("greater", "less"))
    assume(all(not math.isclose(p, 1 - LEVEL, abs_tol=1e-6) for p in (greater, less)))
    expected = "holds" if greater < 1 - LEVEL else "refuted" if less < 1 - LEVEL else "undecided"
    assert claim.outcome == expected
    assert (claim.holds, claim.refuted) == (opposite.refuted, opposite.holds)
    assert (claim.seeds_needed is None) or expected == "undecided"


def test_a_margin_moves_both_sides() -> None:
    level = dict.fromkeys(range(3), 10.0)
    value = {0: 9.0, 1: 10.0, 2: 11.0}  # 0 ± 1.686
    assert better("no worse", value, level, margin=1.7).outcome == "holds"
    assert better("no worse", value, level, margin=1.6).outcome == "undecided"
    assert better("no worse", {s: v - 4 for s, v in value.items()}, level, margin=2.0).outcome == "refuted"
    assert better("no worse", {s: v - 4 for s, v in value.items()}, level, margin=2.5).outcome == "undecided"
    assert within("close", value, level, margin=1.7).outcome == "holds"
    assert within("close", value, level, margin=1.6).outcome == "undecided"
    for far in (4.0, -4.0):
        assert within("close", {s: v + far for s, v in value.items()}, level, margin=2.0).outcome == "refuted"


def test_what_is_equal_in_every_seed_is_not_better() -> None:
    equal = dict.fromkeys(range(5), 3.0)
    assert better("better", equal, equal).outcome == "level"
    assert better("better", equal, equal).evidence.endswith("the same in every seed")
    assert better("better", equal | {4: 3.5}, equal).outcome == "undecided"  # not equal in one seed
    assert better("no worse", equal, equal, margin=0.5).outcome == "holds"


def test_one_seed_or_a_missing_number_leaves_a_claim_open() -> None:
    assert above("above", {}).outcome == "not run"
    for value in ({0: 5.0}, {0: 5.0, 1: math.nan}):
        claim = above("above", value)
        assert (claim.outcome, claim.seeds_needed) == ("undecided", None)
        assert claim.evidence.startswith("cannot decide")
    assert Claim("a", False, "not run: no data").outcome == "not run"


def test_agreement_to_rounding_holds_or_not() -> None:
    a = {0: 80.0, 1: 70.0}
    assert same("agree", {"A": a, "B": a}, tolerance=0.1).outcome == "holds"
    assert same("agree", {"A": a, "B": {0: 80.0, 1: 71.0}}, tolerance=0.1).outcome == "refuted"
    assert same("agree", {"A": a, "B": {0: math.nan, 1: 71.0}}, tolerance=0.1).outcome == "undecided"


def test_the_sign_test_refutes_too() -> None:
    early, late = dict.fromkeys(range(5), 10), dict.fromkeys(range(5), None)
    assert sooner("sooner", early, late, last=50).outcome == "holds"
    refuted = sooner("sooner", late, early, last=50)
    assert refuted.outcome == "refuted"
    assert "(sign test p = 1, of the opposite 0.031)" in refuted.evidence
    mixed = {0: 10, 1: 10, 2: 60, 3: 10, 4: 10}
    undecided = sooner("sooner", mixed, dict.fromkeys(range(5), 20), last=50)
    assert (undecided.outcome, undecided.seeds_needed) == ("undecided", seeds_to_sign(4, 1, 5))
    cheap, dear = ({s: BytesSpent(b, True) for s in range(5)} for b in (2, 3))
    assert cheaper("saves", cheap, dear).outcome == "holds"
    assert cheaper("saves", dear, cheap).outcome == "refuted"
    assert cheaper("saves", cheap, cheap).outcome == "level"
    assert sooner("sooner", early, early, last=50).outcome == "level"
    assert sooner("sooner", early | {4: 9}, early | {3: 9}, last=50).outcome == "undecided"


def test_one_of_several_is_refuted_where_all_are() -> None:
    yes, no, open_ = Claim("a", True, "so"), Claim("b", False, "not so", True), Claim("c", False, "?", False, 12)
    assert either("one", [yes, no]).outcome == "holds"
    assert either("none", [no, no]).outcome == "refuted"
    assert either("perhaps", [no, open_]).outcome == "undecided"
    assert either("perhaps", [no, open_]).seeds_needed == 12
    assert either("perhaps", [open_, Claim("d", False, "?", False, 30)]).seeds_needed == 30
    assert either("perhaps", [open_, Claim("d", False, "cannot decide")]).seeds_needed is None
    assert either("perhaps", [no, open_]).evidence == "b: refuted (not so); c: undecided (?)"


# -- runs that diverged


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=9))
def test_signed_ranks_are_wilcoxon_s(values: list[int]) -> None:
    """Against all choices of signs, with ranks from scipy: ties share their mean rank, zeros do not count."""
    kept = np.array([v for v in values if v])
    rank = stats.rankdata(np.abs(kept))
    signs = np.array([[1 if i >> k & 1 else 0 for k in range(len(kept))] for i in range(2 ** len(kept))])
    totals = signs.reshape(len(signs), -1) @ rank
    found = rank[kept > 0].sum()
    expected = (totals >= found - 1e-9).mean(), (totals <= found + 1e-9).mean()
    assert signed_ranks(dict(enumerate(map(float, values)))) == pytest.approx(expected)


def test_a_run_that_diverged_ranks_last() -> None:
    gone = -math.inf
    ours, theirs = {0: 91.0, 1: 92.0, 2: 93.0, 3: 91.5, 4: 92.5}, {0: 90.0, 1: gone, 2: 92.0, 3: gone, 4: 90.0}
    claim = better("ours", ours, theirs, "points")
    assert claim.outcome == "holds"  # above in 5 of 5 seeds: 1 / 32
    assert claim.evidence.startswith(
        "above in 5 of 5 seeds (2 for a run that diverged), below in 0 (0); signed ranks p ="
    )
    assert better("theirs", theirs, ours).outcome == "refuted"
    assert better("ours", ours | {4: gone}, theirs | {4: 90.0}).outcome == "undecided"  # a large rank against it
    assert better("both", dict.fromkeys(range(5), gone), dict.fromkeys(range(5), gone)).outcome == "level"
    assert within("close", ours, theirs, 100.0).outcome == "undecided"


def test_its_numbers_are_kept_apart() -> None:
    runs = {0: Curve(np.arange(10), np.linspace(0, 0.9, 10)), 1: Curve.diverged(-math.inf)}
    curves = Curves({"A": runs, "B": {0: runs[0], 1: runs[0]}})
    assert curves.each("A", last_fifth) == {0: pytest.approx(85.0), 1: -math.inf}
    assert set(curves.each("A", unrest)) == {0}  # a curve of one number has none
    found = curves.row("case", "accuracy", "A", last_fifth)
    assert (found.ours, found.repeats, found.diverged) == (pytest.approx(85.0), 2, 1)
    assert cell(found, found.repeats) == "85.0, 1 diverged"
    assert curves.row("case", "A over B", ("A", "B"), last_fifth).diverged == 1
    assert runs[1].rounds_to(0.5) is None
    assert list(curves.finite("A")) == [0]


def test_looks_at_2_3_and_5_seeds_err_more_often_than_one() -> None:
    """What pages say of seeds that were added after a look: one in nine instead of one in twenty."""
    value = np.random.default_rng(0).normal(size=(40_000, 5))
    holds = np.zeros(len(value), bool)
    for n in (2, 3, 5):
        bound = value[:, :n].mean(1) - stats.t.ppf(LEVEL, n - 1) * value[:, :n].std(1, ddof=1) / math.sqrt(n)
        if n == 5:
            assert (bound > 0).mean() == pytest.approx(0.05, abs=0.005)
        holds |= bound > 0
    assert holds.mean() == pytest.approx(1 / 9, abs=0.01)


# -- looks that are fixed beforehand


@given(seeds)
def test_chances_are_the_t_test_s(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-2)
    chance = above("up", dict(enumerate(values))).chance
    greater, less = (stats.ttest_1samp(values, 0.0, alternative=side).pvalue for side in ("greater", "less"))
    assert (chance.p, chance.opposite) == pytest.approx((greater, less), abs=1e-9)
    near = within("near", dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0), margin=2.0).chance
    shifted = [stats.ttest_1samp(values, m, alternative=a).pvalue for m, a in ((-2, "greater"), (2, "less"))]
    beyond = [stats.ttest_1samp(values, m, alternative=a).pvalue for m, a in ((2, "greater"), (-2, "less"))]
    assert (near.p, near.opposite) == pytest.approx((max(shifted), min(beyond)), abs=1e-9)


@pytest.mark.parametrize("looks", [(5,), (3, 5, 10), (5, 10)])
def test_fixed_looks_err_in_5_percent_at_most(looks: tuple[int, ...]) -> None:
    """Claims without any truth, decided at the first look that decides them: by t tests and by sign tests."""
    assert sum(level_at(looks, n) for n in looks) == pytest.approx(1 - LEVEL)
    value = np.random.default_rng(1).normal(size=(40_000, looks[-1]))
    holds, signs = np.zeros((2, len(value)), bool)
    for n in looks:
        part = value[:, :n]
        holds |= stats.ttest_1samp(part, 0.0, axis=1, alternative="greater").pvalue <= level_at(looks, n)
        fewest = next((w for w in range(n // 2, n + 1) if sign_test(w, n - w) <= level_at(looks, n)), n + 1)
        signs |= (part > 0).sum(1) >= fewest
    assert holds.mean() < 0.0515
    assert signs.mean() < 0.0515
    assert holds.mean() > 0.035  # of the 5 % little is given away

    for row in value[:100]:
        found = Study(
            "s", "", "m", None, None, lambda scale, curves: [above("up", curves.each("A", first))], looks=looks
        )
        curves = Curves({"A": {s: Curve(np.array([0]), np.array([v])) for s, v in enumerate(row)}})
        expected = [above("up", dict(enumerate(row[:n]))).chance.p <= level_at(looks, n) for n in looks]
        (claim,) = found.decide("paper", curves)
        assert claim.holds == any(expected)


def first(curve: Curve) -> float:
    return float(curve.value_T[0])


def test_a_look_that_was_not_planned_decides_nothing() -> None:
    sure = above("up", {0: 1.0, 1: 1.01, 2: 1.02})
    assert sure.outcome == "holds"
    found = at_look(sure, (5, 10))
    assert (found.outcome, found.evidence.rpartition("; ")[2]) == ("undecided", "no look: it is planned at 5, 10 seeds")
    level = better("same", {0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert at_look(level, (5,)) is level  # no test was made
    five = sooner("sooner", dict.fromkeys(range(5), 1), dict.fromkeys(range(5), 2), last=9)
    assert (at_look(five, (5,)).outcome, at_look(five, (5, 10)).outcome) == ("holds", "undecided")  # 1 / 32 > 2.5 %
    one = either("one", [sure, above("down", {0: -1.0, 1: -1.1, 2: -1.3})])
    assert (one.chance.p, one.chance.seeds) == (sure.chance.p, 3)
    pages = [markdown(replace(FINDINGS, looks=looks)) for looks in ((), (5, 10))]
    assert "one in nine" in pages[0]
    assert "claims are decided at 5 and 10 seeds, as fixed before the first run: of 3 claims" in pages[1]
    assert Findings.from_json(replace(FINDINGS, looks=(5, 10)).to_json()).looks == (5, 10)


# -- how many seeds


@given(mean=st.floats(0.05, 5.0), deviation=st.floats(0.05, 5.0), sign=st.sampled_from([1, -1]))
def test_the_fewest_seeds_at_which_the_bound_excludes_the_margin(mean: float, deviation: float, sign: int) -> None:
    found = seeds_to_decide(sign * mean, deviation)
    assume(found is not None and found < 3000)

    def bound(n: int) -> float:
        return mean - stats.t.ppf(LEVEL, n - 1) * deviation / math.sqrt(n)

    assert bound(found) > -1e-9
    assert found == 2 or bound(found - 1) < 1e-9


def test_what_never_or_hardly_ever_decides() -> None:
    assert seeds_to_decide(0.0, 1.0) is None
    assert seeds_to_decide(1e-9, 1.0) is None
    assert seeds_to_decide(1.0, 0.0) == 2
    assert seeds_to_decide(0.0, 0.0) is None
    assert seeds_to_sign(3, 3, 6) is None
    assert seeds_to_sign(0, 0, 4) is None


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 3.0), (0.4, 1.0), (-0.5, 1.2)])
def test_with_so_many_seeds_about_half_of_all_studies_decide(mean: float, deviation: float) -> None:
    """If mean and deviation are as observed, the bound is as often past the margin as short of it (t's own power)."""
    n = seeds_to_decide(mean, deviation)
    value = np.random.default_rng(0).normal(mean, deviation, size=(4000, n))
    reach = stats.t.ppf(LEVEL, n - 1) * value.std(axis=1, ddof=1) / math.sqrt(n)
    decided = np.mean(np.sign(mean) * value.mean(axis=1) > reach)
    power = stats.nct.sf(stats.t.ppf(LEVEL, n - 1), n - 1, abs(mean) / deviation * math.sqrt(n))
    assert decided == pytest.approx(power, abs=0.025)
    assert 0.45 < decided < 0.62


@given(mean=st.floats(-2, 2), deviation=st.floats(0.2, 3.0), n=st.integers(3, 9), margin=st.sampled_from([0.0, 1.0]))
def test_an_open_claim_is_decided_by_as_many_seeds_as_it_says(
    mean: float, deviation: float, n: int, margin: float
) -> None:
    rules = {
        "above": lambda value: above("a", value, margin),
        "within": lambda value: within("a", value, dict.fromkeys(value, 0.0), margin + 0.5),
    }
    for rule in rules.values():
        claim = rule(with_moments(mean, deviation, n))
        if claim.outcome != "undecided" or claim.seeds_needed is None or claim.seeds_needed > 2000:
            continue
        assert claim.seeds_needed > n
        assert f"{claim.seeds_needed:,} seeds would decide it" in claim.evidence
        # A little off the edge, where rounding decides.
        assert rule(with_moments(mean, deviation * 0.999, claim.seeds_needed)).outcome != "undecided"
        if claim.seeds_needed - 1 > n:
            assert rule(with_moments(mean, deviation * 1.001, claim.seeds_needed - 1)).outcome == "undecided"


@given(wins=st.integers(0, 12), losses=st.integers(0, 12), ties=st.integers(0, 5))
def test_signs_in_the_same_proportion_decide(wins: int, losses: int, ties: int) -> None:
    n = wins + losses + ties
    assume(wins != losses)
    assume(min(sign_test(wins, losses), sign_test(losses, wins)) > 1 - LEVEL)
    found = seeds_to_sign(wins, losses, n)
    if found is None:
        return

    def p(seeds: int) -> float:
        scaled = [round(seeds * count / n) for count in (max(wins, losses), min(wins, losses))]
        return float(stats.binomtest(scaled[0], max(1, sum(scaled)), alternative="greater").pvalue)

    assert found > n
    assert p(found) <= 1 - LEVEL
    assert all(p(fewer) > 1 - LEVEL for fewer in range(n, found))


def test_an_open_claim_says_so_in_words() -> None:
    claim = above("above", {0: 3.0, 1: -1.0, 2: 2.0}, unit="points")
    assert claim.seeds_needed == 9  # by hand: 1.33 > t(95 %, 8) · 2.08 / √9 = 1.29, and 1.40 with 8
    assert claim.evidence.endswith("; undecided: if it goes on like this, 9 seeds would decide it, for the claim")
    against = above("above", {0: -3.0, 1: 1.0, 2: -2.0}, unit="points")
    assert against.evidence.endswith("; undecided: if it goes on like this, 9 seeds would decide it, against the claim")
    far = above("far", {0: 1.0, 1: -0.999999, 2: 0.0})
    assert far.evidence.endswith("more seeds than can be run would decide it, for the claim")
    assert above("level", {0: 1.0, 1: -1.0, 2: 0.0}).evidence.endswith("; undecided: as many for as against")


# -- as people and programs read it


FINDINGS = Findings(
    "bias",
    "smoke",
    [],
    [
        Claim("first", True, "so"),
        Claim("second", False, "the other way", refuted=True),
        Claim("third", False, "who knows", seeds_needed=17),
        Claim("fourth", False, "not run: no data"),
    ],
    1.0,
)


def test_the_page_has_three_words() -> None:
    assert tally(FINDINGS) == "1 of 3 claims hold, 1 refuted, 1 undecided (1 not run)"
    page = markdown(FINDINGS)
    assert "| outcome | claim | evidence |" in page
    for line in ("| holds | first |", "| refuted | second |", "| undecided | third |", "- not run: 1 claims, no data"):
        assert line in page


def test_json_says_the_outcome_and_is_read_back() -> None:
    found = json.loads(FINDINGS.to_json())["claims"]
    assert [claim["outcome"] for claim in found] == ["holds", "refuted", "undecided", "not run"]
    assert [claim["holds"] for claim in found] == [True, False, False, False]
    assert [claim["seeds_needed"] for claim in found] == [None, None, 17, None]
    assert Findings.from_json(FINDINGS.to_json()) == FINDINGS
    old = {"claim": "x", "holds": False, "evidence": "mean -1"}  # what earlier versions wrote
    before = json.dumps({"study": "bias", "scale": "smoke", "rows": [], "claims": [old], "seconds": 1.0})
    assert Findings.from_json(before).claims[0].outcome == "undecided"


@given(st.lists(st.floats(-100, 100).map(lambda v: round(v, 3)), min_size=2, max_size=20))
def test_a_claim_holds_where_the_one_sided_t_test_says_so(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-2)
    p = stats.ttest_1samp(values, 0.0, alternative="greater").pvalue
    assume(not math.isclose(p, 1 - LEVEL, abs_tol=1e-6))
    assert above("the mean is above 0", dict(enumerate(values))).holds == (p < 1 - LEVEL)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=15))
def test_sooner_is_the_sign_test_without_ties(rounds: list[tuple[int, int]]) -> None:
    differ = [(a, b) for a, b in rounds if a != b]
    assume(differ)
    p = stats.binomtest(sum(a < b for a, b in differ), len(differ), alternative="greater").pvalue
    ours, theirs = ({seed: pair[i] for seed, pair in enumerate(rounds)} for i in (0, 1))
    assert sooner("ours is sooner", ours, theirs, last=20).holds == (p <= 1 - LEVEL)


@pytest.mark.parametrize(
    ("wins", "losses", "seeds"), [(2, 0, 3), (3, 1, 4), (6, 4, 10), (4, 6, 12), (7, 4, 11), (5, 5, 10), (15, 13, 28)]
)
def test_the_seeds_that_a_sign_test_takes_are_the_fewest(wins: int, losses: int, seeds: int) -> None:
    """Wins, losses and ties keep their shares; it is the first number at which P(so many wins or more) <= 5 %."""
    more, fewer = max(wins, losses), min(wins, losses)
    found = None
    for n in range(seeds + 1, 1001):
        w, lost = round(n * more / seeds), round(n * fewer / seeds)
        ways = sum(math.comb(w + lost, k) for k in range(w, w + lost + 1))
        if more > fewer and 100 * ways <= 5 * 2 ** (w + lost):
            found = n
            break
    assert seeds_to_sign(wins, losses, seeds) == found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12))
def test_ranks_and_their_correlation(points: list[tuple[int, int]]) -> None:
    x, y = zip(*points, strict=True)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert spearman(x, y) == 0.0  # scipy has no number here
    else:
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
