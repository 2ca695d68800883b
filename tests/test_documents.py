"""Every block in README and docs runs exactly as it stands, in the order of the page.

The blocks of a page share a folder, so that a file which one of them writes is there for the next. Python blocks are
executed. A TOML block is a file whose first line is its name, as a comment; it is written and run. Console blocks go
through a shell, where `turnout` is the command line of this code. A block that cannot run here has a comment before it
that says why, `<!-- not run: ... -->`, and is listed below, so that their number does not grow unnoticed.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import turnout as to
from turnout.cli import main
from turnout.running.config.catalogue import markdown
from turnout.running.config.read import load, to_toml
from turnout_papers.studies import tables
from turnout_papers.studies.catalogue import find_study
from turnout_papers.studies.running import Findings, planned
from warm_command import start, write_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STUDIES = ROOT / "docs" / "studies.md"
BLOCK = re.compile(r"^(?:<!-- not run: (.*?) -->\n)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"(?<![\w./<*-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b")
CODE = ("src", "tests", "examples", "benchmarks")
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
    "paper-002.md": ["it takes minutes", "it needs the pictures of Animals-10"],
    "runtimes.md": ["it needs several GPUs", "it starts a Ray cluster"],
    "studies.md": ["it takes minutes"],
    "trust.md": ["it takes an hour"],
    "watch.md": ["it goes on until it is interrupted"],
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and why it is not run."""

    page: Path
    line: int
    kind: str
    text: str
    why: str | None

    def run(self, folder: Path, command: Path) -> dict[str, Any]:
        """What a Python block has defined; nothing for the others."""
        if self.kind == "python":
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile("\n" * self.line + self.text, self.page.name, "exec", dont_inherit=True), names)
            return names
        if self.kind == "toml":
            name = self.text.partition("\n")[0].removeprefix("# ")
            assert re.fullmatch(r"[\w-]+\.toml", name), (
                f"{self.place}: the first line of a file says its name: # my.toml"
            )
            (folder / name).write_text(self.text, encoding="utf-8")
            assert main(["run", name, "--quiet"]) == 0, self.place
        else:
            assert self.kind == "console", f"{self.place}: a block is python, toml or console, not {self.kind!r}"
            in_shell(self, folder, command)
        return {}

    @property
    def place(self) -> str:
        return f"{self.page.name}, line {self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [(text.count("\n", 0, m.start(2)) + 1, *m.groups()) for m in BLOCK.finditer(text)]
    return [Block(page, line, kind, body, why) for line, why, kind, body in found]


def in_shell(block: Block, folder: Path, command: Path) -> None:
    """A console block, as if pasted, with `turnout` from the folder `command`; the first line that fails ends it."""
    environment = {**os.environ, "PATH": f"{command}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", block.text], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{block.place}: {done.stderr[-2000:]}"


@pytest.fixture(scope="module")
def command() -> Iterator[Path]:
    """A folder with the command `turnout`, warm."""
    with tempfile.TemporaryDirectory(prefix="turnout") as folder:  # a socket's address must be short
        process, address = start(Path(folder))
        write_command(Path(folder), address)
        yield Path(folder)
        process.kill()
        process.wait()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_runs_as_it_stands(page: Path, command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    text = page.read_text(encoding="utf-8")
    assert [block.why for block in blocks(page) if block.why] == NOT_RUN.get(page.name, [])
    assert text.count("not run: ") == len(NOT_RUN.get(page.name, [])), "the comment stands directly before its block"
    assert text.count("\n```") + text.startswith("```") == 2 * len(blocks(page)), (
        "a block that is not seen by the tests"
    )


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
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def words_about_files() -> Iterator[tuple[str, str]]:
    """What pages say outside their blocks, and what docstrings and comments say, with where that is."""
    for page in [*PAGES, *(ROOT / "docs" / "studies").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        yield page.relative_to(ROOT).as_posix(), BLOCK.sub("", page.read_text("utf-8"))
    for path in (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))):
        text, place = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
        yield place, "\n".join(ast.get_docstring(node) or "" for node in nodes)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield place, "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def test_files_that_are_named_are_there():
    """A name with folders is the end of a path: `round.py`, `server/finite.py`, `docs/fleet.md`."""
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


def test_pages_of_studies_are_made_from_what_was_found():
    """A page beside a JSON file is what `turnout study show` makes of it."""
    found = sorted((ROOT / "docs" / "studies").rglob("*.json"))
    assert found
    for path in found:
        findings = Findings.from_json(path.read_bytes(), path.name)
        page = tables.markdown(findings, planned(find_study(findings.study), findings.scale))
        assert path.with_suffix(".md").read_text("utf-8") == page, f"make {path.with_suffix('.md').name} anew"
