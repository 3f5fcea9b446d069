"""A machine without data: tests see the files that they made and no others."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def an_empty_machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data directory and an empty cache, so that tests see the files they made and no others."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.delenv("REGROW_DATA", raising=False)
    monkeypatch.setenv("REGROW_CACHE", str(cache))
    return cache
