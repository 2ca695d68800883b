"""The report: one HTML file that needs nothing else, put together from the sections; and the curves as one SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from turnout import __version__
from turnout.machine.files import write_whole
from turnout.report import charts, sections, style
from turnout.report.charts import text
from turnout.report.maps import friends_section, turnout_section
from turnout.report.runs import Run, Runs, find_runs
from turnout.report.units import show, size, spread, title_of, unit_of

# The page may show and run only what it carries: nothing is ever fetched, whatever a name contains.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(folder: str | Path, target: float | None = None) -> Path:
    """Write `report.html` of a run folder, or of a folder of runs, from the records alone."""
    runs = find_runs(folder)
    body = [
        header(runs),
        sections.table_section(runs, target),
        sections.curves_section(runs),
        turnout_section(runs),
        sections.clients_section(runs),
        sections.spending_section(runs),
        sections.weights_section(runs),
        friends_section(runs),
        sections.parts_section(runs),
        sections.events_section(runs),
        settings_section(runs),
    ]
    return _write(Path(folder) / "report.html", _page(runs.title, "".join(body)))


def write_picture(folder: str | Path) -> Path:
    """Write `curves.svg`: the curves of a run folder, or of a folder of runs, as one picture."""
    picture = charts.sheet(sections.metric_charts(find_runs(folder)), style.CHART_CSS)
    return _write(Path(folder) / "curves.svg", picture)


def header(runs: Runs) -> str:
    """The title, what kind of experiment this is, and the numbers one looks for first."""
    cards = "".join(
        f"<div{' class=main' if '±' in value else ''}><b>{text(value)}</b><span>{text(name)}</span></div>"
        for name, value in facts(runs)
    )
    kinds = "".join(f"<span><i>{text(name)}</i> {text(kind)}</span>" for name, kind in _common_kinds(runs))
    waiting = f'<p class="soft">{runs.waiting} runs of this folder have not begun.</p>' if runs.waiting else ""
    skipped = f'<p class="soft">{text(_skipped(runs))}</p>' if _skipped(runs) else ""
    title = f"<h1>{text(runs.title)}</h1>"
    return f'<header>{title}{waiting}{skipped}<div class="kinds">{kinds}</div><div class="facts">{cards}</div></header>'


def facts(runs: Runs) -> list[tuple[str, str]]:
    """(name, value) of the key numbers."""
    variants, every = runs.variants, runs.runs
    found = []
    if len(every) > 1:
        found.append((f"runs of {len(variants)} variants" if len(variants) > 1 else "runs", f"{len(every)}"))
    rounds = sorted({len(run.rounds["round"]) for run in every})
    found.append(("rounds", f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} – {rounds[-1]:,}"))
    members = max((int(run.rounds["members"].max()) for run in every if len(run.rounds["members"])), default=0)
    found.append(("clients", f"{members:,}"))
    if runs.metrics:
        main = runs.metrics[0]
        finals = {name: spread([r.final(main) for r in found_], unit_of(main)) for name, found_ in variants.items()}
        leading = sections.results(runs).leading
        if len(finals) == 1 or leading is not None:  # several that cannot be ranked have no one number
            name = list(finals)[leading or 0]
            found.append((title_of(main).lower() + (f", {name}" if leading is not None else ""), finals[name]))
    found.append(("turnout", show(float(sum(run.mean("work") for run in every)) / len(every), "percent")))
    up, down, seconds = (sum(run.total(name) for run in every) for name in ("bytes_up", "bytes_down", "seconds"))
    found += [("sent up", size(up)), ("sent down", size(down))]
    found.append(("time in rounds", show(seconds, "seconds")))
    return found


def settings_section(runs: Runs) -> str:
    """The experiment files and the environment, folded away; equal ones once."""
    parts = []
    for name in ("experiment.toml", "environment.json"):
        contents: dict[str, list[Run]] = {}
        for found in runs.variants.values():
            if content := found[0].text(name):
                contents.setdefault(content, []).append(found[0])
        for content, users in contents.items():
            of = "" if len(contents) == 1 else " of " + ", ".join(run.variant for run in users)
            shown = _environment(content) if name.endswith("json") else f"<pre>{text(content)}</pre>"
            parts.append(f"<details><summary>{text(name + of)}</summary>{shown}</details>")
    return sections.section("Settings", "".join(parts))


def _environment(content: str) -> str:
    try:
        values = json.loads(content)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return f"<pre>{text(content)}</pre>"
    words = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in values.items()}
    rows = "".join(f"<tr><td>{text(k)}</td><td>{text(v)}</td></tr>" for k, v in words.items())
    return f'<div class="scroll"><table class="words">{rows}</table></div>'


def _skipped(runs: Runs) -> str:
    reasons: dict[str, int] = {}
    for run in runs.runs:
        for why in run.rounds["skipped"].tolist():
            if isinstance(why, str):
                reasons[why] = reasons.get(why, 0) + 1
    counted = [f"{n} × {why}" for why, n in sorted(reasons.items(), key=lambda item: -item[1])]
    return "Rounds that changed nothing: " + "; ".join(counted[:5]) + "." if counted else ""


def _common_kinds(runs: Runs) -> list[tuple[str, str]]:
    """(part, kind) pairs that the experiment files of all variants share."""
    lists = [list(dict.fromkeys(_kinds(found[0].settings()))) for found in runs.variants.values()]
    return [pair for pair in lists[0] if all(pair in other for other in lists)][:14]


def _kinds(tree: dict[str, Any], name: str = "") -> list[tuple[str, str]]:
    """Every `kind` in an experiment file with the name of the table it stands in.

    >>> _kinds({"world": {"data": {"kind": "digits"}}, "rounds": 3})
    [('data', 'digits')]
    """
    found = [(name, tree["kind"])] if isinstance(tree.get("kind"), str) else []
    for key, value in tree.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                found += _kinds(item, key)
    return found


def _page(title: str, body: str) -> str:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{text(title)}</title><style>{style.CHART_CSS}{style.PAGE_CSS}</style>"
    )
    footer = f"<footer>Written by Turnout {__version__} from the records of the runs.</footer>"
    script = f"<script>{style.SCRIPT}</script>"
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}{footer}</main>{script}</body></html>\n'
    )


def _write(path: Path, content: str) -> Path:
    """Whole or not at all: a browser may be looking at the old one."""
    write_whole(path, content)
    return path
