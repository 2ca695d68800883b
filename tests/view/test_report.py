"""The report: right numbers, safe text, one file that needs nothing else, and sections only where there is data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from PIL import Image
from rich.console import Console

import turnout as to
from turnout.errors import UserError
from turnout.rng import uniform
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.charts import lines as charts
from turnout.running.charts.axes import log_ticks, make_axis, round_ticks, value_axis
from turnout.running.charts.heat import LEVELS, gather, indices, palette, png, turnout_map
from turnout.running.charts.lines import Series, bars, line_chart
from turnout.running.charts.svg import style
from turnout.running.charts.units import sparkline
from turnout.running.records.finding import find_runs
from turnout.running.records.records import Records
from turnout.running.records.runs import mean_curve
from turnout.tasks import MetricInfo
from turnout.view.report import render
from turnout.view.report.lines import marks_of
from turnout.view.report.page import write_picture, write_report
from turnout.view.report.results import results, results_table

NASTY = '<script>alert("x")</script>&\x07'


def make_run(
    folder: Path, accuracies: list[float], clients: int = 6, friends: bool = False, parts: bool = True
) -> Path:
    folder.mkdir(parents=True)
    ids = torch.arange(clients)
    with Records.open(folder / "records.sqlite") as records:
        for t, accuracy in enumerate(accuracies):
            work_C = (uniform(0, "work", t, ids=ids) * 3).floor() / 2
            columns = {"client": ids, "work": work_C}
            if friends:
                columns["friend"] = torch.where(work_C > 0, -1, (ids + 1) % clients)
            record = RoundRecord(
                round=t,
                skipped=NASTY if parts and t == 1 else None,
                lr=0.1,
                members=clients,
                asked=clients,
                answered=int((work_C > 0).sum()),
                work=float(work_C.mean()),
                weight_sum=0.9,
                train_loss=1 / (t + 1),
                bytes_up=1000,
                bytes_down=2000,
                seconds=0.5,
                extra={"elastic_loss": 0.5, "rule": NASTY} if parts else {},
                clients=columns,
                events=[(2, "leave", NASTY)] if parts and t == 0 else [],
            )
            per_client = {"personal_accuracy": (ids, ids / clients)} if parts else {}
            records.add_round(record, Evaluation(t, {"global_accuracy": accuracy}, per_client))
    return folder


def make_study(folder: Path) -> Path:
    runs = []
    for variant, seed, accuracies in (
        (NASTY, 0, [0.1, 0.5, 0.7]),
        (NASTY, 1, [0.1, 0.6, 0.9]),
        ("plain", 0, [0.1, 0.3, 0.4]),
        ("plain", 1, [0.1, 0.5, 0.4]),
    ):
        path = f"{'nasty' if variant == NASTY else variant}/seed-{seed}"
        make_run(folder / path, accuracies, friends=variant == NASTY)
        (folder / path / "experiment.toml").write_text(f'# {NASTY[:-1]}\n[world.data]\nkind = "digits"\n')
        (folder / path / "environment.json").write_text(json.dumps({"torch": NASTY}))
        runs.append({"variant": variant, "seed": seed, "path": path})
    runs.append({"variant": "later", "seed": 0, "path": "later/seed-0"})
    (folder / "runs.json").write_text(json.dumps({"title": "A study " + NASTY, "runs": runs, "target": 0.5}))
    return folder


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, headings and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside: list[str] = []
        self.headings: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.inside.append("/" + tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.inside and self.inside[-1] == "h2":
            self.headings.append(data)


def test_a_study_has_every_section_and_no_text_becomes_markup(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path / "study")))
    assert page.headings == [
        "Results",
        "Curves",
        "Who turned up when",
        "Personal accuracy of each client",
        "Bytes",
        "Weights",
        "Who is whose friend",
        "What the parts reported",
        "Joined and left",
        "Settings",
    ]
    assert [tag for tag, _ in page.tags].count("script") == 1  # ours
    assert any('<script>alert("x")</script>&' in words for words in page.words)
    assert "1 runs of this folder have not begun." in page.words


def test_names_of_every_kind_are_escaped_wherever_they_are_shown(tmp_path: Path) -> None:
    """Title, variants, metrics, numbers of parts, events, files: none may leave its place on the page."""
    nasty = """<script>alert('x')</script>" onclick="y"><b id='z'>"""
    for i, variant in enumerate((nasty, "plain")):
        folder = tmp_path / f"{i}"
        folder.mkdir()
        measured = {f"global_{nasty}": 0.5 + i, "global_loss": 1.0}
        each = {f"client_{nasty}": (torch.arange(3), torch.rand(3))}
        with Records.open(folder / "records.sqlite") as records:
            records.describe({nasty: MetricInfo(False)})
            for t in range(2):
                events = [(0, nasty, nasty)] if i == t == 0 else [(1, "leave", "")]
                record = RoundRecord(round=t, skipped=nasty, extra={nasty: 1.0 + t + i}, events=events)
                records.add_round(record, Evaluation(t, measured, each))
        (folder / "experiment.toml").write_text(f"[world.data]\nkind = {json.dumps(nasty)}\n# {variant}\n")
        (folder / "environment.json").write_text(json.dumps({nasty: nasty}))
    runs = [{"variant": v, "seed": 0, "path": f"{i}"} for i, v in enumerate((nasty, "plain"))]
    (tmp_path / "runs.json").write_text(json.dumps({"title": nasty, "runs": runs}))
    path = write_report(tmp_path)
    page = Page(path)
    assert "<script>alert" not in path.read_text()
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any("onclick" in attributes or attributes.get("id") == "z" for _, attributes in page.tags)
    shown = "".join(page.words)
    assert all(f"{before}{nasty}" in shown for before in ("Global ", "global_", "4 × ", " in "))
    assert page.words.count(nasty) >= 8  # title twice; row, chart, event twice and settings twice
    picture = ElementTree.parse(write_picture(tmp_path)).getroot()
    assert f"Global {nasty}" in [e.text for e in picture.iter() if e.get("class") == "title"]


