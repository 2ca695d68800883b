"""The pictures of docs/experiments-and-runs.md: the live page and the report, in a real browser.

    python docs/draw_watch.py

It needs chromium and Playwright (tests/support/browsing.py says how to get them) and takes a minute.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

import turnout as to
from turnout.view.report.page import write_report
from turnout_papers.recipes.friends import friends
from turnout_papers.recipes.multitask import multitask

HERE = Path(__file__).absolute().parent
sys.path.append(str(HERE.parent / "tests" / "support"))

from browsing import chromium, is_live, until  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SETTINGS = "rounds=1000\nworld.data.clients=20\nworld.participation={kind='dropout', rate=0.4}"
ROUNDS = "+document.querySelector('#head progress').value"


def keep(page: Page, name: str, whole: bool = False) -> None:
    """What the page shows as a small PNG."""
    picture = Image.open(io.BytesIO(page.screenshot(full_page=whole))).convert("RGB").quantize(96)
    picture.save(HERE / name, optimize=True)


def live(browser: Browser, address: str) -> None:
    """A run is started from the page, and looked at while it goes on."""
    page = browser.new_context(viewport={"width": 1400, "height": 1180}).new_page()
    page.goto(address)
    page.fill("#source", "digits")
    page.fill("#settings", SETTINGS)
    page.fill("#name", "half-there")
    page.click("#start button")
    page.locator(".card").get_by_role("link").click(timeout=60_000)
    is_live(page)
    until(page, f"{ROUNDS} > 60", seconds=120)
    keep(page, "watch.png")
    phone = page.context.new_page()
    phone.set_viewport_size({"width": 390, "height": 840})
    phone.emulate_media(color_scheme="dark")
    phone.goto(address.split("?")[0])
    is_live(phone)
    keep(phone, "watch-phone.png")
    page.get_by_role("button", name="stop").click()
    page.get_by_text("interrupted").wait_for(timeout=60_000)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary), chromium() as browser:
        runs = Path("runs")
        to.run({name: made.but(rounds=30) for name, made in friends().items()}, runs / "friends", seeds=4, quiet=True)
        to.run(
            {name: made.but(rounds=20) for name, made in multitask().items()}, runs / "own-layers", seeds=2, quiet=True
        )
        command = [sys.executable, "-m", "turnout", "watch", str(runs), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            try:
                live(browser, found[0])
            finally:
                server.send_signal(signal.SIGINT)
        page = browser.new_page(viewport={"width": 1400, "height": 1100})
        page.goto(write_report(runs / "friends").absolute().as_uri())
        keep(page, "report.png")


if __name__ == "__main__":
    main()
