"""Every block in README and docs runs exactly as it stands, in the order of the page.

The blocks of a page share a folder, so that a file which one of them writes is there for the next. Python blocks are
executed. A TOML block is a file whose first line is its name, as a comment; it is written and run. Console blocks go
through a shell, where `turnout` is the command line of this code. A block that cannot run here has a comment before it
that says why, `<!-- not run: ... -->`, and is listed below, so that their number does not grow unnoticed.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import turnout as to
from pages import BLOCK, ROOT, blocks, check_links, check_not_run, warm_command_line
from turnout.running.config.read import load, to_toml

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_PAGES, README_LINES = 22, 95
FILE_NAME = re.compile(r"(?<![\w./<*-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b")
CODE = ("src", "tests", "examples", "benchmarks", "papers")
NOT_RUN = {
    "README.md": ["it installs packages"],
    "install.md": ["it installs packages", "it takes an hour and installs Debian packages", "it installs packages"],
    "experiments-and-runs.md": ["it runs until it is interrupted"],
    "fleets-and-advice.md": [
        "it takes minutes",
        "it takes minutes",
        "it needs a SuperLink, and make test-slow starts one",
    ],
    "devices-and-clusters.md": [
        "it needs several GPUs",
        "it starts a Ray cluster",
        "it needs a SuperLink, and make test-slow starts one",
        "it takes minutes, and make test-slow runs it",
        "a server runs until its last round, and make test-slow starts it",
        "a device runs until it leaves, and make test-slow starts it",
        "a server runs until its last round, and make test-slow starts it",
        "it needs the other machines",
        "it needs the run of the demonstration above",
    ],
    "extending.md": ["it installs packages"],
    "trust.md": ["it takes an hour"],
}
# Instead of these: any client, all clients, reported, sent, received, resumes, is not finite, wasted.
UNPLAIN = re.compile(
    r"\b(whoever|somebody|nobody|anybody|everybody|unsaid|said|told|heard|hears?|(?:go|goes|gone) on with|for nothing"
    r"|(?<!there )is no number)\b",
    re.IGNORECASE,
)
UNPLAIN_IN_CODE = 37  # how many docstrings and comments of src and papers still have; only ever lower it


@pytest.fixture(scope="module")
def command() -> Iterator[Path]:
    """A folder with the command `turnout`, warm."""
    with warm_command_line() as folder:
        yield folder


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
    """The program that docs/tour.md names, on the samples that another one writes."""
    for name in ("write_digits.py", "flower_digits.py"):
        program = ROOT / "examples" / "other_systems" / name
        done = subprocess.run(
            [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"
    assert float(re.findall(r"\{'accuracy': (0\.\d+)\}", done.stdout)[-1]) > 0.5


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_does_not_run_is_known(page: Path):
    check_not_run(page, NOT_RUN)


def make_api() -> ModuleType:
    """The program that makes docs/api.md."""
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_python_names_and_the_table_of_roles_are_the_code_s():
    made, extending = make_api(), (ROOT / "docs" / "extending.md").read_text("utf-8")
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == made.api(), "out of date: python docs/make_api.py"
    assert extending == made.with_roles(extending), "out of date: python docs/make_api.py"


def test_every_setting_documents_its_fields():
    missing = make_api().undocumented()
    assert not missing, f"docstrings that do not name these fields: {missing}"


def test_there_are_few_pages_and_the_first_is_short():
    assert len(PAGES) - 1 <= MOST_PAGES
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES


def test_the_glossary_names_what_is_in_the_code():
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]*) \| [^|]*\|$", page, re.MULTILINE)[1:]
    assert len(rows) > 25
    code = "\n".join(path.read_text("utf-8") for folder in ("src", "papers") for path in (ROOT / folder).rglob("*.py"))
    names = [(word, name) for word, cell in rows for name in re.findall(r"`(\w+)`", cell)]
    if not (ROOT / "papers").is_dir():
        names.remove(("study, claim", "Study"))
    unknown = [f"{word}: {name}" for word, name in names if not re.search(rf"\b{name}\b", code)]
    assert not unknown
    assert len(names) > 40
    words = [word.strip() for cell, _ in rows for word in cell.split(",")]
    assert sorted(set(words)) == sorted(words), "a word is listed twice"


def test_words_are_plain():
    pages = [page for page in PAGES if page.name != "api.md"]  # which is made of docstrings
    found = [f"{page.name}: {match[0]}" for page in pages for match in UNPLAIN.finditer(page.read_text("utf-8"))]
    assert not found
    places = [(place, words) for place, words in words_about_files() if place.startswith(("src/", "papers/turnout"))]
    found = [f"{place}: {match[0]}" for place, words in places for match in UNPLAIN.finditer(words)]
    assert len(found) <= UNPLAIN_IN_CODE, found


def test_versions_agree_and_the_newest_is_on_top():
    headings = re.findall(
        r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    versions = [version for version, _ in headings]
    assert versions[0] == to.__version__
    assert f"\nversion: {to.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert versions == sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)
    assert [date for _, date in headings].count("unreleased") <= 1


def test_the_list_of_stable_names_is_complete():
    page = (ROOT / "docs" / "extending.md").read_text("utf-8")
    listed = page.partition("- **Python**: ")[2].partition("- **Files**")[0]
    assert sorted(set(re.findall(r"`(\w+)`", listed)) - {"turnout"}) == sorted(to.__dir__())


def test_the_workflow_runs_make_test_with_every_python_of_the_classifiers():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = [line.rpartition(" ")[2] for line in settings["classifiers"] if "Python ::" in line]
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8")
    listed = ", ".join(f'"{version}"' for version in pythons)
    assert f"python: [{listed}]\n" in workflow
    assert "run: make test PYTHON=python\n" in workflow


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    check_links(page)


def words_about_files() -> Iterator[tuple[str, str]]:
    """What pages say outside their blocks, and what docstrings and comments say, with where that is."""
    notes = (ROOT / "benchmarks").glob("*.md")
    for page in [*PAGES, *(ROOT / "papers").rglob("*.md"), *notes, ROOT / "CONTRIBUTING.md"]:
        yield page.relative_to(ROOT).as_posix(), BLOCK.sub("", page.read_text("utf-8"))
    code = (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")) if ".venv" not in str(path))
    for path in code:
        text, place = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
        yield place, "\n".join(ast.get_docstring(node) or "" for node in nodes)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield place, "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def test_files_that_are_named_are_there():
    """A name with folders is the end of a path: `round.py`, `server/asking.py`, `docs/trust.md`."""
    there = [
        f"/{path.relative_to(ROOT).as_posix()}" for folder in (*CODE, "docs") for path in (ROOT / folder).rglob("*")
    ]
    there += [f"/{path.name}" for path in ROOT.iterdir()]
    named = [(place, name) for place, words in words_about_files() for name in FILE_NAME.findall(words)]
    assert len(named) > 200
    if not (ROOT / "papers").is_dir():
        named = [(place, name) for place, name in named if not name.startswith("papers/")]
    missing = [f"{place}: {name}" for place, name in named if not any(path.endswith(f"/{name}") for path in there)]
    assert not missing
    unknown = [place for place, words in words_about_files() if re.search(r"\bSPEC\b", words) and "tests/" not in place]
    assert not unknown, "SPEC is no file of this repository: say what holds, or name the paper"


def test_the_first_page_leads_to_every_other():
    """README leads to the index, and the index to every page; the site's menu has each of them."""
    assert "(docs/index.md)" in (ROOT / "README.md").read_text("utf-8")
    index, menu = (ROOT / "docs" / "index.md").read_text("utf-8"), (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"docs/index.md does not name {page.name}"
        assert f": {page.name}\n" in menu, f"mkdocs.yml does not have {page.name}"