def test_a_template_that_lacks_a_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="note"):
        render("charts.html", title="a", charts=[])


def test_a_report_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path / "study")))
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        assert "href" not in attributes
        assert (attributes.get("src") or "data:").startswith("data:")
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "url(" not in "".join(page.words)


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path / "run", [0.2, 0.4], parts=False)))
    assert page.headings == ["Results", "Curves", "Who turned up when", "Bytes", "Weights"]
    assert "Mean ± standard deviation" not in "".join(page.words)


def test_the_points_under_the_pointer_are_the_means_over_seeds(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path / "study")))
    first = next(a["data-chart"] for tag, a in page.tags if tag == "svg" and "data-chart" in a)
    assert first is not None
    rows = json.loads(first)["rows"]
    assert [row["n"] for row in rows] == [NASTY, "plain"]
    assert rows[0]["l"] == ["1", "2", "3"]  # rounds trained
    deviation = math.sqrt((0.9 - 0.8) ** 2 + (0.7 - 0.8) ** 2)  # n - 1 = 1
    assert rows[0]["t"][2] == f"80.0 % ± {100 * deviation:.1f} %"
    assert rows[1]["t"][2] == "40.0 % ± 0.0 %"


def test_results_are_means_over_seeds(tmp_path: Path) -> None:
    found = results(find_runs(make_study(tmp_path / "study")))
    cells = [dict(zip(found.header, row, strict=True)) for row in found.rows]
    assert found.leading is None  # two seeds that differ by 28 points from each other
    assert cells[0]["global_accuracy"] == "80.0 ± 14.1 %"
    assert cells[0]["best"] == "80.0 ± 14.1 %"
    assert cells[1]["global_accuracy"] == "40.0 ± 0.0 %"
    assert cells[1]["best"] == "45.0 ± 7.1 %"
    assert cells[0]["rounds to 50 %"] == "2 ± 0"
    assert cells[1]["rounds to 50 %"] == "2 (1 of 2)"
    assert cells[0]["up"] == "3 kB"
    assert cells[0]["time"] == "1.5 s"
    assert results(find_runs(tmp_path / "study"), target=0.95).rows[0][4] == "not reached"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_terminal_table_fits_and_shows_the_same_numbers(tmp_path: Path, width: int) -> None:
    folder = make_study(tmp_path / "study")
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(results_table(folder, width=width))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= width
    assert "80.0 ± 14.1 %" in shown
    assert ("▁" in shown and "6 kB" in shown) == (width >= 200)


