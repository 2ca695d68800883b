"""The live page's server: right pages, who may look and press buttons, what changes are told, runs that it starts."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from starlette.applications import Starlette

from asgi import Browser
from turnout.errors import UserError
from turnout.round_record import Evaluation, RoundRecord
from turnout.running.records.records import Records
from turnout.running.state import is_held
from turnout.view.live.acting import Actions
from turnout.view.live.app import make_app
from turnout.view.live.guard import POLICY, Rules
from turnout.view.live.serving import address, listening
from turnout.view.live.watched import Changes, WatchedFolder

TOKEN = "a-token"
NASTY = '<b id="x">&"\''
HERE = Rules("127.0.0.1", 8811, TOKEN)
OWN = {"origin": "http://127.0.0.1:8811"}


def make_run(folder: Path, rounds: int = 3, clients: int = 4, wanted: int = 5) -> Path:
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(f'title = "{folder.name}"\nrounds = {wanted}\n')
    ids = torch.arange(clients)
    with Records.open(folder / "records.sqlite") as records:
        for t in range(rounds):
            columns = {"client": ids, "work": ((ids + t) % 2).double(), "weight": torch.full((clients,), 0.25)}
            record = RoundRecord(
                round=t, members=clients, asked=clients, answered=clients // 2, work=0.5, clients=columns
            )
            per_client = {"personal_accuracy": (ids, ids / clients)}
            records.add_round(record, Evaluation(t, {"global_accuracy": (t + 1) / 10}, per_client))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one with a name that must be escaped, and a study."""
    found = tmp_path_factory.mktemp("watched")
    make_run(found / "first")
    second = make_run(found / "second")
    (second / "experiment.toml").write_text(f"title = {json.dumps(NASTY)}\nrounds = 3\n")
    return found


@pytest.fixture
def browser(folder: Path) -> Browser:
    return client_of(make_app(folder, HERE))


def client_of(app: Starlette, host: str = "127.0.0.1:8811") -> Browser:
    return Browser(app, host)


ADDRESSES = [
    "/", "/run?name=first", "/run?name=second", "/clients?name=first&by=work", "/client?name=first&client=1",
    "/report?name=second",
]  # fmt: skip


def test_clients_are_called_by_their_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "data.json").write_text(json.dumps({"names": ["ada", "bob", "cyd", "dee"]}))
    browser = client_of(make_app(tmp_path, HERE))
    assert ">cyd</a>" in browser.get("/clients?name=run").text
    assert "Client dee of run" in browser.get("/client?name=run&client=3").text
    assert "&#34;ada&#34;" in browser.get("/run?name=run").text, "the turnout map"


@pytest.mark.parametrize("where", ADDRESSES)
def test_every_page_is_there_and_nothing_in_it_comes_from_outside(browser: Browser, where: str) -> None:
    answer = browser.get(where)
    assert answer.status == 200
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r'(?:src|href)="(?!/|#|data:)', answer.text)
    assert '<b id="x">' not in answer.text, "a name became markup"
    assert not re.search(r'<[^>]+ style="', answer.text), "the policy refuses style attributes"
    assert not re.search(r"<script(?! src)", answer.text) or where.startswith("/report")
    for file in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
        assert browser.get(file).status == 200


def test_pages_say_what_the_records_say(browser: Browser) -> None:
    first = browser.get("/").text
    assert "global_accuracy 30.0 %" in first
    assert re.search(r'value="3" aria-label="rounds of first"', first)
    assert "interrupted" in first  # 3 of 5 rounds, and no process
    clients = browser.get("/clients?name=first&by=client").text
    assert re.search(r'client=1">1</a></th><td>3</td><td>2</td><td>66.7 %</td><td>round 2</td><td>25.0 %</td>', clients)
    assert "Weight of its update" in browser.get("/client?name=first&client=1").text


@pytest.mark.parametrize(
    "where",
    ["/run?name=third", "/run?name=../watched0/first", "/client?name=first&client=99", "/client?name=first&client=x",
     "/report?name=", "/static/guard.py", "/static/..%2fguard.py",
     f"/client?name=first&client={'9' * 30}", f"/clients?name=first&page={'9' * 5000}"],
)  # fmt: skip
def test_what_is_not_there_is_said(browser: Browser, where: str) -> None:
    assert browser.get(where).status == 404


def test_looking_is_free_on_this_machine_and_pressing_is_not(browser: Browser) -> None:
    page = browser.get("/").text
    assert re.search(r'<button[^>]*data-act="resume"[^>]* disabled', page)
    assert browser.post("/act/stop", {"name": "first"}, **OWN).status == 401
    entered = browser.get(f"/?token={TOKEN}&a=b")
    assert (entered.status, entered.headers["location"]) == (303, "/?a=b")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert not re.search(r'<button[^>]*data-act="resume"[^>]* disabled', browser.get("/").text)
    stopped = browser.post("/act/stop", {"name": "first"}, **OWN)
    assert (stopped.status, "nothing is running" in stopped.json()["error"]) == (409, True)
    assert browser.get("/?token=wrong").status == 200  # no more than without one


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({}, 403),
        (OWN | {"sec_fetch_site": "cross-site"}, 403),
        (OWN | {"host": "evil.example"}, 421),
        (OWN | {"host": "evil.example:8811"}, 421),
        (OWN | {"authorization": "Bearer wrong"}, 401),
        (OWN | {"authorization": f"Bearer {TOKEN}"}, 409),  # let in: nothing is running
    ],
)
def test_other_sites_cannot_press_a_button(folder: Path, headers: dict[str, str], status: int) -> None:
    browser = client_of(make_app(folder, HERE))
    if "authorization" not in headers:
        browser.get(f"/?token={TOKEN}")
    assert browser.post("/act/stop", {"name": "first"}, **headers).status == status


