"""Ways to a SuperLink that go bad: a proxy that is cut and slowed, and a network namespace whose link is taken down."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from contextlib import suppress

PIECE = 4096  # bytes that the proxy carries at once; slowed, each takes its time


class Proxy:
    """A way to the SuperLink that can be cut (connections break, or go `silent`) and slowed."""

    def __init__(self, port: int, silent: bool):
        self.port, self.silent, self.is_cut, self.slow = port, silent, False, 0.0
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address, self.prefix = f"127.0.0.1:{self.listener.getsockname()[1]}", list[str]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.port), 5)
                except OSError:
                    here.close()
                    continue
                self.open += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                while self.is_cut:
                    if not self.silent:
                        raise OSError
                    time.sleep(0.05)
                time.sleep(self.slow)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        for one in (self.listener, *self.open):
            one.close()


class Namespace:
    """A network of its own for a device, with one link to this machine that can be taken down."""

    def __init__(self, number: int):
        self.name, self.port, self.host = f"campaign{number}", 0, f"10.203.{number % 250}.1"
        self.link = f"cmp{number % 10**6}"
        self.prefix = ["ip", "netns", "exec", self.name]
        inside = f"{self.link}n"
        for words in (
            f"netns add {self.name}", f"link add {self.link} type veth peer name {inside}",
            f"link set {inside} netns {self.name}", f"addr add {self.host}/30 dev {self.link}",
            f"link set {self.link} up",
            f"-n {self.name} addr add {self.host[:-1]}2/30 dev {inside}", f"-n {self.name} link set {inside} up",
            f"-n {self.name} link set lo up",
        ):  # fmt: skip
            subprocess.run(["ip", *words.split()], check=True, capture_output=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def cut(self) -> None:
        subprocess.run(["ip", "link", "set", self.link, "down"], check=True)

    def mend(self) -> None:
        subprocess.run(["ip", "link", "set", self.link, "up"], check=True)

    def close(self) -> None:
        for words in (["link", "del", self.link], ["netns", "del", self.name]):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def namespace() -> Namespace | None:
    """None where there are no rights, or no `ip`."""
    try:
        return Namespace(os.getpid())
    except (OSError, subprocess.CalledProcessError):
        return None
