"""The report: one HTML file that needs nothing else, put together from the sections; and the curves as one SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from turnout.machine.files import write_whole
from turnout.running.charts.page import whole_page
from turnout.running.charts.svg import sample, sheet
from turnout.running.charts.units import show, size, spread
from turnout.running.records.finding import find_runs
from turnout.running.records.runs import Runs
from turnout.running.records.warnings import warnings_in
from turnout.view.report import sections
from turnout.view.report.clients import clients_sections
from turnout.view.report.clock import clock_section
from turnout.view.report.history import history_section
from turnout.view.report.lines import metric_charts
from turnout.view.report.maps import friends_section, turnout_section
from turnout.view.report.results import results

# The page from top to bottom. A section of your own is a line here: a function of the runs that returns the section in
# a list, or an empty list where there is no data for it (`sections.charts_section` makes one of charts).
SECTIONS: tuple[Callable[[Runs], list[Markup]], ...] = (
    sections.results_section,
    sections.curves_section,
    turnout_section,
    clients_sections,
    history_section,
    sections.bytes_section,
    clock_section,
    sections.weights_section,
    friends_section,
    sections.parts_section,
    sections.events_section,
    sections.settings_section,
)


class Variant(NamedTuple):
    """A variant in the page's switches: its name, and a piece of its line."""

    name: str
    sample: Markup


def write_report(folder: str | Path, target: float | None = None) -> Path:
    """Write `report.html` of a run folder, or of a folder of runs, from the records alone."""
    return _write(Path(folder) / "report.html", report_page(folder, target))


def report_page(folder: str | Path, target: float | None = None) -> str:
    """The report of a run folder, or of a folder of runs, as one page."""
    runs = find_runs(folder)
    return whole_page(
        title=runs.title,
        warnings=[f"{who}: {words}" if who else words for who, words in warnings_in(runs)],
        notes=notes(runs),
        kinds=common_kinds(runs),
        facts=facts(runs),
        variants=variants_of(runs),
        sections=[section for made in SECTIONS for section in made(replace(runs, target=target or runs.target))],
        source="the records of the runs",
    )


def variants_of(runs: Runs) -> list[Variant]:
    """What the switches of a page are for."""
    return [Variant(name, Markup(sample(i))) for i, name in enumerate(runs.variants)]


def write_picture(folder: str | Path) -> Path:
    """Write `curves.svg`: the curves of a run folder, or of a folder of runs, as one picture."""
    return _write(Path(folder) / "curves.svg", sheet(metric_charts(find_runs(folder))))


def notes(runs: Runs) -> list[str]:
    """What a reader must know before the numbers: runs that have not begun, rounds that changed nothing."""
    waiting = f"{runs.waiting} runs of this folder have not begun." if runs.waiting else ""
    return [note for note in (waiting, _skipped(runs)) if note]


def facts(runs: Runs) -> list[tuple[str, str]]:
    """(name, value) of the key numbers."""
    variants, every = runs.variants, runs.runs
    found = []
    if len(every) > 1:
        found.append((f"runs of {len(variants)} variants" if len(variants) > 1 else "runs", f"{len(every)}"))
    rounds = sorted({len(run.rounds["round"]) for run in every})
    found.append(("rounds", f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} – {rounds[-1]:,}"))
    members = max((int(run.rounds["members"].max()) for run in every if len(run.rounds["members"])), default=0)
    found.append(("clients", f"{members:,}"))
    found += _best_final(runs)
    found.append(("turnout", show(_mean(run.attendance() for run in every), "percent")))
    found.append(("work done", show(_mean(run.mean("work") for run in every), "percent")))
    up, down, seconds = (sum(run.total(name) for run in every) for name in ("bytes_up", "bytes_down", "seconds"))
    found += [("sent up", size(up)), ("sent down", size(down))]
    found.append(("time" if len(every) == 1 else "time of all runs", show(seconds, "seconds")))
    return found


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _best_final(runs: Runs) -> list[tuple[str, str]]:
    """The main metric of the leading variant; nothing where several cannot be ranked."""
    leading = results(runs).leading
    if not runs.metrics or (leading is None and len(runs.variants) > 1):
        return []
    main, variant = runs.metrics[0], list(runs.variants)[leading or 0]
    value = spread([run.final(main) for run in runs.variants[variant]], runs.glossary.unit(main))
    return [(main + (f", {variant}" if leading is not None else ""), value)]


def _skipped(runs: Runs) -> str:
    """The reasons for rounds that changed nothing, the most frequent first."""
    reasons: dict[str, int] = {}
    for run in runs.runs:
        for why in run.rounds["skipped"].tolist():
            if isinstance(why, str):
                reasons[why] = reasons.get(why, 0) + 1
    counted = [f"{n} × {why}" for why, n in sorted(reasons.items(), key=lambda item: -item[1])]
    return "Rounds that changed nothing: " + "; ".join(counted[:5]) + "." if counted else ""


def common_kinds(runs: Runs) -> list[tuple[str, str]]:
    """(part, kind) pairs that the experiment files of all variants share."""
    lists = [list(dict.fromkeys(_kinds(found[0].settings()))) for found in runs.variants.values()]
    return [pair for pair in lists[0] if all(pair in other for other in lists)][:14]


def _kinds(tree: dict[str, Any], name: str = "") -> list[tuple[str, str]]:
    """Every `kind` in an experiment file with the name of the table it stands in.

    >>> _kinds({"world": {"data": {"kind": "digits"}}, "rounds": 3})
    [('data', 'digits')]
    """
    found = [(name, tree["kind"])] if isinstance(tree.get("kind"), str) else []
    for key, value in tree.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                found += _kinds(item, key)
    return found


def _write(path: Path, content: str) -> Path:
    """Whole or not at all: a browser may be looking at the old one."""
    write_whole(path, content)
    return path
