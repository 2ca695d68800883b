"""The live page in a folder that a stranger filled, and before a client that is slow, greedy or sends nonsense."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_watch import HERE, OWN, TOKEN, client_of, make_run, wait_until

from turnout.cli import main
from turnout.errors import UserError
from turnout.running.folder import held
from turnout.view.live.acting import MOST_RUNNING, Actions
from turnout.view.live.app import make_app
from turnout.view.live.watched import WatchedFolder

PAGES = ("/", "/run?name=run", "/clients?name=run&by=last", "/client?name=run&client=1", "/report?name=run")
FILES = ("experiment.toml", "records.sqlite", "state.json", "runs.json", "data.json", "environment.json", "study.json",
         "error.txt", ".lock", ".lock.held")  # fmt: skip
DIGITS = "9" * 5000


def loop(path: Path) -> None:
    path.symlink_to(path)


def check_pages_and_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every page and every command that reads answers in time, and the other run is on the first page."""
    browser = client_of(make_app(folder, HERE))
    for where in PAGES:
        answer = browser.get(where)
        assert answer.status in (200, 404), where
        assert where != "/" or (answer.status == 200 and "name=other" in answer.text)
    for command in (["check", "."], ["show", "run"], ["runs", "."], ["report", "run"]):
        assert main([command[0], str(folder / command[1])]) in (0, 1, 2), command
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    make_run(tmp_path / "other")
    return tmp_path


