"""The files of an advice: its page with the answer, the ranking, worlds, costs and method; the experiment; the data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from markupsafe import Markup

from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.candidates import PLAIN
from turnout.fleet.advice.race import BOUND
from turnout.fleet.diagnosis_page import summary
from turnout.machine.files import write_whole
from turnout.running.charts.axes import make_axis
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import renderer, trusted, whole_page
from turnout.running.charts.svg import HEIGHT, RIGHT, WIDTH, frame, text
from turnout.running.charts.units import duration, title_of
from turnout.running.config.read import to_toml

render = renderer("turnout.fleet.advice")


PAGE, RECOMMENDED, DATA = "advice.html", "recommended.toml", "advice.json"
SHOWN = 6  # candidates in a chart
NAMES, TOP, BOTTOM = 150, 40, 34  # room for names, the title, the axis of the chart of intervals
MOST = 16  # rows that fit into it


def write_advice(advice: Advice) -> None:
    """Write the page, the recommended experiment and the numbers into the advice's folder."""
    file = advice.folder / RECOMMENDED
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
    return whole_page(
        title=f"Advice for {facts.path}",
        warnings=[*advice.warnings, *([] if advice.best else [advice.sentence()])],
        notes=[advice.sentence()] if advice.best else [],
        facts=[
            ("recommended" if advice.best else "the simplest of the undecided", advice.recommended),
            ("aim", advice.judge.aim.name),
            ("clients in the log", f"{facts.clients:,}"),
            ("turnout", f"{facts.turnout:.0%}"),
            ("work of those who came", f"{facts.work:.0%}"),
            ("seeds raced", f"{advice.race.seeds}"),
            ("runs", f"{sum(map(len, advice.outcomes.values())):,}"),
            ("time taken", duration(advice.spent)),
        ],
        sections=[
            _ranking(advice),
            *([_section("Over the rounds", charts=trusted(curves))] if any(curves) else []),
            *([_section("World by world", afterwards, listed=worlds)] if (worlds := advice.world_sentences()) else []),
            _section(f"What {advice.recommended} costs", listed=advice.cost_sentences()),
            _section("What the log says", listed=summary(facts), charts=trusted([chart])),
            _method(advice),
            _section("What was not tried", listed=advice.not_tried()),
            _section(
                RECOMMENDED, f"turnout run {advice.folder / RECOMMENDED}", file=to_toml(advice.recommended_experiment())
            ),
        ],
        source="the runs of a race",
    )


def _section(title: str, note: str = "", **values: Any) -> Markup:
    empty: dict[str, Any] = dict.fromkeys(("lines", "rows", "header", "listed", "charts"), ())
    return render(
        "advice.html", title=title, note=note, **(empty | {"file": "", "best": None, "words": False} | values)
    )


def _ranking(advice: Advice) -> Markup:
    aim = advice.judge.aim
    note = (
        f"For {aim.name}: {aim.about}. Differences are to the leader (of a dropped candidate: to the one it was "
        "behind), paired by seed, with the intervals by which the race decides."
    )
    rows = [[*row, advice.settings[row[0]], advice.candidates[row[0]].about] for row in advice.cells()]
    header = ["candidate", advice.judge.metric, "seeds", "difference", "", "tuned to", "what it does"]
    chart = trusted([_interval_chart(advice)])
    return _section("Ranking", note, header=header, rows=rows, best=advice.best, words=True, charts=chart)


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
    order = [row.name for row in advice.rows() if advice.outcomes.get(row.name)]
    names = [*dict.fromkeys([*order[: SHOWN - 1], *(n for n in order if n == PLAIN)])]
    series = []
    for i, name in enumerate(names):
        runs = [o for (c, _), o in advice.outcomes[name].items() if c == case and not o.diverged]
        values = [o.values[advice.judge.metric] for o in runs if advice.judge.metric in o.values]
        if values:
            mean = np.mean(np.array(values), axis=0)
            series.append(Series(name, np.array(runs[0].rounds, float), mean, i))
    title = title_of(advice.judge.metric) + (f", {case} world" if len(advice.cases) > 1 else "")
    return line_chart(series, title, "rounds trained", advice.judge.unit)


def _method(advice: Advice) -> Markup:
    plan, tuned = advice.plan, "not at all"
    if plan.tuning_seeds:
        rates = f"{len(plan.rates)} learning rates ({', '.join(plan.settings())})"
        tuned = f"{rates} with {plan.tuning_seeds} seeds that do not race"
    lines = [
        f"{len(advice.candidates)} candidates, each tuned in the same way: {tuned}.",
        f"Runs of {plan.rounds} rounds under the log's turnout, drawn for each seed in whole blocks of rounds; the "
        "same seed has the same data and turnout for every candidate. A run's score is the mean over its last quarter "
        "of evaluations, a seed's the mean over worlds.",
        f"The race: {BOUND}.",
        f"{duration(advice.spent)} of a budget of {duration(advice.budget)}.",
    ]
    return _section("How it was found", lines=lines, listed=[f"{case.name}: {case.about}" for case in advice.cases])
