"""The page of an advice: the answer, the ranking, what it hinges on, what it costs, how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from turnout.fleet.advice.candidates import PLAIN
from turnout.fleet.advice.fleet import percent
from turnout.fleet.advice.intervals import interval_chart
from turnout.fleet.advice.race import BOUND
from turnout.running.charts.lines import Series, line_chart
from turnout.running.charts.page import renderer, trusted, whole_page
from turnout.running.charts.units import duration, title_of
from turnout.running.config.read import to_toml

if TYPE_CHECKING:
    from turnout.fleet.advice.advice import Advice

SHOWN = 6  # candidates in a chart

render = renderer("turnout.fleet.advice")


def page(advice: Advice) -> str:
    """The whole page; it needs nothing but itself."""
    sections = [
        _ranking(advice), _curves(advice), _hinges(advice), _cost(advice), _log(advice), _method(advice),
        _not_tried(advice), _file(advice),
    ]  # fmt: skip
    return whole_page(
        title=f"Advice for {advice.facts.path}",
        warnings=[*advice.warnings, *([] if advice.best else [advice.sentence()])],
        notes=[advice.sentence()] if advice.best else [],
        facts=_facts(advice),
        sections=[s for s in sections if s],
        source="the runs of a race",
    )


def short_html(advice: Advice) -> str:
    """The answer and the ranking."""
    header, rows = ["candidate", "score", "seeds", "difference", ""], _rows(advice)
    said = {"title": advice.facts.path, "said": advice.sentence(), "best": advice.best}
    return render("comparison.html", header=header, rows=rows, **said)


def _facts(advice: Advice) -> list[tuple[str, str]]:
    facts = advice.facts
    return [
        ("recommended" if advice.best else "the simplest of the undecided", advice.recommended),
        ("aim", advice.judge.aim.name),
        ("clients in the log", f"{facts.clients:,}"),
        ("turnout", percent(facts.turnout)),
        ("work of those who came", percent(facts.work)),
        ("seeds raced", f"{advice.race.seeds}"),
        ("runs", f"{sum(map(len, advice.outcomes.values())):,}"),
        ("time taken", duration(advice.spent)),
    ]


def _section(title: str, note: str = "", **values: Any) -> Markup:
    known = {
        "lines": (),
        "rows": (),
        "header": (),
        "listed": (),
        "charts": (),
        "file": "",
        "best": None,
        "words": False,
    }
    return render("advice.html", title=title, note=note, **(known | values))


def _rows(advice: Advice) -> list[list[str]]:
    return [[r.name, advice.score_text(r.score), str(r.seeds), r.gap, r.state] for r in advice.rows()]


def _ranking(advice: Advice) -> Markup:
    aim = advice.judge.aim
    note = (
        f"For {aim.name}: {aim.about}. Differences are to the leader (of one that was dropped: to whom it was behind), "
    )
    note += "paired by seed, with the intervals by which the race decides."
    said = {c.name: c.about for c in advice.candidates.values()}
    rows = [[*row, advice.settings[row[0]], said[row[0]]] for row in _rows(advice)]
    header = ["candidate", advice.judge.metric, "seeds", "difference", "", "tuned to", "what it does"]
    chart = interval_chart(advice.rows(), "Difference, with its interval", advice.judge.shown)
    return _section("Ranking", note, header=header, rows=rows, best=advice.best, words=True, charts=trusted([chart]))


def _curves(advice: Advice) -> Markup | None:
    """What was measured over the rounds, by world, of the best and of plain FedAvg."""
    order = [row.name for row in advice.rows() if advice.outcomes.get(row.name)]
    names = [*dict.fromkeys([*order[: SHOWN - 1], *(n for n in order if n == PLAIN)])]
    charts = [_curve(advice, case.name, names) for case in advice.cases]
    return _section("Over the rounds", charts=trusted(charts)) if any(charts) else None


def _curve(advice: Advice, case: str, names: Sequence[str]) -> str:
    series = []
    for i, name in enumerate(names):
        runs = [o for (c, _), o in advice.outcomes[name].items() if c == case and not o.diverged]
        values = [o.values[advice.judge.metric] for o in runs if advice.judge.metric in o.values]
        if values:
            mean = np.mean(np.array(values), axis=0)
            series.append(Series(name, np.array(runs[0].rounds, float), mean, i))
    title = title_of(advice.judge.metric) + (f", {case} world" if len(advice.cases) > 1 else "")
    return line_chart(series, title, "rounds trained", advice.judge.unit)


def _hinges(advice: Advice) -> Markup:
    note = "The same contenders, with the settings they were tuned to, where one thing is different. "
    note += "Worlds are looked at afterwards, one by one, so outside the bound of the race."
    return _section("What the answer hinges on", note, listed=advice.hinge_sentences())


def _cost(advice: Advice) -> Markup:
    return _section(f"What {advice.recommended} costs", listed=advice.cost_sentences())


def _log(advice: Advice) -> Markup:
    facts = advice.facts
    x, y = np.arange(1, facts.rounds + 1, dtype=float), np.array(facts.turnout_T)
    chart = line_chart([Series("turnout", x, y)], "Turnout in the log", "round", "percent")
    return _section("What the log says", listed=facts.sentences(), charts=trusted([chart]))


def _method(advice: Advice) -> Markup:
    plan = advice.plan
    worlds = [f"{case.name}: {case.about}" for case in advice.cases]
    rates = f"{len(plan.rates)} learning rates ({', '.join(plan.settings())})"
    tuned = f"{rates} with {plan.tuning_seeds} seeds that do not race"
    lines = [
        f"{len(advice.candidates)} candidates, each tuned alike: {tuned if plan.tuning_seeds else 'not at all'}.",
        f"Runs of {plan.rounds} rounds under the log's turnout, drawn anew for each seed in whole stretches of rounds; "
        "the same seed has the same data and turnout for every candidate. A run's score is the mean over its last "
        "quarter of evaluations, a seed's the mean over worlds.",
        f"The race: {BOUND}.",
        f"{duration(advice.spent)} of a budget of {duration(advice.budget)}.",
    ]
    return _section("How it was found", lines=lines, listed=worlds)


def _not_tried(advice: Advice) -> Markup:
    return _section("What was not tried", listed=advice.not_tried())


def _file(advice: Advice) -> Markup:
    note = f"turnout run {advice.folder / 'recommended.toml'}"
    return _section("recommended.toml", note, file=to_toml(advice.recommended_experiment()))
