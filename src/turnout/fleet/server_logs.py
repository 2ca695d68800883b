"""Server logs of other systems: the lines in which Flower's SuperLink or NVFlare's server name a client.

- Flower (`flower-superlink --log-file FILE`, 1.41): `[Fleet.PushMessages] Push replies from node_id=N`, with a time.
  Which nodes were asked is not in the log. Without replies, nodes are there from `ActivateNode` to `DeactivateNode`.
- NVFlare (`log.txt` of the server, 2.9): `Round N started.`, `Sampled clients: [...]` or `Sending task train to [...]`,
  and `Contribution from NAME ACCEPTED` (or REJECTED), or `got result from client NAME for task: name=train`.

Shape letters: N rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from turnout.errors import UserError
from turnout.fleet.reading import Source
from turnout.fleet.rounds import Form, LogRows

TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
NODE = re.compile(r"\[Fleet\.(PushMessages|ActivateNode|DeactivateNode)\].*?node_id=(-?\d+)")
ROUND = re.compile(r"Round (\d+) started\.")
ASKED = re.compile(r"(?:Sampled clients: |Sending task train to )\[(.*?)\](?:\s|$)")
REPLIED = re.compile(
    r"Contribution from (\S+) (ACCEPTED|REJECTED) by the aggregator|got result from client (\S+) for task: name=train\b"
)
ZONE = (
    "times of a server's log have no time zone and are read as UTC: if they are local, hours of the day are local too"
)
HINT = {
    "flower": "start flower-superlink with --log-file FILE (its lines name the nodes that reply)",
    "nvflare": "take the server's log.txt (its lines name rounds, and the clients that contribute)",
}


def read_server_log(path: Path, source: Source) -> LogRows:
    """The rows of a log file, or of all files of a folder, also rotated ones, in the order of time."""
    rows = _flower(path) if source == "flower" else _nvflare(path)
    if rows is None:
        raise UserError(f"{path} has no line of a {source} server that names a client with a time: {HINT[source]}")
    return rows


def _lines(path: Path) -> Iterator[tuple[float, str]]:
    """(time, line) of all lines with a time, in order."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    if not path.exists():
        raise UserError(f"cannot read {path}: no such file or folder")
    found = []
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as text:
            for line in text:
                if at := TIME.search(line):
                    seconds = datetime.fromisoformat(at[1]).replace(tzinfo=UTC).timestamp()
                    found.append((seconds + float(f"0.{at[2] or 0}"), line))
    yield from sorted(found, key=lambda one: one[0])


def _flower(path: Path) -> LogRows | None:
    replies: list[tuple[str, float, float]] = []
    stays: list[tuple[str, float, float]] = []
    since: dict[str, float] = {}
    for time, line in _lines(path):
        if (found := NODE.search(line)) is None:
            continue
        what, node = found.groups()
        if what == "PushMessages":
            replies.append((node, time, time))
        elif what == "ActivateNode":
            since.setdefault(node, time)
        elif node in since:
            stays.append((node, since.pop(node), time))
    stays += [(node, begin, np.inf) for node, begin in since.items()]
    if replies:
        said = "a node that replied came; Flower's log does not say which nodes were asked"
        return _rows(path, "check-ins", replies, [said])
    said = "no node replied: nodes were there from ActivateNode to DeactivateNode"
    return _rows(path, "intervals", stays, [said]) if stays else None


def _nvflare(path: Path) -> LogRows | None:
    work: dict[tuple[int, str], float] = {}
    begins: dict[int, float] = {}
    t = -1
    for time, line in _lines(path):
        if found := ROUND.search(line):
            t = int(found[1])
            begins.setdefault(t, time)
        elif t >= 0 and (found := ASKED.search(line)):
            for name in re.findall(r"'([^']+)'", found[1]):
                work.setdefault((t, name), 0.0)
        elif t >= 0 and (found := REPLIED.search(line)):
            work[t, found[1] or found[3]] = 0.0 if found[2] == "REJECTED" else 1.0
    if not work:
        return None
    rows = [(name, float(t), begins[t]) for t, name in work]
    said = "a client whose contribution was accepted did all of its work"
    return replace(_rows(path, "rounds", rows, [said]), work_N=np.array(list(work.values())))


def _rows(path: Path, form: Form, rows: list[tuple[str, float, float]], assumed: list[str]) -> LogRows:
    names = tuple(dict.fromkeys(name for name, *_ in rows))
    code_of = {name: code for code, name in enumerate(names)}
    first_N, second_N = np.array([row[1:] for row in rows]).T
    return LogRows(
        path=str(path),
        form=form,
        names=names,
        code_N=np.array([code_of[name] for name, *_ in rows], dtype=np.int32),
        line_N=np.arange(1, len(rows) + 1, dtype=np.int32),
        round_N=first_N if form == "rounds" else None,
        time_N=second_N if form == "rounds" else first_N,
        end_N=second_N if form == "intervals" else None,
        is_calendar=True,
        zone=ZONE,
        assumed=assumed,
    )
