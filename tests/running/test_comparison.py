"""Comparisons paired by seed: the formula, how often noise is called a difference, and what is shown of it."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import pytest

import turnout as to
from turnout.cli import main
from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.config.read import to_toml
from turnout.running.records.finding import find_runs
from turnout.running.records.records import Records
from turnout.statistics import (
    ALIKE,
    BEHIND,
    BEST,
    LEADS,
    NO_NUMBER,
    ONE_SEED,
    compare,
    compare_reached,
    t_quantile,
    words_of,
)
from turnout.view.report.results import results


def test_the_difference_to_the_best_has_an_interval_that_holds_for_all_pairs() -> None:
    values = {
        "A": {0: 0.70, 1: 0.72, 2: 0.71, 3: 0.75},
        "B": {0: 0.80, 1: 0.83, 2: 0.82, 3: 0.84},
        "C": {0: 0.79, 1: 0.83, 2: 0.81, 3: 0.84},
    }
    found = compare(values).by_name
    gaps = [values["A"][s] - values["B"][s] for s in range(4)]
    mean = sum(gaps) / 4
    reach = t_quantile(1 - 0.05 / (2 * 3), 3) * math.sqrt(sum((g - mean) ** 2 for g in gaps) / 3) / 2  # 3 pairs
    a = found["A"]
    assert (a.gap, a.low, a.high) == pytest.approx((mean, mean - reach, mean + reach))
    assert [found[name].verdict for name in "ABC"] == [BEHIND, LEADS, ALIKE]
    assert compare({"A": values["A"], "B": values["B"]}).best == "B"
    assert compare({"A": values["A"], "B": values["B"]}, higher_is_better=False).best == "A"


def test_noise_is_called_a_difference_in_at_most_five_of_a_hundred_tables() -> None:
    draw, tables = random.Random(0), 1500
    wrong = 0
    for _ in range(tables):
        shared = [draw.gauss(0, 3) for _ in range(4)]  # what a seed's data does to all methods
        values = {f"{m}": {s: shared[s] + draw.gauss(0, 1 + m) for s in range(4)} for m in range(5)}
        wrong += bool(compare(values).named(BEHIND))
    assert wrong / tables <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)


def test_what_cannot_be_compared_says_so() -> None:
    assert {s.verdict for s in compare({"A": {0: 1.0}, "B": {0: 2.0}}).standings} == {ONE_SEED}
    assert "one seed" in compare({"A": {0: 1.0}, "B": {0: 2.0}}).sentence()
    with_nan = compare(
        {"A": {0: 1.0, 1: 1.2, 2: 1.1}, "B": {0: math.nan, 1: 2.0, 2: 2.0}, "C": {0: 9.0, 1: 9.1, 2: 9.3}}
    )
    assert [s.verdict for s in with_nan.standings] == [BEHIND, NO_NUMBER, BEST]
    only_common = compare({"A": {0: 1.0, 1: 1.1}, "B": {1: 5.0, 2: 5.0}}).by_name["A"]
    assert only_common.verdict == ONE_SEED
    assert only_common.gap == pytest.approx(1.1 - 5.0)
    assert compare({}).sentence() == compare({"A": {0: 1.0}}).sentence() == ""


@pytest.mark.parametrize(("seeds", "verdict"), [(3, ALIKE), (5, ALIKE), (6, BEHIND)])  # 2 · 2^-6 <= 0.05 < 2 · 2^-5
def test_differences_that_do_not_vary_are_judged_by_the_sign_test(seeds: int, verdict: str) -> None:
    coarse = {"A": dict.fromkeys(range(seeds), 0.5), "B": dict.fromkeys(range(seeds), 0.5 + 1 / 360)}
    assert compare(coarse).by_name["A"].verdict == verdict
    same = {"A": dict.fromkeys(range(seeds), 0.5), "B": dict.fromkeys(range(seeds), 0.5)}
    assert compare(same).best is None


def test_a_target_never_reached_is_later_than_any_round() -> None:
    quick = {s: 5.0 + s for s in range(8)}
    late = {s: None if s % 2 else 30.0 for s in range(8)}
    found = {r.name: r for r in compare_reached({"late": late, "quick": quick})}
    assert (found["quick"].verdict, found["late"].verdict, len(found["late"].reached)) == (BEST, BEHIND, 4)
    never = dict.fromkeys(range(8))
    assert {r.verdict for r in compare_reached({"a": never, "b": never})} == {NO_NUMBER}
    few = {s: v for s, v in quick.items() if s < 3}
    assert [r.verdict for r in compare_reached({"a": few, "b": {s: v + 1 for s, v in few.items()}})] == [LEADS, ALIKE]


@pytest.mark.parametrize(("seeds", "verdict"), [(5, ALIKE), (6, BEHIND)])  # 2 · 2^-6 <= 0.05 < 2 · 2^-5: two-sided
def test_reaching_a_target_is_judged_by_the_two_sided_sign_test(seeds: int, verdict: str) -> None:
    quick = {s: 5.0 + s for s in range(seeds)}
    slow = {s: v + 1 for s, v in quick.items()}
    assert {r.name: r.verdict for r in compare_reached({"slow": slow, "quick": quick})}["slow"] == verdict


@pytest.mark.parametrize(("seeds", "verdict"), [(6, ALIKE), (7, BEHIND)])  # of three: 2 · 2^-7 <= 0.05 / 3 < 2 · 2^-6
def test_reaching_a_target_is_corrected_for_the_number_of_pairs(seeds: int, verdict: str) -> None:
    quick = {s: 5.0 + s for s in range(seeds)}
    others = {name: {s: v + more for s, v in quick.items()} for name, more in (("b", 1), ("c", 2))}
    found = {r.name: r.verdict for r in compare_reached({"a": quick, **others})}
    assert found == {"a": BEST if verdict == BEHIND else LEADS, "b": verdict, "c": verdict}


def test_the_quickest_has_the_lowest_median_and_a_seed_it_lost_counts_against_it() -> None:
    """Of seven seeds `a` wins six (2 · 8/128 > 0.05), and of nine all (2 / 512): equal costs count for none."""
    a, b = dict.fromkeys(range(7), 5.0), {s: 6.0 if s else 1.0 for s in range(7)}
    assert [(r.name, r.verdict) for r in compare_reached({"b": b, "a": a})] == [("b", ALIKE), ("a", LEADS)]
    tied = {s: 5.0 if s < 2 else 6.0 for s in range(9)}  # 7 wins and 2 ties: 2 / 128
    assert [r.verdict for r in compare_reached({"a": dict.fromkeys(range(9), 5.0), "b": tied})] == [BEST, BEHIND]


def test_the_quickest_of_two_with_one_median_is_the_quicker_on_the_whole() -> None:
    found = compare_reached({"a": {0: 5.0, 1: 5.0, 2: 9.0}, "b": {0: 5.0, 1: 5.0, 2: 6.0}})
    assert [(r.name, r.verdict) for r in found] == [("a", ALIKE), ("b", LEADS)]
    half = {0: 5.0, 1: None}  # of an even number, the lower of the two in the middle
    assert [r.verdict for r in compare_reached({"a": half, "b": dict.fromkeys(range(2))})] == [LEADS, ALIKE]
    assert {r.verdict for r in compare_reached({"a": {0: 5.0, 1: 6.0}, "b": {1: 7.0, 2: 7.0}})} == {ONE_SEED}


@pytest.mark.parametrize(("seeds", "verdict"), [(6, ALIKE), (7, BEHIND)])  # of three: 2 · 2^-7 <= 0.05 / 3 < 2 · 2^-6
def test_differences_that_do_not_vary_are_corrected_for_the_number_of_pairs(seeds: int, verdict: str) -> None:
    coarse = {name: dict.fromkeys(range(seeds), value) for name, value in (("A", 0.5), ("B", 0.6), ("C", 0.7))}
    assert [s.verdict for s in compare(coarse).standings][:2] == [verdict, verdict]


def test_an_error_is_behind_only_where_its_whole_interval_is_above() -> None:
    lower = {"A": {0: 1.0, 1: 1.2, 2: 1.1}, "B": {0: 1.1, 1: 1.15, 2: 1.2}, "C": {0: 9.0, 1: 9.1, 2: 9.3}}
    assert [s.verdict for s in compare(lower, higher_is_better=False).standings] == [LEADS, ALIKE, BEHIND]


def test_one_that_is_compared_with_none_only_leads() -> None:
    alone = compare({"A": {0: 1.0, 1: 1.2}, "B": {0: math.nan, 1: 2.0}})
    assert (alone.best, [s.verdict for s in alone.standings]) == (None, [LEADS, NO_NUMBER])


def test_a_sentence_names_six_and_counts_the_fewest_seeds() -> None:
    assert words_of(list("abcdef")) == "a, b, c, d, e and f"
    assert words_of(list("abcdefg")) == "a, b, c, d and 3 others"
    fewer = compare({"A": {0: 1.0, 1: 1.1, 2: 1.2, 3: 1.0}, "B": {0: 1.1, 1: 1.05, 2: 1.2}})
    assert fewer.sentence() == "A and B are not distinguishable with 3 seeds"


def make_runs(folder: Path, seeds: int, gain: dict[str, float], wobble: float = 0.01) -> Path:
    """Runs of four rounds whose accuracy differs by variant, with a little of every seed's own."""
    draw = random.Random(1)
    for variant, value in gain.items():
        for seed in range(seeds):
            (folder / variant / f"seed-{seed}").mkdir(parents=True)
            with Records.open(folder / variant / f"seed-{seed}" / "records.sqlite") as records:
                for t in range(4):
                    measured = 0.1 * seed + value * t + draw.uniform(-wobble, wobble)
                    cost = RoundRecord(round=t, bytes_up=100, bytes_down=50, seconds=0.5)
                    records.add_round(cost, Evaluation(t, {"global_accuracy": measured}))
    return folder


