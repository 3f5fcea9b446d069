"""What a reader of the first pages gets: models pruned to 90 % with the documented settings are near dense."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import regrow
from regrow.cli.demo import RECIPES
from regrow.data import load
from regrow.runs.recipe import load_recipe
from regrow.train.run import run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def cnn():
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1)]
    layers += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3),
}


def snippet(page):
    """Return the first Python block of a page that attaches a pruner."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "regrow.DPF(" in block)


def accuracy(network, optimizer, seed, lines=""):
    """Train as a new user would, with the `lines` of a page between the optimizer and the loop."""
    train, test = (load("digits", part) for part in ("train", "test"))
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(train.images.float() / 240, train.labels), batch_size=64, shuffle=True)
    model, epochs = network(), 20
    optimizer = OPTIMIZERS[optimizer](model)
    names = {"model": model, "optimizer": optimizer, "loader": loader, "epochs": epochs, "regrow": regrow}
    exec(lines, names)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    if lines:
        assert names["pruner"].sparsity == pytest.approx(0.9, abs=1e-3)
    with torch.no_grad():
        return 100 * (model.eval()(test.images.float() / 240).argmax(1) == test.labels).double().mean().item()


def check_near_dense(dense, pruned):
    lost = [a - b for a, b in zip(dense, pruned, strict=True)]
    assert sum(lost) / len(lost) <= 1.5, (dense, pruned)
    assert max(lost) <= 3, (dense, pruned)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", [cnn, mlp])
def test_the_snippet_of_the_readme_is_nearly_as_accurate_as_dense_training(network, optimizer):
    dense = [accuracy(network, optimizer, seed) for seed in range(3)]
    check_near_dense(dense, [accuracy(network, optimizer, seed, snippet("README.md")) for seed in range(3)])


def test_the_tutorial_is_nearly_as_accurate_as_dense_training():
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    loop, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    found = {}
    for name, kept in {"dense": "\n".join(x for x in line.splitlines() if "pruner" not in x), "pruned": line}.items():
        found[name] = []
        for seed in range(3):
            names = {}
            exec(loop.replace("manual_seed(0)", f"manual_seed({seed})") + kept, names)
            found[name].append(names["accuracy"]())
    check_near_dense(**found)


@pytest.mark.parametrize("recipe", [load_recipe("digits"), RECIPES["DPF"]], ids=["digits", "demo"])
def test_recipes_of_the_first_commands_are_nearly_as_accurate_as_dense_training(recipe, tmp_path):
    def top1(**fields):
        return [run(recipe.changed(seed=s, **fields), tmp_path / f"{fields}{s}")["top1"] for s in range(3)]

    check_near_dense(top1(method="dense"), top1())
