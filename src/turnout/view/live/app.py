"""Which address shows which page, and which does something."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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
from turnout.view.live.changes import Changes
from turnout.view.live.guard import Guard, Rules
from turnout.view.live.overview import overview, read_findings
from turnout.view.live.watched import Watched
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
MOST_DIGITS = 18  # of a number in an address

Values = dict[str, Any]


def make_app(folder: Path, rules: Rules) -> Starlette:
    """The pages of a folder as an ASGI application."""
    watched = Watched(folder)
    shown, actions, changes = Pages(watched, rules), Actions(watched), Changes(watched)
    shown_actions = Buttons(actions)

    async def events(_: Request) -> Response:
        return changes.answer()

    routes = [
        Route("/", shown.page("overview.html", lambda _: overview(watched) | _form(actions))),
        Route("/run", shown.page("run.html", lambda r: pages.run_page(watched, _name(r)))),
        Route("/clients", shown.page("clients_list.html", shown.clients)),
        Route("/client", shown.page("client.html", shown.client)),
        Route(
            "/compare", shown.page("compare.html", lambda r: pages.compare_page(watched, r.query_params.getlist("run")))
        ),
        Route("/study", shown.page("study.html", shown.study)),
        Route("/report", shown.report),
        Route("/events", events),
        Route("/static/{file}", static),
        Route("/act/{what}", shown_actions.act, methods=["POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, rules=rules)])
    app.state.changes = changes
    return app


def _form(actions: Actions) -> Values:
    return {"recipes": list(recipes()), "failures": actions.failures()}


def _name(request: Request) -> str:
    return request.query_params.get("name", "")


@dataclass(frozen=True)
class Pages:
    """Pages as answers; a mistake is a page that says it."""

    watched: Watched
    rules: Rules

    def page(self, template: str, values: Callable[[Request], Values]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            common = {"may_act": request.state.may_act, "place": self.watched.folder.absolute().name}
            try:
                return HTMLResponse(render(template, **common, **values(request)))
            except UserError as mistake:
                return HTMLResponse(render("mistake.html", **common, title="Not found", sentence=str(mistake)), 404)

        return answer

    def clients(self, request: Request) -> Values:
        asked = request.query_params
        page, run = _number(asked.get("page", "1")), _number(asked.get("run", "0"))
        return pages.clients_page(self.watched, _name(request), page, asked.get("by", "client"), run)

    def client(self, request: Request) -> Values:
        asked = request.query_params
        seed = _number(asked["seed"]) if asked.get("seed") else None
        return pages.client_page(self.watched, _name(request), _number(asked.get("client", "")), seed)

    def study(self, request: Request) -> Values:
        path = self.watched.studies().get(_name(request))
        if path is None:
            raise UserError(f"there is no study {_name(request)!r} in {self.watched.folder}")
        found = read_findings(path)
        return {"title": f"{found.study}, {found.scale} scale", "found": found}

    def report(self, request: Request) -> Response:
        """The report as `turnout report` writes it, made anew; it has rules of its own."""
        try:
            page = report_page(self.watched.path(_name(request)))
        except UserError as mistake:
            return HTMLResponse(
                render("mistake.html", may_act=False, place="", title="No report", sentence=str(mistake)), 404
            )
        return HTMLResponse(page, headers={"Content-Security-Policy": f"{policy()}; frame-ancestors 'none'"})


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UserError(f"{text[:40]!r} is not a number that anything has here")
    return int(text)


@dataclass(frozen=True)
class Buttons:
    """What buttons do, as answers: the name of the run, or why not."""

    actions: Actions

    async def act(self, request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return JSONResponse({"mistake": "that is more than a form holds"}, 413)
        try:
            wanted = json.loads(body or b"{}")
            if not isinstance(wanted, dict):
                raise UserError("a form is names with values")
            name = await run_in_threadpool(self._done, request.path_params["what"], wanted)
        except (UserError, OSError) as error:
            return JSONResponse({"mistake": str(error)}, 409)
        except (ValueError, RecursionError):
            return JSONResponse({"mistake": "a form is sent as JSON"}, 400)
        return JSONResponse({"name": name})

    def _done(self, what: str, wanted: Values) -> str:
        if what == "start":
            return self.actions.start(wanted)
        acts = {"stop": self.actions.stop, "resume": self.actions.resume}
        if what not in acts:
            raise UserError(f"there is no button {what!r}")
        return acts[what](str(wanted.get("name", "")))


def static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in STATIC:
        return Response("there is no such file\n", 404)
    content = resources.files(STATIC[name]).joinpath(name).read_bytes()
    return Response(content, media_type=KINDS[Path(name).suffix])
