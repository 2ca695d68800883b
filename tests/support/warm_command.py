"""The command line without its start: a process that has the library loaded forks one child for every command.

Loading takes seconds and is the same every time; the pages of the documentation have dozens of commands. The command
`turnout` that is written here hands its arguments, folder, environment and open files to the process that waits, and
ends as the child does.
"""

from __future__ import annotations

import array
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

FILES = 3  # standard input, output and error


def write_command(folder: Path, address: Path) -> None:
    """An executable `turnout` in a folder, which has its work done by the process at an address."""
    command = folder / "turnout"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" ask "{address}" "$@"\n')
    command.chmod(0o755)


def start(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """The process that waits, and its address."""
    address = folder / "s"
    process = subprocess.Popen([sys.executable, __file__, "serve", str(address)])
    until = time.monotonic() + 120
    while not address.exists():
        assert process.poll() is None, "the process that keeps the library loaded has ended"
        assert time.monotonic() < until
        time.sleep(0.05)
    return process, address


def serve(address: str) -> None:
    """Load the library, then fork a child for each request."""
    import turnout  # noqa: F401

    with suppress(ImportError):  # not installed
        import turnout_papers.cli  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address + ".tmp")
    listening.listen(64)
    os.rename(address + ".tmp", address)  # whoever sees it can connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _work(connection)
        connection.close()


def _work(connection: socket.socket) -> None:
    """One command, as if it had been started by itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgrp()
    given, files = _received(connection)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    connection.sendall(f"{os.getpid()}\n".encode())
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = ["turnout", *given["arguments"]]
    code: object = 0
    try:
        runpy.run_module("turnout", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    number = code if isinstance(code, int) else 0 if code is None else 1
    connection.sendall(f"{number}\n".encode())
    os._exit(number)


def _received(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    files = array.array("i")
    size = int.from_bytes(connection.recv(4), "big")
    text, extra, _, _ = connection.recvmsg(size, socket.CMSG_LEN(FILES * files.itemsize))
    for _, _, data in extra:
        files.frombytes(data)
    while len(text) < size:
        text += connection.recv(size - len(text))
    return json.loads(text), list(files)


def ask(address: str, arguments: list[str]) -> int:
    """Have a command done by the process at an address; signals are handed on."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    given = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(given).encode()
    connection.sendall(len(text).to_bytes(4, "big"))
    files = array.array("i", range(FILES))
    connection.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    answers = connection.makefile()
    child = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: os.kill(child, caught))
    end = answers.readline()
    return int(end) if end else 137  # it was killed


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(ask(sys.argv[2], sys.argv[3:]))
