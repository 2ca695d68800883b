"""Damaged folders: every file of one in turn."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from faults import Bench, Counts, same


def damaged(bench: Bench, counts: Counts, each: int) -> None:
    """Damage every file of a folder in turn: a resumed run says so, or is as if nothing had happened."""
    source = bench.home / "half"
    text = (bench.home / "e.toml").read_text()
    (bench.home / "half.toml").write_text(text.replace("rounds = 6", "rounds = 4"))
    command = bench.command(source)
    assert bench.child(["run", str(bench.home / "half.toml"), *command[2:]]).code == 0
    for path in sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file() and p.name != ".lock"):
        for _ in range(each if not counts.over else 0):
            out = bench.fresh()
            shutil.copytree(source, out)
            how = _damage(out / path, bench.draw)
            counts.add("damaged files", _after_damage(bench, out, f"{path} {how}"))
            shutil.rmtree(out, ignore_errors=True)


def _damage(path: Path, draw: random.Random) -> str:
    content = path.read_bytes()
    how = draw.choice(["flipped", "flipped", "cut", "zeroed", "doubled", "deleted", "emptied"])
    at = draw.randrange(max(1, len(content)))
    if how == "flipped" and content:
        content = content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
    elif how == "zeroed":
        content = content[:at] + bytes(min(512, len(content) - at)) + content[at + 512 :]
    path.unlink()
    if how != "deleted":
        path.write_bytes({"cut": content[:at], "doubled": content * 2, "emptied": b""}.get(how, content))
    return f"{how} at {at}"


def _after_damage(bench: Bench, out: Path, what: str) -> str | None:
    looked = bench.child(["check", str(out)])
    shown = bench.child(["show", str(out)])
    done = bench.child(bench.command(out, "--resume"))
    for command, ended in (("check", looked), ("show", shown), ("resume", done)):
        if "Traceback" in ended.err or ended.code not in (0, 1, 2):
            return f"{what}: {command} ended with {ended.code}: {ended.err[-600:]}"
    if done.code:
        return None if done.err.strip() else f"{what}: no sentence"
    found = [d for d in same(bench.home / "whole" / "records.sqlite", out / "records.sqlite") if "round 3" not in d]
    return f"{what}: accepted, and other results: {found[:2]}" if found else None
