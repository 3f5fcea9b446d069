"""Small files that ask for much: every command that opens them refuses in time, within a memory limit, in one line."""

import gzip
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from regrow import FormatError, load, models, save
from regrow.data import DataError
from regrow.data.mnist import read_idx
from regrow.files.packed import seal, unseal
from regrow.files.torch_file import load_torch_file
from regrow.methods.lottery import LotteryTicket
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
        ({"model": "os:system"}, "needs code that is imported only if you name it"),
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


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *arguments):
        self.request = function, arguments

    def __reduce__(self):
        return self.request


class Storage:
    """Pickled as torch.save does a storage: by name, type and number of elements."""

    def __init__(self, count, kind=torch.FloatStorage):
        self.entry = "storage", kind, "0", "cpu", count


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.entry if isinstance(value, Storage) else None


def tensor(count, size, stride):
    return Call(torch._utils._rebuild_tensor_v2, Storage(count), 0, size, stride, False, OrderedDict())


def torch_file(path, state, storage=16, packing=zipfile.ZIP_STORED):
    """Write what torch.save would, if it wrote such files."""
    stream = io.BytesIO()
    Pickler(stream, protocol=2).dump(state)
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("a/data.pkl", state if isinstance(state, bytes) else stream.getvalue())
        archive.writestr("a/data/0", bytes(storage))
    return path


# A tuple of two equal tuples of two equal tuples ..., as the key of a dict: its hash takes 2^100 steps.
NESTED = b"\x80\x02})" + b"2\x86" * 100 + b"Ns."
TORCH_FILES = {
    "bytearray": ({"w": Call(bytearray, 10**12)}, {}),
    "storage": ({"w": Call(torch.FloatStorage, 10**12)}, {}),
    "count": ({"w": tensor(10**11, (10**11,), (1,))}, {}),
    "size": ({"w": tensor(4, (10**11,), (1,))}, {}),
    "stride": ({"w": tensor(4, (10**6, 10**6), (0, 0))}, {}),
    "deflated": (
        {"w": tensor(1 << 28, (1 << 28,), (1,))},
        {"storage": bytes(1 << 30), "packing": zipfile.ZIP_DEFLATED},
    ),
    "nested": (NESTED, {}),
}
READ_ALL = """
import sys, resource, signal
from pathlib import Path
from regrow import FormatError
from regrow.data import DataError, cifar
from regrow.files.torch_file import load_torch_file
most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (1 << 28)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
signal.alarm(60)
for path in map(Path, sys.argv[1:]):
    try:
        print(path, load_torch_file(path) if path.suffix == ".pt" else cifar.read_batch(path.read_bytes(), "labels"))
    except (FormatError, DataError) as error:
        assert len(str(error)) < 500
"""


def test_files_of_torch_save_and_cifar_batches_take_memory_and_time_in_proportion(tmp_path):
    files = [torch_file(tmp_path / f"{name}.pt", state, **how) for name, (state, how) in TORCH_FILES.items()]
    (tmp_path / "data_batch_1").write_bytes(NESTED)
    assert all(path.stat().st_size < 1100 for path in files if path.stem != "deflated")
    read = subprocess.run(
        [sys.executable, "-c", READ_ALL, *files, tmp_path / "data_batch_1"], capture_output=True, text=True, check=False
    )
    assert (read.returncode, read.stdout) == (0, ""), read.stderr


def test_a_file_of_torch_save_is_read_as_torch_would(tmp_path):
    model = models.build("small", width=2)
    state = {
        **{
            "state_dict": model.state_dict(),
            "parameters": dict(model.named_parameters()),
            "epoch": 3,
            "best": (1.5, None),
        },
        **{
            "transposed": torch.randn(3, 4).bfloat16().t(),
            "row": model.conv1.weight.detach()[1],
            "none": torch.empty(0),
        },
        **{str(dtype): torch.ones(2).to(dtype) for dtype in (torch.float16, torch.int64, torch.bool, torch.uint8)},
    }
    torch.save(state, tmp_path / "a.pt")
    found, expected = load_torch_file(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt", weights_only=True)
    flat, wanted = flattened(found), flattened(expected)
    assert list(flat) == list(wanted)
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert (flat[name].dtype, flat[name].stride()) == (value.dtype, value.stride())
            assert torch.equal(flat[name], value.detach())
        else:
            assert flat[name] == value


def flattened(state):
    """Return nested dicts as one, with tuples of keys."""
    inner = {key: flattened(value) if isinstance(value, dict) else {(): value} for key, value in state.items()}
    return {(key, *keys): leaf for key, leaves in inner.items() for keys, leaf in leaves.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["bytearray", "deflated", "nested"])
def test_training_from_a_forged_file_of_torch_save_is_refused_in_one_line(tmp_path, case):
    state, how = TORCH_FILES[case]
    path = torch_file(tmp_path / "forged.pt", state, **how)
    run = limited("train", "--data", "digits", "--epochs", "1", "--init", path, "--out", tmp_path / "run")
    refused(run, "init: ", "forged.pt cannot be read as a state dict without running code")


def test_a_forged_level_of_a_lottery_ticket_is_refused(tmp_path):
    torch_file(tmp_path / "start.safetensors", {"w": Call(bytearray, 10**12)})
    with pytest.raises(ValueError, match=r"start\.safetensors is damaged"):
        LotteryTicket(models.build("small", width=2), 0.5, folder=tmp_path).run(lambda *_: None)
