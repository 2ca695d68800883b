"""When to stop before the last round: a target, patience, a budget of time (real or simulated) or of bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from turnout.errors import UserError, nearest
from turnout.experiment import Experiment
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.records.glossary import Glossary
from turnout.running.records.records import Records


@dataclass(frozen=True)
class Progress:
    """What the stop rules depend on; computed from the records, so that a resumed run stops at the same round.

    best        the metric's best value
    latest      its last value
    since_best  evaluations without a new best
    seconds     computing time so far
    bytes       bytes sent so far, both ways
    simulated   simulated seconds since the run began
    """

    best: float | None = None
    latest: float | None = None
    since_best: int = 0
    seconds: float = 0.0
    bytes: int = 0
    simulated: float = 0.0

    def after(self, record: RoundRecord, evaluation: Evaluation | None, experiment: Experiment) -> Progress:
        """The progress after one more round."""
        spent = replace(
            self,
            seconds=self.seconds + record.seconds,
            bytes=self.bytes + record.bytes_up + record.bytes_down,
            simulated=float(record.extra.get("simulated_time", self.simulated)),
        )
        value = evaluation.values.get(metric_of(experiment)) if evaluation else None
        return spent if value is None else spent._measured(value, higher_is_better(experiment))

    def _measured(self, value: float, higher: bool) -> Progress:
        better = self.best is None or (value > self.best if higher else value < self.best)
        if better:
            return replace(self, best=value, latest=value, since_best=0)
        return replace(self, latest=value, since_best=self.since_best + 1)

    @classmethod
    def from_records(cls, records: Records, experiment: Experiment) -> Progress:
        """The progress of a run so far."""
        columns = records.rounds()
        progress = cls(
            seconds=float(columns["seconds"].sum()),
            bytes=int(columns["bytes_up"].sum() + columns["bytes_down"].sum()),
            simulated=float(np.nanmax(columns.get("simulated_time", np.zeros(1)), initial=0.0)),
        )
        metric = metric_of(experiment)
        if metric in records.metrics():
            for value in records.curve(metric)[1].tolist():
                progress = progress._measured(value, higher_is_better(experiment))
        return progress


def metric_of(experiment: Experiment) -> str:
    """The metric of the stop rules: the one named in `stop.metric`, else the algorithm's main metric."""
    known = experiment.algorithm.metric_names(experiment.task, experiment.evaluate)
    metric = experiment.stop.metric or known[0]
    if metric not in known:
        raise UserError(f"stop.metric = {metric!r} is not measured here: {nearest(metric, known)}")
    return metric


def higher_is_better(experiment: Experiment) -> bool:
    """Whether a higher value of the stop rules' metric is better."""
    return Glossary.of(experiment.task).higher_is_better(metric_of(experiment))


def reason_to_stop(experiment: Experiment, progress: Progress) -> str | None:
    """The stop rule that is met, in words; None if none is."""
    stop, value = experiment.stop, progress.latest
    if stop.target is not None and value is not None:
        higher = higher_is_better(experiment)
        if value >= stop.target if higher else value <= stop.target:
            return f"{metric_of(experiment)} reached {stop.target:g}"
    if stop.patience is not None and progress.since_best >= stop.patience:
        return f"no gain in {metric_of(experiment)} for {stop.patience} evaluations"
    if stop.seconds is not None and progress.seconds >= stop.seconds:
        return f"the time budget of {stop.seconds:g} s is spent"
    if stop.bytes is not None and progress.bytes >= stop.bytes:
        return f"the byte budget of {stop.bytes:,} is spent"
    if progress.simulated >= stop.simulated_seconds:
        return f"the budget of {stop.simulated_hours:g} simulated hours is spent"
    return None
