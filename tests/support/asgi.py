"""A browser for tests that speaks to an ASGI application directly: addresses, headers, and a jar of cookies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Browser:
    """Sends requests to an application that is called `host`; redirects are not followed."""

    app: Any
    host: str
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, where: str, **headers: str) -> Answer:
        return self.send("GET", where, b"", headers)

    def post(self, where: str, form: object, **headers: str) -> Answer:
        body = form if isinstance(form, bytes) else json.dumps(form).encode()
        return self.send("POST", where, body, headers)

    def send(self, method: str, where: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Names of headers have _ where the real ones have -."""
        path, _, query = where.partition("?")
        given = {"host": self.host} | {name.lower().replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": unquote(path),
            "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1), "headers": [(k.encode(), v.encode()) for k, v in given.items()],
        }  # fmt: skip
        answer = asyncio.run(_answer(self.app, scope, body))
        for morsel in SimpleCookie(answer.headers.get("set-cookie", "")).values():
            self.cookies[morsel.key] = morsel.value
        return answer


async def _answer(app: Any, scope: dict[str, Any], body: bytes) -> Answer:
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))
