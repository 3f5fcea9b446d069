"""Lightning: attach in `configure_optimizers`; the callback logs and puts the pruner into checkpoints.

Lightning's automatic optimization runs forward and backward in a closure inside `optimizer.step()`. The pruner
evaluates that closure at the pruned weights, so this ends with the same bits as the loop in plain_pytorch.py.
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from plain_pytorch import EPOCHS, accuracy, make_loader, make_model
from torch import Tensor, nn

import regrow
from regrow.lightning import PrunerCallback


class Classifier(LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        self.pruner = regrow.DPF(self, optimizer, sparsity=regrow.Cubic(0.9, end=steps // 2))
        return optimizer


def main(folder: str = "runs/lightning") -> nn.Module:
    module = Classifier(make_model())
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[PrunerCallback()], default_root_dir=folder)
    trainer.fit(module, make_loader())
    print(f"sparsity {100 * module.pruner.sparsity:.1f} %, test accuracy {accuracy(module.network):.1f} %")
    return module.network


if __name__ == "__main__":
    main()
