"""With TURNOUT_KERNELS=1 a wheel brings compiled kernels (`make wheel`); without, they are compiled on first use."""

import os
import platform
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = os.environ.get("TURNOUT_KERNELS") == "1"


class BuildKernels(build_py):
    def run(self) -> None:
        super().run()
        if KERNELS and not self.editable_mode:
            compiler = [os.environ.get("CC", "cc"), *os.environ.get("ARCHFLAGS", "").split()]
            machine = "x86_64" if sysconfig.get_platform().endswith("x86_64") else platform.machine()
            bundled = runpy.run_path("src/turnout/machine/bundled.py")
            bundled["build"](Path(self.build_lib, "turnout", "machine", bundled["LIBRARY"].name), compiler, machine)


class PlatformWheel(bdist_wheel):
    """The library is loaded by ctypes, so one wheel is for every Python on its platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class WithKernels(Distribution):
    def has_ext_modules(self) -> bool:  # else the wheel would be for every platform
        return KERNELS


commands: dict[str, Any] = {"build_py": BuildKernels, "bdist_wheel": PlatformWheel}
setup(distclass=WithKernels, cmdclass=commands)
