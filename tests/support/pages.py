"""The fenced blocks of a page of documentation, and how each is run."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.cli import main
from warm_command import start, write_command

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?:<!-- not run: (.*?) -->\n)?```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


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


@contextmanager
def warm_command_line() -> Iterator[Path]:
    """A folder with the command `turnout`, warm."""
    with tempfile.TemporaryDirectory(prefix="turnout") as folder:  # a socket's address must be short
        process, address = start(Path(folder))
        write_command(Path(folder), address)
        yield Path(folder)
        process.kill()
        process.wait()


def check_not_run(page: Path, known: Mapping[str, Sequence[str]]) -> None:
    """The blocks of a page that are not run are those that are known."""
    text = page.read_text(encoding="utf-8")
    assert [block.why for block in blocks(page) if block.why] == known.get(page.name, [])
    assert text.count("not run: ") == len(known.get(page.name, [])), "the comment stands directly before its block"
    assert text.count("\n```") + text.startswith("```") == 2 * len(blocks(page)), (
        "a block that is not seen by the tests"
    )


def check_links(page: Path) -> None:
    """Every link of a page leads somewhere; into papers/ only where that folder is there."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        if "papers/" not in target or (ROOT / "papers").is_dir():
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
