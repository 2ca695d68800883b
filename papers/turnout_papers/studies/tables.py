"""Findings as Markdown, for a page or a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from turnout_papers.studies.claims import EQUAL, HOLDS, NOT_RUN, REFUTED, UNDECIDED, UNTESTED
from turnout_papers.studies.running import Findings
from turnout_papers.studies.study import ResultRow

CHANCE = (
    "- each claim is decided at 5 % either way: of {count} claims without any truth about one in twenty would hold, "
    "and as many be refuted; where seeds were added after a look at fewer (2, 3, then 5), one in nine"
)
FIXED = (
    "- claims are decided at {looks} seeds, as fixed before the first run: of {count} claims without any truth one in "
    "twenty at most would hold, and as many be refuted"
)


def cells(rows: Sequence[ResultRow]) -> tuple[list[str], list[list[str]]]:
    """One line a case, one column a metric: "ours ± spread (published)"; a mean of fewer seeds than the line's says so.

    >>> cells([ResultRow("MNIST", "B over A", 9.04, 1.0, 3, 9.5), ResultRow("MNIST", "C over B", 1.0, 0.5, 2, None)])
    (['case', 'B over A', 'C over B', 'seeds'], [['MNIST', '9.0 ± 1.0 (9.5)', '1.0 ± 0.5, 2 seeds', '3']])
    """
    metrics = list(dict.fromkeys(row.metric for row in rows))
    lines = []
    for case in dict.fromkeys(row.case for row in rows):
        own = {row.metric: row for row in rows if row.case == case}
        seeds = max(row.repeats for row in own.values())
        lines.append([case, *(cell(own[m], seeds) if m in own else "" for m in metrics), str(seeds)])
    return ["case", *metrics, "seeds"], lines


def cell(row: ResultRow, seeds: int) -> str:
    """`ours ± spread (published)` of one row of a line of so many seeds."""
    ours = row.ours if isinstance(row.ours, str) else number(row.ours)
    tiny = row.spread is not None and not isinstance(row.ours, str) and row.spread < 1e-12 * abs(row.ours or 0)
    spread = "" if row.spread is None else f" ± {number(0.0 if tiny else row.spread)}"  # differ by rounding only
    published = "" if row.published is None else f" ({row.published})"
    fewer = f", {row.repeats} seeds" if row.spread is not None and row.repeats < seeds else ""
    return ours + spread + published + (f", {row.diverged} diverged" if row.diverged else "") + fewer


def number(value: float | None) -> str:
    """Three digits where a number is small, one decimal where it is of the size of points.

    >>> number(12.345), number(0.01234), number(0.0), number(None)
    ('12.3', '0.0123', '0', 'no number')
    """
    if value is None:
        return "no number"
    return f"{value:.1f}" if abs(value) >= 0.95 else f"{value:.3g}"


def left_out(findings: Findings) -> dict[str, list[str]]:
    """The claims for which there was no data, by the reason."""
    found: dict[str, list[str]] = {}
    for claim in (c for c in findings.claims if not c.ran):
        found.setdefault(claim.evidence.removeprefix(f"{NOT_RUN}: "), []).append(claim.claim)
    return found


def by_reason(failed: Sequence[str]) -> list[str]:
    """Runs that are missing, those with the same reason together.

    >>> by_reason(["FedAvg seed 0: it had not begun", "a seed 1: it is not finite", "FedAvg seed 1: it had not begun"])
    ['FedAvg seed 0, FedAvg seed 1: it had not begun', 'a seed 1: it is not finite']
    """
    names: dict[str, list[str]] = {}
    for name, _, why in (words.rpartition(": ") for words in failed):
        names.setdefault(why, []).append(name)
    return [f"{', '.join(some)}: {why}" for why, some in names.items()]


def tally(findings: Findings) -> str:
    """How many claims hold of those that there was data for, and the outcomes of the others.

    >>> from turnout_papers.studies.claims import Claim
    >>> tally(Findings("a", "paper", [], [Claim("x", True, ""), Claim("y", False, "not run: no data")], 1.0))
    '1 of 1 claims hold (1 not run)'
    """
    count = Counter(claim.outcome for claim in findings.claims)
    ran = len(findings.claims) - count[NOT_RUN]
    others = [f", {count[outcome]} {outcome}" for outcome in (REFUTED, UNDECIDED, EQUAL, UNTESTED) if count[outcome]]
    missing = f" ({count[NOT_RUN]} not run)" if count[NOT_RUN] else ""
    return f"{count[HOLDS]} of {ran} claims hold" + "".join(others) + missing


def markdown(findings: Findings) -> str:
    """The findings as a section of a Markdown page."""
    head, lines = cells(findings.rows)
    notes = [f"- {note}" for note in findings.notes]
    claims = [[claim.outcome, claim.claim, claim.evidence] for claim in findings.claims if claim.ran]
    count, looks = sum(claim.ran for claim in findings.claims), " and ".join(map(str, findings.looks))
    notes += [(FIXED if looks else CHANCE).format(count=count, looks=looks)] if findings.claims else []
    absent = [f"- {NOT_RUN}: {len(claims)} claims, {why}" for why, claims in left_out(findings).items()]
    title = f"## `{findings.study}`, {findings.scale} scale"
    command = findings.command or f"turnout study run {findings.study} --scale {findings.scale}"
    where = findings.machine and ", " + findings.machine
    made = f"`{command}`: {tally(findings)} (runs of {findings.seconds:.0f} s in all{where})."
    failed = [f"- diverged, ranked last where it is compared: {words}" for words in by_reason(findings.diverged)]
    failed += [f"- left out where it would be compared: {words}" for words in by_reason(findings.failed)]
    failed += [f"- ended badly, and compared as it ended: {words}" for words in findings.stalled]
    columns = "Ours ± spread over seeds (published in brackets, where the paper says something):"
    decided = _grid(["outcome", "claim", "evidence"], claims)
    table = _grid(head, lines)
    return "\n".join([title, "", made, "", *notes, *absent, *failed, "", columns, "", *table, "", *decided, ""])


def _grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    every = [head, ["---"] * len(head), *lines]
    return ["| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in every]
