"""Advice from a fleet's log: read it, tune every candidate, race them, see what the answer hinges on, write it down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnout.advising.advice import Advice, Hinge, write
from turnout.advising.aims import Judge, find_aim
from turnout.advising.candidates import PLAIN, Candidate, given_candidates, known_candidates, with_rate
from turnout.advising.cases import ROUNDS, Case, given_case, stand_ins
from turnout.advising.display import Board
from turnout.advising.fleet import FleetFacts, facts_of
from turnout.advising.ledger import Ledger, refuse_full
from turnout.advising.plan import FIRST_TUNING_SEED, RACING, TUNING_ENDS, Plan, planned
from turnout.advising.race import LOOKS, Race, Scores, mean
from turnout.advising.trial import Outcome, Trial, Workers
from turnout.errors import Mistake
from turnout.experiment import Experiment
from turnout.machine.threads import cores
from turnout.running.folder import held, make_folder, new_folder
from turnout.running.plan import PlannedRun, can_travel
from turnout.statistics.comparison import compare
from turnout.tracks.prepare import prepare
from turnout.tracks.weights import Weights
from turnout.world.fleet import Fleet, Reading, read_fleet
from turnout.world.fleet.reading import seconds as seconds_of

TUNE, RACE, HALVED, SKEWED = "tune", "race", "turnout halved", "data more skewed"
HINGE_SEEDS, CONTENDERS = 8, 5


def advise(
    log: str | Path,
    experiment: Experiment | Mapping[str, Experiment] | None = None,
    *,
    aim: str = "accuracy",
    budget: str | float = "10min",
    out: str | Path | None = None,
    reading: Reading = Reading(),  # noqa: B008 (frozen)
    also: Sequence[str] = (),
    candidates: Mapping[str, Mapping[str, Any]] | None = None,
    only: Sequence[str] = (),
    rounds: int | None = None,
    seeds: int | None = None,
    tune: bool = True,
    hinges: bool = True,
    first_seed: int = 0,
    jobs: int | None = None,
    quiet: bool = False,
    data_dir: str | Path | None = None,
) -> Advice:
    """Which method suits a fleet, from its log; the folder `out` has the page, recommended.toml and all numbers.

    experiment  data and model to try it on (a dict: its variants are candidates too); without, digits stand in
    aim         "accuracy", "worst-tenth", "personal" or "bytes"
    budget      "10min" or seconds; asked again with the same folder, the advice goes on
    also        further candidates as settings, "algorithm.weighting=my.module:Mine"
    candidates  further candidates as changes, {"mine": {"algorithm.weighting": Mine()}}
    only        names of candidates: no others race
    rounds      of a run, instead of the experiment's
    seeds       the most that are raced, whatever the budget
    tune        False: no learning rates are tuned; hinges: False: it is not tried what the answer hinges on
    first_seed  seeds are counted from here: another one repeats the whole advice with other draws
    """
    started = time.monotonic()
    fleet = read_fleet(log, reading)
    folder = Path(out) if out is not None else new_folder(f"advise-{Path(log).stem}")
    refuse_full(folder)
    make_folder(folder)
    given = {} if experiment is None else _by_name(experiment)
    facts, judge_for = facts_of(fleet), find_aim(aim)
    base = next(iter(given.values())) if given else None
    cases = (
        [given_case(base, Path(log), reading, rounds)] if base else stand_ins(fleet, facts, folder, rounds or ROUNDS)
    )
    template = _template(cases[0], data_dir)
    listed = known_candidates(judge_for, facts, template)
    listed += given_candidates(cases[0].experiment, given, also)
    listed += [Candidate(name, "asked for", changes, True) for name, changes in (candidates or {}).items()]
    listed = _chosen(listed, only)
    with held(folder):
        able, refused = _able(listed, cases, data_dir)
        budget_seconds = float(budget) if isinstance(budget, int | float) else seconds_of(budget)
        question = {
            "log": str(log),
            "reading": repr(reading),
            "aim": aim,
            "first_seed": first_seed,
            "candidates": {c.name: repr(dict(c.changes)) for c in able},
            "worlds": {case.name: repr(case.experiment.world.data) + repr(case.experiment.model) for case in cases},
        }
        ledger = Ledger(folder)
        ledger.refuse_another(question)
        jobs = _jobs(jobs, able, cases)
        plan = planned(cases, len(able), max(1.0, budget_seconds - ledger.spent), jobs, folder, tune)
        cases = [case.lasting(plan.rounds) for case in cases]
        with Workers(jobs, Path(data_dir) if data_dir else None) as workers, Board(judge_for, quiet) as board:
            board.read(facts.sentences())
            work = _Advising(
                able, cases, Judge.of(judge_for, cases[0].experiment.task), plan, ledger, workers, board,
                budget_seconds, started - ledger.spent, seeds or LOOKS[-1], hinges, first_seed,
            )  # fmt: skip
            advice = work.advice(fleet, facts, refused, folder)
    write(advice)
    return advice


@dataclass
class _Advising:
    """The work of one advice; everything it finds is in the ledger, so that it can be stopped at any moment."""

    candidates: list[Candidate]
    cases: list[Case]
    judge: Judge
    plan: Plan
    ledger: Ledger
    workers: Workers
    board: Board
    budget: float
    started: float
    most_seeds: int
    ask_further: bool
    first_seed: int
    chosen: dict[str, str] = field(default_factory=dict)  # candidate -> its tuned settings

    def spent(self) -> float:
        return time.monotonic() - self.started

    def advice(self, fleet: Fleet, facts: FleetFacts, refused: Mapping[str, str], folder: Path) -> Advice:
        self.tune()
        race, scores = self.race()
        hinges = [self.hinge(race, scores, what) for what in (HALVED, SKEWED) if self.ask_further]
        by_case = {case.name: self._scores(race.names, [case], RACE) for case in self.cases}
        outcomes = {
            name: {
                (case.name, seed): o
                for case in self.cases
                for seed in scores[name]
                if (o := self._seen(name, case, seed))
            }
            for name in race.names
        }
        return Advice(
            folder=folder,
            facts=facts,
            judge=self.judge,
            plan=self.plan,
            cases=self.cases,
            candidates={c.name: c for c in self.candidates},
            settings=self.chosen,
            refused=dict(refused),
            race=race,
            scores=scores,
            by_case=by_case,
            hinges=[h for h in hinges if h is not None],
            outcomes=outcomes,
            spent=self.spent(),
            budget=self.budget,
        )

    # Tuning: every candidate alike, on seeds of its own.

    def tune(self) -> None:
        if self.plan.tuning_seeds:
            trials = [trial for seed in self.plan.seeds for trial in self._tuning(seed)]
            doing = f"tuning the learning rate of {len(self.candidates)} candidates"
            self._run(trials, doing, lambda: self.spent() > TUNING_ENDS * self.budget)
            whole = [all(self.ledger.of(trial) for trial in self._tuning(seed)) for seed in self.plan.seeds]
            self.plan = self.plan.tuned_with((*whole, False).index(False))
        self.judge = self.judge.aimed_at(self._plain_outcomes())
        settings = self.plan.settings()
        for c in self.candidates:
            means = {s: self._tuned(c.name, s) for s in settings}
            self.chosen[c.name] = max(settings, key=lambda s: means[s]) if self.plan.tuning_seeds else settings[0]

    def _tuning(self, seed: int) -> list[Trial]:
        """What is run with one seed of the tuning: every candidate with every rate, in every case."""
        return [
            Trial(TUNE, c.name, s, case.name, seed)
            for c in self.candidates
            for s in self.plan.settings()
            for case in self.cases
        ]

    def _tuned(self, name: str, settings: str) -> float:
        found = [
            self.judge.score(outcome, case.name)
            for case in self.cases
            for seed in self.plan.seeds
            if (outcome := self.ledger.of(Trial(TUNE, name, settings, case.name, seed)))
        ]
        return math.fsum(found) / len(found) if found else -math.inf

    def _plain_outcomes(self) -> dict[str, list[Outcome]]:
        """Plain FedAvg's tuning runs with its best rate, by case; without tuning, a run of its own."""
        first = self.candidates[0].name
        if not self.plan.tuning_seeds:
            trials = [Trial(TUNE, first, self.plan.settings()[0], case.name, FIRST_TUNING_SEED) for case in self.cases]
            self._run(trials, "plain FedAvg", lambda: False)
            return {t.case: [self.ledger.outcomes[t.key]] for t in trials}
        plainly = replace(self.judge, targets={}, whole={})

        def runs(settings: str, case: str) -> list[Outcome]:
            return [self.ledger.outcomes[Trial(TUNE, first, settings, case, seed).key] for seed in self.plan.seeds]

        def good(settings: str) -> float:
            return math.fsum(plainly.score(o, case.name) for case in self.cases for o in runs(settings, case.name))

        best = max(self.plan.settings(), key=good)
        return {case.name: runs(best, case.name) for case in self.cases}

    # The race.

    def race(self) -> tuple[Race, Scores]:
        race = Race.of([c.name for c in self.candidates])
        scores: Scores = {name: {} for name in race.names}
        while not race.decided and (look := race.next_look()) is not None and look <= self.most_seeds:
            trials = [
                Trial(RACE, name, self.chosen[name], case.name, seed)
                for seed in range(look)
                for name in race.running
                for case in self.cases
            ]
            self.board.standing(race, scores)
            done = self._run(trials, f"racing {len(race.running)} candidates to seed {look}", self._race_is_over)
            scores = {**scores, **self._scores(race.running, self.cases, RACE)}
            if not done:
                break
            race = race.looked_at({n: scores[n] for n in race.running}, look)
            if race.level(scores, self.judge.margin):
                break
        self.board.standing(race, scores)
        return race, scores

    def _race_is_over(self) -> bool:
        return self.spent() > RACING * self.budget

    def _scores(self, names: Iterable[str], cases: Sequence[Case], part: str) -> dict[str, dict[int, float]]:
        """The mean score over cases of every seed that ran in all of them."""
        found: dict[str, dict[int, float]] = {}
        for name in names:
            by_seed: dict[int, list[float]] = {}
            for case in cases:
                for seed in range(LAST_SEED):
                    outcome = self.ledger.of(Trial(part, name, self.chosen[name], case.name, seed))
                    if outcome is None:
                        break
                    by_seed.setdefault(seed, []).append(self.judge.score(outcome, case.name))
            found[name] = {s: math.fsum(v) / len(v) for s, v in by_seed.items() if len(v) == len(cases)}
        return found

    def _seen(self, name: str, case: Case, seed: int) -> Outcome | None:
        return self.ledger.of(Trial(RACE, name, self.chosen[name], case.name, seed))

    # What the answer hinges on.

    def hinge(self, race: Race, scores: Scores, what: str) -> Hinge | None:
        """The contenders again, in the same world but for one thing."""
        cases = [c for c in self.cases if what == HALVED or c.skewed is not None]
        names = contenders(race, scores)
        if not cases or len(names) < 2:
            return None
        trials = [
            Trial(what, name, self.chosen[name], case.name, seed)
            for seed in range(HINGE_SEEDS)
            for name in names
            for case in cases
        ]
        share = 0.5 if what == HALVED else 1.0
        until = self.spent() + share * max(0.0, self.budget - self.spent())
        self._run(trials, f"what if: {what}", lambda: self.spent() > until)
        found = self._scores(names, cases, what)
        seeds = set.intersection(*(set(v) for v in found.values()))
        if len(seeds) < 2:
            return None
        return Hinge(what, compare({n: {s: v[s] for s in seeds} for n, v in found.items()}), len(seeds))

    def _run(self, trials: Sequence[Trial], doing: str, stop: Any) -> bool:
        """Run what is not in the ledger yet; whether all of it is there now."""
        missing = [t for t in trials if self.ledger.of(t) is None]
        by_name, by_case = {c.name: c for c in self.candidates}, {case.name: case for case in self.cases}
        self.board.begin(doing, len(missing), self.spent(), self.budget)
        work = ((t, self._experiment(by_name[t.candidate], by_case[t.case], t)) for t in missing)
        done = 0
        for trial, outcome in self.workers.outcomes(work, stop):
            self.ledger.add(trial, outcome, self.spent())
            done += 1
            self.board.advance(self.spent())
        return done == len(missing)

    def _experiment(self, candidate: Candidate, case: Case, trial: Trial) -> Experiment:
        base = case.experiment
        if trial.part == HALVED:
            base = case.halved()
        if trial.part == SKEWED and case.skewed is not None:
            base = case.skewed
        return with_rate(candidate.on(base), self.plan.rate(trial.settings)).but(seed=self.first_seed + trial.seed)


