"""Who a node is: asked once, and believed where its experiment, its data and its signature are right."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

from turnout.config.write import to_table
from turnout.data.description import Description
from turnout.data.federation import digest
from turnout.runtimes import border
from turnout.runtimes.flower.enrolled import likeness
from turnout.runtimes.flower.keys import signed_text, verified
from turnout.runtimes.flower.messages import NEVER, Standing, question
from turnout.runtimes.flower.post import Letter

AGAIN_SECONDS = 3.0  # after which a node that could not say who it is is asked again


class Introductions:
    """What nodes were asked, and who was refused; `digest` is what server and devices must agree on."""

    def __init__(self, digest: str, data: Description | None):
        self.digest, self.data = digest, data
        self.strangers: set[int] = set()
        self._challenges: dict[int, str] = {}
        self._later: dict[int, float] = {}  # nodes that could not answer, and when they may be asked again

    def not_yet(self, node: int) -> None:
        """A node could not answer: it is asked again, but not at once."""
        self._later[node] = time.monotonic() + AGAIN_SECONDS

    def asked_of(self, nodes: Iterable[int], run: str) -> list[Letter]:
        """A question to each node that was not refused, with a text that it has to sign."""
        letters, now = [], time.monotonic()
        for node in (node for node in set(nodes) - self.strangers if self._later.get(node, now) <= now):
            self._challenges[node] = secrets.token_hex(16)
            parts = question("hello", Standing(run, NEVER), challenge=self._challenges[node])
            letters.append(Letter(node, "hello", parts))
        return letters

    def wrong(self, node: int, head: dict[str, Any], run: str) -> str | None:
        """Why an introduction, which has the form it must have (runtimes/border.py), is not believed; None: it is."""
        if head["digest"] != self.digest:
            return "its experiment is another one (model, algorithm, task or seed differ): give it the server's file"
        data = border.description(head["data"])
        if self.data is not None and likeness(data) != likeness(self.data):
            return f"its data is of another kind ({data.input_shape}, {data.classes} classes)"
        self.data = self.data or data
        text = signed_text(run, self._challenges.get(node, ""), head["name"])
        if head["key"] and not verified(head["key"], head["signature"], text):
            return "its signature is not that of its key"
        return None


def digest_of(experiment: Any) -> str:
    """What server and devices must agree on."""
    table = to_table(experiment)
    algorithm = {name: part for name, part in table["algorithm"].items() if name not in ("membership", "selection")}
    return digest(repr([algorithm, *(table.get(name) for name in ("model", "task", "seed", "start"))]))
