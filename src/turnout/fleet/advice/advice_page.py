"""The files of an advice: its page with the answer, the ranking, worlds, costs and method; the experiment; the data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from markupsafe import Markup

from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.candidates import PLAIN
from turnout.fleet.advice.certainty import SEEDS_NEEDED, TOLERATED
from turnout.fleet.advice.race import BOUND, Arm
from turnout.fleet.diagnosis_page import summary
from turnout.machine.files import write_whole
from turnout.running.charts.axes import make_axis
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import renderer, trusted, whole_page
from turnout.running.charts.svg import HEIGHT, LEFT, RIGHT, WIDTH, frame, text
from turnout.running.charts.units import duration, show, size, title_of
from turnout.running.config.read import to_toml

render = renderer("turnout.fleet.advice")


PAGE, RECOMMENDED, DATA = "advice.html", "recommended.toml", "advice.json"
SHOWN = 6  # candidates in a chart
NAMES, TOP, BOTTOM = 150, 40, 34  # room for names, the title, the axis of the chart of intervals
MOST = 16  # rows that fit into it


def write_advice(advice: Advice) -> None:
    """Write the page, the recommended experiment and the numbers into the advice's folder."""
    file = advice.folder / RECOMMENDED
    if advice.recommended is None:  # without a comparison, also none from an earlier call
        file.unlink(missing_ok=True)
    else:
        write_whole(file, f"# {advice.sentence()}\n# turnout run {file}\n\n{to_toml(advice.recommended_experiment())}")
    write_whole(advice.folder / DATA, json.dumps(advice.data(), indent=2) + "\n")
    write_whole(advice.folder / PAGE, page(advice))


def page(advice: Advice) -> str:
    """The whole page in one file."""
    facts = advice.facts
    chart = line_chart(
        [Series("turnout", np.arange(1, facts.rounds + 1, dtype=float), np.nan_to_num(facts.turnout_by_round))],
        "Turnout in the log", "round", "percent",
    )  # fmt: skip
    afterwards = "Worlds are looked at afterwards, one by one, so outside the bound of the race."
    curves = [_curve(advice, case.name) for case in advice.cases]
    named = "best" if advice.best else "ahead on this log" if advice.ahead else "the simplest of the undecided"
    recommended = [] if advice.recommended is None else [(named, advice.recommended)]
    runs = sum(map(len, advice.outcomes.values()))
    sections = [
        _section("What to do", listed=steps) if (steps := advice.next_steps()) else None,
        _ranking(advice) if advice.race.seeds else None,
        _sure(advice) if advice.certainty else None,
        _section("Over the rounds", charts=trusted(curves)) if any(curves) else None,
        _section("World by world", afterwards, listed=worlds) if (worlds := advice.world_sentences()) else None,
        _section(f"What {advice.recommended} costs", listed=costs) if (costs := advice.cost_sentences()) else None,
        _levers(advice) if advice.levers else None,
        _section("What the log says", listed=summary(facts), charts=trusted([chart])),
        _method(advice),
        _section("What was not tried", listed=advice.not_tried()),
    ]
    if advice.recommended is not None:
        file = to_toml(advice.recommended_experiment())
        sections.append(_section(RECOMMENDED, f"turnout run {advice.folder / RECOMMENDED}", file=file))
    return whole_page(
        title=f"Advice for {facts.path}",
        warnings=[*advice.warnings, *([] if advice.best else [advice.sentence()])],
        notes=[advice.sentence()] if advice.best else [],
        facts=[
            *recommended,
            ("aim", advice.judge.aim.name),
            ("clients in the log", f"{facts.clients:,}"),
            ("turnout", f"{facts.turnout:.0%}"),
            ("work of those who came", f"{facts.work:.0%}"),
            ("seeds raced", f"{advice.race.seeds}"),
            ("runs", f"{runs:,}"),
            ("time taken", duration(advice.spent)),
        ],
        sections=[section for section in sections if section is not None],
        source="the runs of a race",
    )


def _section(title: str, note: str = "", **values: Any) -> Markup:
    empty: dict[str, Any] = dict.fromkeys(("lines", "rows", "header", "listed", "charts"), ())
    return render(
        "advice.html",
        title=title,
        note=note,
        **(empty | {"file": "", "best": None, "words": False, "whole": 6} | values),
    )


