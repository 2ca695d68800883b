"""Advice from a fleet's log: read it, list candidates and levers, and let them race (work.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.experiment import Experiment
from turnout.fleet import Reading, read_fleet
from turnout.fleet.advice.advice import Advice
from turnout.fleet.advice.advice_page import write_advice
from turnout.fleet.advice.budget import RaceBoard, planned
from turnout.fleet.advice.candidates import PLAIN, Candidate, Judge, find_aim, given_candidates, known_candidates
from turnout.fleet.advice.cases import ROUNDS, RaceCase, given_case, stand_ins
from turnout.fleet.advice.levers import levers_of
from turnout.fleet.advice.privacy import private_levers
from turnout.fleet.advice.race import LOOKS
from turnout.fleet.advice.trials import TrialLedger, TrialWorkers, refuse_full
from turnout.fleet.advice.work import AdviceWork
from turnout.fleet.blocks import block_length
from turnout.fleet.diagnosis import diagnose
from turnout.fleet.diagnosis_page import summary
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
    levers: bool = True,
    watts: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
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
    tune        whether every candidate races at several learning rates
    levers      whether levers of production are tried on the recommended method
    watts       of a device at work, for its energy
    epsilon     ε of differential privacy: its settings are tried instead of levers; with `delta`
    delta       δ
    first_seed  seeds are counted from here: another one repeats the whole advice with other draws
    jobs        runs side by side; None: one a core
    """
    if (epsilon is None) != (delta is None):
        raise UserError("privacy takes both epsilon and delta: --epsilon 4 --delta 1e-6")
    started, folder_of_data = time.monotonic(), Path(data_dir) if data_dir else None
    board = RaceBoard(quiet)
    board.say([f"reading {log}"])
    fleet = read_fleet(log, reading)
    folder = Path(out) if out is not None else new_folder(f"advise-{Path(log).stem}")
    refuse_full(folder)
    make_folder(folder)
    given: dict[str, Experiment] = {}
    if experiment is not None:
        given = {experiment.title or "as given": experiment} if isinstance(experiment, Experiment) else dict(experiment)
    wanted = find_aim(aim)
    board.say([f"{fleet.clients:,} clients in {fleet.rounds:,} rounds; looking for groups and outages"])
    facts = diagnose(fleet)
    if given:
        cases = [given_case(next(iter(given.values())), Path(log), reading, rounds, block_length(fleet))]
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
            **({} if epsilon is None else {"privacy": [epsilon, delta]}),
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
        with TrialWorkers(side_by_side, folder_of_data) as workers, board:
            board.say([f"· {words}" for words in summary(facts)])
            find = partial(levers_of, cases[0], track.clients, fleet, Path(log), reading, folder, folder_of_data)
            if epsilon is not None and delta is not None:
                find = partial(private_levers, cases[0], track.clients, fleet, epsilon, delta, folder_of_data)
            work = AdviceWork(
                able, cases, Judge.of(wanted, cases[0].experiment.task), plan, ledger, workers, board,
                budget_seconds, started - ledger.spent, seeds or LOOKS[-1], first_seed,
                find_levers=find if levers else None, watts=watts,
            )  # fmt: skip
            advice = replace(work.advice(facts, refused, folder), watts=watts, warnings=track.warnings)
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
