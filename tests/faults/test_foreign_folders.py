"""A run folder from elsewhere stays inside itself: no link, FIFO or path in it leads to another file."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from regrow import FormatError, load
from regrow.runs.folder import CHECKPOINT, Metrics, RunFolderError, locked, read_metrics, read_recipe, read_result
from regrow.train import checkpoint
from regrow.train.run import run
from tests.faults.test_bad_files import QUICK, folder, interrupted, once
from tests.faults.test_bounds import limited, refused

__all__ = ["folder", "once"]

TEXT = "a file of the user that nobody may change\n"
NAMES = ["lock", "metrics.jsonl", CHECKPOINT, "result.json", "recipe.toml", "environment.json", "model.safetensors"]


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_place_of_a_file_is_refused_and_not_followed(folder, victim, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(RunFolderError, match="is a symbolic link"):
        run(QUICK, folder)
    assert victim.read_text() == TEXT


@pytest.mark.parametrize("name", ["tensorboard", "plots", "shards-01234567"])
def test_a_link_in_place_of_a_subfolder_is_refused_and_nothing_is_written_there(folder, tmp_path, name):
    (tmp_path / "theirs").mkdir()
    (folder / name).symlink_to(tmp_path / "theirs")
    refused(limited("train", "--resume", folder), "is a symbolic link")
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_fifo_in_a_run_folder_is_refused_at_once(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(limited("train", "--resume", folder, seconds=60))


def test_every_reader_of_a_run_folder_refuses_links(tmp_path, victim):
    for name in NAMES:
        (tmp_path / name).symlink_to(victim)
    for read in (read_result, read_recipe, read_metrics, lambda path: checkpoint.load(path / CHECKPOINT)):
        with pytest.raises(RunFolderError, match="is a symbolic link"):
            read(tmp_path)
    with pytest.raises(FormatError, match="is a symbolic link"):
        load(tmp_path)
    with pytest.raises(RunFolderError, match="is a symbolic link"):
        Metrics(tmp_path / "metrics.jsonl", 0)
    with pytest.raises(RunFolderError, match="is a symbolic link"), locked(tmp_path):
        pass
    assert victim.read_text() == TEXT


@pytest.mark.parametrize("name", ["../theirs", "/etc", "shards-../../x", "shards-0123456", 7, ["shards-01234567"]])
def test_shards_outside_of_the_run_folder_are_refused(tmp_path, name):
    with pytest.raises(RunFolderError, match="its shards are in"):
        checkpoint.load_sharded(tmp_path, {"shards": name}, None)


@pytest.mark.parametrize(
    "mark",
    [
        {"shape": [10**12], "dtype": "float32"},
        {"shape": [10**6, 10**6, 10**6], "dtype": "float32"},
        {"shape": [-1], "dtype": "float32"},
        {"shape": "long", "dtype": "float32"},
        {"shape": [2], "dtype": "load"},
        {"shape": [2], "dtype": "no"},
    ],
)
def test_sharded_tensors_that_are_larger_than_their_files_are_refused(tmp_path, mark):
    (tmp_path / "shards-01234567").mkdir()
    (tmp_path / "shards-01234567" / "a.safetensors").write_bytes(bytes(100))
    with pytest.raises(RunFolderError, match=r"is not a tensor|larger than its files"):
        checkpoint.load_sharded(tmp_path, {"shards": "shards-01234567", "w": {"sharded tensor": "w", **mark}}, None)


def test_a_link_among_the_sharded_tensors_is_refused(tmp_path, victim):
    (tmp_path / "shards-01234567").mkdir()
    (tmp_path / "shards-01234567" / "a.safetensors").symlink_to(victim)
    with pytest.raises(RunFolderError, match="is a symbolic link"):
        checkpoint.load_sharded(tmp_path, {"shards": "shards-01234567"}, None)


def test_a_pickle_in_place_of_a_checkpoint_is_refused_whatever_it_asks_for(folder):
    """A pickle of a few bytes can ask for any amount of memory, even with weights_only=True."""
    torch.save({"trainer": bytearray(10)}, folder / CHECKPOINT)
    for command in (["train", "--resume", folder], ["inspect", folder]):
        refused(limited(*command), f"{CHECKPOINT} is damaged")


def test_a_checkpoint_with_a_huge_header_is_refused_before_it_is_parsed(folder):
    state = b'{"__metadata__":{"state":"' + b"[" * (32 << 20) + b'"}}'
    (folder / CHECKPOINT).write_bytes(len(state).to_bytes(8, "little") + state)
    with pytest.raises(RunFolderError, match="is not a checkpoint of this version"):
        checkpoint.load(folder / CHECKPOINT)


def test_a_damaged_result_or_metrics_of_a_gigabyte_is_refused(tmp_path):
    for name, read in (("result.json", read_result), ("metrics.jsonl", read_metrics)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # takes no room on the disk
        with pytest.raises(RunFolderError, match=r"1,099,511,627,776 bytes, more than the"):
            read(tmp_path)


def test_an_export_does_not_write_through_a_link_in_a_foreign_folder(tmp_path, victim):
    run(QUICK.changed(epochs=1), tmp_path / "run")
    for suffix in ("regrow", "onnx", "c", "pt2"):
        (tmp_path / "run" / f"model.{suffix}").symlink_to(victim)
    refused(limited("export", tmp_path / "run"), "model.regrow is a symbolic link")
    assert victim.read_text() == TEXT


def test_a_folder_that_is_removed_during_training_is_named_in_one_line(tmp_path):
    code = (
        "import shutil, sys\n"
        "from regrow.cli.errors import explain\n"
        "from regrow.train.run import run\n"
        "from tests.faults.test_bad_files import QUICK\n"
        "remove = lambda event: getattr(event, 'step', 0) == 6 and shutil.rmtree(sys.argv[1])\n"
        "try: run(QUICK, sys.argv[1], listeners=[remove], save_every=0)\n"
        "except Exception as error: sys.exit(explain(error))\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    refused(process, "was removed or replaced while its run was trained")
    assert not (tmp_path / "run").exists()


def test_a_copied_run_folder_still_resumes(tmp_path):
    shutil.copytree(interrupted(tmp_path / "run"), tmp_path / "copy")
    assert run(QUICK, tmp_path / "copy")["epoch"] == 2
