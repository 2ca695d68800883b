"""Every block in README and docs runs exactly as it stands, in the order of the page.

The blocks of a page share a folder, so that a file which one of them writes is there for the next. Python blocks are
executed. A TOML block is a file whose first line is its name, as a comment; it is written and run. Console blocks go
through a shell, where `turnout` is the command line of this code. A block that cannot run here has a comment before it
that says why, `<!-- not run: ... -->`, and is listed below, so that their number does not grow unnoticed.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnout as to
from pages import BLOCK, ROOT, blocks, check_links, check_not_run, warm_command_line
from turnout.running.config.catalogue import markdown
from turnout.running.config.read import load, to_toml

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILE_NAME = re.compile(r"(?<![\w./<*-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b")
CODE = ("src", "tests", "examples", "benchmarks", "papers")
WITH_PAPERS = ("README.md",)  # whose blocks need turnout-papers
NOT_RUN = {
    "README.md": ["it sets up an environment, and would run these tests", "it takes minutes"],
    "advise.md": ["it takes minutes", "it takes minutes"],
    "coming-from.md": [
        "it starts Ray, and make test-slow runs it",
        "pfl is no package of these tests",
        "FedLab is no package of these tests",
    ],
    "deploy.md": [
        "it takes two minutes, and make test-slow runs it",
        "a server runs until its last round, and make test-slow starts it",
        "a device runs until it leaves, and make test-slow starts it",
        "a server runs until its last round, and make test-slow starts it",
        "it needs the other machines",
        "it needs the run of the demonstration above",
    ],
    "runtimes.md": ["it needs several GPUs", "it starts a Ray cluster"],
    "trust.md": ["it takes an hour"],
    "watch.md": ["it goes on until it is interrupted"],
}


@pytest.fixture(scope="module")
def command() -> Iterator[Path]:
    """A folder with the command `turnout`, warm."""
    with warm_command_line() as folder:
        yield folder


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_runs_as_it_stands(page: Path, command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if page.name in WITH_PAPERS:
        pytest.importorskip("turnout_papers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    defined = [block.run(tmp_path, command) for block in blocks(page) if block.why is None]
    if page.name == "README.md":
        experiment = next(names["experiment"] for names in defined if "experiment" in names)
        assert to_toml(load("my.toml")) == to_toml(experiment), "README's file is not the same as the Python above it"


@pytest.mark.slow
def test_the_same_experiment_in_flower_runs(tmp_path: Path):
    """The block of docs/coming-from.md as a program of its own, on the samples that the block before it writes."""
    found = blocks(ROOT / "docs" / "coming-from.md")
    flower = next(i for i, block in enumerate(found) if block.why == "it starts Ray, and make test-slow runs it")
    for block in found[flower - 1 : flower + 1]:
        (tmp_path / "block.py").write_text(block.text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{block.place}: {done.stderr[-2000:]}"
    assert float(re.findall(r"\{'accuracy': (0\.\d+)\}", done.stdout)[-1]) > 0.5


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_does_not_run_is_known(page: Path):
    check_not_run(page, NOT_RUN)


def test_the_page_of_parts_is_the_code_s():
    assert (ROOT / "docs" / "parts.md").read_text(encoding="utf-8") == markdown(), (
        "docs/parts.md is out of date: turnout list --markdown > docs/parts.md"
    )


def test_versions_agree_and_the_newest_is_on_top():
    headings = re.findall(
        r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    versions = [version for version, _ in headings]
    assert versions[0] == to.__version__
    assert f"\nversion: {to.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert versions == sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)
    assert [date for _, date in headings].count("unreleased") <= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    check_links(page)


def words_about_files() -> Iterator[tuple[str, str]]:
    """What pages say outside their blocks, and what docstrings and comments say, with where that is."""
    for page in [*PAGES, *(ROOT / "papers").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        yield page.relative_to(ROOT).as_posix(), BLOCK.sub("", page.read_text("utf-8"))
    for path in (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))):
        text, place = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
        yield place, "\n".join(ast.get_docstring(node) or "" for node in nodes)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield place, "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def test_files_that_are_named_are_there():
    """A name with folders is the end of a path: `round.py`, `server/cohort.py`, `docs/fleet.md`."""
    there = [
        f"/{path.relative_to(ROOT).as_posix()}" for folder in (*CODE, "docs") for path in (ROOT / folder).rglob("*")
    ]
    there += [f"/{path.name}" for path in ROOT.iterdir()]
    named = [(place, name) for place, words in words_about_files() for name in FILE_NAME.findall(words)]
    assert len(named) > 200
    missing = [f"{place}: {name}" for place, name in named if not any(path.endswith(f"/{name}") for path in there)]
    assert not missing
    unknown = [place for place, words in words_about_files() if re.search(r"\bSPEC\b", words) and "tests/" not in place]
    assert not unknown, "SPEC is no file of this repository: say what holds, or name the paper"


def test_the_first_page_leads_to_every_other():
    first = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in first, f"README.md does not say that docs/{page.name} is there"