def test_title_target_and_metric_come_from_the_experiment_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.2, 0.6])
    (run / "experiment.toml").write_text('title = "Try"\n[stop]\ntarget = 0.6\nmetric = "global_accuracy"\n')
    runs = find_runs(run)
    assert (runs.title, runs.target, runs.metric) == ("Try", 0.6, "global_accuracy")
    assert results(runs).rows[0][results(runs).header.index("rounds to 60 %")] == "2"
    (run / "experiment.toml").write_text("not toml [")
    assert find_runs(run).title == "run"


def test_the_worst_tenth_is_the_highest_of_a_loss_and_the_lowest_of_an_accuracy(tmp_path: Path) -> None:
    for clients in (100, 1000):  # all drawn, some drawn
        (tmp_path / f"{clients}").mkdir()
        ids = torch.arange(clients)
        per_client = dict.fromkeys(("client_accuracy", "client_loss"), (ids, ids / clients))
        with Records.open(tmp_path / f"{clients}" / "records.sqlite") as records:
            records.add_round(RoundRecord(round=0), Evaluation(0, {}, per_client))
        page = write_report(tmp_path / f"{clients}").read_text(encoding="utf-8")
        mean = float((ids / clients)[-clients // 10 :].double().mean())
        assert f"<span>Client loss</span></span></th><td>{clients:,}</td><td>{mean:.3g}</td>" in page
        marked = re.findall(r'class="bar low"[^>]*><title>(?:client \d+: )?([\d.]+)', page)
        accuracy, loss = marked[: len(marked) // 2], marked[len(marked) // 2 :]
        assert max(map(float, accuracy)) <= 10  # per cent
        assert min(map(float, loss)) >= 0.89


def test_a_smaller_loss_leads(tmp_path: Path) -> None:
    for name, losses in (("a", [3.0, 1.0, 2.0]), ("b", [3.0, 2.0, 1.5])):
        for seed in range(6):
            (tmp_path / name / f"seed-{seed}").mkdir(parents=True)
            with Records.open(tmp_path / name / f"seed-{seed}" / "records.sqlite") as records:
                for t, loss in enumerate(losses):
                    records.add_round(RoundRecord(round=t), Evaluation(t, {"global_loss": loss}))
    found = results(find_runs(tmp_path), target=1.5)
    assert found.leading == 1
    assert [row[:4] for row in found.rows] == [
        ["a", "2 ± 0", "+0.5 (+0.5 to +0.5)", "1 ± 0"],
        ["b", "1.5 ± 0", "best", "1.5 ± 0"],
    ]


def test_the_tasks_main_metric_leads_the_way_the_task_says(tmp_path: Path) -> None:
    infos = {"surprise": MetricInfo(False, "percent"), "loss": MetricInfo(False)}
    ids = torch.arange(20)
    for name, values in (("a", [0.9, 0.1, 0.2]), ("b", [0.9, 0.5, 0.4])):
        (tmp_path / name / "seed-0").mkdir(parents=True)
        with Records.open(tmp_path / name / "seed-0" / "records.sqlite") as records:
            records.describe(infos)
            for t, value in enumerate(values):
                measured = {"global_surprise": value, "global_loss": 1.0, "global_accuracy": value}
                each = {"client_surprise": (ids, ids / 100)}
                records.add_round(RoundRecord(round=t), Evaluation(t, measured, each))
    found = results(find_runs(tmp_path), target=0.2)
    assert found.header[1:6] == ["global_surprise", "difference", "best", "global_loss", "global_accuracy"]
    assert found.leading is None  # one seed
    assert [row[1:4] for row in found.rows] == [["20.0 %", "–", "10.0 %"], ["40.0 %", "+20.0 (one seed)", "40.0 %"]]
    assert [row[found.header.index("rounds to 20 %")] for row in found.rows] == ["2", "not reached"]
    assert (
        "<span>a</span></span></th><td>20</td><td>18.5 %</td>" in write_report(tmp_path).read_text()
    )  # the worst tenth: 18 and 19


def test_a_run_that_has_just_begun_or_exploded_still_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    Records.open(tmp_path / "new" / "records.sqlite").close()
    assert Page(write_report(tmp_path / "new")).headings == ["Results"]
    run = make_run(tmp_path / "bad", [0.5, math.nan, math.inf])
    with Records.open(run / "records.sqlite") as records:
        records.add_round(RoundRecord(round=3, train_loss=1e30))
        records.add_round(RoundRecord(round=4, train_loss=math.inf))
    text = write_report(run).read_text(encoding="utf-8")
    assert "Training loss, log scale" in text
    assert "nan" not in "".join(re.findall(r'<path[^>]* d="([^"]*)"', text))


def test_the_picture_is_a_valid_document_of_its_own(tmp_path: Path) -> None:
    path = write_picture(make_study(tmp_path / "study"))
    root = ElementTree.parse(path).getroot()
    titles = [e.text for e in root.iter() if e.get("class") == "title"]
    assert titles == ["Global accuracy", "Training loss, all variants"]
    lines = [e for e in root.iter() if (e.get("class") or "").startswith("line s")]
    assert len(lines) == 3  # two variants; their training losses coincide
    assert path.name == "curves.svg"
    assert not list(path.parent.glob("*.new"))


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no records in"):
        write_report(tmp_path)
    (tmp_path / "runs.json").write_text('{"runs": [{"variant": "a"}]}')
    with pytest.raises(UserError, match="not a list of runs"):
        write_report(tmp_path)


def test_runs_are_found_without_a_list(tmp_path: Path) -> None:
    for path in ("b/seed-10", "b/seed-9", "a/seed-0", "alone"):
        make_run(tmp_path / path, [0.5])
    found = [(run.variant, run.seed) for run in find_runs(tmp_path).runs]
    assert found == [("a", 0), ("alone", 0), ("b", 9), ("b", 10)]


def test_mean_curve_is_over_the_seeds_that_have_the_round() -> None:
    pairs = [(np.array([0, 1, 2]), np.array([1.0, 2.0, 3.0])), (np.array([0, 2]), np.array([2.0, math.nan]))]
    rounds, mean, deviation = mean_curve(pairs)
    assert rounds.tolist() == [0, 1, 2]
    assert mean.tolist() == [1.5, 2.0, 3.0]
    assert deviation[0] == pytest.approx(math.sqrt(0.5))
    assert np.isnan(deviation[1:]).all()


@given(st.floats(-100, 100), st.floats(1e-3, 1e9))
def test_ticks_are_round_few_and_inside(low: float, width: float) -> None:
    ticks = round_ticks(low, low + width)
    assert 2 <= len(ticks) <= 7
    assert all(low - 1e-6 * width <= v <= low + 1.000001 * width for v in ticks)
    mantissa = float(f"{ticks[1] - ticks[0]:.2e}".split("e")[0])
    assert mantissa in (1, 2, 5)


@given(st.floats(1e-9, 1e9), st.floats(1.5, 1e9))
def test_logarithmic_ticks_are_inside(low: float, ratio: float) -> None:
    assert all(low * 0.999 <= v <= low * ratio * 1.001 for v in log_ticks(low, low * ratio))


def test_axes_place_values() -> None:
    assert make_axis(0, 10, 0, 100).place(np.array([0.0, 2.5, 10.0])).tolist() == [0, 25, 100]
    assert make_axis(1, 100, 0, 100, log=True).place(10.0) == pytest.approx(50)
    assert (value_axis(0.13, 0.87, 0, 1).low, value_axis(0.13, 0.87, 0, 1).high) == (0, 1)
    assert value_axis(0.5, 0.5, 0, 1).low < 0.5  # a constant lies in the middle


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    x = np.arange(10_000, dtype=np.float64)
    chart = charts.line_chart([Series("a", x, x * 2)], "long")
    data = ElementTree.fromstring(chart).get("data-chart")
    assert data is not None
    row = json.loads(data)["rows"][0]
    assert len(row["x"]) == charts.MOST_POINTS
    assert (row["l"][0], row["l"][-1]) == ("0", "9999")
    assert row["t"][-1] == "19,998"


def test_bars_mark_the_lowest_and_of_many_some_are_drawn() -> None:
    drawn = ElementTree.fromstring(bars(np.array([0.1, 0.5, np.nan, 0.6]), "b", "percent", marks_worst=True))
    assert [e.get("class") for e in drawn.iter() if e.tag == "rect"] == ["bar low", "bar", "bar"]
    many = re.findall("<title>(.*?)</title>", bars(np.arange(1000.0), "b"))
    assert (len(many), many[0], many[-1]) == (200, "0", "999")
    assert bars(np.array([]), "b") == bars(np.array([np.nan]), "b") == ""


def test_whose_a_value_is_stands_under_the_pointer() -> None:
    words = re.findall(
        "<title>(.*?)</title>", bars(np.array([0.1, np.nan, 0.6]), "b", names=["client 4", "x", "client 9"])
    )
    assert words == ["client 4: 0.1", "client 9: 0.6"]


def test_the_png_has_the_colours_of_the_cells() -> None:
    value_RK = np.array([[np.nan, 0.0], [0.5, 1.0]])
    image = Image.open(io.BytesIO(png(indices(value_RK), palette()))).convert("RGBA")
    assert image.size == (2, 2)
    seen = [image.getpixel((k, r)) for r in (0, 1) for k in (0, 1)]
    expected = [tuple(palette()[i].tolist()) for i in (0, 1, 2 + round((LEVELS - 1) / 2), LEVELS + 1)]
    assert seen == expected
    assert seen[0][3] == 0  # type: ignore[index]


@given(st.integers(1, 900), st.integers(1, 3000))
def test_cells_average_what_falls_in_them(rows: int, columns: int) -> None:
    row, column = np.array([0, rows - 1, rows - 1]), np.array([7, 6 + columns, 6 + columns])
    cells = gather(row, column, np.array([1.0, 0.5, 0.0]), rows, 7, columns)
    assert cells.value_RK.shape == (min(rows, 360), min(columns, 1000))
    if rows > 1:
        assert cells.value_RK[0, 0] == 1.0
        assert cells.value_RK[-1, -1] == 0.25
        assert np.isfinite(cells.value_RK).sum() == 2


def test_a_map_of_many_clients_puts_the_active_on_top_and_stays_small() -> None:
    clients, rounds = 2000, 600
    ids = np.arange(clients)
    round_N, client_N = np.repeat(np.arange(rounds), clients), np.tile(ids, rounds)
    work_N = uniform(0, "work", ids=torch.arange(clients * rounds)).numpy() * (ids[client_N] % 2)
    drawn = turnout_map((round_N, client_N * 7, work_N), "Work", str)
    cells, names = drawn.cells, drawn.row_names
    assert len(names) == len(cells.value_RK)
    assert names[-1].split(", ")[0].isdigit()
    assert {int(name) // 7 % 2 for name in names[0].split(", ")[:5]} == {1}  # those that work
    assert cells.value_RK[0].mean() > 0.4
    assert cells.value_RK[-1].mean() == 0.0
    assert len(png(indices(cells.value_RK), palette())) < 700_000  # 1 MB as base64


NAMES = ("ada", "bob <&>", "cyd", "dee", "eve", "fay")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients have names: friends stand in, one client joins, one leaves."""
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    data = to.data.Own(x, (x[:, 0] > 0).long(), owner=[NAMES[i % 6] for i in range(120)])
    events = [to.Join(client=5, round=2), to.Leave(client=3, round=4)]
    world = to.World(data, to.participation.Dropout(0.4), events, devices=to.devices.Tiers())
    algorithm = to.Algorithm(
        to.Local(to.SGD(lr=0.1), epochs=1, batch_size=10), substitution=to.substitution.Friends(min_common=1)
    )
    experiment = to.Experiment(world, algorithm=algorithm, rounds=8, evaluate=to.Evaluate(per_client=True))
    return to.run(experiment, tmp_path_factory.mktemp("named") / "run", quiet=True).folder


def test_clients_are_called_by_their_names_in_every_part_of_a_report(named: Path) -> None:
    path = write_report(named)
    page = Page(path)
    maps = [a for tag, a in page.tags if "data-rows" in a]
    turnout, friends = [json.loads(a["data-rows"]) for a in maps]
    assert turnout == list(NAMES)
    assert set(friends) <= {*NAMES}
    assert set(json.loads(maps[1]["data-columns"])) <= {*NAMES}
    shown = "".join(page.words)
    assert "client bob <&>" in shown, "bars of each client"
    assert "round 2: client fay joined" in path.read_text()
    assert "<td>4</td><td>dee</td><td>leave</td>" in path.read_text()
    assert not re.search(r"client \d", shown)


def test_clients_without_names_and_of_older_runs_are_numbered(named: Path, tmp_path: Path) -> None:
    shutil.copytree(named, tmp_path / "old")
    (tmp_path / "old" / "data.json").unlink()
    page = Page(write_report(tmp_path / "old"))
    assert next(json.loads(a["data-rows"]) for _, a in page.tags if "data-rows" in a) == [*"012345"]
    assert "client 5" in "".join(page.words)
    (tmp_path / "old" / "data.json").write_text('{"names": 5}')
    assert "client 5" in "".join(Page(write_report(tmp_path / "old")).words)


def test_variants_with_the_same_turnout_share_a_map(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path / "study")))
    maps = [a["alt"] for tag, a in page.tags if tag == "img"]
    nasty = NASTY.replace("\x07", "\ufffd")
    assert maps == ["all variants: client by round"] * 2 + [
        f"{nasty}: client by friend"
    ]  # of each seed; of one variant
    seeds = [(a["data-seed"], "hidden" in a) for tag, a in page.tags if "data-seed" in a]
    assert seeds == [("0", False), ("1", True)]
    assert [a["value"] for tag, a in page.tags if tag == "option" and a.get("value")] == ["0", "1"]
    rows = next(a["data-rows"] for tag, a in page.tags if tag == "img")
    assert json.loads(rows or "") == [str(c) for c in range(6)]


def test_the_page_may_run_only_its_own_script_and_style(tmp_path: Path) -> None:
    text = write_report(make_study(tmp_path / "study")).read_text(encoding="utf-8")
    policy = re.search(r'content="(default-src[^"]*)"', text)
    assert policy is not None
    for tag in ("style", "script"):
        content = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        mark = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{mark}&#39;" in policy[1] or f"{tag}-src 'sha256-{mark}'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r'<[^>]+ style="', text), "a style attribute would be refused"


def test_every_variant_can_be_switched_and_told_apart(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path / "study")))
    assert [a["data-switch"] for tag, a in page.tags if "data-switch" in a] == ["0", "1"]
    lines = {
        a["data-v"] for tag, a in page.tags if tag == "path" and "line" in (a.get("class") or "") and "data-v" in a
    }
    assert lines == {"0", "1", "0 1"}  # "0 1": where both coincide
    assert len({style(number) for number in range(40)}) == 40


def test_charts_that_are_compared_have_one_scale_and_no_band_goes_below_nothing() -> None:
    x = np.arange(3.0)
    low = Series("a", x, np.array([0.0, 0.1, 0.2]), 0, np.array([-0.3, -0.2, 0.0]), np.array([0.3, 0.4, 0.4]))
    high = Series("b", x, np.array([0.5, 0.7, 0.9]))
    together = [line_chart([one], "t", unit="percent", beside=[other]) for one, other in ((low, high), (high, low))]
    labels = [re.findall(r'text-anchor="end">(.*?)</text>', chart) for chart in together]
    assert labels[0] == labels[1] == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    alone = line_chart([low], "t", unit="percent")
    assert re.findall(r'text-anchor="end">(.*?)</text>', alone) == ["0 %", "10 %", "20 %", "30 %", "40 %"]
    tall = [bars(np.array(v), "b", ends=(0.0, 8.0)) for v in ([1.0, 2.0], [8.0])]
    assert [re.findall(r'text-anchor="end">(.*?)</text>', chart) for chart in tall] == [["0", "2", "4", "6", "8"]] * 2


def test_joins_leaves_and_shifts_are_marked(tmp_path: Path) -> None:
    with Records.open(tmp_path / "records.sqlite") as records:
        for t in range(6):
            events = {
                1: [(7, "join", "")],
                3: [(2, "leave", ""), (4, "drop", "")],
                4: [(1, "join", ""), (9, "leave", "")],
            }
            extra = {"objective": "10 -> 11 clients"} if t == 1 else {}
            record = RoundRecord(round=t, extra=extra, events=events.get(t, []))
            records.add_round(record, Evaluation(t, {"global_accuracy": t / 10}))
    marks = marks_of(find_runs(tmp_path), 0.5)
    assert [(mark.x, mark.kind, mark.words) for mark in marks] == [
        (1.5, "shift", "round 1: objective 10 → 11 clients"),
        (1.5, "join", "round 1: client 7 joined"),
        (3.5, "leave", "round 3: client 2 left; client 4 dropped out"),
        (4.5, "both", "round 4: client 1 joined; client 9 left"),
    ]
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count('class="member leave"') == 1
    assert "A triangle on the axis marks clients that joined" in page


def test_sparkline_keeps_its_width_and_ends() -> None:
    line = sparkline([float(i) for i in range(1000)], width=10)
    assert (len(line), line[0], line[-1]) == (10, "▁", "█")
    assert sparkline([]) == ""


def test_what_is_counted_has_whole_ticks_and_no_share_is_above_all_of_it() -> None:
    assert make_axis(1, 3, 0, 100, "count").ticks == (1.0, 2.0, 3.0)
    assert value_axis(29, 30, 0, 100, "count").labels == ("29", "30")
    assert make_axis(2, 2, 0, 100, "count").ticks == (1.0, 2.0, 3.0)
    assert value_axis(1.0, 1.0, 0, 100, "percent").high == 1.0
    chart = charts.line_chart([Series("a", np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.4, 0.5]))], "loss")
    assert ">2</text>" in chart
    assert ">1.5</text>" not in chart


def test_equal_curves_are_one_line_and_kinds_are_said_once(tmp_path: Path) -> None:
    for variant in ("x", "y"):
        folder = make_run(tmp_path / variant / "seed-0", [0.1, 0.5])
        models = '[[algorithm.models]]\nmodel = {kind = "cnn"}\n' * 3
        (folder / "experiment.toml").write_text('[world.data]\nkind = "digits"\n' + models)
    page = write_report(tmp_path).read_text()
    assert "Global accuracy, all variants" in page
    assert page.count("<i>model</i> cnn") == 1


def test_variants_that_cannot_be_ranked_have_no_number_in_front(tmp_path: Path) -> None:
    make_run(tmp_path / "x" / "seed-0", [0.1, 0.5])
    make_run(tmp_path / "y" / "seed-0", [math.nan, math.nan])
    assert "<span>global_accuracy" not in write_report(tmp_path).read_text()
