"""A real browser for tests: Debian's chromium, driven by Playwright; and checks of what any page must be."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

INSTALL = (
    "the browser tests need chromium and Playwright: apt-get install -y chromium (or TURNOUT_CHROMIUM=path of one), "
    "and pip install -e '.[browser]' -c constraints.txt (make test-slow does the second)"
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window; a sentence that says what to install where there is none."""
    path = os.environ.get("TURNOUT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise RuntimeError(INSTALL) from None
    if path is None:
        raise RuntimeError(INSTALL)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Heard:
    """What a page complained of, and what it asked for from elsewhere."""

    def __init__(self, page: Page, own: str) -> None:
        self.faults: list[str] = []
        page.on("console", lambda said: self.faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda asked: self._asked(asked.url, own))

    def _asked(self, url: str, own: str) -> None:
        if not url.startswith((own, "data:", "blob:")):
            self.faults.append(f"asked for {url}")


def faults_of(page: Page) -> list[str]:
    """What people who cannot see well, or use no mouse, would trip over."""
    found: list[str] = page.evaluate(FAULTS)
    return found


def until(page: Page, expression: str, argument: object = None, seconds: float = 60.0) -> None:
    """Wait until a JavaScript expression is true; the page's own rules forbid that it is evaluated inside of it."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, f"it never became true that {expression}"
        page.wait_for_timeout(50)


def is_live(page: Page, words: str = "live") -> None:
    """Wait until a page says that it is connected."""
    until(page, "words => document.getElementById('live').textContent === words", words)


def overflow(page: Page) -> float:
    """By how many pixels the page is wider than the screen."""
    found: Any = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return float(found)


FAULTS = """() => {
  const faults = [], seen = e => e.getClientRects().length && getComputedStyle(e).visibility !== "hidden";
  const say = (what, e) => faults.push(what + ": " + e.outerHTML.slice(0, 120));
  const name = e => (e.getAttribute("aria-label") || (e.labels && [...e.labels].map(l => l.textContent).join(" ")) ||
    e.textContent || e.getAttribute("title") || e.alt || "").trim();
  if (!document.documentElement.lang) faults.push("the page does not say its language");
  if (!document.title) faults.push("the page has no title");
  if (document.querySelectorAll("h1").length !== 1) faults.push("a page has one h1");
  if (document.querySelectorAll("main").length !== 1) faults.push("a page has one main");
  let level = 1;
  for (const h of document.querySelectorAll("h1,h2,h3,h4")) {
    if (+h.tagName[1] > level + 1) say("a heading skips a level", h);
    level = +h.tagName[1];
  }
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push("two parts have the id " + id);
  const roles = ["img", "region", "status", "alert", "navigation", "main", "table", "list"];
  for (const e of document.querySelectorAll("[role]")) {
    if (!roles.includes(e.getAttribute("role"))) say("an unknown role", e);
    if (e.matches("[role=img], [role=region]") && !e.getAttribute("aria-label")) say("a role without a name", e);
  }
  for (const e of document.querySelectorAll("img")) if (!e.alt) say("a picture without words", e);
  for (const e of document.querySelectorAll("svg:not([role=img], [aria-hidden])")) say("a drawing without words", e);
  for (const e of document.querySelectorAll("a[href],button,input,select,textarea,summary,progress"))
    if (seen(e) && !name(e)) say("nothing says what this is", e);
  for (const e of document.querySelectorAll("[tabindex]")) if (+e.tabIndex > 0) say("an order of its own", e);
  for (const e of document.querySelectorAll("th")) if (!e.scope) say("a heading cell of no row or column", e);
  for (const e of document.querySelectorAll(".scroll"))
    if (e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0) say("only a mouse can move this", e);
  for (const e of document.querySelectorAll("button,select,input:not([type=checkbox]),label.switch,label.tick")) {
    const box = e.getBoundingClientRect();
    if (seen(e) && Math.min(box.width, box.height) < 24) say("too small to hit", e);
  }
  // contrast: WCAG's ratio of a text's colour and what is behind it
  const parse = c => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => {
    const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = e => {
    for (let at = e; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), said = new Set();
  for (let node; (node = walker.nextNode());) {
    const e = node.parentElement, style = getComputedStyle(e);
    if (!node.textContent.trim() || !seen(e) || e.closest("script, style, title, option, :disabled, .unseen")) continue;
    const colour = parse(e.closest("svg") ? style.fill : style.color).slice(0, 3), size = parseFloat(style.fontSize);
    const pair = [light(colour), light(behind(e))].sort((a, b) => b - a), ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const enough = size >= 24 || (size >= 18.6 && +style.fontWeight >= 700) ? 3 : 4.5;
    const key = colour + "/" + behind(e);
    if (ratio < enough && !said.has(key)) { said.add(key); say("contrast of " + ratio.toFixed(2), e); }
  }
  return faults;
}"""
