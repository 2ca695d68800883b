"""The part of the suite that depends on the machine, on simulated machines: one line each, and a Markdown table.

    python tests/campaign/machines.py --out machines-out [--only NAME ...]

On each machine, in this order:

- `numbers`: five small experiments are trained twice, in two processes; the same seed must give the same bits. The
  distance to the machine as it is, is reported: the largest difference of a tensor of the server's state, over its
  largest number. Products with operands at 32 memory addresses must be equal.
- tests: RESULTS (runtimes agree to the bit; a killed run resumes to the bit) where torch may round differently, KERNELS
  where another compiler is used, FILES where folders, texts or Python are others. `make test` is for the machine as it
  is. Other tests do not touch what these machines change.

What was found is kept in the folder, and a second call continues. A machine whose tools are missing is not run, and the
table gives the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARITY = "tests/system/test_parity.py::test_one_recipe_per_part"
KILLED = "tests/system/test_resume.py::test_killed_twice_and_resumed_is_the_same"
RESULTS = (f"{PARITY}[two processes]", f"{PARITY}[bytes only]", f"{PARITY}[Ray]", KILLED)
KERNELS = (
    "tests/engine/test_native.py", "tests/engine/test_native_stacks.py", "tests/parts/test_codec.py",
    "tests/data/test_data_synthetic.py",
)  # fmt: skip
FILES = ("tests/machine/test_kernel_cache.py", "tests/running/test_record.py", "tests/running/test_config.py")
WARNED = ("tests/running/test_warnings.py::test_products_that_round_by_address_are_said",)
RECIPES = ("participation/C", "baselines/SCAFFOLD", "elastic/EFL", "multitask/MT-FedAdam", "compression/8 bits")
SOURCES = (
    "engine/kernels/c/local_steps.c", "engine/kernels/c/dropout.c", "engine/kernels/c/batches.c", "data/synthetic.c",
    "parts/compression/codec/largest.c",
)  # fmt: skip
DEFINES = {
    "float32": ("REAL=float", "EXP=expf", "ROOT=sqrtf", "SINGLE", "BITS=uint32_t", "TOP=20"),
    "float64": ("REAL=double", "EXP=exp", "ROOT=sqrt", "BITS=uint64_t", "TOP=49"),
}
ARM_CLOSE = {"float32": 1e-4, "float64": 1e-12}
ANOTHER = "python3.14", "python3.13", "python3.12"
MEMORY = 4 << 30
SECONDS = 3600.0  # for the tests of one machine
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class Machine:
    """A simulated machine.

    tests        what of the suite is run
    environment  variables that differ; None: not set
    before       words before the command
    compiler     `{cc}` is the C compiler; the flags replace -march=native
    needs        programs without which it is not run
    flag         instruction set of the processor without which it is not run
    exact        whether the same seed must give the same bits
    """

    tests: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    compiler: str | None = None
    needs: tuple[str, ...] = ()
    flag: str | None = None
    exact: bool = True


MACHINES = {
    AS_IT_IS: Machine((KILLED,)),
    "torch without vector instructions": Machine(RESULTS, {"ATEN_CPU_CAPABILITY": "default"}),
    "torch for AVX2": Machine(RESULTS, {"ATEN_CPU_CAPABILITY": "avx2"}),
    "MKL_CBWR off": Machine(WARNED, {"MKL_CBWR": ""}, exact=False),
    "MKL_CBWR=AUTO": Machine((KILLED,), {"MKL_CBWR": "AUTO"}),
    "MKL_CBWR=AVX2": Machine(RESULTS, {"MKL_CBWR": "AVX2"}),
    "one core": Machine((RESULTS[0], KILLED), before=("taskset", "-c", "0"), needs=("taskset",)),
    "1 thread": Machine((KILLED,), {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
    "2 threads": Machine((KILLED,), {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}),
    "4 threads": Machine((KILLED,), {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}),
    "4 GB of memory": Machine(RESULTS, before=("{memory}",)),
    "no C compiler": Machine(RESULTS, {"CC": "no-such-compiler", "PATH": "{bin}", "XDG_CACHE_HOME": "{folder}"}),
    "clang": Machine(KERNELS + RESULTS[:1], compiler="clang -march=native", needs=("clang",)),
    "kernels for AVX-512": Machine(KERNELS + RESULTS[:1], compiler="cc -march=x86-64-v4", flag="avx512f"),
    "kernels for AVX2": Machine(KERNELS + RESULTS[:1], compiler="cc -march=x86-64-v3", flag="avx2"),
    "kernels for SSE2": Machine(KERNELS + RESULTS[:1], compiler="cc -march=x86-64", flag="sse2"),
    "kernels for ARM, emulated": Machine(needs=("aarch64-linux-gnu-gcc", "qemu-aarch64")),
    "a home folder that cannot be written": Machine(FILES, {"HOME": "/proc", "XDG_CACHE_HOME": None}),
    "no home folder": Machine(FILES, {"HOME": "/dev/null/none", "XDG_CACHE_HOME": None}),
    "umask 077": Machine(FILES, {"XDG_CACHE_HOME": "{folder}"}, before=("sh", "-c", 'umask 077; exec "$@"', "sh")),
    "a Turkish locale": Machine(FILES, {"LC_ALL": "tr_TR.UTF-8", "LOCPATH": "{locale}"}, needs=("localedef",)),
    "another time zone": Machine(FILES, {"TZ": "Pacific/Chatham"}),
    "random PYTHONHASHSEED": Machine((*FILES, KILLED), {"PYTHONHASHSEED": "random"}),
    "python -O": Machine(FILES + RESULTS[:1], {"PYTHONOPTIMIZE": "1"}),
    "a file system without locks": Machine((KILLED,), {"LD_PRELOAD": "{no_locks}"}, needs=("cc",)),
    "another Python": Machine(FILES + KERNELS + (RESULTS[0], KILLED)),
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What was found on a machine: the result, how far its numbers are from the machine as it is, and seconds."""

    result: str
    apart: float | None = None
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        return self.result.startswith("FAILED")


