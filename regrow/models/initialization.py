"""One initialisation for all networks: the random scale that their papers share."""

from torch import nn


def initialize(network: nn.Module) -> None:
    """Draw the weights of `network` as the papers and their authors' code do.

    Convolutions are normal with variance 2 / fan-out (He et al. 2015, Eq. 14, the backward form). The ResNet
    and DenseNet papers refer to He et al. without saying which form; the authors' Torch code of ResNet,
    WideResNet and DenseNet divides by `k*k*C_out`, which is the fan-out. VGG (Simonyan & Zisserman 2015) used
    a fixed 0.01 and staged training, which batch norm made unnecessary: it gets the same rule here. Linear
    weights keep torch's default (uniform within 1/sqrt(fan-in)), as in the authors' code; biases start at
    zero and batch-norm scales at one.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
