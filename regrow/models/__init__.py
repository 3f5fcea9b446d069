"""The networks of the paper's evaluation."""

from regrow.models.base import Architecture, Network
from regrow.models.densenet import DenseNet
from regrow.models.registry import build, names
from regrow.models.resnet import CifarResNet, ImageNetResNet, WideResNet
from regrow.models.vgg import VGG16, VGG16D, SmallCNN

__all__ = [
    "VGG16",
    "VGG16D",
    "Architecture",
    "CifarResNet",
    "DenseNet",
    "ImageNetResNet",
    "Network",
    "SmallCNN",
    "WideResNet",
    "build",
    "names",
]
