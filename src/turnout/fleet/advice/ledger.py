"""What an advice has found so far, on disk: a line of JSON for each run that ended, so that nothing is run twice.

A folder belongs to one question (log, experiment, aim, candidates); asked again, it goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.errors import UserError
from turnout.fleet.advice.trial import Outcome, Trial
from turnout.machine.files import write_whole
from turnout.running.folder import contents

TRIALS, QUESTION = "trials.jsonl", "question.json"


class Ledger:
    """The outcomes of trials, in memory and in a file; `spent`: the seconds that the advice has taken so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.spent = folder, folder / TRIALS, 0.0
        self.outcomes: dict[tuple[str, str, str, str, int], Outcome] = {}
        before = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if before and not before.endswith("\n"):
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("\n")
        for line in before.splitlines():
            try:
                found = json.loads(line)
                trial, outcome = Trial(**found["trial"]), Outcome.read(found["outcome"])
            except (ValueError, KeyError, TypeError):
                continue  # the line that was being written when it was killed
            self.outcomes[trial.key] = outcome
            self.spent = max(self.spent, found.get("spent", 0.0))

    def add(self, trial: Trial, outcome: Outcome, spent: float) -> None:
        self.outcomes[trial.key], self.spent = outcome, spent
        line = json.dumps({"trial": trial.__dict__, "outcome": outcome.data(), "spent": round(spent, 2)})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def of(self, trial: Trial) -> Outcome | None:
        return self.outcomes.get(trial.key)

    def refuse_another(self, question: Mapping[str, Any]) -> None:
        """Write down what is asked, or refuse a folder that is about something else."""
        path = self.folder / QUESTION
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in question if before.get(name) != json.loads(json.dumps(question[name]))]
            if changed:
                raise UserError(
                    f"{self.folder} is the advice on another question ({', '.join(changed)} differ): "
                    "choose another --out folder"
                )
        else:
            write_whole(path, json.dumps(dict(question), indent=2) + "\n")


def refuse_full(folder: Path) -> None:
    """Refuse a folder that holds something else than an advice to go on with."""
    if folder.is_dir() and contents(folder) and not (folder / QUESTION).is_file():
        raise UserError(f"{folder} holds something else: choose another --out folder, or an empty one")
