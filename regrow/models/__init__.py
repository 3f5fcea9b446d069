"""The networks of the paper's evaluation."""

from regrow.models.architecture import Architecture, Network
from regrow.models.densenet import DenseNet
from regrow.models.registry import build, names
from regrow.models.resnet import CifarResNet, ImageNetResNet
from regrow.models.small import SmallCNN
from regrow.models.vgg import VGG16, VGG16D
from regrow.models.wide_resnet import WideResNet

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
