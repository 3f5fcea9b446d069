"""The code in the page about methods runs."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import regrow
from tests.core.nets import batches, small_cnn

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.mark.filterwarnings("ignore:all of .* is pruned")
def test_every_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = list(batches(6))

    def run_steps(model, optimizer, start, stop):
        for t in range(start, stop):
            x, y = data[t % len(data)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    class OnePruner:
        """Gives every alternative that the page shows an optimizer of its own."""

        def __getattr__(self, name):
            made = getattr(regrow, name)
            if not (isinstance(made, type) and issubclass(made, regrow.Pruner)):
                return made
            return lambda model, optimizer, *rest, **options: made(
                model, optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), *rest, **options
            )

    model = small_cnn()
    names = {
        "regrow": OnePruner(),
        "torch": torch,
        "model": model,
        "optimizer": None,
        "loader": data,
        "total": 8,
        "original": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "run_steps": run_steps,
        "evaluate": lambda model: 0.5,
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(block, names)
    assert names["levels"][-1].sparsity == pytest.approx(0.9, abs=0.001)
    assert names["longer"] >= 8
