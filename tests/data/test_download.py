"""Downloads from a real server, in this process."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from regrow.data import DataError, cifar, info, load, mnist
from regrow.data.files import Remote, fetch
from tests.data.test_cifar import pack, write_cifar10
from tests.data.test_idx import write_fashion


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "www"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_cifar_is_downloaded_once_and_then_found(server, tmp_path, monkeypatch):
    www, url = server
    expected = write_cifar10(tmp_path / "cifar-10-batches-py")
    archive = www / "cifar-10-python.tar.gz"
    pack(tmp_path / "cifar-10-batches-py", archive)
    remote = Remote(f"{url}/{archive.name}", sha256(archive))
    layout = replace(cifar.LAYOUTS["cifar10"], archive=remote)
    monkeypatch.setattr(cifar, "LAYOUTS", {"cifar10": layout})

    assert torch.equal(load("cifar10").images, torch.from_numpy(expected))
    archive.unlink()
    assert load("cifar10", "test").labels.tolist() == [7, 8, 9]


def test_fashion_mnist_is_downloaded_file_by_file(server, monkeypatch, tmp_path):
    www, url = server
    monkeypatch.setattr("regrow.data.files.DEBIAN", tmp_path / "no Debian")
    images = write_fashion(www)
    remotes = [Remote(f"{url}/{path.name}", sha256(path)) for path in www.iterdir()]
    monkeypatch.setitem(mnist.REMOTES, "fashion-mnist", remotes)
    assert torch.equal(load("fashion-mnist").images, torch.from_numpy(images[:, None]))


def test_downloads_can_be_disabled(tmp_path):
    with pytest.raises(DataError, match=r"CIFAR-10 was not found \(looked in"):
        load("cifar10", download=False)


def test_a_download_with_a_wrong_hash_is_refused_and_deleted(server, an_empty_machine):
    www, url = server
    (www / "file").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"could not be downloaded from http.*invalid hash value.*Download https"):
        fetch(info("cifar10"), [Remote(f"{url}/file", sha256(Path(__file__)))])
    assert not any(path.is_file() for path in an_empty_machine.rglob("*"))


def test_a_missing_file_or_server_is_an_error_that_names_it(server):
    _, url = server
    with pytest.raises(DataError, match=r"file: could not be downloaded from .* \(HTTP Error 404"):
        fetch(info("cifar10"), [Remote(f"{url}/file", "")])
    with pytest.raises(DataError, match=r"file: could not be downloaded from .*refused"):
        fetch(info("cifar10"), [Remote("http://127.0.0.1:9/file", "")])