LAST_SEED = 10_000


def contenders(race: Race, scores: Scores) -> list[str]:
    """Those worth asking further: still in (the best of them), plain FedAvg, and the last that were dropped."""
    means = {name: mean(scores[name]) for name in race.names if scores.get(name)}
    best = sorted(race.running, key=lambda name: -means.get(name, -math.inf))[: CONTENDERS - 1]
    others = [d.name for d in sorted(race.dropped, key=lambda d: (-d.after, -d.gap))]
    wanted = dict.fromkeys([*best, *([PLAIN] if PLAIN in means and PLAIN not in race.same else []), *others])
    return [name for name in race.names if name in list(wanted)[:CONTENDERS]]


def _by_name(experiment: Experiment | Mapping[str, Experiment]) -> dict[str, Experiment]:
    if isinstance(experiment, Experiment):
        return {experiment.title or "as given": experiment}
    return dict(experiment)


def _template(case: Case, data_dir: str | Path | None) -> Any:
    track = prepare(case.experiment, Path(data_dir) if data_dir else None)
    track.close()
    if not isinstance(track, Weights):
        raise Mistake("advice is for methods that federate weights")
    return track.template


def _chosen(listed: list[Candidate], only: Sequence[str]) -> list[Candidate]:
    names = [c.name for c in listed]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise Mistake(f"two candidates are called {twice[0]!r}: give yours another name")
    if unknown := [name for name in only if name not in names]:
        raise Mistake(f"there is no candidate {unknown[0]!r}: {', '.join(names)}")
    return [c for c in listed if not only or c.name in only]


def _able(
    listed: Sequence[Candidate], cases: Sequence[Case], data_dir: str | Path | None
) -> tuple[list[Candidate], dict[str, str]]:
    """Those that run in every case, and why the others do not."""
    able, refused = [], {}
    for candidate in listed:
        try:
            for case in cases:
                prepare(candidate.on(case.experiment), Path(data_dir) if data_dir else None).close()
            able.append(candidate)
        except Mistake as mistake:
            if candidate.name == PLAIN:
                raise
            refused[candidate.name] = str(mistake)
    if not able:
        raise Mistake("no candidate can run here: " + "; ".join(f"{n}: {w}" for n, w in refused.items()))
    return able, refused


def _jobs(jobs: int | None, candidates: Sequence[Candidate], cases: Sequence[Case]) -> int:
    runs = [PlannedRun(c.name, 0, c.on(case.experiment), ".") for c in candidates for case in cases]
    if not all(run.experiment.runtime.shares_the_machine for run in runs) or not can_travel(runs):
        return 1
    return jobs or cores()