def test_nothing_is_bold_on_noise(tmp_path: Path) -> None:
    alike = results(find_runs(make_runs(tmp_path / "alike", 3, {"A": 0.1, "B": 0.101})))
    assert alike.leading is None
    assert alike.verdict == "A and B are not distinguishable with 3 seeds"
    assert [row[alike.header.index("difference")][-1] for row in alike.rows] == ["≈", "≈"]
    apart = results(find_runs(make_runs(tmp_path / "apart", 3, {"A": 0.1, "B": 0.2})))
    assert apart.leading == 1
    assert results(find_runs(make_runs(tmp_path / "one", 1, {"A": 0.1, "B": 0.2}))).leading is None


def test_a_comparison_is_printed_as_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_runs(tmp_path / "runs", 3, {"A": 0.1, "B": 0.2})
    found = to.compare(folder)
    assert main(["compare", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "B is best" in out
    assert str(found) == repr(found) == out.rstrip("\n")


def test_compare_says_what_reaching_a_target_took(tmp_path: Path) -> None:
    folder = make_runs(tmp_path / "runs", 8, {"A": 0.01, "B": 0.1}, wobble=0.001)
    found = to.compare(folder, target=0.15)
    assert (found.best, found.metric) == ("B", "global_accuracy")
    took = {r.name: r for r in (found.to_target or {})["bytes"]}
    assert took["B"].value[0] == 3 * 150.0  # 0.1 · 2 >= 0.15 first in round 2
    assert took["A"].value[0] is None
    page = found._repr_html_()
    assert page.index("B") < page.index("(6 of 8)")
    assert page.count("font-weight: bold") == 1
    single = to.compare(
        folder / "A" / "seed-0", folder / "A" / "seed-1", folder / "B" / "seed-0", folder / "B" / "seed-1"
    )
    assert {s.name: s.seeds for s in single.ranking.standings} == {"A": 2, "B": 2}
    assert [s.seeds for s in to.compare(folder, folder / "A" / "seed-0").ranking.standings] == [8, 8]
    shutil.copytree(folder / "A" / "seed-0", tmp_path / "A" / "seed-0")
    with pytest.raises(UserError, match="leave one of them out"):
        to.compare(folder, tmp_path / "A" / "seed-0")


def test_the_command_prints_a_table_and_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_runs(tmp_path / "runs", 3, {"A": 0.1, "B": 0.2})
    assert main(["compare", str(folder), "--target", "30%", "--json", str(tmp_path / "found.json")]) == 0
    assert "B is best (95 %)" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert [v["variant"] for v in found["variants"]] == ["B", "A"]
    assert found["variants"][1]["high"] < 0
    assert found["variants"][0]["to_target"]["rounds"]["by_seed"]["0"] == 3.0
    assert main(["compare", str(folder), "--target", "high"]) == 2
    assert "write it as 80% or 0.8" in capsys.readouterr().err


def test_files_are_run_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = Experiment(rounds=2).but(**{"world.data.clients": 4})
    for name, lr in (("slow", 1e-6), ("fast", 0.1)):
        (tmp_path / f"{name}.toml").write_text(to_toml(tiny.but(**{"algorithm.local.optimizer.lr": lr})))
    files = [str(tmp_path / f"{name}.toml") for name in ("slow", "fast")]
    assert (
        main(["compare", *files, "--seeds", "2", "--jobs", "1", "--out", str(tmp_path / "out"), "-q", "--json", "-"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert {v["variant"]: v["seeds"] for v in found["variants"]} == {"slow": 2, "fast": 2}
