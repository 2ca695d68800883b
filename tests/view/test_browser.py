"""Report and live page in a real browser: they load, follow a run, survive its death, on a phone, dark, by keyboard."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import turnout as to
from browsing import Heard, chromium, faults_of, is_live, overflow, until
from example_experiments import arrival, substitutes
from made_records import make_records
from turnout.running.state import is_held
from turnout.view.report.page import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

LONG = "rounds=100000\nworld.data.clients=8\nworld.participation=always"
LOOKS = [(1400, "light"), (390, "dark"), (390, "light"), (1400, "dark")]


@dataclass
class Server:
    """`turnout watch` in a process of its own."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None
    address: str = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "turnout", "watch", str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:(\d+))/\?token=\S+", self.process.stdout.readline())
        assert found is not None
        self.address, self.port = found[0], int(found[2])

    def end(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=30)
        assert said == ("", ""), "it did not end in order"

    @property
    def own(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that exist before anybody looks: four methods with three seeds, and one with clients that join and leave."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    methods = {name: made.but(rounds=6) for name, made in substitutes().items()}
    to.run(methods, folder / "friends", seeds=3, jobs=1, quiet=True)
    to.run(arrival(at=3).but(rounds=8), folder / "arrival", quiet=True)
    return folder


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    found = Server(runs)
    found.start()
    yield found
    found.end()
    for path in runs.glob("*/.lock"):  # of a test that failed
        if is_held(path.parent):
            os.kill(json.loads(path.read_text())["process"], signal.SIGKILL)


def opened(
    browser: Browser, where: str, own: str, width: int = 1400, scheme: str = "light", entering: str = ""
) -> tuple[Page, Heard]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    heard = Heard(page, own)
    if entering:
        page.goto(entering)
    page.goto(where)
    return page, heard


# -- the report


@pytest.fixture(scope="module")
def report(runs: Path) -> str:
    return write_report(runs / "friends").as_uri()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_report_is_right_at_every_width_and_in_the_dark(
    browser: Browser, report: str, width: int, scheme: str
) -> None:
    page, heard = opened(browser, report, "file://", width, scheme)
    page.wait_for_selector("svg[data-chart]")
    assert overflow(page) <= 0
    assert faults_of(page) == []
    assert heard.faults == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dark)[:3])) < 150) == (scheme == "dark")


def test_the_first_column_stays_while_the_table_moves(browser: Browser, report: str) -> None:
    page, _ = opened(browser, report, "file://", 390)
    box = page.locator(".scroll:has(table.results)")
    before = page.locator("table.results tbody th").first.bounding_box()
    moved = box.evaluate("box => { box.scrollLeft = 400; return box.scrollLeft }")
    after = page.locator("table.results tbody th").first.bounding_box()
    assert moved > 100, "the table is narrow enough: nothing was tested"
    assert before is not None
    assert after is not None
    assert after["x"] == pytest.approx(before["x"], abs=2)
    last = page.locator("table.results thead > tr > *").last
    box.evaluate("box => { box.scrollLeft = box.scrollWidth }")
    assert (last.bounding_box() or {})["x"] < 390, "the last column can be reached"


def test_variants_and_seeds_can_be_chosen(browser: Browser, report: str) -> None:
    page, heard = opened(browser, report, "file://")
    lines = page.locator("svg.chart path.line[data-v='1']")
    assert lines.first.is_visible()
    page.get_by_role("checkbox", name="Dropout").uncheck()
    assert not lines.first.is_visible()
    assert not page.locator("table.results tr[data-v='1']").is_visible()
    page.get_by_role("button", name="none").click()
    assert page.locator("table.results tbody tr:visible").count() == 0
    page.get_by_role("button", name="all").click()
    assert page.locator("table.results tbody tr:visible").count() == 4
    assert page.locator("[data-seed='0']").is_visible()
    page.locator("select[data-chooses=seed]").select_option("2")
    assert not page.locator("[data-seed='0']").is_visible()
    assert page.locator("[data-seed='2'] img").first.is_visible()
    assert heard.faults == []


def test_values_and_ids_are_under_the_pointer_and_at_the_arrow_keys(browser: Browser, report: str) -> None:
    page, _ = opened(browser, report, "file://")
    chart = page.locator("svg[data-chart]").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert re.search(r"rounds trained 1\b", page.locator("#tip").inner_text())
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    heat = page.locator("[data-seed='0'] img.heat").last
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 3, box["y"] + box["height"] * 4.5 / 20)
    until(page, "document.getElementById('tip').innerText.includes('client 4')")
    assert "round 0" in page.locator("#tip").inner_text()


