"""The examples that need nothing but the package run, and do what they say."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _beside_the_examples(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)


def example(name):
    return importlib.import_module(name)


def test_the_plain_loop_ends_sparse_and_accurate():
    plain = example("plain_pytorch")
    model = plain.main()
    weights = [module.weight for module in (model.conv1, model.conv2, model.conv3)]
    pruned = sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)
    assert pruned == pytest.approx(0.9, abs=0.001)
    assert plain.accuracy(model) > 85


@pytest.mark.parametrize(("unit", "sparsity"), [("weight", 0.8), ("2:4", 0.5)])
def test_a_transformer_learns_while_its_linear_layers_are_pruned(unit, sparsity, capsys):
    model = example("transformer").train(unit, sparsity)
    printed = capsys.readouterr().out
    assert float(printed.split(" % of symbols right")[0].rsplit(" ", 1)[1]) > 50  # by chance: 12.5
    weight = model.blocks[0].qkv.weight
    if unit == "2:4":
        assert torch.equal((weight.view(len(weight), -1, 4) != 0).sum(-1), torch.full((len(weight), 12), 2))
    else:
        assert 0.3 < (weight == 0).float().mean() < 0.99


def test_the_timm_style_script_resumes_to_the_same_bits(monkeypatch, capsys):
    script = example("timm_style")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["timm_style.py", "--epochs", "4", *arguments])
        script.main()
        return torch.load(Path(arguments[1]) / "last.pt", weights_only=True)

    whole = call("--output", "whole")
    call("--output", "parts", "--stop-after", "2")
    resumed = call("--output", "parts", "--resume")
    assert capsys.readouterr().out.count("epoch 4: ") == 2
    for part in ("model", "ema"):
        assert all(torch.equal(tensor, resumed[part][name]) for name, tensor in whole[part].items())
    assert resumed["pruner"]["step"] == whole["pruner"]["step"] == 84
    kept = resumed["ema"]["module.conv3.weight"] != 0
    assert not (kept & (resumed["model"]["conv3.weight"] == 0)).any()
