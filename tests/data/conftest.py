"""Fixtures that hide the data on this machine from tests of data sets."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def an_empty_machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set no data directory and an empty cache, so that tests see only the files that they wrote."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.delenv("REGROW_DATA", raising=False)
    monkeypatch.setenv("REGROW_CACHE", str(cache))
    return cache
