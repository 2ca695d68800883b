"""Settings of a run on real devices; imports neither flwr nor torch, so that anybody may name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from turnout.errors import UserError, nearest
from turnout.settings import InProcess

if TYPE_CHECKING:
    from turnout.deploy.flower.runtime import FlowerRuntime
    from turnout.runtimes.setup import Setup

LATE = ("discard", "use")


@dataclass(frozen=True)
class Flower:
    """Real devices through Flower: `turnout deploy init` writes what it takes, docs/deploy.md says how.

    clients          how many are expected (more may come)
    start_with       the first round waits until so many have enrolled
    least            every round waits until so many members can be asked
    close_at         a round closes when this part of those who accepted has replied,
    round_seconds    or after so many seconds, within which devices stop training
    request_seconds  how long the answers to work requests and other questions are waited for
    late             replies to an earlier round: "discard" them, or "use" them in the round they come in
    vanish_after     seconds after which a device that is not connected has left without a word (0: never)
    server_data      whether the server loads world.data to test the global model; else devices test it
    most_bytes       a reply that is larger is refused
    compute          how devices compute, and the server where it tests
    """

    kind: ClassVar[str] = "flower"
    shares_the_machine: ClassVar[bool] = False

    clients: int = 100
    start_with: int = 1
    least: int = 1
    close_at: float = 1.0
    round_seconds: float = 600.0
    request_seconds: float = 20.0
    late: str = "discard"
    vanish_after: float = 0.0
    server_data: bool = False
    most_bytes: int = 1 << 30
    compute: InProcess = field(default_factory=lambda: InProcess(device="cpu", threads=1))

    def __post_init__(self) -> None:
        if self.late not in LATE:
            raise UserError(f"runtime.late is {self.late!r}: {nearest(self.late, LATE)}")
        if not 0 < self.close_at <= 1:
            raise UserError(f"runtime.close_at is a part of those who accepted, above 0 and at most 1: {self.close_at}")
        for name in ("clients", "start_with", "least", "round_seconds", "request_seconds", "most_bytes"):
            if not getattr(self, name) > 0:
                raise UserError(f"runtime.{name} must be above 0, not {getattr(self, name)}")
        if self.vanish_after < 0:
            raise UserError(f"runtime.vanish_after must not be negative, not {self.vanish_after}: 0 for never")

    def on_threads(self, threads: int) -> Flower:
        return self

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> Flower:
        return self

    def enrol(self, experiment: Any, data_dir: Path | None) -> Any:
        """What is known of the clients before the first round."""
        from turnout.deploy.flower.enrolled import first_enrolment

        return first_enrolment(self, experiment, data_dir)

    def open(self, setup: Setup) -> FlowerRuntime:
        from turnout.deploy.flower.runtime import FlowerRuntime

        return FlowerRuntime(setup, self)


KINDS = {"flower": Flower}
