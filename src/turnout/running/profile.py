"""Where a run's time goes: seconds by stage of the round (`turnout run --profile`).

Nothing in the round knows of it. The parts of an algorithm are objects with a few named functions each, so a profiled
run is the same run with parts whose functions are timed; a run without a profile pays nothing.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich import box
from rich.table import Table

from turnout.running.loop import FinishedRound, rounds_of
from turnout.tracks.scores.track import ScoreTrack
from turnout.tracks.track import Track
from turnout.tracks.weights import Weights

T = TypeVar("T")
FILE = "profile.json"

STAGES = {
    "membership": "who joins and leaves",
    "selection": "whom to ask",
    "mixing": "what each client starts from",
    "participation": "who turns up",
    "client state": "what clients keep: read and written back",
    "client work": "samples, replies, and what is not listed below",
    "local training": "gradients, terms and optimizer of every local step",
    "encode": "updates to messages, residuals",
    "decode": "messages to updates",
    "similarity": "what is learnt of clients from their updates",
    "substitution": "who stands in for whom",
    "aggregate": "many updates to one",
    "weights": "shares, weights, means of states, the record of the round",
    "server step": "what the server makes of the sum",
    "broadcast": "the change to a message, and who has to fetch what",
    "terms": "what terms merge on the server",
    "evaluate": "the global model, and clients' own",
    "records": "records and checkpoints, and the loop around the rounds",
}


class Stopwatch:
    """Seconds by stage; a stage that begins within another stops the other's time until it ends."""

    def __init__(self, device: torch.device):
        self.seconds: dict[str, float] = {}
        self._device, self._running = device, ["records"]
        self._since = time.perf_counter()

    def _note(self) -> None:
        """Give the time since the last note to the stage that is running."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        stage = self._running[-1]
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._note()
        self._running.append(name)
        try:
            yield
        finally:
            self._note()
            self._running.pop()

    def around(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.stage(stage):
                return function(*args, **kwargs)

        return timed

    def timed(self, part: T, **stages: str) -> T:
        """The same part, some of whose functions are timed: `timed(friends, observe="similarity")`.

        It is of a subclass made for the purpose, so that whoever asks what it is gets the same answer.
        """
        kind: Any = type(part)
        own = {name: self.around(getattr(kind, name), stage) for name, stage in stages.items()}
        copy: T = object.__new__(type(kind.__name__, (kind,), own))
        copy.__dict__.update(vars(part))
        return copy


def profiled(track: Track, watch: Stopwatch) -> Track:
    """The same track with its stages timed."""
    if isinstance(track, Weights):
        return _profiled_weights(track, watch)
    timed = watch.timed(track, round="weights", evaluate="evaluate")
    return _profiled_scores(timed, watch) if isinstance(timed, ScoreTrack) else timed


def _profiled_scores(track: ScoreTrack, watch: Stopwatch) -> ScoreTrack:
    runtime = watch.timed(track.runtime, build="client work", learn="client work")
    runtime.participation = watch.timed(runtime.participation, fraction="participation")
    for architecture in runtime.zoo.made.values():
        architecture.trainer = watch.timed(architecture.trainer, train="local training")
        architecture.store = watch.timed(architecture.store, gather="client state", scatter="client state")
    return replace(track, runtime=runtime)


def _profiled_weights(track: Weights, watch: Stopwatch) -> Weights:
    algorithm = track.algorithm
    algorithm = replace(
        algorithm,
        membership=watch.timed(algorithm.membership, begin_round="membership", observe="membership"),
        selection=watch.timed(algorithm.selection, choose="selection"),
        substitution=watch.timed(algorithm.substitution, hints="similarity", observe="similarity", lend="substitution"),
        mixing=watch.timed(algorithm.mixing, starts="mixing", observe="mixing"),
        compression=watch.timed(
            algorithm.compression, encode="encode", decode="decode", catch_up="broadcast", broadcast="broadcast"
        ),
        aggregation=watch.timed(algorithm.aggregation, combine="aggregate"),
        server=watch.timed(algorithm.server, step="server step"),
        terms=tuple(watch.timed(term, merge="terms") for term in algorithm.terms),
    )
    runtime = watch.timed(track.runtime, ask="client work")
    runtime.algorithm = algorithm
    runtime.participation = watch.timed(runtime.participation, fraction="participation")
    runtime.store = watch.timed(runtime.store, gather="client state", scatter="client state")
    runtime.trainer = watch.timed(runtime.trainer, train="local training")
    timed = watch.timed(track, round="weights", evaluate="evaluate")
    return replace(timed, experiment=track.experiment.but(algorithm=algorithm), runtime=runtime)


@dataclass(frozen=True)
class Profile:
    """Seconds by stage over some rounds."""

    rounds: int
    seconds: Mapping[str, float]

    def __add__(self, other: Profile) -> Profile:
        stages = self.seconds.keys() | other.seconds.keys()
        seconds = {stage: self.seconds.get(stage, 0.0) + other.seconds.get(stage, 0.0) for stage in stages}
        return Profile(self.rounds + other.rounds, seconds)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Stage, seconds, share of all, milliseconds a round; in the order of the round."""
        known = [name for name in STAGES if name in self.seconds]
        return [
            (name, s, s / self.total, 1000 * s / max(1, self.rounds)) for name in known if (s := self.seconds[name]) > 0
        ]

    def write(self, folder: Path) -> None:
        text = json.dumps({"rounds": self.rounds, "seconds": dict(self.seconds)}, indent=2) + "\n"
        (folder / FILE).write_text(text, encoding="utf-8")


def profiled_rounds(track: Track, folder: Path) -> Iterator[FinishedRound]:
    """The same as `rounds_of`; what was measured is kept in the folder, also of a run that is interrupted."""
    watch, rounds = Stopwatch(track.device), 0
    try:
        for step in rounds_of(profiled(track, watch), folder):
            rounds += 1
            with watch.stage("elsewhere"):  # whoever shows the step
                yield step
    finally:
        watch.seconds.pop("elsewhere", None)
        Profile(rounds, watch.seconds).write(folder)


def read_profile(folder: Path) -> Profile | None:
    """What was kept in a run folder, of its last process; None where there is none."""
    path = folder / FILE
    return Profile(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def profile_table(profile: Profile) -> Table:
    """Stages in the order of the round, with their share of the time."""
    title = f"{profile.total:.2f} s in {profile.rounds} rounds"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for name, justify in (("stage", "left"), ("s", "right"), ("%", "right"), ("ms a round", "right"), ("", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for stage, seconds, share, each in profile.rows():
        table.add_row(stage, f"{seconds:.3f}", f"{100 * share:.1f}", f"{each:.2f}", STAGES[stage])
    return table
