"""Data: who holds which samples. A data set is a small frozen object; `load(seed, data_dir)` gives a `Federation`.

federation.py     what every round reads (`Federation`), and the promise of a data set: read this first
pooled.py         the federation with all samples in one pool of tensors
partitioned.py    data sets that are divided among clients: from a pool of samples to a federation
partition.py      which client gets which samples
sizes.py          how many samples each client has
generated.py      federations whose data is made on demand
description.py    the description of its data that a run keeps, so that its model can be used without the data
agreement.py      one encoding for the data of all devices, and how a device's own differs
renumbered.py     the clients of a federation under other numbers

Data sets in files, or in the package:

files.py          the data folder; downloads
digits.py         small digits that are part of the package
images.py         settings of image sets; folders of pictures
mnist.py          MNIST, Fashion-MNIST, EMNIST
cifar.py          CIFAR-10, CIFAR-100
text_table.py     table files as columns of text, with the line of each row
columns.py        how columns become inputs: numbers, categories, gaps
tables.py         tables of numbers, texts and gaps
text.py           tables of texts

Data without files, and a user's own:

synthetic.py      FedProx's SYNTHETIC(alpha, beta) (synthetic.c: the same draws in C)
own.py            tensors in memory; checks of own data
datasets.py       a torch Dataset
client_files.py   one file per client, of arrays or of a table
loaders.py        a loader function, a stream

Around another data set:

wrappers.py       noise on some clients' samples; hostile clients: flipped labels, a backdoor; public test samples
labels.py         labels by name, and public samples
arriving.py       new samples in every round, beside a public set

Imports root modules, machine and world.
"""

from turnout.data import partition
from turnout.data.arriving import Arriving, Dip
from turnout.data.cifar import CIFAR10, CIFAR100
from turnout.data.client_files import ClientFiles
from turnout.data.datasets import FromDataset
from turnout.data.digits import Digits
from turnout.data.federation import Federation
from turnout.data.files import find_data_dir
from turnout.data.generated import ClientData, Generated
from turnout.data.images import ImageFolder
from turnout.data.labels import Means, Public
from turnout.data.loaders import Loader, Stream
from turnout.data.mnist import EMNIST, MNIST, FashionMNIST
from turnout.data.own import Own
from turnout.data.partitioned import Partitioned, Pool
from turnout.data.pooled import Pooled, Rows
from turnout.data.sizes import Equal, LogNormal, Pareto, Sizes
from turnout.data.synthetic import Synthetic
from turnout.data.tables import Table
from turnout.data.text import Characters, Sentences
from turnout.data.wrappers import Backdoor, LabelFlip, Noisy, WithPublic
from turnout.suggestions import kinds_in

__all__ = [
    "CIFAR10", "CIFAR100", "EMNIST", "MNIST", "Arriving", "Backdoor", "Characters", "ClientData", "ClientFiles",
    "Digits", "Dip", "Equal", "FashionMNIST", "Federation", "FromDataset", "Generated", "ImageFolder", "LabelFlip",
    "Loader", "LogNormal", "Means", "Noisy", "Own", "Pareto", "Partitioned", "Pool", "Pooled", "Public", "Rows",
    "Sentences", "Sizes", "Stream", "Synthetic", "Table", "WithPublic", "find_data_dir", "partition",
]  # fmt: skip

# Kinds of modules that are not listed above, so that a new data set is one file.
globals().update({kind.__name__: kind for kind in kinds_in(__name__, leave_out=["turnout.data.partition"]).values()})