def in_time(function: Callable[[], None]) -> None:
    """Call it; one that waits for ever is an error after some seconds, also in another thread."""

    def late(*_: object) -> None:
        raise AssertionError("a page waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    try:
        function()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, loop])
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_file_is_passed_over(
    name: str, make: Callable[[Path], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "run" / name
    path.unlink(missing_ok=True)
    make(path)
    in_time(lambda: check_pages_and_commands(folder, capsys))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("state.json", json.dumps({"state": "finished", "why": None, "at": 1.0} | wrong)) for wrong in (
            {"at": 1e300}, {"at": "then"}, {"at": -1e18}, {"at": [1]}, {"at": float("nan")}, {"state": 7},
            {"state": [1]}, {"why": 5})),
        ("state.json", f'{{"at": {DIGITS}}}'),
        *(("runs.json", json.dumps({"runs": [{"variant": "a", "seed": 0, "path": "a"} | wrong]})) for wrong in (
            {"path": "\0"}, {"path": 5000 * "a"}, {"seed": float("inf")}, {"seed": 1e300}, {"path": 7})),
        ("runs.json", f'{{"runs": [{{"variant": "a", "seed": {DIGITS}, "path": "a"}}]}}'),
        ("runs.json", 100_000 * "["),
        ("experiment.toml", f"rounds = {DIGITS}\n"), ("experiment.toml", "stop = 3\nrounds = [1]\n"),
        ("data.json", '{"names": 5}'),
    ],
)  # fmt: skip
def test_a_value_that_no_run_writes_is_passed_over(
    name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "runs.json":
        (folder / "run" / "records.sqlite").unlink()
    (folder / "run" / name).write_text(text)
    check_pages_and_commands(folder, capsys)


@pytest.mark.parametrize("value", ["'text'", "x'ff00'", "1e308", "9e999"])
@pytest.mark.parametrize(
    "column",
    ["rounds.members", "rounds.work", "rounds.seconds", "clients.round", "clients.client", "clients.work",
     "clients.loss", "clients.friend", "evaluations.round", "evaluations.name", "evaluations.value",
     "client_evaluations.client", "client_evaluations.value", "client_evaluations.name", "metrics.name"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow encountered")  # a mean of numbers that are too large is infinite
def test_a_text_among_numbers_is_a_sentence(
    column: str, value: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, name = column.split(".")
    with sqlite3.connect(folder / "run" / "records.sqlite", isolation_level=None) as db:
        where = "" if table == "metrics" else " WHERE round = 2"
        db.execute(f"UPDATE OR REPLACE {table} SET {name} = {value}{where}")
    db.close()
    check_pages_and_commands(folder, capsys)


@pytest.mark.parametrize("cookie", ["a,b=c", "a=b,c; d", '"', "=;=;", "\x7f=1", "turnout-8811=\xff", "a" * 5000])
def test_a_cookie_of_nonsense_is_no_cookie(cookie: str, folder: Path) -> None:
    browser = client_of(make_app(folder, HERE))
    assert browser.get("/", cookie=cookie).status == 200
    assert browser.post("/act/stop", {"name": "run"}, cookie=cookie, **OWN).status == 401


def test_only_a_process_that_this_page_started_gets_a_signal(tmp_path: Path) -> None:
    """A lock file that names another process, held by whoever wrote it, stops nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        run = make_run(tmp_path / "run")
        with held(run):
            said = json.loads((run / ".lock").read_text())
            for number in (other.pid, -other.pid, 0, -1):
                (run / ".lock").write_text(json.dumps(said | {"process": number}))
                with pytest.raises(UserError, match="stop it where it was started"):
                    Actions(WatchedFolder(tmp_path)).stop("run")
        time.sleep(0.2)
        assert other.poll() is None
        with pytest.raises(UserError, match="nothing is running"):
            Actions(WatchedFolder(tmp_path)).stop("run")
        other.communicate(b"\n", timeout=30)


def test_of_six_simultaneous_starts_of_one_name_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.view.live.acting.sys.executable", sleeper(tmp_path))
    actions, ready = Actions(WatchedFolder(tmp_path / "runs")), threading.Barrier(6)

    def start(_: int) -> str:
        ready.wait()
        try:
            return actions.act("start", {"source": "digits", "name": "mine"})
        except UserError as error:
            return str(error)

    try:
        with ThreadPoolExecutor(6) as threads:
            said = sorted(threads.map(start, range(6)))
        assert said == ["mine", *["mine is running already"] * 5]
        assert len((tmp_path / "count").read_text().splitlines()) <= 1
        for i in range(1, MOST_RUNNING):
            actions.act("start", {"source": "digits", "name": f"more-{i}"})
        with pytest.raises(UserError, match="stop one, or wait"):
            actions.act("start", {"source": "digits", "name": "too-many"})
        actions.act("stop", {"name": "mine"})
        wait_until(lambda: actions.started["mine"].process.poll() is not None)
        actions.act("start", {"source": "digits", "name": "one-more"})
    finally:
        for started in actions.started.values():
            started.process.kill()
            started.process.wait()


def sleeper(folder: Path) -> str:
    """A program that says that it was started, and sleeps."""
    (folder / "count").touch()
    program = folder / "sleeper"
    program.write_text(f"#!/bin/sh\necho started >> {folder}/count\nexec sleep 60\n")
    program.chmod(0o755)
    return str(program)


SERVING = """
from pathlib import Path
from turnout.view.live import app, serving
serving.REQUEST_SECONDS = app.FORM_SECONDS = 1.0
serving.serve(Path("."), "127.0.0.1", 0, {token!r}, lambda line: print(line, flush=True))
"""


def test_slow_and_many_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    code = SERVING.format(token=TOKEN)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)/", server.stdout.readline())
            assert found is not None
            port = int(found[1])
            wait_until(lambda: asked(port).startswith("HTTP/1.1 200"))
            slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(130)]
            for one in slow:
                one.sendall(b"GET / HTTP/1.1\r\nHost: 127")
            assert "503" in asked(port)
            wait_until(lambda: asked(port).startswith("HTTP/1.1 200"), 20)
            for one in slow:
                one.settimeout(20)
                assert one.recv(1) in (b"", b"H")  # closed, or told that the server is busy
                one.close()
            form = (f"POST /act/start HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
                    f"Authorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n{{")  # fmt: skip
            assert "408" in asked(port, form)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def asked(port: int, request: str = "") -> str:
    """The beginning of the answer to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall((request or f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").encode())
        return one.recv(100).decode()
