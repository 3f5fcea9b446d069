"""Networks and data of one's own train like those of regrow, and code is imported only if the user names it."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import regrow
from regrow.cli import main
from regrow.runs.folder import read_metrics, read_result
from regrow.runs.recipe import Recipe, RecipeError
from regrow.runs.stop import StoppedError
from regrow.train.events import Stepped
from regrow.train.run import run

NET = """
from pathlib import Path
from torch import nn

Path("imported").touch()

def build(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * width, 10))

def logits_in_a_dict():
    class Net(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x.flatten(1))}
    return Net(64, 10)

def few_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

def wrong_size():
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))

def nothing(): ...
def needs(size): ...
number = 3
"""
DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from regrow import data

class Noisy(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y

def sets():
    parts = [data.load("digits", split) for split in ("train", "test")]
    train, test = ((part.images.float() / 240, part.labels) for part in parts)
    return Noisy(*train), TensorDataset(*test)

def loaders():
    train, test = sets()
    generator = torch.Generator()
    return {"train": DataLoader(train, 128, shuffle=True, generator=generator), "test": DataLoader(test, 200)}

def image_sets(): return data.load("digits", "train"), data.load("digits", "test")
def nothing(): ...
def three(): return 1, 2, 3
def numbers(): return 1, 2
def endless(): return iter([1]), iter([1])
def no_pairs(): return TensorDataset(torch.zeros(4, 1, 8, 8)), TensorDataset(torch.zeros(4, 1, 8, 8))
def regression(): return (TensorDataset(torch.zeros(4, 1, 8, 8), torch.zeros(4)),) * 2
"""
MODEL, SETS, LOADERS = "foreign.net:build", "foreign.data:sets", "foreign.data:loaders"
OWN = Recipe(model=MODEL, data=SETS, epochs=2, batch=128, threads=1, every=4)


@pytest.fixture(autouse=True)
def _package(tmp_path, monkeypatch):
    """Write the package `foreign` to the current folder; importing it leaves the file `imported`."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/__init__.py").touch()
    (tmp_path / "foreign/net.py").write_text(NET, encoding="utf-8")
    (tmp_path / "foreign/data.py").write_text(DATA, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "foreign"]:
        del sys.modules[name]


def command(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return stopped.value.code


def forget():
    """Make the package look as if this process had never imported it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "foreign"]:
        del sys.modules[name]
    Path("imported").unlink(missing_ok=True)


@pytest.fixture
def finished():
    """A finished run of the package, of which this process knows nothing any more."""
    run(OWN, "run", imports=OWN.imports)
    forget()
    return Path("run")


@pytest.mark.parametrize("data", [SETS, LOADERS, "foreign.data:image_sets", "digits"])
@pytest.mark.parametrize("model", [MODEL, "small"])
def test_a_users_network_and_data_reach_the_sparsity_and_learn(model, data):
    recipe = OWN.changed(model=model, data=data, epochs=4, width=4, holdout=100 if data == SETS else 0)
    result = run(recipe, "run", imports=recipe.imports)
    assert result["sparsity"] == pytest.approx(0.9, abs=0.01)
    assert result["parameters"] > result["nonzeros"]
    assert read_metrics(Path("run"))[-1]["loss"] < read_metrics(Path("run"))[0]["loss"]


