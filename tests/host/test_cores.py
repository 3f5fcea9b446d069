"""How many cores a process may use."""

from __future__ import annotations

import os

import pytest

from regrow.host.cores import cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes have no affinity here")
def test_only_cores_that_are_ours_count() -> None:
    ours = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(ours)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, ours)
    assert cores() == len(ours)


@pytest.mark.parametrize(("processors", "expected"), [(3, 3), (None, 1)])
def test_where_there_is_no_affinity_all_count(
    processors: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert cores() == expected
