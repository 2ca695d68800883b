"""The web application: which address shows which page, and which button does what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from turnout.errors import UserError
from turnout.recipes import recipes
from turnout.running.charts.page import policy
from turnout.view.live import run_page as pages
from turnout.view.live.acting import Actions
from turnout.view.live.guard import Guard, Rules
from turnout.view.live.overview import overview
from turnout.view.live.watched import Changes, WatchedFolder
from turnout.view.report import render
from turnout.view.report.page import report_page

STATIC = {
    "charts.css": "turnout.running.charts",
    "page.css": "turnout.running.charts",
    "watch.css": "turnout.view.live",
    "page.js": "turnout.running.charts",
    "watch.js": "turnout.view.live",
}
KINDS = {".css": "text/css", ".js": "text/javascript"}
MOST_BYTES = 20_000  # of what a page sends to a button
FORM_SECONDS = 10.0  # until all of it must be there
MOST_DIGITS = 18  # of a number in an address

Values = dict[str, Any]


def make_app(folder: Path, rules: Rules) -> Starlette:
    """The pages of a folder as an ASGI application."""
    watched = WatchedFolder(folder)
    actions, changes = Actions(watched), Changes(watched)

    def page(template: str, values: Callable[[Request], Values]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            common = {"may_act": request.state.may_act, "place": folder.absolute().name}
            try:
                return HTMLResponse(render(template, **common, **values(request)))
            except UserError as error:
                return HTMLResponse(render("error.html", **common, title="Not found", sentence=str(error)), 404)

        return answer

    def first(_: Request) -> Values:
        return overview(watched) | {"recipes": list(recipes()), "failures": actions.failures()}

    def clients(request: Request) -> Values:
        asked = request.query_params
        number, run = _number(asked.get("page", "1")), _number(asked.get("run", "0"))
        return pages.clients_page(watched, _name(request), number, asked.get("by", "client"), run)

    def client(request: Request) -> Values:
        asked = request.query_params
        seed = _number(asked["seed"]) if asked.get("seed") else None
        return pages.client_page(watched, _name(request), _number(asked.get("client", "")), seed)

    def report(request: Request) -> Response:
        """The report as `turnout report` writes it, made anew; it has rules of its own."""
        try:
            made = report_page(watched.path(_name(request)))
        except UserError as error:
            words = {"may_act": False, "place": "", "title": "No report", "sentence": str(error)}
            return HTMLResponse(render("error.html", **words), 404)
        return HTMLResponse(made, headers={"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'"})

    async def events(_: Request) -> Response:
        return changes.answer()

    async def act(request: Request) -> Response:
        """What a button does: the name of the run, or why not."""
        body = b""
        try:
            async with asyncio.timeout(FORM_SECONDS):
                async for piece in request.stream():
                    body += piece
                    if len(body) > MOST_BYTES:
                        return JSONResponse({"error": "that is more than a form holds"}, 413)
        except TimeoutError:
            return JSONResponse({"error": "the form took too long to arrive"}, 408, {"Connection": "close"})
        try:
            wanted = json.loads(body or b"{}")
            if not isinstance(wanted, dict):
                raise UserError("a form is names with values")
            name = await run_in_threadpool(actions.act, request.path_params["what"], wanted)
        except (UserError, OSError) as error:
            return JSONResponse({"error": str(error)}, 409)
        except (ValueError, RecursionError):
            return JSONResponse({"error": "a form is sent as JSON"}, 400)
        return JSONResponse({"name": name})

    routes = [
        Route("/", page("overview.html", first)),
        Route("/run", page("run.html", lambda r: pages.run_page(watched, _name(r)))),
        Route("/clients", page("clients_list.html", clients)),
        Route("/client", page("client.html", client)),
        Route("/report", report),
        Route("/events", events),
        Route("/static/{file}", _static),
        Route("/act/{what}", act, methods=["POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, rules=rules)])
    app.state.changes = changes
    return app


def _name(request: Request) -> str:
    return request.query_params.get("name", "")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UserError(f"{text[:40]!r} is not a number that anything has here")
    return int(text)


def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in STATIC:
        return Response("there is no such file\n", 404)
    content = resources.files(STATIC[name]).joinpath(name).read_bytes()
    return Response(content, media_type=KINDS[Path(name).suffix])