@pytest.mark.parametrize("data", [SETS, LOADERS])
def test_a_run_of_a_users_network_resumes_to_the_same_bits(data):
    recipe = OWN.changed(data=data, epochs=3)
    run(recipe, "whole", imports=recipe.imports)

    def stop(event):
        if isinstance(event, Stepped) and event.step == 15:  # in the middle of an epoch
            os.kill(os.getpid(), 15)

    with pytest.raises(StoppedError):
        run(recipe, "parts", imports=recipe.imports, listeners=[stop])
    run(recipe, "parts", imports=recipe.imports)
    whole, parts = load_file("whole/model.safetensors"), load_file("parts/model.safetensors")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert len(read_metrics(Path("parts"))) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "foreign.nett:build"}, r"no module 'foreign.nett' here or in the installed packages"),
        ({"model": "foreign.net:bild"}, r"foreign.net has no 'bild'. Did you mean 'build'"),
        ({"model": "foreign.net:number"}, r"must name a callable, but 'foreign.net:number' is an int"),
        ({"model": "foreign.net:nothing"}, r"'foreign.net:nothing' returned None, expected an nn.Module"),
        ({"model": "foreign.net:needs"}, r"is called without arguments, but takes \(size\)"),
        ({"growth": 3}, r"is called with growth=3, but takes \(width=4\)"),
        ({"model": "foreign.net:logits_in_a_dict"}, r"returns a dict, expected a tensor \(inputs, classes\)"),
        ({"model": "foreign.net:few_classes"}, r"has 2 classes, but 'foreign.data:sets' has the label \d"),
        ({"model": "foreign.net:wrong_size"}, r"does not run on the inputs of 'foreign.data:sets', torch.float32 of"),
        ({"data": "foreign.data:nothing"}, r"returned None, expected a pair \(train, test\)"),
        ({"data": "foreign.data:three"}, r"returned a tuple of 3 \(int, int, int\), expected a pair"),
        ({"data": "foreign.data:numbers"}, r"returned an int as train data, expected a pair"),
        ({"data": "foreign.data:endless"}, r"returned a list_iterator without a length as train data"),
        ({"data": "foreign.data:no_pairs"}, r"yields a list of 1 \(Tensor\), expected \(inputs, labels\)"),
        ({"data": "foreign.data:regression"}, r"yields labels of torch.float32 and shape \(4,\)"),
        ({"data": LOADERS, "limit": 9}, r"limit needs a data set, but 'foreign.data:loaders' returned a DataLoader"),
        ({"model": "foreign.net:"}, r"model must be a name or have the form package.module:callable"),
    ],
)
def test_errors_say_what_was_returned_and_what_was_expected(fields, message):
    with pytest.raises(RecipeError, match=message):
        run(recipe := OWN.changed(**fields), "run", imports=recipe.imports)


def test_an_error_in_the_users_module_keeps_its_traceback():
    Path("foreign/broken.py").write_text("import no_such_package", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        run(OWN.changed(model="foreign.broken:build"), "run", imports=["foreign.broken:build", SETS])


def test_a_recipe_alone_imports_nothing():
    with pytest.raises(RecipeError, match=r"code is imported only if you name it yourself. Add --data foreign.data:s"):
        run(OWN, "run")
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *itertools.product([["train", "--resume"]], [[], ["--model", MODEL], ["--data", SETS], ["--model", "small"]]),
        (["export"], []),
        (["bench"], []),
    ],
)
def test_a_foreign_run_folder_imports_nothing(finished, arguments, capsys):
    before, after = arguments
    assert command(*before, finished, *after) == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0
    assert "name it" in told or "name the callable that builds it" in told
    assert f"--model {MODEL}" in told
    assert not Path("imported").exists()
    assert "foreign.net" not in sys.modules


@pytest.mark.parametrize("unfinished", [False, True])
def test_inspect_and_report_of_a_foreign_run_import_nothing(finished, unfinished, capsys):
    if unfinished:
        (finished / "result.json").unlink()
    assert command("inspect", finished) == 0
    shown = capsys.readouterr().out
    assert "1.weight" in shown
    assert "non-zeros" in shown
    if not unfinished:
        pytest.importorskip("altair")
        assert command("report", finished, "-o", "page.html") == 0
    assert not Path("imported").exists()


def test_a_foreign_model_file_imports_nothing(capsys):
    metadata = {"architecture": json.dumps({"name": MODEL, "options": {}})}
    save_file({"weight": torch.zeros(2, 2)}, "model.safetensors", metadata)
    for name in ("inspect", "export", "bench"):
        assert command(name, "model.safetensors") != 0
    with pytest.raises(regrow.FormatError, match="cannot be built"):
        regrow.load("model.safetensors")
    assert not Path("imported").exists()


def test_masks_and_weights_of_a_foreign_run_import_nothing(finished):
    fixed = Recipe(method="fixed", masks=str(finished), epochs=1)
    with pytest.raises(RecipeError, match="is it from another network"):
        run(fixed, "masked")
    with pytest.raises(RecipeError, match="is not from this network"):
        run(Recipe(init=str(finished), epochs=1), "started")
    assert not Path("imported").exists()


