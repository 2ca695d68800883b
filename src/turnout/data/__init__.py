"""Data: who holds which samples.

A data set is a small frozen object whose `load(seed, data_dir)` gives a `Federation`; a partition says who
gets what, sizes say how much.
"""

from turnout import kinds_in
from turnout.data import partition
from turnout.data.arriving import Arriving, Dip
from turnout.data.cifar import CIFAR10, CIFAR100
from turnout.data.digits import Digits
from turnout.data.federation import Federation, Pooled, Rows
from turnout.data.files import find_data_dir
from turnout.data.generated import ClientData, Generated
from turnout.data.images import ImageFolder
from turnout.data.labels import Means, Public
from turnout.data.loaders import ClientFiles, Loader, Stream
from turnout.data.mnist import EMNIST, MNIST, FashionMNIST
from turnout.data.noise import Noisy
from turnout.data.own import Own
from turnout.data.partitioned import Dealt, Pool
from turnout.data.sizes import Equal, LogNormal, Pareto, Sizes
from turnout.data.synthetic import Synthetic
from turnout.data.tables import Table
from turnout.data.text import Characters, Sentences
from turnout.data.with_public import WithPublic

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "MNIST",
    "Arriving",
    "Characters",
    "ClientData",
    "ClientFiles",
    "Dealt",
    "Digits",
    "Dip",
    "Equal",
    "FashionMNIST",
    "Federation",
    "Generated",
    "ImageFolder",
    "Loader",
    "LogNormal",
    "Means",
    "Noisy",
    "Own",
    "Pareto",
    "Pool",
    "Pooled",
    "Public",
    "Rows",
    "Sentences",
    "Sizes",
    "Stream",
    "Synthetic",
    "Table",
    "WithPublic",
    "find_data_dir",
    "partition",
]

# Kinds of modules that are not listed above, so that a new data set is one file.
globals().update({kind.__name__: kind for kind in kinds_in(__name__, leave_out=["turnout.data.partition"]).values()})