def test_another_name_for_this_machine_cannot_look(browser: Browser) -> None:
    assert browser.get("/", host="evil.example:8811").status == 421
    assert browser.get("/", host="localhost:8811").status == 200


def test_an_address_with_the_token_leads_to_no_other_site(browser: Browser) -> None:
    for path in ("//evil.example/", "/%5cevil.example/", "/\\\\evil.example"):
        assert re.match(r"/\w", browser.get(f"{path}?token={TOKEN}").headers["location"])


def test_on_other_addresses_everything_needs_the_token(folder: Path) -> None:
    rules = Rules("0.0.0.0", 8811, TOKEN)
    browser = client_of(make_app(folder, rules), "10.1.2.3:8811")
    for where in ("/", "/events", "/static/watch.js", "/report?name=first"):
        assert browser.get(where).status == 401
    browser.get(f"/?token={TOKEN}")
    assert browser.get("/").status == 200
    assert browser.get("/", host=f"{platform.node()}:8811").status == 200
    assert browser.get("/", host="evil.example:8811").status == 421


def test_a_form_is_small_and_json(folder: Path) -> None:
    headers = OWN | {"authorization": f"Bearer {TOKEN}"}
    browser = client_of(make_app(folder, HERE))
    for content, status in ((b"x" * 30_000, 413), (b"no json", 400), (b"[1]", 409), (b'{"source": ["a"]}', 409)):
        assert browser.post("/act/start", content, **headers).status == status
    assert browser.post("/act/start", b"[" * 19_000, **headers).status == 400
    for text in ("\0", "\ud800", "a\x1b[2J"):
        assert "cannot be typed" in browser.post("/act/start", {"source": text}, **headers).json()["error"]
    for form in ({"source": "--help"}, {"source": "digits", "name": "first"}, {"source": "digits", "seeds": "x"}):
        assert browser.post("/act/start", form, **headers).status == 409
    assert browser.post("/act/burn", {}, **headers).status == 409
    assert browser.get("/act/start").status == 405


def test_a_change_is_told(tmp_path: Path) -> None:
    watched = WatchedFolder(tmp_path)
    make_run(tmp_path / "first")

    async def heard() -> list[str]:
        changes = Changes(watched)
        events = changes.answer().body_iterator
        found = [str(await anext(events))]
        await asyncio.sleep(0.2)  # the first look
        with Records.open(tmp_path / "first" / "records.sqlite") as records:
            records.add_round(RoundRecord(round=3))
        found.append(str(await asyncio.wait_for(anext(events), 10)))
        make_run(tmp_path / "second")
        found.append(str(await asyncio.wait_for(anext(events), 10)))
        changes.close()
        return found

    hello, first, second = asyncio.run(heard())
    assert "event: hello" in hello
    assert first == 'event: changed\ndata: ["first"]\n\n'
    assert '"second"' in second


def test_a_run_is_started_stopped_and_resumed(tmp_path: Path) -> None:
    actions = Actions(WatchedFolder(tmp_path))
    settings = "rounds=100000\nworld.data.clients=5\nworld.participation=always"
    name = actions.start({"source": "digits", "settings": settings, "name": "mine"})
    assert name == "mine"
    process = actions.started["mine"].process
    try:
        wait_until(
            lambda: actions.watched.runs().get("mine") is not None and actions.watched.runs()["mine"].state.done > 1
        )
        with pytest.raises(UserError, match="running already"):
            actions.resume("mine")
        actions.stop("mine")
        assert process.wait(60) == 130
        assert actions.watched.runs()["mine"].state.state == "interrupted"
        assert actions.failures() == {}
        actions.start({"source": "digits", "settings": "no.such=1", "name": "other"})
        wait_until(lambda: actions.started["other"].process.poll() is not None)
        assert "unknown setting no" in actions.failures()["other"]
    finally:
        for started in actions.started.values():
            started.process.kill()
            started.process.wait()


def wait_until(done: object, seconds: float = 90.0) -> None:
    assert callable(done)
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def test_the_command_prints_an_address_with_a_token_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turnout", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.search(r"on http://127\.0\.0\.1:\d+/\?token=\S{20,}$", line.strip())
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) in (0, 130)
        finally:
            process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_the_command_shows_runs_outside_of_the_folder_runs_while_they_are_prepared(tmp_path: Path) -> None:
    """A run with --out lies beside runs/. It has no file but its lock until its data is prepared."""
    code = "from turnout.running.folder import held\nfrom pathlib import Path\nwith held(Path('mine')): input()"
    work = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE)
    command = [sys.executable, "-m", "turnout", "watch", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_held(tmp_path / "mine"))
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+/)", process.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(found[1]) as answer:
            page = answer.read().decode()
        now = page.partition('id="now"')[2].partition("</section>")[0]
        assert "Nothing is running" not in now
        assert 'href="/run?name=mine"' in now
        assert "being prepared" in now
        with urllib.request.urlopen(found[1] + "run?name=mine") as answer:
            assert "running" in answer.read().decode()
    finally:
        work.communicate(b"\n", timeout=30)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with listening("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match="choose another --port"):
            listening("127.0.0.1", taken.getsockname()[1])
    assert address(Rules("0.0.0.0", 80, "t")) == "http://127.0.0.1:80/?token=t"
    assert address(Rules("::1", 80, "t")) == "http://[::1]:80/?token=t"
    assert "script-src 'self'" in POLICY
    assert "token" not in str(asdict(HERE).keys() - {"token"})
    assert TOKEN not in repr(HERE)