def _ranking(advice: Advice) -> Markup:
    aim = advice.judge.aim
    note = (
        f"For {aim.name}: {aim.about}. Differences are to the leader (of a dropped candidate: to the one it was "
        "behind), paired by seed, with the intervals by which the race decides."
    )
    rows = [
        [*cells, row.settings, advice.candidates[row.name].about]
        for cells, row in zip(advice.cells(), advice.rows(), strict=True)
    ]
    header = ["candidate", advice.judge.metric, "seeds", "collapses", "difference", "", "best rate", "what it does"]
    chart = trusted([_interval_chart(advice)])
    return _section("Ranking", note, header=header, rows=rows, best=advice.ahead, words=True, charts=chart)


def _sure(advice: Advice) -> Markup:
    """Whether another log would say the same, and collapses."""
    sure, shown = advice.certainty, advice.judge.shown
    assert sure is not None
    note = (
        "One log is one sample of the fleet: the deviation from log to log is part of the intervals above. It is found "
        "by running seeds twice on the same bootstrap log, or, where no more is needed, is an upper bound."
    )
    rows = [
        [r.name, f"{shown(r.gap)} ({shown(r.low)} to {shown(r.high)})",
         f"{'' if r.measured else 'at most '}{shown(r.spread).lstrip('+')}",
         "yes" if r.decides else f"no; about {r.rounds:,} rounds of log would" if r.rounds else "no"]
        for r in sure.rivals
    ]  # fmt: skip
    header = [f"{sure.arm.candidate} against", "difference", "deviation from log to log", "behind on other logs too"]
    lines = [f"Collapses: {advice.collapse_words(sure.arm)}, with 97.5 % confidence."]
    return _section("How sure", note, header=header, rows=rows, lines=lines)


def _levers(advice: Advice) -> Markup:
    """Levers of production with what they cost, and the picture of accuracy against device-hours."""
    note = (
        f"Settings of production, tried on {advice.levers_on}; differences are to the fleet as it is now, paired by "
        "seed, with intervals that hold for all of them at once. Devices of an experiment without them are assumed: "
        "10 samples a second, within a factor of 1.6 in two of three cases. A round takes as long as its last reply. "
        "The line in the picture joins what no other lever beats in both."
    )
    rows = []
    for one in advice.levers:
        s = one.against
        rows.append([
            one.lever.name, advice.score_text(one.score),
            "–" if s is None or s.gap is None else advice.gap_text(s.gap, s.low, s.high),
            "–" if one.worst is None else show(one.worst, advice.judge.unit),
            "–" if one.days is None else duration(86400 * one.days), duration(one.round_takes), size(one.sent),
            f"{one.device_hours:.3g}", *([] if one.energy is None else [f"{one.energy:.3g} kWh"]), one.lever.about,
        ])  # fmt: skip
    energy = [] if advice.watts is None else ["energy"]
    header = ["lever", advice.judge.metric, "difference", "worst tenth of clients", "time at the log's pace",
              "a round takes", "bytes", "device-hours", *energy, "what it is"]  # fmt: skip
    listed = [f"{one.lever.name}: {one.lever.setting}" for one in advice.levers if one.lever.setting]
    return _section(
        "Levers of production", note, header=header, rows=rows, words=True, charts=trusted([_pareto(advice)]),
        listed=listed, whole=10,
    )  # fmt: skip


