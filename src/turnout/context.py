"""What stays the same in every round of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnout.exchange import Runtime
from turnout.experiment import Algorithm
from turnout.layout import Layout


@dataclass(frozen=True)
class Context:
    """What the functions of a round share.

    algorithm  the parts
    runtime    maps client work over a cohort
    seed       addresses every random draw
    until      simulated seconds at which the run ends; inf: it is not limited
    """

    algorithm: Algorithm
    runtime: Runtime
    seed: int
    until: float = math.inf

    @property
    def layout(self) -> Layout:
        """Which parameters are shared, and where."""
        return self.runtime.layout
