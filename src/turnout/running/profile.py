"""Where a run's time goes: seconds by stage of the round (`turnout run --profile`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from turnout.machine.checksums import Damaged, read_json, write_json
from turnout.machine.profiling import Stopwatch
from turnout.running.loop import FinishedRound, rounds_of
from turnout.running.tracks.track import Track

FILE = "profile.json"
THEN = "delete it; --profile measures again"

STAGES = {
    "membership": "joining and leaving",
    "mixing": "the start of each client",
    "participation": "drawing the turnout",
    "client state": "reading and writing clients' state",
    "client work": "samples, replies, and the rest of the client's half",
    "local training": "gradients, terms and optimizer of every local step",
    "encode": "updates to messages, residuals",
    "decode": "messages to updates",
    "similarity": "similarities of clients' updates",
    "substitution": "shares of absent clients",
    "aggregate": "weights, and updates to one",
    "weights": "the cohort and its shares, what it is sent, the record of the round",
    "server step": "the server's optimizer, means of states, what parts remember",
    "broadcast": "encoding the change, and what clients must fetch",
    "terms": "the server's part of terms",
    "evaluate": "the global model, and clients' own models",
    "records": "records and checkpoints, and the loop around the rounds",
}


@dataclass(frozen=True)
class Profile:
    """Seconds by stage.

    rounds   how many rounds were measured
    seconds  by stage
    """

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
        """Stage, seconds, share of all, milliseconds per round; in the order of the round."""
        times = [(name, self.seconds[name]) for name in STAGES if self.seconds.get(name, 0.0) > 0]
        return [(name, s, s / self.total, 1000 * s / max(1, self.rounds)) for name, s in times]

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, {"rounds": self.rounds, "seconds": dict(self.seconds)})


NOTHING = Profile(0, {})


def profiled_rounds(track: Track, folder: Path) -> Iterator[FinishedRound]:
    """`rounds_of` with a stopwatch; writes the measured times into the folder, also if the run is interrupted."""
    watch, rounds = Stopwatch(track.device), 0
    finished = rounds_of(track, folder)
    try:
        while True:
            with watch.running("records"):  # not while the caller shows the round
                step = next(finished, None)
            if step is None:
                return
            rounds += 1
            yield step
    finally:
        Profile(rounds, watch.seconds).write(folder)


def read_profile(folder: Path) -> Profile | None:
    """The profile in a run folder (from the last process that ran there); None if there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    found = read_json(path, THEN)
    try:
        return Profile(int(found["rounds"]), {str(name): float(value) for name, value in found["seconds"].items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(path, repr(error), THEN) from error


def profile_table(profile: Profile) -> Table:
    """Stages in the order of the round, with their share of the time."""
    title = f"{profile.total:.2f} s in {profile.rounds} rounds"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for head, justify in (("stage", "left"), ("s", "right"), ("%", "right"), ("ms a round", "right"), ("", "left")):
        table.add_column(head, justify=justify)  # type: ignore[arg-type]
    for name, seconds, share, each in profile.rows():
        table.add_row(name, f"{seconds:.3f}", f"{100 * share:.1f}", f"{each:.2f}", STAGES[name])
    return table
