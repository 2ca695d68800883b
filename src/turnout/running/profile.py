"""Where a run's time goes: seconds by stage of the round (`turnout run --profile`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich import box
from rich.table import Table

from turnout.machine.checksums import read_json, write_json
from turnout.machine.profiling import Stopwatch
from turnout.running.loop import FinishedRound, rounds_of
from turnout.running.tracks.track import Track

FILE = "profile.json"

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
    "aggregate": "weights, updates to one, the server's optimizer",
    "weights": "the cohort and its shares, what it is sent, the record of the round",
    "server state": "means of states, what parts remember",
    "broadcast": "encoding the change, and what clients must fetch",
    "terms": "the server's part of terms",
    "evaluate": "the global model, and clients' own models",
    "records": "records and checkpoints, and the loop around the rounds",
}


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
        write_json(folder / FILE, {"rounds": rounds, "seconds": watch.seconds})


def read_profiles(folders: Iterable[Path]) -> tuple[int, Mapping[str, float]]:
    """The rounds that were measured in some run folders, and the seconds of each stage, all together."""
    rounds, seconds = 0, Counter[str]()
    for path in (folder / FILE for folder in folders):
        if path.exists():
            profile = read_json(path, "delete it; --profile measures again")
            rounds += profile["rounds"]
            seconds.update(profile["seconds"])
    return rounds, seconds


def profile_table(rounds: int, seconds: Mapping[str, float]) -> Table:
    """Stages in the order of the round, with their share of the time."""
    total = sum(seconds.values())
    title = f"{total:.2f} s in {rounds} rounds"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for head, justify in (("stage", "left"), ("s", "right"), ("%", "right"), ("ms a round", "right"), ("", "left")):
        table.add_column(head, justify=justify)  # type: ignore[arg-type]
    for name, words in STAGES.items():
        if (took := seconds.get(name, 0.0)) > 0:
            each = f"{1000 * took / max(1, rounds):.2f}"
            table.add_row(name, f"{took:.3f}", f"{100 * took / total:.1f}", each, words)
    return table
