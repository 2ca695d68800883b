"""How much a maintainer has to hold in the head: sizes, names, imports, and one round traced.

    python docs/measure_core.py

Prints one Markdown table. tests/system/test_shape.py holds the rows that must not grow.
"""

from __future__ import annotations

import ast
import inspect
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "turnout"
PAPERS = ROOT / "papers" / "turnout_papers"
SATELLITES = ("scores", "fleet", "view", "deploy", "testing")
ABOVE = (*SATELLITES, "cli")  # rooms that are not the core


def sources(*folders: Path) -> dict[Path, str]:
    """The Python files below some folders."""
    return {path: path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.py"))}


def is_core(path: Path) -> bool:
    return PACKAGE in path.parents and path.relative_to(PACKAGE).parts[0] not in ABOVE


def lines(files: dict[Path, str]) -> int:
    return sum(text.count("\n") for text in files.values())


def functions(files: dict[Path, str]) -> Iterator[ast.FunctionDef]:
    for text in files.values():
        yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))


def used_once(files: dict[Path, str]) -> tuple[int, int]:
    """Private module-level functions, and those of them that their module names once."""
    private = once = 0
    for text in files.values():
        tree = ast.parse(text)
        names = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                private, once = private + 1, once + (names[node.name] == 1)
    return private, once


def short_files(files: dict[Path, str]) -> list[str]:
    """Files under 60 lines that are neither parts nor the table of contents of a package."""
    return [
        str(path.relative_to(ROOT))
        for path, text in files.items()
        if text.count("\n") < 60 and path.name not in ("__init__.py", "__main__.py") and "parts" not in path.parts
    ]


def twice(files: dict[Path, str]) -> list[str]:
    """Public class names that exist more than once."""
    names = Counter(
        node.name
        for text in files.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def imports(files: dict[Path, str]) -> dict[str, set[str]]:
    """Which module imports which, typing included, imports inside functions not."""
    modules = {module_of(path): path for path in files}
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in module_level(ast.parse(files[path])):
            wanted = []
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            for target in wanted:
                target = target if target in modules else target.rpartition(".")[0]
                if target in modules and target != name:
                    found[name].add(target)
    return found


def module_level(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from module_level(node)


def module_of(path: Path) -> str:
    base = PACKAGE.parent if PACKAGE in path.parents else PAPERS.parent
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def largest_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The largest set of modules that import each other (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    best: list[str] = []

    def visit(node: str) -> None:
        nonlocal best
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            best = group if len(group) > max(1, len(best)) else best

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return sorted(best)


@dataclass
class Trace:
    """Calls of our functions in one round.

    files      files they are in
    functions  the functions
    switches   calls from one file into another
    records    kinds of records (data classes) that were made
    """

    files: set[str]
    functions: set[Any]
    switches: int
    records: set[str]


def traced(algorithm: Any = None) -> Trace:
    """One round of FedAvg on a logistic regression, or of another algorithm on an MLP with BatchNorm, warmed up."""
    import torch

    import turnout as to
    from turnout.round import run_round
    from turnout.round_record import record_of
    from turnout.running.tracks.prepare import prepare
    from turnout.server.state import Context

    torch.set_num_threads(1)
    data = to.data.Synthetic(clients=10)
    model = to.models.Logistic() if algorithm is None else to.models.MLP(16, batch_norm=True)
    experiment = to.Experiment(to.World(data), model=model, algorithm=algorithm or to.Algorithm(), rounds=3)
    track: Any = prepare(experiment.but(runtime=to.runtime.InProcess(device="cpu", threads=1)))
    ctx = Context(track.algorithm, track.runtime, 0)
    server = run_round(track.begin(), 0, ctx).after
    found, inside, before = Trace(set(), set(), 0, set()), str(PACKAGE), ""

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal before
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "__init__" and code.co_filename == "<string>":
            kind = type(frame.f_locals.get("self"))
            if kind.__module__.startswith("turnout"):
                found.records.add(f"{kind.__module__}.{kind.__qualname__}")
        elif code.co_filename.startswith(inside) and not code.co_name.startswith("<"):
            found.files.add(code.co_filename)
            found.functions.add((code.co_filename, code.co_qualname))
            found.switches += code.co_filename != before
            before = code.co_filename

    sys.setprofile(look)
    try:
        record_of(run_round(server, 1, ctx), ctx)
    finally:
        sys.setprofile(None)
    return found


def all_parts() -> Any:
    """An algorithm with a part in every role."""
    import turnout as to

    return to.Algorithm(
        to.Local(to.SGD(lr=0.05), epochs=1),
        terms=[to.terms.Elastic(strength=0.1)],
        personal=to.personal.batch_norm,
        compression=to.compression.SparseTernary(keep=0.1),
        substitution=to.substitution.Friends(),
        weighting=to.weighting.ByWork(),
        membership=to.Membership(join="fast-reboot", leave="decide"),
        server=to.server.ServerAdam(),
    )


def size_of(function: Any) -> str:
    """Lines of a function's body and signature, and its parameters."""
    source = inspect.getsource(function).splitlines()
    return f"{len(source)} lines, {len(inspect.signature(function).parameters)} parameters"


def exceptions() -> int:
    import tomllib

    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return sum(len(one.get("ignore_imports", ())) for one in contract["contracts"])


def term_members() -> list[str]:
    from turnout.parts.terms.base import Term

    return [name for name in {**vars(Term), **Term.__annotations__} if not name.startswith("_")]


def rows() -> list[tuple[str, str]]:
    from turnout.clients.work import client_work
    from turnout.round import aggregate, remember, run_round

    everything, package = sources(PACKAGE, PAPERS), sources(PACKAGE)
    core = {path: text for path, text in package.items() if is_core(path)}
    rooms = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    sizes = [node.end_lineno - node.lineno + 1 for node in functions(everything) if node.end_lineno]
    private, once = used_once(everything)
    pages = list((ROOT / "docs").glob("*.md"))
    plain = traced()
    found = [
        ("Python in wheel and papers", f"{lines(everything):,} lines, {len(everything)} files"),
        ("core", f"{lines(core):,} lines, {len(core)} files"),
        ("rooms", f"{len(rooms)}: {', '.join(rooms)}"),
        ("functions", f"{len(sizes):,}, median {statistics.median(sizes):.0f} lines"),
        ("private helpers used once", f"{once} of {private}"),
        ("files under 60 lines that are no parts", str(len(short_files(everything)))),
        *((f"`{f.__name__}`", size_of(f)) for f in (run_round, aggregate, remember, client_work)),
        ("one plain FedAvg round", shown(plain)),
    ]
    found.append(("the same with all parts", shown(traced(all_parts()))))
    cycle = largest_cycle(imports(everything))
    return [
        *found,
        ("exceptions of the import contract", str(exceptions())),
        ("largest import cycle", f"{len(cycle)} modules {' '.join(cycle[:4])}"),
        ("public class names that exist twice", f"{len(twice(package))} {' '.join(twice(package)[:6])}"),
        ("members of `Term`", f"{len(term_members())}: {', '.join(term_members())}"),
        ("README", f"{(ROOT / 'README.md').read_text(encoding='utf-8').count(chr(10))} lines"),
        ("pages of documentation", str(len(pages))),
    ]


def shown(found: Trace) -> str:
    counts = (len(found.files), len(found.functions), found.switches, len(found.records))
    return "{} files, {} functions, {} switches between files, {} kinds of records".format(*counts)


if __name__ == "__main__":
    print("| | now |\n|---|---|")
    for name, value in rows():
        print(f"| {name} | {value} |", flush=True)
