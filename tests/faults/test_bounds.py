"""Small files that ask for much: every command that opens them refuses in time, within a memory limit, in one line."""

import gzip
import json
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from regrow import FormatError, load, models, save
from regrow.data import DataError
from regrow.data.mnist import read_idx
from regrow.files.packed import seal, unseal
from regrow.runs.recipe import Recipe, RecipeError
from regrow.sweep import read_sweep

# torch maps about 2 GB of libraries and thread stacks; the rest is for the file.
MEMORY, SECONDS = 5 << 30, 120


def limited(*arguments, memory=MEMORY, seconds=SECONDS, **environment):
    """Run a command of regrow with limits on its memory and time; return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "regrow", *map(str, arguments)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def refused(process, *words):
    """Check that a command failed with one line, which names the problem."""
    assert process.returncode in (1, 2), process.stderr
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1, process.stderr
    assert lines[0].startswith("regrow: ")
    for word in words:
        assert word in lines[0]


def named(path, name, **options):
    """Write a packed file with the weights of a small network that names another one."""
    save(models.build("small", width=1), path)
    _, data = unseal(path)
    path.write_bytes(seal(["fp32", name, options], data))
    return path


def plain(path, name, **options):
    """Write a plain safetensors file with one small tensor that names a network."""
    save_file({"w": torch.zeros(1)}, path, {"architecture": json.dumps({"name": name, "options": options})})
    return path


HUGE = [
    ("resnet000000001000000100", {}),
    ("resnet" + "9" * 5000, {}),
    ("resnet6000002", {}),
    ("densenet2002", {"growth": 4096}),
    ("wrn2002-2000", {}),
    ("small", {"size": 5000}),
    ("small", {"size": 10**12}),
    ("small", {"channels": 4096, "size": 1024}),
    ("small", {"classes": 10**12}),
    ("vgg16", {"size": 1024}),
    ("resnet20", {"width": 4096}),
    ("resnet20", {"width": 10**30}),
]


@pytest.mark.parametrize(("name", "options"), HUGE)
def test_a_huge_network_is_refused_before_memory_is_allocated(tmp_path, name, options):
    with pytest.raises(ValueError, match=r"allowed|at most|too large|go up to|whole number|more than"):
        models.build(name, **options)
    for write in (plain, named):
        with pytest.raises(FormatError, match="its architecture cannot be built"):
            load(write(tmp_path / "model", name, **options))


@pytest.mark.parametrize("name", ["os:system", "regrow.models:build", "os.path:join", ":", "a:b:c"])
def test_a_name_with_a_colon_runs_nothing(tmp_path, name):
    with pytest.raises(ValueError, match="unknown network"):
        models.build(name)
    for write in (plain, named):
        with pytest.raises(FormatError, match="unknown network"):
            load(write(tmp_path / "model", name))


@pytest.fixture(scope="module")
def wide_image(tmp_path_factory):
    """A file of 80 KB whose tensors are right and whose images are not."""
    path = tmp_path_factory.mktemp("wide") / "model.safetensors"
    model = models.build("small")
    options = {**model.architecture.options, "size": 5000}
    save_file(model.state_dict(), path, {"architecture": json.dumps({"name": "small", "options": options})})
    return path


@pytest.mark.parametrize("command", ["inspect", "export", "bench"])
def test_a_model_file_with_huge_images_is_refused_by_every_command(wide_image, command):
    refused(limited(command, wide_image), "size must be a whole number from 4 to 1,024, got 5000")


def foreign_run(folder, **fields):
    """Write a run folder as somebody else may send it."""
    folder.mkdir()
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"data": "digits", **fields}.items()]
    (folder / "recipe.toml").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"model": "resnet6000002"}, "resnet6000002"),
        ({"model": "resnet20", "width": 4096}, "parameters"),
        ({"model": "os:system"}, "uses code of its own"),
        ({"threads": 10**6}, "threads must be at most"),
    ],
)
def test_a_foreign_run_that_asks_for_too_much_is_refused_when_it_is_resumed(tmp_path, fields, word):
    refused(limited("train", "--resume", foreign_run(tmp_path / "run", **fields)), word)


def test_a_foreign_run_cannot_import_a_module(tmp_path):
    (tmp_path / "evil.py").write_text("open('imported', 'w')\ndef build(**_): open('called', 'w')\n")
    folder = foreign_run(tmp_path / "run", model="evil:build")
    for command in (["train", "--resume", folder], ["inspect", folder], ["export", folder]):
        process = subprocess.run(
            [sys.executable, "-m", "regrow", *map(str, command)], cwd=tmp_path, capture_output=True, text=True
        )
        refused(process)
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "called").exists()


def test_a_sweep_of_a_billion_runs_is_refused_before_it_is_expanded(tmp_path):
    path = tmp_path / "sweep.toml"
    numbers = list(range(1000))
    path.write_text(f"[grid]\nseed = {numbers}\nevery = {[n + 1 for n in numbers]}\nbatch = {[n + 1 for n in numbers]}")
    with pytest.raises(RecipeError, match="has 1,000,000,000 runs; the limit is 100,000"):
        read_sweep(path)
    refused(limited("sweep", path, "--out", tmp_path / "out", seconds=30), "1,000,000,000 runs")
    path.write_text("\n".join(f"[[grid]]\nseed = {numbers}" for _ in range(10)))
    assert len(read_sweep(path)) == 1000


def test_an_idx_file_that_expands_beyond_the_data_set_is_refused(tmp_path):
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", 1 << 10, 1 << 10, 1 << 8))
        for _ in range(1 << 8):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 19
    with pytest.raises(DataError, match="impossible shape"):
        read_idx(path, 3, most=60_000 * 28 * 28)


def test_a_parquet_file_with_more_rows_than_the_data_set_is_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from regrow import data

    rows = 2_000_000
    labels = arrow.array(np.zeros(rows, dtype=np.int8))
    images = arrow.StructArray.from_arrays([arrow.array([b""]).take(arrow.array(np.zeros(rows, np.int64)))], ["bytes"])
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "train.parquet"
    parquet.write_table(arrow.table({"img": images, "label": labels}), path)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"has 2,000,000 rows, but CIFAR-10 has at most 50,000"):
        data.load("cifar10", "train", root=tmp_path)


def test_a_large_image_that_a_parquet_file_repeats_is_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from regrow import data

    rows = 20_000
    large = arrow.array([bytes(1 << 18)])
    column = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(rows, np.int32)), large)
    images = arrow.StructArray.from_arrays([column], ["bytes"])
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "train.parquet"
    parquet.write_table(arrow.table({"img": images, "label": arrow.array(np.zeros(rows, np.int8))}), path)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"more than 65,536 bytes on average"):
        data.load("cifar10", "train", root=tmp_path)


def test_a_recipe_says_which_number_of_threads_is_possible():
    with pytest.raises(RecipeError, match="threads must be at most 1,024, got 100000"):
        Recipe(threads=100_000)


def test_the_memory_limit_of_these_tests_lets_a_good_file_pass(tmp_path: Path):
    save(models.build("small"), tmp_path / "good.regrow")
    assert limited("inspect", tmp_path / "good.regrow").returncode == 0
