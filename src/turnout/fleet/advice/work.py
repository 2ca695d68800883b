"""The work of an advice: compare, try further learning rates, race, and ask how sure the answer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, median

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.budget import (
    COMPARISON,
    FURTHER_RATES,
    LEVERS,
    RACING,
    SURE,
    UNTIL,
    RaceBoard,
    RacePlan,
)
from turnout.fleet.advice.candidates import PLAIN, STEPS, Candidate, Judge, rate_of, settings_of, with_rate
from turnout.fleet.advice.cases import RaceCase
from turnout.fleet.advice.certainty import LOOKS_AGAIN, SEEDS_NEEDED, Certainty, RivalGap, compared_over_logs
from turnout.fleet.advice.levers import MOST_LEVER_SEEDS, Lever, pulled
from turnout.fleet.advice.race import LOOKS, RATES, Arm, Race, Scores
from turnout.fleet.advice.trials import Trial, TrialLedger, TrialOutcome, TrialWorkers
from turnout.fleet.diagnosis import Diagnosis
from turnout.fleet.fleet_participation import FleetLog
from turnout.running.tracks.prepare import prepare

AIM, RACE, AGAIN, LEVER = "aim", "race", "again", "lever"  # parts of the advice
FIRST_SEED = {AIM: 10_000, RACE: 0, AGAIN: 20_000, LEVER: 0}  # of each; levers have the seeds of the race


@dataclass
class AdviceWork:
    """The work of one advice.

    All outcomes are in the ledger, so it can be stopped at any time.

    candidates, cases, judge, plan, ledger, workers, board   what it works with
    budget       seconds it may take
    started      when it began, by time.monotonic
    most_seeds   that are raced
    first_seed   seeds are counted from here
    find_levers  finds the settings of production to try on the method that is recommended; None: none
    levers       these settings
    watts        of a device at work, if known
    steps        the learning rates that were tried, in steps from that of the experiment
    edge         why no further rate was tried though the last one was best; empty: it was not
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
    find_levers: Callable[..., Sequence[Lever]] | None = None
    levers: Sequence[Lever] = ()
    watts: float | None = None
    steps: list[int] = field(default_factory=list)
    edge: str = ""

    @property
    def worlds(self) -> list[str]:
        return [case.name for case in self.cases]

    def spent(self) -> float:
        return time.monotonic() - self.started

    def over(self, step: str) -> Callable[[], bool]:
        """Whether the part of the budget for a step is spent."""
        return lambda: self.spent() > UNTIL[step] * self.budget

    def advice(self, facts: Diagnosis, refused: Mapping[str, str], folder: Path) -> Advice:
        self.set_target()
        race, scores = self.race()
        sure = self.certainty(race, scores, facts.rounds) if race.seeds and race.decided else None
        found = Advice(
            folder=folder,
            facts=facts,
            judge=self.judge,
            plan=self.plan,
            cases=self.cases,
            candidates={c.name: c for c in self.candidates},
            refused=dict(refused),
            race=race,
            scores=self._scores(RACE, scores, self.cases),  # with the seeds that were run after the race
            by_case={case.name: self._scores(RACE, scores, [case]) for case in self.cases},
            outcomes=self._outcomes(RACE, scores),
            rates=tuple(sorted(map(settings_of, self.steps), key=rate_of)),
            edge=self.edge,
            certainty=sure,
            collapsed={arm: self._collapses(arm) for arm in scores},
            spent=self.spent(),
            budget=self.budget,
        )
        if found.recommended is not None and self.find_levers is not None:
            self.levers = self.find_levers(stop=self.over(LEVERS))
            found = self.pull(found, found.arm(found.recommended))
        return replace(found, spent_on=self.spent_on(found))

    def set_target(self) -> None:
        """For bytes: the target of the judge, from plain FedAvg at its best rate, on seeds that do not race."""
        if self.judge.aim.name != "bytes":
            return
        name = self.candidates[0].name
        settings = [settings_of(k) for k in (RATES if self.plan.tuned else RATES[:1])]
        trials = {
            s: [Trial(AIM, name, s, world, seed) for world, seed in product(self.worlds, range(2))] for s in settings
        }
        self._run([trial for of_rate in trials.values() for trial in of_rate], "plain FedAvg", lambda: False)

        def score(s: str) -> float:
            plain = replace(self.judge, targets={}, whole={})
            return fmean(plain.score(self.ledger.outcomes[trial], trial.case) for trial in trials[s])

        by_world: dict[str, list[TrialOutcome]] = {world: [] for world in self.worlds}
        for trial in trials[max(settings, key=score)]:
            by_world[trial.case].append(self.ledger.outcomes[trial])
        self.judge = self.judge.aimed_at(by_world)

    def race(self) -> tuple[Race, Scores]:
        """Look after look, until one candidate is left, those left are level, or the time for it is spent."""
        names = [c.name for c in self.candidates]
        race = Race(tuple(names), rates=2 * STEPS + 1 if self.plan.tuned else 1).joined(settings_of(0), names)
        self.steps = [0]
        while not race.decided and (look := race.next_look()) is not None and look <= self.most_seeds:
            self.board.show_race(race)
            what = COMPARISON if not race.seeds else RACING
            if not self._ran(race.running, look, f"{what}, to seed {look}", self.over(what)):
                break
            race = self._with_rates(race, look)
            scores = self._scores(RACE, race.running, self.cases)
            race = race.looked_at(scores, look)
            if race.level(scores, self.judge.margin):
                break
        self.board.show_race(race)
        arms = [*race.running, *(one.arm for one in race.dropped), *race.same]
        return race, self._scores(RACE, arms, self.cases)

    def _with_rates(self, race: Race, look: int) -> Race:
        """The race with the further rates that all candidates get before a look.

        At the first look these are the rates next to the experiment's own; at any look one beyond the lowest or the
        highest, while that is the best of any candidate.
        """
        race = race.without_twins(self._scores(RACE, race.running, self.cases), look)
        wanted = [k for k in RATES if k not in self.steps] if self.plan.tuned else []
        while self.plan.tuned and not race.decided:
            step = wanted.pop(0) if wanted else self._beyond(race, look)
            if step is None:
                break
            arms = [Arm(name, settings_of(step)) for name in race.candidates]
            words = f"{FURTHER_RATES}: {settings_of(step)} of {len(arms)} candidates"
            if not self._ran(arms, look, words, self.over(FURTHER_RATES)):
                self.edge = f"{settings_of(step)} and further: the budget was too small"
                break
            self.steps.append(step)
            race = race.joined(settings_of(step), race.candidates)
            race = race.without_twins(self._scores(RACE, race.running, self.cases), look)
        return race

    def _beyond(self, race: Race, look: int) -> int | None:
        """The step beyond the rates tried on the side where some candidate is best; None: all are best in between."""
        scores = self._scores(RACE, race.running, self.cases)
        at = replace(race, seeds=look)
        best = {rate_of(at.best_arm(name, scores).settings) for name in race.candidates}
        for edge, step in ((max(self.steps), 1), (min(self.steps), -1)):
            if rate_of(settings_of(edge)) in best:
                if abs(edge + step) <= STEPS:
                    return edge + step
                self.edge = f"beyond {settings_of(edge)}, the best of some candidate"
        return None

    def certainty(self, race: Race, scores: Scores, rounds: int) -> Certainty:
        """Whether the candidate that is left would be ahead on another log of the fleet, and how often it collapses."""
        ahead = race.leader(scores)
        others = [race.best_arm(n, scores) for n in race.names if n != ahead.candidate and n not in race.twins]
        rivals = [arm for arm in others if all(map(math.isfinite, scores[arm].values()))]
        gaps = self._gaps(race, ahead, rivals, rounds)
        for look in LOOKS_AGAIN:
            arms = [ahead, *(arm for arm, gap in zip(rivals, gaps, strict=True) if not gap.decides)]
            if len(arms) == 1 or look > self.most_seeds:
                break
            twice = product(range(look), arms, self.worlds, (RACE, AGAIN))
            trials = [Trial(part, *arm, world, seed) for seed, arm, world, part in twice]
            if not self._run(trials, f"{SURE}: {len(arms)} candidates to seed {look}, twice", self.over(SURE)):
                break
            gaps = self._gaps(race, ahead, rivals, rounds)
        if not self._collapses(ahead):
            words = f"{SURE}: {ahead.candidate} to seed {SEEDS_NEEDED}"
            self._ran([ahead], min(self.most_seeds, SEEDS_NEEDED), words, self.over(SURE))
        seeds = len(self._scores(RACE, [ahead], self.cases)[ahead])
        return Certainty(ahead, gaps, self._collapses(ahead), seeds)

    def _gaps(self, race: Race, ahead: Arm, rivals: Sequence[Arm], rounds: int) -> list[RivalGap]:
        """The arm that is ahead compared with others over logs of the fleet, by all runs so far."""
        scores, again = (self._scores(part, (ahead, *rivals), self.cases) for part in (RACE, AGAIN))
        return [compared_over_logs(race, ahead, arm, scores, again, rounds) for arm in rivals]

    def _collapses(self, arm: Arm) -> int:
        """The seeds in which a run of this arm collapsed, in any world."""
        found, outcomes = set[int](), self._outcomes(RACE, [arm])[arm]
        for world in self.worlds:
            runs = {seed: outcome for (case, seed), outcome in outcomes.items() if case == world}
            usual = median(o.final(self.judge.metric) for o in runs.values() if not o.diverged or len(runs) < 2)
            found |= {seed for seed, outcome in runs.items() if self.judge.collapsed(outcome, world, usual)}
        return len(found)

    def pull(self, found: Advice, arm: Arm) -> Advice:
        """The advice with the levers that can be tried on the recommended method."""
        able, refused = self._able_levers(arm)
        if len(able) < 2 and PLAIN in found.race.names:  # the method cannot be combined with any
            arm = found.arm(PLAIN)
            able, refused = self._able_levers(arm)
        for seed in range(min(MOST_LEVER_SEEDS, self.most_seeds)):
            trials = [Trial(LEVER, *arm, lever.case_of(w), seed) for lever, w in product(able, self.worlds)]
            if not self._run(trials, f"{LEVERS}: seed {seed} of {len(able)} settings", self.over(LEVERS)):
                break
        outcomes: dict[str, dict[tuple[str, int], TrialOutcome]] = {lever.name: {} for lever in able}
        for lever, world, seed in product(able, self.worlds, range(MOST_LEVER_SEEDS)):
            if outcome := self.ledger.outcomes.get(Trial(LEVER, *arm, lever.case_of(world), seed)):
                outcomes[lever.name][world, seed] = outcome
        made = pulled(able, outcomes, self.judge, self.worlds, self.plan.rounds, self.watts)
        refused = {**found.refused, **refused}
        return replace(found, levers=made, levers_on=arm.candidate, refused=refused, spent=self.spent())

    def _able_levers(self, arm: Arm) -> tuple[list[Lever], dict[str, str]]:
        """The levers that go with a method, and why the others do not."""
        able, refused = list[Lever](), dict[str, str]()
        for lever in self.levers:
            try:
                trial = Trial(LEVER, *arm, lever.case_of(self.worlds[0]), 0)
                prepare(self._experiment(trial), self.workers.data_dir).runtime.close()
                able.append(lever)
            except UserError as error:
                refused[lever.name] = str(error)
        return able, refused

    def spent_on(self, found: Advice) -> dict[str, float]:
        """Seconds of this machine's jobs by what they were for."""
        total: dict[str, float] = {}
        for trial, outcome in self.ledger.outcomes.items():
            step = {AGAIN: SURE, LEVER: LEVERS, AIM: COMPARISON}.get(trial.part, RACING)
            if trial.part == RACE and trial.seed < LOOKS[0]:
                step = COMPARISON if trial.settings == settings_of(0) else FURTHER_RATES
            elif trial.part == RACE and found.certainty is not None and trial.seed >= found.race.seeds:
                step = SURE
            total[step] = total.get(step, 0.0) + outcome.seconds / self.workers.jobs
        return {step: total[step] for step in UNTIL if step in total}

    def _outcomes(self, part: str, arms: Iterable[Arm]) -> dict[Arm, dict[tuple[str, int], TrialOutcome]]:
        """By arm, world and seed; seeds from 0 without a gap."""
        outcomes, found = self.ledger.outcomes, dict[Arm, dict[tuple[str, int], TrialOutcome]]()
        for arm in arms:
            found[arm] = {}
            for world in self.worlds:
                seed = 0
                while outcome := outcomes.get(Trial(part, *arm, world, seed)):
                    found[arm][world, seed] = outcome
                    seed += 1
        return found

    def _scores(self, part: str, arms: Iterable[Arm], cases: Sequence[RaceCase]) -> dict[Arm, dict[int, float]]:
        """The mean score over cases of every seed that ran in all of them."""
        found: dict[Arm, dict[int, float]] = {}
        for arm, runs in self._outcomes(part, arms).items():
            found[arm], seed = {}, 0
            while all((case.name, seed) in runs for case in cases):
                found[arm][seed] = fmean(self.judge.score(runs[case.name, seed], case.name) for case in cases)
                seed += 1
        return found

    def _ran(self, arms: Sequence[Arm], seeds: int, step: str, stop: Callable[[], bool]) -> bool:
        """Run these arms of the race to so many seeds; whether all have finished."""
        trials = [Trial(RACE, *arm, world, seed) for seed, arm, world in product(range(seeds), arms, self.worlds)]
        return self._run(trials, step, stop)

    def _run(self, trials: Sequence[Trial], step: str, stop: Callable[[], bool]) -> bool:
        """Run the trials that are not in the ledger yet; whether all are there now."""
        missing = [trial for trial in trials if trial not in self.ledger.outcomes]
        self.board.begin(step, len(missing), self.spent(), self.budget)
        done = 0
        for trial, outcome in self.workers.outcomes(((t, self._experiment(t)) for t in missing), stop):
            self.ledger.add(trial, outcome, self.spent())
            done += 1
            self.board.advance(self.spent())
        return done == len(missing)

    def _experiment(self, trial: Trial) -> Experiment:
        """The experiment of a trial; the second run of a seed has the bootstrap log of the first."""
        candidate = next(c for c in self.candidates if c.name == trial.candidate)
        for case in self.cases:
            if trial.case == case.name:
                made = candidate.on(case.experiment)
            for lever in self.levers:
                if trial.case == lever.case_of(case.name):
                    made = lever.on(candidate.on(case.experiment))
        made = with_rate(made, rate_of(trial.settings))
        if isinstance(made.world.participation, FleetLog):
            made = made.but(**{"world.participation.again": self.first_seed + trial.seed})
        return made.but(seed=self.first_seed + FIRST_SEED[trial.part] + trial.seed)
