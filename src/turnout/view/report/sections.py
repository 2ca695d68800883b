"""The sections of the page that are tables or charts over rounds; each is left out where there is no data for it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from markupsafe import Markup

from turnout.machine.checksums import KEY
from turnout.round_record import RoundRecord
from turnout.running.charts.lines import spark
from turnout.running.charts.page import charts_section
from turnout.running.charts.svg import sample
from turnout.running.charts.units import duration, show, title_of
from turnout.running.records.runs import RunRecords, Runs
from turnout.view.report import render
from turnout.view.report.lines import column_chart, explain_marks, metric_by_bytes, metric_by_time, metric_charts
from turnout.view.report.results import results, seeds_of

_ROUND_NAMES = frozenset(f.name for f in fields(RoundRecord))
_MOST_EVENTS = 200  # of one list
_MOST_NAMES = 6  # of runs with the same events


def results_section(runs: Runs) -> list[Markup]:
    """The results of each variant with its curve; one in bold only where all others are shown to be behind it."""
    found = results(runs)
    rows = []
    for i, (variant, cells) in enumerate(zip(runs.variants, found.rows, strict=True)):
        curve = Markup(spark(runs.curve(variant, runs.metrics[0])[1], i)) if runs.metrics else Markup()
        of = str(i) if len(found.rows) > 1 else ""  # its number, by which the page hides it
        row = {"variant": cells[0], "cells": cells[1:], "curve": curve, "sample": Markup(sample(i)), "of": of}
        rows.append(row | {"leading": i == found.leading})
    several = any(len(some) > 1 for some in runs.variants.values())
    note = f"Mean ± standard deviation over {seeds_of(runs)}, after the last round. " if several else ""
    note += f"{found.verdict[:1].upper()}{found.verdict[1:]}. " if found.verdict else ""
    note += "Turnout is the share of the clients asked that answered"
    note += ", work the share of the asked work that was done." if "work" in found.header else "."
    return [render("results.html", title="Results", note=note, header=found.header, rows=rows)]


def curves_section(runs: Runs) -> list[Markup]:
    """Every evaluated metric and the training loss, over rounds."""
    several = any(len(some) > 1 for some in runs.variants.values())
    note = "Lines are means over seeds, bands one standard deviation." if several else ""
    return charts_section("Curves", metric_charts(runs), f"{note} {explain_marks(runs)}".strip())


def bytes_section(runs: Runs) -> list[Markup]:
    """Bytes up and down, and the main metric against bytes spent."""
    shown = [
        column_chart(runs, "bytes_up", "Sent up by clients, in total", total=True, beside="bytes_down"),
        column_chart(runs, "bytes_down", "Sent down to clients, in total", total=True, beside="bytes_up"),
    ]
    if any(shown) and runs.metrics and len(runs.variants) > 1:
        shown.append(metric_by_bytes(runs, runs.metrics[0]))
    return charts_section("Bytes", shown)


def time_section(runs: Runs) -> list[Markup]:
    """The main metrics against simulated time, and the share of the devices' time that was wasted."""
    words = []
    for variant, found in runs.variants.items():
        if timed := [run for run in found if "simulated_time" in run.rounds]:
            seconds = sum(run.total("simulated_seconds") for run in timed) / len(timed)
            busy, wasted = (
                sum(run.total(name) for run in timed) for name in ("device_seconds", "wasted_device_seconds")
            )
            share = show(wasted / busy if busy else 0.0, "percent")
            words.append(f"{variant}: {duration(seconds)}, {share} of the device time wasted")
    charts = [metric_by_time(runs, metric) for metric in runs.metrics[:2]] if words else []
    return charts_section("Simulated time", charts, "; ".join(words) + ".")


def weights_section(runs: Runs) -> list[Markup]:
    """The sum and the largest of the weights: a sum far from 1 moves the model by more or less than a mean."""
    shown = [column_chart(runs, "weight_sum", "Sum of weights"), column_chart(runs, "weight_max", "Largest weight")]
    note = "A sum below 1 keeps a part of the old model; above 1 it overshoots the mean."
    return charts_section("Weights", shown, note)


def privacy_section(runs: Runs) -> list[Markup]:
    """ε over the rounds: for the participation that is enforced, and for the turnout that happened."""
    titles = {"epsilon": "ε that is promised", "epsilon_realised": "ε of the turnout that happened"}
    shown = [
        column_chart(runs, name, title) for name, title in titles.items() if any(name in r.rounds for r in runs.runs)
    ]
    note = (
        "The first holds for the participation that the server enforces; the second only if who turns up does not "
        "depend on the models that were released. Both cover models, global scores and downloads, not this report: "
        "losses, sample counts and metrics of clients are shown as they were."
    )
    return charts_section("Privacy", shown, note) if shown else []


def parts_section(runs: Runs) -> list[Markup]:
    """Numbers that the parts of the algorithm added, the learning rate and the members."""
    names = {n for run in runs.runs for n, c in run.rounds.items() if c.dtype != object} - _ROUND_NAMES
    names -= {"epsilon", "epsilon_realised"}
    changing = [n for n in ("lr", "members") if any(len(set(run.rounds[n].tolist())) > 1 for run in runs.runs)]
    shown = [column_chart(runs, n, title_of(n)) for n in [*changing, *runs.glossary.in_order(names)]]
    return charts_section("What the parts reported", shown)


def events_section(runs: Runs) -> list[Markup]:
    """Which clients joined and left, and what was decided; runs with the same events are listed once."""
    found: dict[tuple[tuple[int, str, str, str], ...], list[RunRecords]] = {}
    for run in runs.runs:
        if run.events:
            listed = tuple((t, run.client(client), kind, detail) for t, client, kind, detail in run.events)
            found.setdefault(listed, []).append(run)
    lists = []
    for events, some in found.items():
        names = [r.variant if r.seed is None else f"{r.variant}, seed {r.seed}" for r in some]
        of = " in " + "; ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")
        of = of if len(some) < len(runs.runs) else ""
        lists.append({"of": of, "count": len(events), "shown": events[:_MOST_EVENTS]})
    return [render("events.html", title="Joined and left", note="", lists=lists)] if lists else []


def settings_section(runs: Runs) -> list[Markup]:
    """The experiment files and the environment, folded away; equal ones once."""
    files = []
    for name in ("experiment.toml", "environment.json"):
        contents: dict[str, list[str]] = {}
        for variant, found in runs.variants.items():
            if content := found[0].text(name):
                if (own := _object(content)) is not None:  # without a run's own number and the file's checksum
                    content = json.dumps({k: v for k, v in own.items() if k not in (KEY, "run")})
                contents.setdefault(content, []).append(variant)
        for content, users in contents.items():
            of = "" if len(contents) == 1 else " of " + ", ".join(users)
            table = _object(content)
            rows = None if table is None else [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False))
                                               for k, v in table.items()]  # fmt: skip
            files.append({"name": name + of, "content": content, "rows": rows})
    return [render("settings.html", title="Settings", note="", files=files)] if files else []


def _object(content: str) -> dict[str, Any] | None:
    """A JSON object; None where the text is something else."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
