"""Advice from a fleet's log: read it, tune every candidate, race them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.fleet import Reading, read_fleet
from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.advice_page import write_advice
from turnout.fleet.advice.candidates import (
    PLAIN,
    Candidate,
    Judge,
    find_aim,
    given_candidates,
    known_candidates,
    with_rate,
)
from turnout.fleet.advice.cases import ROUNDS, RaceCase, given_case, stand_ins
from turnout.fleet.advice.race import (
    FIRST_TUNING_SEED,
    LOOKS,
    RACING,
    TUNING_ENDS,
    Race,
    RaceBoard,
    RacePlan,
    Scores,
    planned,
)
from turnout.fleet.advice.trials import Trial, TrialLedger, TrialOutcome, TrialWorkers, refuse_full
from turnout.fleet.diagnosis import Diagnosis, diagnose
from turnout.fleet.diagnosis_page import summary
from turnout.fleet.reading import seconds as seconds_of
from turnout.machine.threads import cores
from turnout.running.folder import held, make_folder, new_folder
from turnout.running.plan import PlannedRun, can_travel
from turnout.running.tracks.building import log_matches
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights

TUNE, RACE = "tune", "race"


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
    first_seed: int = 0,
    jobs: int | None = None,
    quiet: bool = False,
    data_dir: str | Path | None = None,
) -> Advice:
    """Which method suits a fleet, from its log; the folder `out` has the page, recommended.toml and all numbers.

    experiment  data and model to try it on (a dict: its variants are candidates too); None: the digits
    aim         "accuracy", "worst-tenth", "personal" or "bytes"
    budget      "10min" or seconds; called again with the same folder, the advice resumes
    reading     how the log is read
    also        further candidates as settings, "algorithm.weighting=my.module:Mine"
    candidates  further candidates as changes, {"mine": {"algorithm.weighting": Mine()}}
    only        names of candidates: no others race
    rounds      of a run, instead of the experiment's
    seeds       the most that are raced, whatever the budget
    tune        whether learning rates are tuned
    first_seed  seeds are counted from here: another one repeats the whole advice with other draws
    jobs        runs side by side; None: one a core
    """
    started, folder_of_data = time.monotonic(), Path(data_dir) if data_dir else None
    fleet = read_fleet(log, reading)
    folder = Path(out) if out is not None else new_folder(f"advise-{Path(log).stem}")
    refuse_full(folder)
    make_folder(folder)
    given: dict[str, Experiment] = {}
    if experiment is not None:
        given = {experiment.title or "as given": experiment} if isinstance(experiment, Experiment) else dict(experiment)
    facts, wanted = diagnose(fleet), find_aim(aim)
    if given:
        cases = [given_case(next(iter(given.values())), Path(log), reading, rounds)]
    else:
        cases = stand_ins(fleet, facts, folder, rounds or ROUNDS)
    track = prepare(cases[0].experiment, folder_of_data)
    track.runtime.close()
    if not isinstance(track, Weights):
        raise UserError("advice is for methods that federate weights")
    if given:
        matches = [match.sentence() for match in log_matches(track.experiment)]
        facts = replace(facts, assumed=(*facts.assumed, *matches))
    listed = known_candidates(wanted, facts, track.template)
    listed += given_candidates(cases[0].experiment, given, also)
    listed += [Candidate(name, "asked for", changes, True) for name, changes in (candidates or {}).items()]
    names = [c.name for c in listed]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"two candidates are called {twice[0]!r}: give yours another name")
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"there is no candidate {unknown[0]!r}: {', '.join(names)}")
    with held(folder):
        able, refused = _able([c for c in listed if not only or c.name in only], cases, folder_of_data)
        budget_seconds = float(budget) if isinstance(budget, int | float) else seconds_of(budget)
        question = {
            "log": str(log),
            "reading": repr(reading),
            "aim": aim,
            "first_seed": first_seed,
            "candidates": {c.name: repr(dict(c.changes)) for c in able},
            "worlds": {case.name: repr(case.experiment.world.data) + repr(case.experiment.model) for case in cases},
        }
        ledger = TrialLedger(folder)
        ledger.refuse_another(question)
        runs = [PlannedRun(c.name, 0, c.on(case.experiment), ".") for c in able for case in cases]
        shared = all(run.experiment.runtime.shares_the_machine for run in runs) and can_travel(runs)
        side_by_side = (jobs or cores()) if shared else 1
        plan = planned(cases, len(able), max(1.0, budget_seconds - ledger.spent), side_by_side, folder, tune)
        cases = [case.lasting(plan.rounds) for case in cases]
        with TrialWorkers(side_by_side, folder_of_data) as workers, RaceBoard(quiet) as board:
            board.say([f"· {words}" for words in summary(facts)])
            work = AdviceWork(
                able, cases, Judge.of(wanted, cases[0].experiment.task), plan, ledger, workers, board,
                budget_seconds, started - ledger.spent, seeds or LOOKS[-1], first_seed,
            )  # fmt: skip
            advice = replace(work.advice(facts, refused, folder), warnings=track.warnings)
    write_advice(advice)
    return advice


def _able(
    listed: Sequence[Candidate], cases: Sequence[RaceCase], data_dir: Path | None
) -> tuple[list[Candidate], dict[str, str]]:
    """The candidates that can run in every case, and why the others cannot."""
    able, refused = [], {}
    for candidate in listed:
        try:
            for case in cases:
                prepare(candidate.on(case.experiment), data_dir).runtime.close()
            able.append(candidate)
        except UserError as error:
            if candidate.name == PLAIN:
                raise
            refused[candidate.name] = str(error)
    if not able:
        raise UserError("no candidate can run here: " + "; ".join(f"{n}: {w}" for n, w in refused.items()))
    return able, refused


@dataclass
class AdviceWork:
    """The work of one advice: tune every candidate in the same way, and race them.

    All outcomes are in the ledger, so it can be stopped at any time.

    candidates, cases, judge, plan, ledger, workers, board   what it works with
    budget       seconds it may take
    started      when it began, by time.monotonic
    most_seeds   that are raced
    first_seed   seeds are counted from here
    chosen       the tuned settings of each candidate
    """

    candidates: list[Candidate]
    cases: list[RaceCase]
    judge: Judge
    plan: RacePlan
    ledger: TrialLedger
    workers: TrialWorkers
    board: RaceBoard
    budget: float
    started: float
    most_seeds: int
    first_seed: int
    chosen: dict[str, str] = field(default_factory=dict)

    @property
    def worlds(self) -> list[str]:
        return [case.name for case in self.cases]

    def spent(self) -> float:
        return time.monotonic() - self.started

    def advice(self, facts: Diagnosis, refused: Mapping[str, str], folder: Path) -> Advice:
        self.tune()
        race, scores = self.race()
        outcomes: dict[str, dict[tuple[str, int], TrialOutcome]] = {name: {} for name in race.names}
        for name in race.names:
            for world, seed in product(self.worlds, scores[name]):
                if outcome := self.ledger.outcomes.get(Trial(RACE, name, self.chosen[name], world, seed)):
                    outcomes[name][world, seed] = outcome
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
            by_case={case.name: self._scores(race.names, [case]) for case in self.cases},
            outcomes=outcomes,
            spent=self.spent(),
            budget=self.budget,
        )

    def tune(self) -> None:
        """Choose every candidate's settings, on seeds that do not race, and the target of the judge."""
        names, outcomes = [c.name for c in self.candidates], self.ledger.outcomes
        if self.plan.tuning_seeds:
            by_seed = [
                [Trial(TUNE, *one, seed) for one in product(names, self.plan.settings(), self.worlds)]
                for seed in self.plan.seeds
            ]
            step = f"tuning the learning rate of {len(names)} candidates"
            self._run([*chain(*by_seed)], step, lambda: self.spent() > TUNING_ENDS * self.budget)
            whole = [all(trial in outcomes for trial in of_seed) for of_seed in by_seed]
            self.plan = self.plan.tuned_with((*whole, False).index(False))
        settings = self.plan.settings()
        if not self.plan.tuning_seeds:  # a run of plain FedAvg for the judge
            trials = [Trial(TUNE, names[0], settings[0], world, FIRST_TUNING_SEED) for world in self.worlds]
            self._run(trials, "plain FedAvg", lambda: False)
            self.judge = self.judge.aimed_at({trial.case: [outcomes[trial]] for trial in trials})
            self.chosen = dict.fromkeys(names, settings[0])
            return

        def tuned(name: str, s: str) -> dict[str, list[TrialOutcome]]:
            """The tuning runs of a candidate with some settings, by world."""
            return {w: [outcomes[Trial(TUNE, name, s, w, seed)] for seed in self.plan.seeds] for w in self.worlds}

        def best(name: str, judge: Judge) -> str:
            def score(s: str) -> float:
                return fmean(judge.score(o, world) for world, found in tuned(name, s).items() for o in found)

            return max(settings, key=score)

        self.judge = self.judge.aimed_at(tuned(names[0], best(names[0], replace(self.judge, targets={}, whole={}))))
        self.chosen = {name: best(name, self.judge) for name in names}

    def race(self) -> tuple[Race, Scores]:
        race = Race.of([c.name for c in self.candidates])
        scores: Scores = {name: {} for name in race.names}
        while not race.decided and (look := race.next_look()) is not None and look <= self.most_seeds:
            trials = [
                Trial(RACE, name, self.chosen[name], world, seed)
                for seed, name, world in product(range(look), race.running, self.worlds)
            ]
            self.board.show_race(race)
            step = f"racing {len(race.running)} candidates to seed {look}"
            done = self._run(trials, step, lambda: self.spent() > RACING * self.budget)
            scores = {**scores, **self._scores(race.running, self.cases)}
            if not done:
                break
            race = race.looked_at({n: scores[n] for n in race.running}, look)
            if race.level(scores, self.judge.margin):
                break
        self.board.show_race(race)
        return race, scores

    def _scores(self, names: Iterable[str], cases: Sequence[RaceCase]) -> dict[str, dict[int, float]]:
        """The mean score over cases of every seed that ran in all of them."""
        found: dict[str, dict[int, float]] = {}
        for name in names:
            found[name] = {}
            for seed in range(FIRST_TUNING_SEED):
                trials = [Trial(RACE, name, self.chosen[name], case.name, seed) for case in cases]
                if not all(trial in self.ledger.outcomes for trial in trials):
                    break
                found[name][seed] = fmean(self.judge.score(self.ledger.outcomes[trial], trial.case) for trial in trials)
        return found

    def _run(self, trials: Sequence[Trial], step: str, stop: Callable[[], bool]) -> bool:
        """Run the trials that are not in the ledger yet; whether all are there now."""
        missing = [trial for trial in trials if trial not in self.ledger.outcomes]
        by_name, by_case = {c.name: c for c in self.candidates}, {case.name: case for case in self.cases}
        self.board.begin(step, len(missing), self.spent(), self.budget)
        work = ((t, self._experiment(by_name[t.candidate], by_case[t.case], t)) for t in missing)
        done = 0
        for trial, outcome in self.workers.outcomes(work, stop):
            self.ledger.add(trial, outcome, self.spent())
            done += 1
            self.board.advance(self.spent())
        return done == len(missing)

    def _experiment(self, candidate: Candidate, case: RaceCase, trial: Trial) -> Experiment:
        made = with_rate(candidate.on(case.experiment), self.plan.rate(trial.settings))
        return made.but(seed=self.first_seed + trial.seed)
