"""A cache that others can write: nothing of theirs is loaded, and kernels are built privately."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from regrow.engine.codegen import build
from regrow.engine.codegen.build import Kernels, find_compiler, flags_for
from regrow.engine.plan import tune
from regrow.system import digest, read_cached, write_cached

NOBODY = 65534
KERNELS = Kernels(((1, 1, 1, 1),))  # which are built sooner than all
HOSTILE = """
#include <stdlib.h>
#include <sys/stat.h>
__attribute__((constructor)) static void run(void) { mkdir(getenv("REGROW_HOSTILE"), 0700); }
int regrow_lanes(void) { return 1; } void *regrow_pool_new(int a, int b) { return 0; } void regrow_pool_free(void *p) {}
int regrow_pool_size(void *p) { return 0; } void regrow_run(void) {} double regrow_peak(void) { return 0; }
"""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def load(folder):
    build._load.cache_clear()
    return build._load(find_compiler(), flags_for(None), str(folder), KERNELS)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A library as the engine builds it, in its folder."""
    folder = tmp_path_factory.mktemp("good") / "kernels"
    load(folder)
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def hostile(tmp_path, good, monkeypatch):
    """A library that makes a folder when it is loaded, under the name of the engine's kernels."""
    executed = tmp_path / "executed"
    monkeypatch.setenv("REGROW_HOSTILE", str(executed))
    (tmp_path / "hostile.c").write_text(HOSTILE)
    built = tmp_path / "hostile.so"
    subprocess.run([*find_compiler(), "-shared", "-fPIC", tmp_path / "hostile.c", "-o", built], check=True)
    content = built.read_bytes()
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o755)
    path = folder / f"{good.stem.rpartition('-')[0]}-{digest(content)}.so"
    path.write_bytes(content)
    path.chmod(0o644)
    return path, executed


def test_the_hostile_library_would_be_loaded_if_it_were_ours(hostile):
    path, executed = hostile
    load(path.parent)
    assert executed.exists()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_nothing_is_loaded_from_a_folder_that_others_can_write(hostile, mode):
    path, executed = hostile
    path.parent.chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"other users can change it: its owner is .*, its mode {mode:o}"):
        assert load(path.parent).peak() > 0
    assert not executed.exists()
    assert list(path.parent.iterdir()) == [path]


@ROOT_ONLY
def test_nothing_is_loaded_from_a_folder_of_another_user(hostile):
    path, executed = hostile
    os.chown(path.parent, NOBODY, NOBODY)
    with pytest.warns(RuntimeWarning, match=f"other users can change it: its owner is {NOBODY}"):
        assert load(path.parent).peak() > 0
    assert not executed.exists()


def test_a_library_that_others_can_write_is_built_again(hostile):
    path, executed = hostile
    path.chmod(0o666)
    assert load(path.parent).peak() > 0
    assert not executed.exists()


@ROOT_ONLY
def test_a_library_of_another_user_is_built_again(hostile):
    path, executed = hostile
    os.chown(path, NOBODY, NOBODY)
    assert load(path.parent).peak() > 0
    assert not executed.exists()


def test_a_link_to_a_library_elsewhere_is_built_again(hostile, tmp_path):
    path, executed = hostile
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert load(path.parent).peak() > 0
    assert not executed.exists()


def test_a_pipe_in_the_cache_does_not_hang(good, tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o755)
    os.mkfifo(folder / good.name)
    assert load(folder).peak() > 0
    assert (folder / good.name).read_bytes() == good.read_bytes()


def test_a_folder_that_is_exchanged_after_the_check_is_not_loaded(good, hostile, tmp_path, monkeypatch):
    path, executed = hostile
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    (folder / good.name).write_bytes(good.read_bytes())
    (folder / good.name).chmod(0o644)
    path.rename(path.with_name(good.name))

    def exchange(content):
        if folder.exists() and not (tmp_path / "before").exists() and content[:4] == b"\x7fELF":
            folder.rename(tmp_path / "before")
            path.parent.rename(folder)
        return digest(content)

    monkeypatch.setattr(build, "digest", exchange)
    assert load(folder).peak() > 0
    assert (tmp_path / "before").exists()
    assert not executed.exists()


@pytest.mark.parametrize("content", [b"", b"not a library", "a library without kernels"])
def test_a_broken_library_is_built_again(good, tmp_path, content):
    if isinstance(content, str):
        subprocess.run([*find_compiler(), "-shared", "-xc", "/dev/null", "-o", tmp_path / "empty.so"], check=True)
        content = (tmp_path / "empty.so").read_bytes()
    path = tmp_path / "kernels" / f"{good.stem.rpartition('-')[0]}-{digest(content)}.so"
    assert write_cached(path, content)
    with pytest.warns(RuntimeWarning, match="cannot be loaded from the cache and are built again"):
        assert load(path.parent).peak() > 0
    assert (path.parent / good.name).read_bytes() == good.read_bytes()


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_cached_files_are_readable_with_any_umask(tmp_path, umask):
    path, before = tmp_path / "cache" / "kernels" / "file", os.umask(umask)
    try:
        assert write_cached(path, b"content")
    finally:
        os.umask(before)
    assert read_cached(path) == b"content"
    path.chmod(0o666)
    assert read_cached(path) is None
    path.chmod(0o644)
    path.parent.chmod(0o777)
    assert read_cached(path) is None


AS_NOBODY = """
import os, sys
from pathlib import Path
from regrow.system import read_cached
os.setgid(65534); os.setuid(65534)  # after the imports, which nobody may not be allowed to read
sys.exit(read_cached(Path(sys.argv[1])) != b"by root")
"""


@ROOT_ONLY
def test_other_users_use_the_files_of_root_in_a_shared_cache():
    environment = {**os.environ, "PYTHONPATH": str(Path(build.__file__).parents[3])}
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        path = Path(shared) / "kernels" / "file"
        assert write_cached(path, b"by root")
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, path], env=environment, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"mode": 0, "tiles": [[Infinity]]}', '{"mode": [], "tiles": []}', "\udcff", "1" * 5000]
)
def test_an_invalid_measurement_is_ignored(tmp_path, content):
    path = tmp_path / "kernels" / "tiles.json"
    assert write_cached(path, content.encode(errors="surrogateescape"))
    assert tune._read(path, []) is None
