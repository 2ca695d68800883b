"""Data: who holds which samples. A data set is a small frozen object; `load(seed, data_dir)` gives a `Federation`.

Read federation.py first, then partitioned.py (from a pool of samples to a federation), with partition.py (which samples
a client gets) and sizes.py (how many). generated.py makes data on demand. wrappers.py and arriving.py go around another
data set. description.py has the data of a run without its samples. Each other file has data sets, or is a helper of
several (files, labels, text_table, columns).
"""

from turnout.data import partition
from turnout.data.arriving import Arriving, Dip
from turnout.data.federation import Federation, Pooled, Rows
from turnout.data.files import find_data_dir
from turnout.data.generated import ClientData, Generated
from turnout.data.image_sets import CIFAR10, CIFAR100, EMNIST, MNIST, Digits, FashionMNIST
from turnout.data.images import ImageFolder
from turnout.data.labels import Public
from turnout.data.loaders import ClientFiles, Loader, Stream
from turnout.data.own import FromDataset, Own
from turnout.data.partitioned import Partitioned, Pool
from turnout.data.sizes import Equal, LogNormal, Pareto, Sizes
from turnout.data.synthetic import Synthetic
from turnout.data.tables import Table
from turnout.data.text import Characters, Sentences
from turnout.data.texts import Texts
from turnout.data.wrappers import Backdoor, LabelFlip, Noisy
from turnout.suggestions import kinds_in

__all__ = [
    "CIFAR10", "CIFAR100", "EMNIST", "MNIST", "Arriving", "Backdoor", "Characters", "ClientData", "ClientFiles",
    "Digits", "Dip", "Equal", "FashionMNIST", "Federation", "FromDataset", "Generated", "ImageFolder", "LabelFlip",
    "Loader", "LogNormal", "Noisy", "Own", "Pareto", "Partitioned", "Pool", "Pooled", "Public", "Rows",
    "Sentences", "Sizes", "Stream", "Synthetic", "Table", "Texts", "find_data_dir", "partition",
]  # fmt: skip

# Kinds of modules that are not listed above, so that a new data set is one file.
globals().update({kind.__name__: kind for kind in kinds_in(__name__, leave_out=["turnout.data.partition"]).values()})
