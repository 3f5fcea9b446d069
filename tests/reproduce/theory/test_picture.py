"""The picture shows what it is said to show, and the study is written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from reproduce.theory import descent as picture
from reproduce.theory.study import SMOKE, run


def test_dpf_finds_a_better_sparse_model_than_one_shot_pruning():
    drawn = picture.draw()
    assert drawn.delivered["DPF"] < -0.8
    assert drawn.delivered["one-shot"] > 0
    assert (drawn.feedback.pruned != 0).sum(1).max() == 1


def test_the_mask_of_dpf_changes_once_and_then_stays():
    feedback = picture.draw().feedback
    kept = feedback.pruned.abs().argmax(1)
    assert kept[0] == 0
    assert kept[-1] == 1
    assert (kept[1:] != kept[:-1]).sum() == 1
    assert torch.equal(feedback.dense[-1][0], feedback.dense[40][0])


def test_every_experiment_is_written_and_drawn(tmp_path: Path):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    said: list[str] = []
    records = run(tmp_path, size=SMOKE, progress=said.append)
    assert all(record.measured <= record.bound for record in records)
    rows = [json.loads(line) for line in (tmp_path / "theorems.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [record.as_row() for record in records]
    assert {row["model"] for row in rows} == {"pruned model", "dense model", "one-shot"}
    for name in ("plane", "strongly-convex", "neighborhood", "non-convex"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert any("strongly convex: L =" in line for line in said)
