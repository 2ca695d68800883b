"""Every code block in README and docs runs: python as it stands, TOML as an experiment file."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from turnout.cli import main
from turnout.config.catalogue import markdown
from turnout.config.read import from_table
from turnout.config.variants import variants_in

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STUDIES = ROOT / "docs" / "studies.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        for i, (kind, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if kind == language:
                found.append(pytest.param(text, id=f"{page.name}-{i}"))
    return found


@pytest.mark.parametrize("text", blocks("python"))
def test_python_blocks_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "block", "exec", dont_inherit=True), {"__name__": "__main__"})


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_blocks_are_experiments(text: str):
    table = tomllib.loads(text)
    for experiment in (variants_in(table) or {"": from_table(table)}).values():
        assert experiment.rounds >= 1


def test_the_page_about_runs_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    for kind, block in BLOCK.findall(text):
        if kind == "toml":
            Path("methods.toml").write_text(block)
        elif kind == "python":
            exec(compile(block, "block", "exec", dont_inherit=True), {"__name__": "__main__"})
        for line in block.splitlines() if kind == "console" else ():
            assert main(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
    assert sorted(path.name for path in Path("runs/methods").iterdir() if path.is_dir()) == [
        "fedavg",
        "proximal",
        "scaffold",
    ]
    assert len(Path("predicted.csv").read_text().splitlines()) == 37


def test_the_page_of_parts_is_the_code_s():
    assert (ROOT / "docs" / "parts.md").read_text(encoding="utf-8") == markdown(), (
        "docs/parts.md is out of date: turnout list --markdown > docs/parts.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_first_page_leads_to_every_other():
    first = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in first, f"README.md does not say that docs/{page.name} is there"


def test_the_list_of_studies_says_what_their_pages_say():
    row = r"\| \[.+\]\(studies/([\w/-]+\.md)\) \| (\d+ of \d+) \| (\d+) \| (\d+) \|"
    listed = {name: rest for name, *rest in re.findall(row, STUDIES.read_text("utf-8"))}
    folder = ROOT / "docs" / "studies"
    pages = {page.relative_to(folder).as_posix(): page.read_text("utf-8") for page in folder.rglob("*.md")}
    assert listed.keys() == pages.keys()
    for name, text in pages.items():
        held, refuted, undecided = listed[name]
        assert f": {held} claims hold" in text, f"studies.md says {held} of {name}"
        outcomes = [text.count(f"\n| {outcome} | ") for outcome in ("holds", "refuted", "undecided")]
        assert outcomes == [int(held.split()[0]), int(refuted), int(undecided)], f"studies.md counts {name} otherwise"
