"""Digits, MNIST, Fashion-MNIST, CIFAR and ImageNet as batches of tensors.

>>> from regrow import data
>>> train, test = data.load("digits", "train"), data.load("digits", "test")
>>> for x, y in data.Batches(train, 128, seed=0).epoch(0): ...
"""

from regrow.data.batches import Batches
from regrow.data.files import DataError
from regrow.data.images import ImageSet
from regrow.data.registry import DATASETS, DatasetInfo, info, load, names, title
from regrow.data.stream import ImageStream

__all__ = [
    "DATASETS",
    "Batches",
    "DataError",
    "DatasetInfo",
    "ImageSet",
    "ImageStream",
    "info",
    "load",
    "names",
    "title",
]
