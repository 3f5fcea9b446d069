"""CPU count, atomic writes and the cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regrow.data.files import download_folder
from regrow.system import cache_folder, cores, write_atomically


def test_a_file_is_replaced_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for content in (b"first", b"second"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_names_the_file_and_keeps_its_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as refused:
        write_atomically(path, b"new")
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_kernels_and_data_have_one_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGROW_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache_folder() == tmp_path / "user" / "regrow"
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    assert download_folder("cifar10") == tmp_path / "chosen" / "data" / "cifar10"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes have no affinity here")
def test_only_the_cpus_of_this_process_count() -> None:
    ours = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(ours)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, ours)
    assert cores() == len(ours)


@pytest.mark.parametrize(("processors", "expected"), [(3, 3), (None, 1)])
def test_all_cpus_count_without_affinity(
    processors: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert cores() == expected