def test_commands_work_on_a_run_whose_network_is_named(finished, capsys):
    assert command("inspect", finished, "--model", MODEL) == 0
    assert "MACs" in capsys.readouterr().out
    assert Path("imported").exists(), "or the tests above could not fail"
    assert command("export", finished, "--model", MODEL, "--to", "program") == 0
    assert command("inspect", finished / "model.pt2") == 1
    assert "torch.export.load" in capsys.readouterr().err
    assert command("export", finished / "model.safetensors", "--model", MODEL) == 2
    assert "--input 3 32 32" in capsys.readouterr().err
    assert command("export", finished / "model.safetensors", "--model", MODEL, "--input", 1, 8, 8) == 0
    assert command("inspect", finished, "--model", "foreign.net:few_classes") == 2
    assert "is not the network in run" in capsys.readouterr().err
    assert command("train", "--resume", finished, "--model", MODEL, "--data", SETS) == 0


def test_a_run_on_the_data_of_a_user_becomes_webassembly():
    recipe = OWN.changed(model="small")
    run(recipe, "run", imports=recipe.imports)
    forget()
    assert command("export", "run", "--to", "wasm") == 0
    assert not Path("imported").exists()


def test_a_recipe_file_that_the_user_gives_may_name_code():
    Path("mine.toml").write_text(OWN.changed(epochs=1).to_toml(), encoding="utf-8")
    assert command("train", "mine.toml", "--out", "run") == 0
    assert read_result("run")["input_shape"] == [1, 8, 8]


@pytest.mark.slow
def test_a_sweep_and_several_processes_train_a_users_network():
    Path("sweep.toml").write_text(
        f'model = "{MODEL}"\ndata = "{SETS}"\nepochs = 1\nevery = "auto"\nramp_by = "step"\n[grid]\nseed = [0, 1]',
        encoding="utf-8",
    )
    regrow_ = [sys.executable, "-m", "regrow"]
    subprocess.run([*regrow_, "sweep", "sweep.toml", "--out", "runs"], check=True)
    assert len(list(Path("runs").glob("*/result.json"))) == 2
    own = ["--model", MODEL, "--data", SETS, "--epochs", "1", "--every", "auto", "--ramp-by", "step"]
    subprocess.run([*regrow_, "train", *own, "--nproc", "2", "--out", "two"], check=True)
    assert read_result("two")["processes"] == 2


DENSE = Recipe(method="dense", epochs=3, batch=128, threads=1, width=4)


@pytest.mark.parametrize("form", ["run", "safetensors", "packed", "torch", "checkpoint"])
def test_one_shot_prunes_the_weights_of_a_file_and_fine_tunes_them(form):
    run(DENSE, "dense")
    model = regrow.load("dense")
    files = {"run": "dense", "safetensors": "dense/model.safetensors", "packed": "m.regrow", "torch": "m.pt"}
    regrow.save(model, "m.regrow")
    torch.save(model.state_dict() if form == "torch" else {"state_dict": model.state_dict()}, "m.pt")
    recipe = DENSE.changed(
        method="oneshot", epochs=0, init=files.get(form, "m.pt"), finetune_epochs=1, finetune_lr=1e-8, sparsity=0.5
    )
    result = run(recipe, "pruned")
    assert result["sparsity"] == pytest.approx(0.5, abs=1e-3)
    before, after = model.state_dict(), load_file("pruned/model.safetensors")
    kept = after["conv2.weight"] != 0
    assert torch.allclose(after["conv2.weight"][kept], before["conv2.weight"][kept], atol=1e-5)
    assert [record["phase"] for record in read_metrics(Path("pruned"))] == ["finetune"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"init": None}, "epochs must be at least 1, got 0"),
        ({"finetune_epochs": 0}, "epochs = 0 needs finetune_epochs of at least 1, got 0"),
        ({"method": "dense"}, "needs a method that prunes when it is attached, such as oneshot, got dense"),
        ({"width": 8}, r"init: dense is not from this network: .* instead of"),
        ({"init": "nowhere"}, "init: nowhere does not exist"),
        ({"init": "code.pt"}, "cannot be read as a state dict without running code"),
    ],
)
def test_a_start_that_cannot_work_is_refused(fields, message):
    run(DENSE.changed(epochs=1), "dense")
    torch.save(Path("code"), "code.pt")
    start = {**vars(DENSE), "method": "oneshot", "epochs": 0, "init": "dense", "finetune_epochs": 1}
    with pytest.raises(RecipeError, match=message):
        run(Recipe.of({**start, **fields}), "pruned")
