"""The work of an advice: tune every candidate alike, race them, and ask the contenders what the answer hinges on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from turnout.experiment import Experiment
from turnout.fleet.advice.advice import Advice, Hinge
from turnout.fleet.advice.aims import Judge
from turnout.fleet.advice.candidates import PLAIN, Candidate, with_rate
from turnout.fleet.advice.cases import Case
from turnout.fleet.advice.display import Board
from turnout.fleet.advice.fleet import FleetFacts
from turnout.fleet.advice.ledger import Ledger
from turnout.fleet.advice.plan import FIRST_TUNING_SEED, RACING, TUNING_ENDS, Plan
from turnout.fleet.advice.race import Race, Scores, mean
from turnout.fleet.advice.trial import Outcome, Trial, Workers
from turnout.statistics import compare

TUNE, RACE, HALVED, SKEWED = "tune", "race", "turnout halved", "data more skewed"
HINGE_SEEDS, CONTENDERS = 8, 5
LAST_SEED = 10_000


@dataclass
class Advising:
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

    def advice(self, facts: FleetFacts, refused: Mapping[str, str], folder: Path) -> Advice:
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

    def _run(self, trials: Sequence[Trial], doing: str, stop: Callable[[], bool]) -> bool:
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


def contenders(race: Race, scores: Scores) -> list[str]:
    """Those worth asking further: still in (the best of them), plain FedAvg, and the last that were dropped."""
    means = {name: mean(scores[name]) for name in race.names if scores.get(name)}
    best = sorted(race.running, key=lambda name: -means.get(name, -math.inf))[: CONTENDERS - 1]
    others = [d.name for d in sorted(race.dropped, key=lambda d: (-d.after, -d.gap))]
    wanted = dict.fromkeys([*best, *([PLAIN] if PLAIN in means and PLAIN not in race.same else []), *others])
    return [name for name in race.names if name in list(wanted)[:CONTENDERS]]
