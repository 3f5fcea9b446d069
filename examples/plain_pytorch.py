"""A plain PyTorch loop: one line before it, nothing inside it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import regrow
from regrow import data, models

EPOCHS = 8


def digits(split: str) -> TensorDataset:
    part = data.load("digits", split)
    return TensorDataset(part.images.float() / 240, part.labels)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return models.build("small", classes=10, channels=1, size=8)


def make_loader() -> DataLoader:
    return DataLoader(digits("train"), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(0))


def accuracy(model: nn.Module) -> float:
    images, labels = digits("test").tensors
    model.eval()
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


def main() -> nn.Module:
    model, loader = make_model(), make_loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=EPOCHS * len(loader) // 2))

    for epoch in range(EPOCHS):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, sparsity {100 * pruner.sparsity:.1f} %")

    print(f"test accuracy {accuracy(model):.1f} %")
    return model


if __name__ == "__main__":
    main()
