"""Settings of a run on real devices; imports neither flwr nor torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from turnout.errors import UserError
from turnout.settings import InProcess

if TYPE_CHECKING:
    from turnout.data.federation import Federation
    from turnout.exchange import Runtime
    from turnout.experiment import Experiment
    from turnout.runtimes.remote import RemoteClients
    from turnout.runtimes.setup import Setup
    from turnout.types import State


@dataclass(frozen=True)
class Flower:
    """Real devices through Flower: `turnout deploy init` writes the files, docs/devices-and-clusters.md explains them.

    clients          number of clients expected (more may enrol)
    start_with       clients that must have enrolled before the first round
    least            members that must be reachable before every round
    close_at         a round closes when this part of the clients that accepted has replied,
    round_seconds    or after so many seconds, within which devices stop training
    request_seconds  seconds to wait for answers to work requests and other questions
    vanish_after     seconds without a connection after which a device has left silently (0: never)
    server_data      whether the server loads world.data to test the global model; otherwise devices test it
    most_bytes       a larger reply is refused
    compute          how devices compute, and the server where it tests
    """

    kind: ClassVar[str] = "flower"
    shares_the_machine: ClassVar[bool] = False

    clients: int = 100
    start_with: int = 1
    least: int = 1
    close_at: float = 1.0
    round_seconds: float = 600.0
    request_seconds: float = 60.0
    vanish_after: float = 0.0
    server_data: bool = False
    most_bytes: int = 1 << 30
    compute: InProcess = field(default_factory=lambda: InProcess(device="cpu", threads=1))

    def __post_init__(self) -> None:
        if not 0 < self.close_at <= 1:
            raise UserError(
                f"runtime.close_at is a part of the clients that accepted, above 0 and at most 1: {self.close_at}"
            )
        for name in ("clients", "start_with", "least", "round_seconds", "request_seconds", "most_bytes"):
            if not getattr(self, name) > 0:
                raise UserError(f"runtime.{name} must be above 0, not {getattr(self, name)}")
        if self.vanish_after < 0:
            raise UserError(f"runtime.vanish_after must not be negative, not {self.vanish_after}: 0 for never")

    def on_threads(self, threads: int) -> Flower:
        return self

    def as_begun(self, threads: int, chunk: int, device: str, engine: str = "auto") -> Flower:
        return self

    # What follows imports torch, so it is named by its path.

    def enrol(self, experiment: Experiment, data_dir: Path | None) -> Any:
        """What is known of the clients before the first round."""
        import_module("turnout.deploy.link").current()  # a sentence if no devices are connected, also without Flower
        return import_module("turnout.deploy.enrolment").first_enrolment(self, experiment, data_dir)

    def open(self, setup: Setup) -> Runtime:
        """The runtime of the weight track."""
        runtime: Runtime = import_module("turnout.deploy.runtime").FlowerRuntime(setup, self)
        return runtime

    def connect(
        self, experiment: Experiment, federation: Federation | None, wrong: Callable[[State], str | None]
    ) -> RemoteClients:
        """The clients, for another track; `wrong`: what its devices' introductions lack, None where nothing."""
        clients: RemoteClients = import_module("turnout.deploy.devices").DeviceClients(
            self, experiment, federation, wrong=wrong
        )
        return clients


KINDS = {"flower": Flower}
