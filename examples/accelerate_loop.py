"""Accelerate: attach before or after `prepare`, which wraps the optimizer that the pruner listens to."""

import torch
from accelerate import Accelerator
from plain_pytorch import EPOCHS, accuracy, make_loader, make_model
from torch import nn

import regrow


def main() -> nn.Module:
    accelerator = Accelerator()
    model, loader = make_model(), make_loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=EPOCHS * len(loader) // 2))
    accelerator.register_for_checkpointing(pruner)  # save_state() and load_state() now include it

    for epoch in range(EPOCHS):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f}, sparsity {100 * pruner.sparsity:.1f} %")

    model = accelerator.unwrap_model(model)
    accelerator.print(f"test accuracy {accuracy(model):.1f} %")
    return model


if __name__ == "__main__":
    main()
