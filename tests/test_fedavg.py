"""What is called FedAvg is the mean over those who replied; what does something else says so, and shows it."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

import turnout as to
from turnout.running.records.finding import find_runs
from turnout.view.report.results import results, results_table


def away(weighting: to.weighting.Weighting, title: str) -> to.Experiment:
    world = to.World(to.data.Synthetic(clients=10, sizes=to.data.Equal(40)), to.participation.Dropout(0.5))
    return to.Experiment(world, algorithm=to.Algorithm(weighting=weighting), rounds=4, title=title)


def columns(folder: Path) -> dict[str, str]:
    found = results(find_runs(folder))
    return dict(zip(found.header, found.rows[0], strict=True))


def test_the_table_shows_the_sum_of_weights_where_it_is_not_1(tmp_path: Path):
    mean = to.run(away(to.weighting.FedAvg(), "mean"), tmp_path / "mean", quiet=True)
    unused = to.run(away(to.weighting.ByShare(), "unused"), tmp_path / "unused", quiet=True)
    with unused.records() as records:
        sums = records.rounds()["weight_sum"]
    assert "sum of weights" not in columns(mean.folder)
    assert 0.2 < sums.mean() < 0.8
    assert columns(unused.folder)["sum of weights"] == f"{sums.mean():.3g}"
    screen = Console(width=200, file=io.StringIO())
    screen.print(results_table(unused.folder, width=200))
    assert f"{sums.mean():.3g}" in screen.file.getvalue()  # type: ignore[attr-defined]
    page = unused.report().read_text(encoding="utf-8")
    assert "sum of weights" in page
    for whole in (
        away(to.weighting.FedNova(), "steps"),
        away(to.weighting.ByShare(), "old").but(**{"algorithm.substitution": to.substitution.Stale()}),
    ):
        found = to.run(whole, tmp_path / whole.title, quiet=True)
        assert "sum of weights" not in columns(found.folder), "weights of steps; old updates that stand in"
    assert "sum of weights" not in mean.report().read_text(encoding="utf-8").split("<h2>Curves</h2>")[0]
