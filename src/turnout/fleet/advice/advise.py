"""Advice from a fleet's log: read it, tune every candidate, race them, see what the answer hinges on, write it down."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.fleet import Reading, read_fleet
from turnout.fleet.advice.advice import Advice, write
from turnout.fleet.advice.aims import Judge, find_aim
from turnout.fleet.advice.candidates import PLAIN, Candidate, given_candidates, known_candidates
from turnout.fleet.advice.cases import ROUNDS, Case, given_case, stand_ins
from turnout.fleet.advice.display import Board
from turnout.fleet.advice.fleet import facts_of
from turnout.fleet.advice.ledger import Ledger, refuse_full
from turnout.fleet.advice.plan import planned
from turnout.fleet.advice.race import LOOKS
from turnout.fleet.advice.trial import Workers
from turnout.fleet.advice.work import Advising
from turnout.fleet.reading import seconds as seconds_of
from turnout.machine.threads import cores
from turnout.running.folder import held, make_folder, new_folder
from turnout.running.plan import PlannedRun, can_travel
from turnout.running.tracks.building import log_matches
from turnout.running.tracks.prepare import prepare
from turnout.running.tracks.weights import Weights


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
    track = _prepared(cases[0], data_dir)
    matched = [match.sentence() for match in log_matches(track.experiment)] if base else []
    facts = replace(facts, assumed=(*facts.assumed, *matched))
    listed = known_candidates(judge_for, facts, track.template)
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
            work = Advising(
                able, cases, Judge.of(judge_for, cases[0].experiment.task), plan, ledger, workers, board,
                budget_seconds, started - ledger.spent, seeds or LOOKS[-1], hinges, first_seed,
            )  # fmt: skip
            advice = replace(work.advice(facts, refused, folder), warnings=track.warnings)
    write(advice)
    return advice


def _by_name(experiment: Experiment | Mapping[str, Experiment]) -> dict[str, Experiment]:
    if isinstance(experiment, Experiment):
        return {experiment.title or "as given": experiment}
    return dict(experiment)


def _prepared(case: Case, data_dir: str | Path | None) -> Weights:
    track = prepare(case.experiment, Path(data_dir) if data_dir else None)
    track.close()
    if not isinstance(track, Weights):
        raise UserError("advice is for methods that federate weights")
    return track


def _chosen(listed: list[Candidate], only: Sequence[str]) -> list[Candidate]:
    names = [c.name for c in listed]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"two candidates are called {twice[0]!r}: give yours another name")
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"there is no candidate {unknown[0]!r}: {', '.join(names)}")
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
        except UserError as mistake:
            if candidate.name == PLAIN:
                raise
            refused[candidate.name] = str(mistake)
    if not able:
        raise UserError("no candidate can run here: " + "; ".join(f"{n}: {w}" for n, w in refused.items()))
    return able, refused


def _jobs(jobs: int | None, candidates: Sequence[Candidate], cases: Sequence[Case]) -> int:
    runs = [PlannedRun(c.name, 0, c.on(case.experiment), ".") for c in candidates for case in cases]
    if not all(run.experiment.runtime.shares_the_machine for run in runs) or not can_travel(runs):
        return 1
    return jobs or cores()