def test_a_report_prints(browser: Browser, report: str, tmp_path: Path) -> None:
    page, _ = opened(browser, report, "file://", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(28, 36, 48)"
    assert not page.locator(".choose").first.is_visible()
    assert len(page.pdf(format="A4")) > 20_000


def test_ten_thousand_clients_and_a_thousand_rounds_open_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    """With a tenth of the clients asked in every round; benchmarks/report.py asks all."""
    make_records(tmp_path, clients=10_000, rounds=1_000, asked=1_000)
    path = write_report(tmp_path)
    assert path.stat().st_size < 5_000_000
    page, heard = opened(browser, "about:blank", "file://")
    start = time.monotonic()
    page.goto(path.as_uri())
    page.wait_for_selector("svg[data-chart]")
    assert time.monotonic() - start < 2
    assert heard.faults == []


# -- the live page

PAGES = ["/", "/run?name=friends", "/clients?name=friends", "/client?name=friends&client=1",
         "/run?name=nothing"]  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_live_page_is_right_at_every_width_and_in_the_dark(
    browser: Browser, server: Server, width: int, scheme: str
) -> None:
    page, heard = opened(browser, server.own, server.own, width, scheme, entering=server.address)
    for where in PAGES:
        page.goto(server.own + where)
        is_live(page)
        assert overflow(page) <= 0, where
        assert faults_of(page) == [], where
    assert [fault for fault in heard.faults if "404" not in fault] == []  # of the page that is not there


def test_a_run_is_started_followed_killed_resumed_and_stopped(browser: Browser, server: Server, runs: Path) -> None:
    page, heard = opened(browser, server.own, server.own, entering=server.address)
    page.get_by_label("Recipe or experiment file").fill("digits")
    page.get_by_label("Settings").fill(LONG)
    page.get_by_label("Name of its folder").fill("mine")
    page.get_by_role("button", name="Start").click()
    page.locator(".card", has_text="mine").wait_for(timeout=60_000)
    page.locator(".card").get_by_role("link", name="mine").click()
    page.wait_for_selector("svg[data-chart]")
    first = rounds_shown(page)
    until(page, f"{ROUNDS} > {first + 5}")  # without loading the page again
    picture = page.locator("svg[data-chart] path.line").first
    before = picture.get_attribute("d")
    redrawn = "d => document.querySelector('svg[data-chart] path.line').getAttribute('d') !== d"
    until(page, redrawn, before)
    os.kill(json.loads((runs / "mine" / ".lock").read_text())["process"], signal.SIGKILL)
    page.get_by_text("interrupted").wait_for(timeout=30_000)
    died = rounds_shown(page)
    page.get_by_role("button", name="resume").click()
    page.get_by_role("button", name="stop").wait_for(timeout=60_000)
    until(page, f"{ROUNDS} > {died}")
    page.get_by_role("button", name="stop").click()
    page.get_by_text("interrupted").wait_for(timeout=60_000)
    assert heard.faults == []


ROUNDS = "+document.querySelector('#head progress').value"


def rounds_shown(page: Page) -> int:
    return int(page.evaluate(ROUNDS))


def test_a_client_s_page_has_every_run_and_seed(browser: Browser, server: Server) -> None:
    page, heard = opened(browser, server.own + "/clients?name=friends", server.own)
    page.get_by_label("Run").select_option("Friends, seed 1")
    page.wait_for_url("**/clients?name=friends&run=*")
    page.get_by_role("link", name="7", exact=True).click()
    assert page.get_by_label("Seed").evaluate("list => list.selectedOptions[0].text") == "1"
    page.get_by_label("Seed").select_option("2")
    page.wait_for_url("**&seed=2")
    assert page.get_by_label("Seed").evaluate("list => list.selectedOptions[0].text") == "2"
    assert heard.faults == []


def test_without_the_token_one_looks_and_presses_nothing(browser: Browser, server: Server) -> None:
    page, heard = opened(browser, server.own, server.own)
    assert page.get_by_role("button", name="Start").is_disabled()
    assert "open the address that turnout watch printed" in page.inner_text("main")
    refused = page.evaluate("fetch('/act/stop', {method: 'POST', body: '{}'}).then(answer => answer.status)")
    assert refused == 401
    assert [fault for fault in heard.faults if "401" not in fault] == []


def test_another_site_s_page_presses_nothing(browser: Browser, server: Server, tmp_path: Path) -> None:
    """A page of another origin sends a form with the browser's cookies: refused before anything is looked at."""
    evil = tmp_path / "evil.html"
    evil.write_text("<!doctype html><title>evil</title><h1>hello</h1>")
    page, _ = opened(browser, evil.as_uri(), "file://", entering=server.address)
    page.goto(evil.as_uri())
    sent = f"fetch('{server.own}/act/start', {{method: 'POST', mode: 'no-cors', credentials: 'include', body: '{{}}'}})"
    kind = page.evaluate(f"{sent}.then(answer => answer.type + answer.status, error => 'refused')")
    assert kind in ("opaque0", "refused")  # nothing can be read of the answer
    assert page.evaluate(f"fetch('{server.own}/').then(() => 'read', () => 'refused')") == "refused"
    time.sleep(1)
    assert list(server.folder.glob("participation-*")) == [], "a run was started"


def test_the_page_comes_back_with_its_server(browser: Browser, runs: Path) -> None:
    server = Server(runs)
    server.start()
    page, _ = opened(browser, server.own, server.own, entering=server.address)
    is_live(page)
    server.end()
    is_live(page, "not connected")
    server.start()
    is_live(page)
    server.end()