class Missing(Exception):
    """Why a machine cannot be simulated here."""


# -- what runs on the simulated machine


def numbers(path: Path) -> None:
    """Train the experiments and write the final states, and the number of different products, to a file."""
    import torch
    from safetensors.torch import save_file

    import turnout as to
    from parity import played, small_recipes
    from turnout.recipes import cook

    names = {name.partition("/")[0] for name in RECIPES}
    small, states = small_recipes({name: cook(name) for name in names}), {}
    for name in RECIPES:
        state = played(small[name], to.runtime.InProcess(device="cpu")).state
        states |= {f"{name}: {key}": value.contiguous().clone() for key, value in state.items()}
    torch.manual_seed(0)
    x, y, products = torch.randn(8, 20, 200), torch.randn(8, 10, 200), set()
    for by in range(32):
        a, b = (torch.empty(v.numel() + 32)[by : by + v.numel()].copy_(v.flatten()).view(v.shape) for v in (x, y))
        products.add(torch.bmm(a, b.mT).numpy().tobytes())
    save_file(states, path, {"products": str(len(products))})


def distance(one: Path, other: Path) -> float:
    """The largest difference of a float tensor, over its largest number; bytes of messages follow from them."""
    import torch
    from safetensors.torch import load_file

    a, b, found = load_file(one), load_file(other), 0.0
    assert a.keys() == b.keys()
    for name, value in a.items():
        if torch.equal(value, b[name]) or value.dtype == torch.uint8:
            continue
        if not value.is_floating_point():
            return float("inf")
        found = max(found, float((value - b[name]).abs().max() / value.abs().max().clamp(min=1e-300)))
    return found


