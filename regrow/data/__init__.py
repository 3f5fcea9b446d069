"""Digits, Fashion-MNIST, CIFAR and ImageNet as batches of tensors.

>>> from regrow import data
>>> train, test = data.load("digits", "train"), data.load("digits", "test")
>>> for x, y in data.Batches(train, 128, seed=0).epoch(0): ...
"""

from regrow.data.batches import Batches, Source
from regrow.data.catalog import Info, info, names
from regrow.data.errors import DataError
from regrow.data.images import ImageSet
from regrow.data.loading import load
from regrow.data.stream import ImageStream

__all__ = ["Batches", "DataError", "ImageSet", "ImageStream", "Info", "Source", "info", "load", "names"]
