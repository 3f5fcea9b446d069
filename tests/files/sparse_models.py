"""Sparse networks for tests of files: global magnitude pruning of fresh weights, batch norm as if trained."""

import torch
from torch import nn

from regrow import models


def pruned(name: str, sparsity: float, **options: int) -> nn.Module:
    torch.manual_seed(0)
    model = models.build(name, **options).eval()
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    magnitudes = torch.cat([weight.detach().abs().flatten() for weight in weights])
    threshold = magnitudes.kthvalue(max(1, int(sparsity * len(magnitudes)))).values
    with torch.no_grad():
        for weight in weights:
            weight[weight.abs() <= threshold] = 0.0
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.normal_(1, 0.3)
                module.bias.normal_(0, 0.3)
                module.running_mean.normal_(0, 0.3)
                module.running_var.log_normal_(0, 0.7)
                module.num_batches_tracked.fill_(117_300)
    return model
