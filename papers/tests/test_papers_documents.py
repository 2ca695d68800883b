"""The pages of the papers: their blocks run, their links lead somewhere, their numbers are those that were stored."""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnout as to
from pages import ROOT, blocks, check_links, check_not_run, warm_command_line
from turnout.cli import main
from turnout_papers.studies import tables
from turnout_papers.studies.running import Findings

DOCS = ROOT / "papers" / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NOT_RUN = {
    "bench.md": ["it needs packages and takes an hour on two cores"],
    "labels.md": ["it takes minutes", "it needs the pictures of Animals-10"],
    "studies.md": ["it takes minutes"],
}


@pytest.fixture(scope="module")
def command() -> Iterator[Path]:
    """A folder with the command `turnout`, warm."""
    with warm_command_line() as folder:
        yield folder


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_runs_as_it_stands(page: Path, command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for block in blocks(page):
        if block.why is None:
            block.run(tmp_path, command)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_does_not_run_is_known_and_links_lead_somewhere(page: Path):
    check_not_run(page, NOT_RUN)
    check_links(page)


def test_both_distributions_have_the_same_version():
    project = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == to.__version__
    assert project["dependencies"] == [f"turnout=={to.__version__}"]


def test_the_list_of_studies_says_what_their_pages_say():
    row = r"\| \[.+\]\(studies/([\w/-]+\.md)\) \| (\d+ of \d+) \| (\d+) \| (\d+) \| (\d+) \|"
    listed = {name: rest for name, *rest in re.findall(row, (DOCS / "studies.md").read_text("utf-8"))}
    folder = DOCS / "studies"
    pages = {page.relative_to(folder).as_posix(): page.read_text("utf-8") for page in folder.rglob("*.md")}
    assert listed.keys() == pages.keys()
    for name, text in pages.items():
        held, refuted, undecided, level = listed[name]
        assert f": {held} claims hold" in text, f"studies.md says {held} of {name}"
        count = {o: text.count(f"\n| {o} | ") for o in ("holds", "refuted", "undecided", "level", "untested")}
        neither = count.pop("level") + count.pop("untested")
        said = [int(held.split()[0]), int(refuted), int(undecided), int(level)]
        assert [*count.values(), neither] == said, f"studies.md counts {name} otherwise"


def test_what_would_hold_by_chance_is_counted():
    """The sentence of studies.md, from the pages at paper scale."""
    pages = [page.read_text("utf-8") for page in (DOCS / "studies" / "paper").glob("*.md")]
    decided = r"^\| (holds|refuted|undecided|level|untested) \| (.+?) \| "
    found = [claim for page in pages for claim in re.findall(decided, page, re.MULTILINE)]
    every, outcomes = len(found), [outcome for outcome, _ in found]
    twice = every - len({claim for _, claim in found})
    held, refuted, chance = outcomes.count("holds"), outcomes.count("refuted"), round(every * 0.05)
    text = " ".join((DOCS / "studies.md").read_text("utf-8").split())
    assert f"decide {every} claims, {twice} of them twice: if none had any truth, {chance} would hold" in text
    assert f"and {chance} be refuted at most; {held} hold and {refuted} are refuted" in text


def test_pages_of_studies_are_made_from_what_was_found():
    """A page beside a JSON file is what `turnout study show` makes of it."""
    found = sorted((DOCS / "studies").rglob("*.json"))
    assert found
    for path in found:
        findings = Findings.from_json(path.read_bytes(), path.name)
        page = tables.markdown(findings)
        assert path.with_suffix(".md").read_text("utf-8") == page, f"make {path.with_suffix('.md').name} anew"


@pytest.mark.parametrize("packed", sorted((DOCS / "studies").rglob("*.tar.xz")), ids=lambda p: p.name)
def test_records_beside_a_page_are_those_it_was_made_from(packed: Path, tmp_path: Path):
    with tarfile.open(packed) as records:
        records.extractall(tmp_path / "out", filter="data")
    page = packed.with_name(packed.name.removesuffix(".tar.xz"))
    found = Findings.from_json(page.with_suffix(".json").read_bytes())
    assert main([*shlex.split(found.command)[1:], "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert Findings.from_json((tmp_path / "out" / "study.json").read_bytes()) == found
