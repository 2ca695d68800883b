"""Links of a given speed on this machine: a network namespace a device, with a virtual cable that `tc` shapes.

That needs root (and Linux). Where it cannot be had, devices keep to the speed by themselves (`down_mbps` and `up_mbps`
of a device's file), which leaves out what a real link does with many small messages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from turnout.errors import UserError

BURST, QUEUE = "16kb", "500ms"  # what may go at once, and how long a packet may wait


@dataclass(frozen=True)
class ShapedLink:
    """A cable between this machine and one device; `number` tells several apart (0 to 99)."""

    number: int
    mbps: float

    @property
    def space(self) -> str:
        """The device's network namespace."""
        return f"turnout-{os.getpid()}-{self.number}"

    @property
    def here(self) -> str:
        """The server's address as the device sees it."""
        return f"10.{64 + os.getpid() // 250 % 64}.{os.getpid() % 250}.{2 * self.number}"

    @property
    def there(self) -> str:
        return f"{self.here.rpartition('.')[0]}.{2 * self.number + 1}"

    def command(self, words: list[str]) -> list[str]:
        """A command that is run at the device's end."""
        return ["ip", "netns", "exec", self.space, *words]

    def lay(self) -> None:
        """Make the namespace and the cable, and shape both directions."""
        ours, theirs = self._ends()
        _run("ip", "netns", "add", self.space)
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.space)
        _run("ip", "addr", "add", f"{self.here}/31", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run("ip", "-n", self.space, "addr", "add", f"{self.there}/31", "dev", theirs)
        for name in (theirs, "lo"):
            _run("ip", "-n", self.space, "link", "set", name, "up")
        shape = ["root", "tbf", "rate", f"{self.mbps:g}mbit", "burst", BURST, "latency", QUEUE]
        _run("tc", "qdisc", "add", "dev", ours, *shape)
        _run(*self.command(["tc", "qdisc", "add", "dev", theirs, *shape]))

    def remove(self) -> None:
        for words in (("link", "del", self._ends()[0]), ("netns", "del", self.space)):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    def _ends(self) -> tuple[str, str]:
        return f"to{os.getpid()}.{self.number}", f"up{self.number}"


def can_shape() -> bool:
    """Whether such links can be had here: tried once with a real one."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    link = ShapedLink(99, 8.0)
    try:
        link.lay()
    except UserError:
        return False
    finally:
        link.remove()
    return True


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"{words[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise UserError(f"{' '.join(words)}: {done.stderr.strip()}")