def _pareto(advice: Advice) -> str:
    """Levers by device-hours and score, with the line of those that no other beats in both; names are at the right."""
    points = sorted((one for one in advice.levers if one.device_hours > 0), key=lambda one: -one.score)
    if len(points) < 2:
        return ""
    right, bottom = WIDTH - NAMES, HEIGHT - BOTTOM
    across = make_axis(0.0, max(p.device_hours for p in points), LEFT, right - 12)
    up = make_axis(points[-1].score, points[0].score, bottom - 8, TOP + 8)
    parts = [
        f'<text class="tick" x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 2}" text-anchor="middle">device-hours</text>'
    ]
    for at, value in zip(across.place(np.array(across.ticks)), across.ticks, strict=True):
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    for at, value in zip(up.place(np.array(up.ticks)), up.ticks, strict=True):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        shown = text(advice.score_text(value))
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{shown}</text>')
    place = {p.lever.name: (float(across.place(p.device_hours)), float(up.place(p.score))) for p in points}
    front = sorted((p for p in points if p.is_front), key=lambda p: p.device_hours)
    line = "L".join("{:.1f},{:.1f}".format(*place[p.lever.name]) for p in front)
    parts.append(f'<path class="line s0" d="M{line}"/>')
    label = TOP - 12.0
    for i, p in enumerate(points):  # names from the top down, as near to their points as the others allow
        (x, y), colour = place[p.lever.name], "s0" if p.is_front else "s1"
        label = min(max(y, label + 16), bottom - 16 * (len(points) - 1 - i))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{right + 8}" y1="{y:.1f}" y2="{label:.1f}"/>')
        parts.append(f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(f'<text class="name" x="{right + 12}" y="{label + 4:.1f}">{text(p.lever.name)}</text>')
    return frame(f"{title_of(advice.judge.metric)} by device-hours", "".join(parts))


def _interval_chart(advice: Advice) -> str:
    """Every candidate's difference to the leader as a point on its interval; empty if none were compared."""
    known = [(row, row.low, row.high) for row in advice.rows() if row.low is not None and row.high is not None][:MOST]
    if not known:
        return ""
    ends = [0.0, *(end for _, low, high in known for end in (low, high))]
    axis = make_axis(min(ends), max(ends), NAMES, WIDTH - RIGHT)
    step, bottom = (HEIGHT - TOP - BOTTOM) / len(known), HEIGHT - BOTTOM
    zero = float(axis.place(0.0))
    parts = [f'<line class="mean" x1="{zero:.1f}" x2="{zero:.1f}" y1="{TOP - 8}" y2="{bottom}"/>']
    for at, value in zip(axis.place(np.array(axis.ticks)), axis.ticks, strict=True):
        shown = text(advice.judge.shown(value))
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{shown}</text>')
    for i, (row, *ends_of_row) in enumerate(known):
        y, (low, high, gap) = TOP + (i + 0.5) * step, (float(axis.place(v)) for v in (*ends_of_row, row.number or 0.0))
        colour = "s1" if "behind" in row.state else "s0"
        parts.append(
            f'<text class="name" x="{NAMES - 8}" y="{y + 4:.1f}" text-anchor="end">{text(row.name[:22])}</text>'
        )
        parts.append(f'<path class="line {colour}" d="M{low:.1f},{y:.1f}H{high:.1f}"/>')
        parts.append(f'<circle class="dot {colour}" cx="{gap:.1f}" cy="{y:.1f}" r="4"/>')
    return frame("Difference, with its interval", "".join(parts))


def _curve(advice: Advice, case: str) -> str:
    """The metric over the rounds in one world, of the best candidates and of plain FedAvg."""
    order = [row for row in advice.rows() if advice.outcomes.get(Arm(row.name, row.settings))]
    chosen = [*order[: SHOWN - 1], *(row for row in order[SHOWN - 1 :] if row.name == PLAIN)]
    series = []
    for i, row in enumerate(chosen):
        found = advice.outcomes[Arm(row.name, row.settings)]
        runs = [o for (c, seed), o in found.items() if c == case and not o.diverged and seed < advice.race.seeds]
        values = [o.values[advice.judge.metric] for o in runs if advice.judge.metric in o.values]
        if values:
            mean = np.mean(np.array(values), axis=0)
            series.append(Series(row.name, np.array(runs[0].rounds, float), mean, i))
    title = title_of(advice.judge.metric) + (f", {case} world" if len(advice.cases) > 1 else "")
    return line_chart(series, title, "rounds trained", advice.judge.unit)


def _method(advice: Advice) -> Markup:
    plan = advice.plan
    rates = f"at each of the rates {', '.join(advice.rates)}" if plan.tuned else "at the experiment's own rate"
    lines = [
        f"{len(advice.candidates)} candidates, {rates}: an arm of the race is a candidate at one rate.",
        f"Runs of {plan.rounds} rounds under the log's turnout. Each seed has a bootstrap log of its own, stretches of "
        "the log drawn with replacement; the same seed has the same data and turnout for every arm. A run's score is "
        "the mean over its last quarter of evaluations, a seed's the mean over worlds.",
        f"The race: {BOUND}.",
        f"Best is only what is also ahead on other logs of the fleet, and collapses in at most {TOLERATED:.0%} of the "
        f"seeds, shown by {SEEDS_NEEDED} seeds without a collapse (97.5 % confidence).".replace("% of", " % of"),
        f"{duration(advice.spent)} of a budget of {duration(advice.budget)}: "
        + ", ".join(f"{duration(seconds)} for {step}" for step, seconds in advice.spent_on.items())
        + ".",
    ]
    return _section("How it was found", lines=lines, listed=[f"{case.name}: {case.about}" for case in advice.cases])