def different_products(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return int(file.metadata()["products"])


# -- a machine


def simulate(name: str, machine: Machine, out: Path) -> Found:
    """Numbers and tests on one machine."""
    began, folder = time.monotonic(), out / name.replace(" ", "-").replace(",", "")
    folder.mkdir(exist_ok=True)
    try:
        for program in machine.needs:
            if shutil.which(program) is None:
                raise Missing(f"no {program}")
        if machine.flag and machine.flag not in Path("/proc/cpuinfo").read_text().split():
            raise Missing(f"this processor has no {machine.flag}")
        if name == "kernels for ARM, emulated":
            return on_arm(folder)
        python = other_python(out) if name == "another Python" else sys.executable
        before, environment = surroundings(machine, folder)
    except Missing as why:
        return Found(f"left out: {why}")
    wrong, apart = [], None
    for turn in ("first", "second"):
        command = [*before, python, str(HERE / "machines.py"), "--numbers", str(folder / turn)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            return Found(f"FAILED: numbers: {done.stderr.strip().splitlines()[-1][:300]}", None)
    same = (folder / "first").read_bytes() == (folder / "second").read_bytes()
    products = different_products(folder / "first")
    reference = out / AS_IT_IS.replace(" ", "-") / "first"
    apart = distance(reference, folder / "first") if reference.exists() else None
    if machine.exact and not same:
        wrong.append("the same seed gave other bits")
    if machine.exact and products != 1:
        wrong.append(f"{products} different products by memory address")
    tests = [*before, python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
    tests += ["-W", "ignore::pytest.PytestConfigWarning"]
    if "PYTHONOPTIMIZE" in machine.environment:  # torch then has fewer batching rules (__debug__), and says so
        tests += ["-W", "ignore:There is a performance drop"]
    tests += machine.tests
    with (folder / "log").open("w") as log:
        try:
            code = subprocess.run(tests, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=SECONDS).returncode
        except subprocess.TimeoutExpired:
            return Found(f"FAILED: the tests took more than {SECONDS:.0f} s (see {folder / 'log'})", apart)
    last = (folder / "log").read_text().strip().splitlines()[-1]
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    if code:
        wrong.append(f"{last} (see {folder / 'log'})")
    held = "bits equal" if machine.exact else f"only close ({products} different products), and runs say so"
    passed = last.partition(" in ")[0].partition(",")[0]
    return Found(f"FAILED: {'; '.join(wrong)}" if wrong else f"{held}; {passed}", apart, time.monotonic() - began)


def surroundings(machine: Machine, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Words before a command, and its environment."""
    places = {"folder": str(folder.absolute()), "bin": str(Path(sys.executable).parent)}
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / place) for place in ("src", "papers", "tests/support")),
        "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0",
    }  # fmt: skip
    environment.pop("MKL_CBWR", None)
    if "{no_locks}" in machine.environment.values():
        places["no_locks"] = str(folder.absolute() / "no_locks.so")
        shim = ["cc", "-shared", "-fPIC", "-O1", str(HERE / "no_locks.c"), "-o", places["no_locks"], "-ldl"]
        subprocess.run(shim, check=True)
    if "{locale}" in machine.environment.values():
        places["locale"] = str(folder.absolute())
        made = ["localedef", "-i", "tr_TR", "-f", "UTF-8", str(folder.absolute() / "tr_TR.UTF-8")]
        if subprocess.run(made, capture_output=True).returncode and not (folder / "tr_TR.UTF-8").exists():
            raise Missing("no locale tr_TR (package locales)")
    if machine.compiler:
        program, flag = machine.compiler.split()
        wrapper = folder.absolute() / "cc"
        words = f'for w do shift; [ "$w" = -march=native ] && w={flag}; set -- "$@" "$w"; done'
        wrapper.write_text(f'#!/bin/sh\n{words}\nexec {shutil.which(program)} "$@"\n')
        wrapper.chmod(0o755)
        environment |= {"CC": str(wrapper), "XDG_CACHE_HOME": str(folder.absolute())}
    for key, value in machine.environment.items():
        environment.pop(key, None)
        if value is not None:
            environment[key] = value.format(**places)
    if machine.before == ("{memory}",):
        return in_control_group(folder), environment
    return list(machine.before), environment


def in_control_group(folder: Path) -> list[str]:
    """Words that run a command with little memory."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"machines-{os.getpid()}"
        try:
            group.mkdir(exist_ok=True)
            if not (group / limit).exists():
                group.rmdir()
                continue
            (group / limit).write_text(str(MEMORY))
        except OSError:
            continue
        return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    raise Missing("no rights to make a control group")


def other_python(out: Path) -> str:
    """Another Python with the packages of the tests, in an environment of its own."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for program in ANOTHER:
        works = shutil.which(program) and not subprocess.run([program, "-V"], capture_output=True).returncode
        if not works or program == f"python{here}":
            continue
        place = out.absolute() / program
        if not (place / "ready").exists():
            torch = next(line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch=="))
            pip = [str(place / "bin" / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
            subprocess.run([program, "-m", "venv", str(place)], check=True)
            for what in ([torch], ["-e", f"{ROOT}[dev]", "-e", str(ROOT / "papers")]):
                if subprocess.run([*pip, *what], capture_output=True).returncode:
                    raise Missing(f"{program} is here, and its packages cannot be installed")
            (place / "ready").touch()
        return str(place / "bin" / "python")
    raise Missing(f"no Python but {here} ({', '.join(ANOTHER)})")


def on_arm(folder: Path) -> Found:
    """Every C kernel for this processor and for ARM, with the same inputs: whole numbers equal, others close."""
    flags = ["-O3", "-std=gnu11", "-pthread", "-fno-math-errno", "-fno-trapping-math"]
    sources = [str(HERE / "kernels.c"), *(str(ROOT / "src" / "turnout" / source) for source in SOURCES)]
    began, words = time.monotonic(), []
    for kind, defines in DEFINES.items():
        found: dict[str, dict[str, list[float]]] = {}
        builds = {
            "here": (["cc", "-march=native"], []),
            "arm": (["aarch64-linux-gnu-gcc", "-static"], ["qemu-aarch64"]),
        }
        for name, (compiler, runs) in builds.items():
            program = str(folder.absolute() / f"{name}-{kind}")
            made = [*compiler, *flags, *(f"-D{define}" for define in defines), *sources, "-lm", "-o", program]
            subprocess.run(made, check=True)
            lines = subprocess.run([*runs, program], capture_output=True, text=True, check=True).stdout.splitlines()
            found[name] = defaultdict(list)
            for line in lines:
                kernel, _, value = line.partition(" ")
                found[name][kernel].append(float(value))
        apart = {kernel: relative(value, found["arm"][kernel]) for kernel, value in found["here"].items()}
        exact = {kernel: d for kernel, d in apart.items() if kernel in ("order", "mask", "largest", "sample-labels")}
        largest = max(apart, key=lambda kernel: apart[kernel])
        words.append(f"{kind} within {apart[largest]:.0e} ({largest})")
        if any(exact.values()) or not apart[largest] <= ARM_CLOSE[kind]:
            return Found(f"FAILED: {kind}: {apart}")
    return Found(f"{len(apart)} kinds of results; {', '.join(words)}", None, time.monotonic() - began)


def relative(one: list[float], other: list[float]) -> float:
    """The largest difference over the largest number.

    >>> relative([1.0, -4.0], [1.0, -3.0])
    0.25
    """
    if len(one) != len(other):
        return float("inf")
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    if any(d != d for d in differences):
        return float("inf")
    return max(differences) / max(max(map(abs, one)), 1e-300)


# -- the table


def table(found: Mapping[str, Found]) -> str:
    """The results as Markdown."""
    rows = ["| machine | results | numbers apart |", "|---|---|---|"]
    for name, one in found.items():
        apart = "" if one.apart is None else "0" if one.apart == 0 else f"{one.apart:.0e}"
        rows.append(f"| {name} | {one.result} | {apart} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("machines-out"))
    parser.add_argument("--only", nargs="*", default=list(MACHINES), choices=list(MACHINES), metavar="NAME")
    parser.add_argument("--numbers", type=Path)
    options = parser.parse_args()
    if options.numbers:
        numbers(options.numbers)
        return
    options.out.mkdir(exist_ok=True)
    kept = options.out / "found.json"
    found = {name: Found(**one) for name, one in json.loads(kept.read_text()).items()} if kept.exists() else {}
    for name in options.only:
        if name not in found or found[name].is_wrong or found[name].result.startswith("left out"):
            found[name] = simulate(name, MACHINES[name], options.out)
            print(f"{name}: {found[name].result} ({found[name].seconds:.0f} s)", flush=True)
        found = {name: found[name] for name in MACHINES if name in found}
        kept.write_text(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
        about = f"{platform.machine()}, Python {platform.python_version()}"
        (options.out / "machines.md").write_text(f"{table(found)}\n({about}.)\n")
    sys.exit(any(one.is_wrong for one in found.values()))


if __name__ == "__main__":
    main()
