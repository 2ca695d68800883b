"""One flipped byte in any file that is read back: the same results, or one sentence that names the file."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from same_rows import same
from turnout.cli import main
from turnout.errors import UserError
from turnout.machine.checksums import KEY, Damaged, json_text, read_json, table_of
from turnout.running.records.checkpoint import rounds_done
from turnout.running.records.records import Records

Capture = pytest.CaptureFixture[str]
SMALL = """
rounds = 3
model = {kind = "mlp", hidden = [4], batch_norm = true}
[world]
data = {kind = "synthetic", clients = 6, sizes = {kind = "pareto", cap = 30}}
[algorithm]
local = {epochs = 1, batch_size = 5}
personal = "batch-norm"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds with clients' rows; and what two rounds more give."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "small.toml").write_text(SMALL)
    patch = pytest.MonkeyPatch()
    patch.setattr("turnout.running.loop.CHECKPOINT_SECONDS", 0.0)
    patch.setattr(sys, "path", [*sys.path])
    for out, rounds in (("run", 3), ("whole", 5)):
        assert run(folder / "small.toml", "--set", f"rounds={rounds}", "--out", folder / out) == 0
    assert run("--out", folder / "whole", "--resume") == 0
    patch.undo()
    return folder


def run(*arguments: object) -> int:
    return main(["run", *map(str, arguments), "-q"])


def flipped(content: bytes, at: int, bit: int = 0) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


FILES = [
    "checkpoint.safetensors",
    "untrained.safetensors",
    "clients/",
    "records.sqlite",
    "environment.json",
    "experiment.toml",
    "data.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_a_sentence_or_harmless(name: str, made: Path, tmp_path: Path, capsys: Capture) -> None:
    """At random places, in tensor data among them: never another result, never a traceback."""
    draw = np.random.default_rng(0)
    found = 0
    for i in range(3):
        folder = shutil.copytree(made / "run", tmp_path / str(i))
        path = sorted((folder / "clients").iterdir())[-1] if name == "clients/" else folder / name
        content = path.read_bytes()
        at = len(content) - 20 if i == 0 and name != "records.sqlite" else int(draw.integers(len(content)))
        path.write_bytes(flipped(content, at, int(draw.integers(8))))
        whole = main(["check", str(folder)]) == 0
        code = run("--out", folder, "--set", "rounds=5", "--resume")
        err = capsys.readouterr().err
        assert "Traceback" not in err
        if code == 0:
            assert whole or name == "data.json"  # which is written anew
            assert _same_but_the_third(folder, made / "whole") == []
        else:
            found += 1
            assert code == 2, err
            assert path.name in err or name == "clients/", err
    assert found or name in ("records.sqlite", "data.json")


def _same_but_the_third(a: Path, b: Path) -> list[str]:
    """The last round of a run is evaluated, so one that was lengthened has an evaluation more."""
    return [line for line in same(a / "records.sqlite", b / "records.sqlite") if "evaluations round 2" not in line]


@pytest.mark.parametrize("name", ["environment.json", "state.json", "data.json"])
def test_a_number_that_was_changed_is_damage(name: str, made: Path, tmp_path: Path) -> None:
    """The file is JSON as before, with the names as before: only its checksum tells."""
    text = (made / "run" / name).read_text()
    place = next(match for match in re.finditer(r"[1-8]", text) if KEY not in text[: match.start()])
    changed = tmp_path / name
    changed.write_text(text[: place.start()] + str(int(place[0]) + 1) + text[place.end() :])
    assert json.loads(changed.read_text()) != json.loads(text)
    with pytest.raises(Damaged, match="its content is not what was written"):
        read_json(changed, "")


def test_what_the_rows_of_a_round_say_is_sealed(made: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(made / "run", tmp_path / "run")
    with Records.open(folder / "records.sqlite") as records:
        records.check()
        records.db.execute("UPDATE clients SET weight = weight + 1e-9 WHERE round = 1 AND client = 2")
        with pytest.raises(Damaged, match="round 1"):
            records.check()
    assert main(["check", str(folder)]) == 1
    assert "restore it from a copy" in capsys.readouterr().out
    assert run("--out", folder, "--set", "rounds=5", "--resume") == 2


@pytest.mark.parametrize("number", ["NULL", "'two'"])
def test_a_round_that_is_no_number_is_damage(number: str, made: Path, tmp_path: Path) -> None:
    """As after a flipped byte in the type of a row's number, which leaves the file's structure whole."""
    path = tmp_path / "records.sqlite"
    shutil.copy(made / "run" / "records.sqlite", path)
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("ALTER TABLE sums RENAME TO before")
        db.execute(
            f"CREATE TABLE sums AS SELECT CASE round WHEN 1 THEN {number} ELSE round END AS round, digest FROM before"
        )
    db.close()
    with Records.read(path) as records, pytest.raises(UserError, match="a round is numbered"):
        records.check()


def test_a_whole_folder_is_said_to_be_whole(made: Path, capsys: Capture) -> None:
    assert main(["check", str(made / "whole")]) == 0
    assert "all intact" in capsys.readouterr().out
    assert main(["check", str(made)]) == 0  # the runs below it
    assert main(["check", str(made / "nowhere")]) == 2


def test_settings_that_were_changed_by_hand(made: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(made / "run", tmp_path / "run")
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    assert run("--out", folder, "--resume") == 2
    assert "delete its last line" in capsys.readouterr().err
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert run("--out", folder, "--resume") == 0
    assert rounds_done(folder) == 4


@pytest.mark.parametrize("content", [b"[]", b"\xff\xfe", b'{"title": 1, "runs": [3]}'])
@pytest.mark.parametrize("name", ["runs.json", "environment.json", "data.json", "state.json", "tracking.json"])
def test_a_file_of_nonsense_is_never_a_traceback(
    name: str, content: bytes, made: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = shutil.copytree(made / "run", tmp_path / "run")
    (folder / name).write_bytes(content)
    if name == "runs.json":
        (folder / "records.sqlite").unlink()
    for command in ("check", "show", "runs"):
        assert main([command, str(folder)]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_table_is_what_was_written() -> None:
    text = json_text({"a": [1, 0.1], "b": {"c": None}})
    assert table_of(text) == {"a": [1, 0.1], "b": {"c": None}}
    assert table_of(json.dumps(json.loads(text), indent=None)) == {"a": [1, 0.1], "b": {"c": None}}
    with pytest.raises(ValueError, match="not what was written"):
        table_of(text.replace("0.1", "0.2"))
    assert issubclass(Damaged, UserError)
