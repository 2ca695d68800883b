"""Which runs a folder holds: a run itself, those its `runs.json` lists, or what lies below it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from turnout.errors import Mistake
from turnout.records.records import Records
from turnout.report.runs import FILE, RunRecords, Runs


def find_runs(folder: str | Path) -> Runs:
    """The runs of a folder: a run itself, those its `runs.json` lists, or `<variant>/seed-<n>` below it."""
    folder = Path(folder)
    if (folder / FILE).is_file():
        run = read_run(folder, folder.absolute().name, None)
        return Runs(str(run.settings().get("title") or run.variant), (run,), **_stop(run))
    listed = _listed(folder) if (folder / "runs.json").is_file() else _found(folder)
    entries = listed.pop("runs")
    present = [e for e in entries if (folder / e["path"] / FILE).is_file()]
    if not present:
        raise Mistake(f"no records in {folder} yet; name the folder of a run (it has a file {FILE})")
    runs = tuple(read_run(folder / e["path"], str(e["variant"]), int(e["seed"])) for e in present)
    return Runs(runs=runs, waiting=len(entries) - len(present), **(_stop(runs[0]) | listed))


def _stop(run: RunRecords) -> dict[str, Any]:
    stop = run.settings().get("stop")
    wanted = stop if isinstance(stop, dict) else {}
    return {
        key: wanted[key]
        for key, kind in (("target", float | int), ("metric", str))
        if isinstance(wanted.get(key), kind)
    }


def _listed(folder: Path) -> dict[str, Any]:
    path = folder / "runs.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = [{key: e[key] for key in ("variant", "seed", "path")} for e in content["runs"]]
        named = {key: content[key] for key in ("target", "metric") if content.get(key) is not None}
        return {"title": str(content.get("title") or folder.absolute().name), "runs": entries, **named}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Mistake(
            f'{path} is not a list of runs ({error!r}); it should be {{"title": ..., "runs": '
            '[{"variant": ..., "seed": ..., "path": ...}]}'
        ) from error


def _found(folder: Path) -> dict[str, Any]:
    paths = sorted(p.parent.relative_to(folder) for p in [*folder.glob(f"*/{FILE}"), *folder.glob(f"*/*/{FILE}")])
    entries = []
    for path in paths:
        number = re.fullmatch(r"seed-(\d+)", path.name)
        variant = str(path.parent) if number and len(path.parts) > 1 else str(path)
        entries.append({"variant": variant, "seed": int(number[1]) if number else 0, "path": str(path)})
    entries.sort(key=lambda e: (e["variant"], e["seed"]))
    return {"title": folder.absolute().name, "runs": entries}


def read_run(path: Path, variant: str, seed: int | None) -> RunRecords:
    """What the report needs of one run."""
    with Records.read(path / FILE) as records:
        friends = records.db.execute("SELECT 1 FROM clients WHERE friend >= 0 AND friend != client LIMIT 1")
        return RunRecords(
            variant,
            seed,
            path,
            rounds=records.rounds(),
            curves={name: records.curve(name) for name in records.metrics()},
            client_values={name: records.client_evaluation(name) for name in records.client_metrics()},
            events=records.events(),
            has_friends=friends.fetchone() is not None,
            glossary=records.glossary(),
            warned=tuple(records.warnings()),
        )
