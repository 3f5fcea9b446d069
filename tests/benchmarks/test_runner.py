"""Benchmarks are fair to all contenders and leave a table and a file."""

from __future__ import annotations

import json

from benchmarks import runner


def test_contenders_take_turns_and_the_least_time_of_each_counts(monkeypatch):
    calls: list[str] = []
    clock = 0.0

    def spend(name: str, seconds: list[float]) -> None:
        nonlocal clock
        calls.append(name)
        clock += seconds.pop(0)

    monkeypatch.setattr(runner.time, "perf_counter", lambda: clock)
    first, second = [1.0, 5.0, 3.0], [1.0, 7.0, 9.0]
    best = runner.interleave(
        {"first": lambda: spend("first", first), "second": lambda: spend("second", second)},
        rounds=2,
        warmup=1,
    )
    assert calls == ["first", "second", "second", "first", "first", "second"]
    assert best == {"first": 3.0, "second": 7.0}


def test_a_report_is_a_table_for_people_and_a_file_for_programs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results" / "benchmarks")
    path = runner.report("A title", [{"what": "ours", "s": 0.5}, {"what": "theirs", "s": 1234.5}], name="x")
    written = json.loads(path.read_text())
    assert written["rows"] == [{"what": "ours", "s": 0.5}, {"what": "theirs", "s": 1234.5}]
    assert written["command"] == "python -m benchmarks.x"
    assert {"cpu", "threads", "torch"} <= written["machine"].keys()
    assert "what        s\nours      0.5\ntheirs  1,234\n" in capsys.readouterr().out
