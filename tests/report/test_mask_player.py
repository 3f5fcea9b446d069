"""The page that plays masks has every recorded mask, bit by bit."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from regrow.report.mask_player import MaskRecorder


def masks(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv1.weight": (8, 1, 3, 3), "conv2.weight": (6, 8, 3, 3), "fc.weight": (5, 6)}
    return {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in shapes.items()}


def recorded(path: Path, count: int) -> tuple[dict[str, object], np.ndarray]:
    """The data in a page, and its masks: one line of bits for each frame."""
    pruner = SimpleNamespace(masks=masks(0))
    recorder = MaskRecorder(pruner)
    for t in range(count):
        pruner.masks = masks(t)
        recorder.record(f"epoch {t}")
    page = recorder.write(path, title="<script>", note="</script>").read_text()
    data = json.loads(re.search(r"const DATA = (\{.*\});", page)[1])  # type: ignore[index]
    changes = np.frombuffer(zlib.decompress(base64.b64decode(data["frames"])), np.uint8).reshape(count, -1)
    frames = np.bitwise_xor.accumulate(changes)
    return data, np.unpackbits(frames, axis=1, bitorder="little")


def test_every_mask_comes_back_with_its_layers_and_labels(tmp_path: Path) -> None:
    data, frames = recorded(tmp_path / "masks.html", 4)
    assert data["labels"] == [f"epoch {t}" for t in range(4)]
    assert [layer["name"] for layer in data["layers"]] == ["conv1", "conv2", "fc"]  # type: ignore[attr-defined]
    for t, frame in enumerate(frames):
        kept = [int(mask.sum()) for mask in masks(t).values()]
        sizes = np.cumsum([layer["width"] * layer["height"] for layer in data["layers"]])  # type: ignore[attr-defined]
        assert [int(part.sum()) for part in np.split(frame[: sizes[-1]], sizes[:-1])] == kept


def test_filters_lie_beside_each_other_and_windows_stay_whole(tmp_path: Path) -> None:
    data, frames = recorded(tmp_path / "masks.html", 2)
    first, second = data["layers"][:2]  # type: ignore[index]
    size = first["width"] * first["height"]
    plane = frames[1][size : size + second["width"] * second["height"]].reshape(second["height"], second["width"])
    expected = masks(1)["conv2.weight"]
    assert (second["width"], second["height"]) == (6 * 3, 8 * 3)
    assert np.array_equal(plane[3 * 5 : 3 * 6, 3 * 2 : 3 * 3], expected[2, 5].numpy())


def test_titles_cannot_end_the_script(tmp_path: Path) -> None:
    recorded(tmp_path / "masks.html", 2)
    assert (tmp_path / "masks.html").read_text().count("</script>") == 1


def test_at_least_two_masks_are_needed_for_a_page(tmp_path: Path) -> None:
    recorder = MaskRecorder(SimpleNamespace(masks=masks(0)))
    recorder.record("start")
    with pytest.raises(ValueError, match="at least two masks, 1 recorded"):
        recorder.write(tmp_path / "masks.html", title="")


def test_networks_that_are_too_large_for_a_page_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 2,000,000 weights; the pruner has 2,250,000"):
        MaskRecorder(SimpleNamespace(masks={"fc.weight": torch.ones(1500, 1500, dtype=torch.bool)}))
