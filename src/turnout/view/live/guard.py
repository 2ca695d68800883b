"""Who may look, who may press buttons, and what a page may load.

On this machine's own address (loopback) every user of it may look. A request that changes something needs the token,
there too: it comes with the address that the server prints, and stays in a cookie that other sites cannot use. On any
other address every request needs it. A request must name a host that is ours, so that another site cannot point its own
name at this server; one that changes something must come from our own page.
"""

from __future__ import annotations

import hmac
import ipaddress
import platform
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Rules:
    """Where the server is, and who may do what.

    host   the address it is bound to
    port   the port
    token  the secret that lets a browser act
    """

    host: str
    port: int
    token: str = field(repr=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """A cookie belongs to a host with all its ports, so its name has ours."""
        return f"turnout-{self.port}"

    def is_ours(self, host: str) -> bool:
        """Whether a Host header names this server.

        >>> here, everywhere = Rules("127.0.0.1", 80, "t"), Rules("0.0.0.0", 80, "t")
        >>> here.is_ours("localhost:80"), here.is_ours("evil.example:80"), here.is_ours("10.0.0.1:80")
        (True, False, False)
        >>> everywhere.is_ours("10.0.0.1:80"), everywhere.is_ours("evil.example:80")
        (True, False)
        """
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "80")
        name = name.strip("[]").lower()
        if port != str(self.port):
            return False
        if name == "localhost" or is_loopback(name):
            return True
        return not self.loopback and (_is_address(name) or name in (platform.node().lower(), self.host.lower()))

    def knows(self, given: str | None) -> bool:
        """Whether a token is the right one, without saying by the time it takes how much of it is right."""
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())


def is_loopback(name: str) -> bool:
    """Whether an address can be reached from this machine only."""
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware: lets a request through, or answers why not; every answer carries the headers above."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        kept = request.cookies.get(self.rules.cookie)
        has_token = scheme.lower() == "bearer" and self.rules.knows(given.strip())
        may_act = has_token or self.rules.knows(kept)
        scope.setdefault("state", {})["may_act"] = may_act
        refusal = self._refusal(request, may_act)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", POLICY)
            await send(message)

        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, request: Request, may_act: bool) -> Response | None:
        """Why a request is not answered; None where it is. An address with the right token leads on without it."""
        host, looks = request.headers.get("host", ""), request.method in ("GET", "HEAD")
        if not self.rules.is_ours(host):
            return PlainTextResponse(f"this server is not called {host!r}\n", 421)
        if looks and self.rules.knows(request.query_params.get("token")):
            # Keep the token in a cookie, and lead to the same page without it: addresses end up in histories.
            rest = urlencode([(name, value) for name, value in parse_qsl(request.url.query) if name != "token"])
            path = "/" + request.url.path.lstrip("/\\")  # two slashes would begin another site's name
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self.rules.cookie, self.rules.token, httponly=True, samesite="strict", path="/")
            return answer
        same_site = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        if not looks and (request.headers.get("origin") != f"http://{host}" or not same_site):
            return PlainTextResponse("only this server's own pages may do that\n", 403)
        if not may_act and not (looks and self.rules.loopback):
            return PlainTextResponse("open the address that turnout watch printed: it has the token\n", 401)
        return None
