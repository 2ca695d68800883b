"""What is marked in curves: rounds in which the objective shifted, and in which clients joined or left."""

from __future__ import annotations

from turnout.running.charts.lines import Mark
from turnout.running.records.runs import Runs

MOST_SHIFTS = 40  # more lines than that would hide the curves
MOST_MEMBERS = 120  # rounds with joins or leaves; more triangles than that are a stripe
NAMED = 4  # clients of a round
VERBS = {"join": "joined", "leave": "left", "drop": "dropped out"}


def marks_of(runs: Runs, beside: float) -> list[Mark]:
    """Marks for a chart over rounds; `beside` places them after what came before, and before what is new."""
    shifts = runs.shifts if len(runs.shifts) <= MOST_SHIFTS else {}
    lines = [Mark(t + beside, f"round {t}: {words}") for t, words in shifts.items()]
    moved = members_moved(runs)
    if len(moved) > MOST_MEMBERS:
        return lines
    return lines + [Mark(t + beside, f"round {t}: {words}", kind) for t, (kind, words) in moved.items()]


def members_moved(runs: Runs) -> dict[int, tuple[str, str]]:
    """By round: "join", "leave" or "both", and who it was."""
    found: dict[int, dict[str, dict[str, None]]] = {}
    for run in runs.runs:
        for t, client, kind, _ in run.events:
            if kind in VERBS:
                found.setdefault(t, {}).setdefault(kind, {})[run.client(client)] = None
    return {
        t: (_way(set(kinds)), "; ".join(_who(kind, list(clients)) for kind, clients in kinds.items()))
        for t, kinds in sorted(found.items())
    }


def _way(kinds: set[str]) -> str:
    return "join" if kinds == {"join"} else "both" if "join" in kinds else "leave"


def _who(kind: str, clients: list[str]) -> str:
    """Some clients and what they did.

    >>> _who("join", ["3"]), _who("leave", ["ada", "bob", "cyd", "dee", "eve", "fay"])
    ('client 3 joined', '6 clients left: ada, bob, cyd, dee, …')
    """
    if len(clients) == 1:
        return f"client {clients[0]} {VERBS[kind]}"
    listed = ", ".join(clients[:NAMED]) + (", …" if len(clients) > NAMED else "")
    return f"{len(clients)} clients {VERBS[kind]}: {listed}"


def marks_said(runs: Runs) -> str:
    """What the marks mean, and what is not marked because there is too much of it."""
    said = []
    if len(runs.shifts) > MOST_SHIFTS:
        said.append(f"The objective shifted {len(runs.shifts)} times, too often to mark in the curves.")
    elif runs.shifts:
        said.append("A thin line marks a round in which the objective shifted: global metrics before and after it may "
                    "be of other test samples.")  # fmt: skip
    moved = members_moved(runs)
    if len(moved) > MOST_MEMBERS:
        said.append(f"Clients joined or left in {len(moved)} rounds, too many to mark.")
    elif moved:
        said.append("A triangle on the axis marks clients that joined (pointing up) or left (pointing down).")
    return " ".join(said)
