"""Data: who holds which samples.

A data set is a small frozen object whose `load(seed, data_dir)` gives a `Federation`; a partition says who
gets what, sizes say how much.
"""

from turnout.data import partition
from turnout.data.dealt import Dealt, Pool
from turnout.data.digits import Digits
from turnout.data.federation import Federation, Pooled, Rows
from turnout.data.generated import ClientData, Generated
from turnout.data.sizes import Equal, LogNormal, Pareto, Sizes
from turnout.data.synthetic import Synthetic

__all__ = [
    "ClientData",
    "Dealt",
    "Digits",
    "Equal",
    "Federation",
    "Generated",
    "LogNormal",
    "Pareto",
    "Pool",
    "Pooled",
    "Rows",
    "Sizes",
    "Synthetic",
    "partition",
]
