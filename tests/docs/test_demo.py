"""The demo pages work: drawings are read in Node.js and in a real browser, by mouse, touch and keyboard."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import chromium
from benchmarks.browser.chromium import Chromium

ROOT = Path(__file__).parents[2]
STATIC, DEMO = ROOT / "docs" / "_static", ROOT / "docs" / "demo"
NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
NEEDS_CHROMIUM = pytest.mark.skipif(chromium.find() is None, reason="needs Chromium (Debian's package chromium)")

# Every style of every digit is drawn 20 times: slanted, turned, stretched, by an unsteady hand and with another pen.
READ = """
import { readFile } from "node:fs/promises";
import { load } from "%(script)s";
import { rasterize, DIGITS } from "%(strokes)s";
const model = await load(process.argv[1]), { mean, std } = model.info;
let seed = 1;
const random = (low, high) => low + ((high - low) * (seed = (seed * 48271) %% 2147483647)) / 2147483647;
const right = DIGITS.map((styles, digit) => styles.map((style) => {
  let count = 0;
  for (let i = 0; i < 20; i++) {
    const slant = random(-0.25, 0.25), turn = random(-0.17, 0.17), wide = random(0.7, 1.3), pen = random(1.8, 3.2);
    const a = random(0, 6), b = random(0, 6);
    const strokes = style.map((stroke) => stroke.map(([px, py]) => {
      const y = py - 0.5 + 0.03 * Math.sin(9 * px + a), x = wide * (px - 0.5) + 0.03 * Math.sin(9 * py + b) - slant * y;
      return [x * Math.cos(turn) - y * Math.sin(turn), x * Math.sin(turn) + y * Math.cos(turn)];
    }));
    const y = model.run(rasterize(strokes, pen).map((ink) => (ink - mean[0]) / std[0]));
    count += y.indexOf(Math.max(...y)) === digit;
  }
  return count / 20;
}));
console.log(JSON.stringify(right));
"""


def modules() -> dict[str, bytes]:
    """The networks in the page."""
    found = re.search(r"const MODULES = (\{.*?\});", (STATIC / "draw.html").read_text())
    assert found
    return {name: base64.b64decode(module) for name, module in json.loads(found[1]).items()}


@NEEDS_NODE
@pytest.mark.parametrize("name", ["sparse", "dense"])
def test_nine_of_ten_drawings_of_every_digit_and_style_are_recognized(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.wasm").write_bytes(modules()[name])
    paths = {"script": ROOT / "regrow/export/templates/model.js", "strokes": DEMO / "strokes.js"}
    command = ["node", "--input-type=module", "-e", READ % paths, str(tmp_path / "model.wasm")]
    right = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(right) == 10
    assert all(len(styles) >= 3 for styles in right)
    assert min(fraction for styles in right for fraction in styles) >= 0.9


def test_the_pages_are_small_and_ask_for_nothing() -> None:
    for name in ("draw", "masks"):
        page = (STATIC / f"{name}.html").read_text()
        assert len(page) < 500_000
        assert "default-src 'none'" in page
        assert not re.findall(r'(?:src|href)="(?!data:)', page)
        assert "fetch(source)" in page if name == "draw" else "fetch(" not in page


def test_the_page_has_the_present_scripts() -> None:
    page = (STATIC / "draw.html").read_text()
    for source in (ROOT / "regrow/export/templates/model.js", DEMO / "strokes.js"):
        inline = source.read_text().replace("export ", "").replace("import.meta.url", "location.href")
        assert inline in page, f"{source.name} changed: build the page again (docs/demo/build.py)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as started:
        yield started


def opened(browser: Chromium, name: str, **screen: Any) -> None:
    browser.errors.clear()
    browser.screen(screen.pop("width", 1280), 900, **screen)
    browser.open((STATIC / f"{name}.html").as_uri())
    browser.wait_for("document.body.dataset.ready")


def digits(browser: Chromium) -> Any:
    """The strokes of all digits, from the page's own source."""
    script = (DEMO / "strokes.js").read_text().replace("export ", "")
    return browser.evaluate(f"(() => {{ {script}; return DIGITS; }})()")


def answer(browser: Chromium) -> str:
    browser.evaluate("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))")
    return str(browser.evaluate("document.getElementById('answer').textContent"))


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("way", ["mouse", "touch"])
@pytest.mark.parametrize("network", ["sparse", "dense"])
def test_a_digit_drawn_in_a_browser_is_recognized(browser: Chromium, network: str, way: str) -> None:
    opened(browser, "draw", width=390 if way == "touch" else 1280, touch=way == "touch", dark=way == "touch")
    browser.evaluate(f"document.querySelector('input[value={network}]').click()")
    draw, right = browser.touch if way == "touch" else browser.drag, 0
    for digit, styles in enumerate(digits(browser)):
        browser.evaluate("document.getElementById('clear').click()")
        assert answer(browser) == "?"
        left, top, width, height = browser.box("#pad")
        for stroke in styles[digit % len(styles)]:
            draw([(left + width * (0.2 + 0.5 * x), top + height * (0.1 + 0.7 * y)) for x, y in stroke])
        right += answer(browser) == str(digit)
    assert right >= 9
    assert browser.errors == []


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_everything_can_be_done_with_keys(browser: Chromium) -> None:
    opened(browser, "draw")
    browser.key("7")
    assert answer(browser) == "7"
    browser.key("Escape")
    assert answer(browser) == "?"
    browser.evaluate("document.getElementById('pad').focus()")
    for key in [*["ArrowUp"] * 9, " ", *["ArrowDown"] * 18, " "]:
        browser.key(key)
    assert answer(browser) == "1"
    reached = set()
    for _ in range(12):
        browser.key("Tab")
        reached.add(browser.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"pad", "clear", "example", "network", "race"} <= reached
    assert browser.errors == []


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_race_ends_with_a_verdict(browser: Chromium) -> None:
    opened(browser, "draw")
    browser.click("#race")
    browser.wait_for("document.getElementById('verdict').textContent", seconds=60)
    assert "times as many" in browser.evaluate("document.getElementById('verdict').textContent")
    assert browser.errors == []


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("name", ["draw", "masks"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(browser: Chromium, name: str, width: int) -> None:
    opened(browser, name, width=width, touch=width == 390)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_masks_are_played_to_the_end_and_can_be_searched(browser: Chromium) -> None:
    opened(browser, "masks")
    browser.wait_for("document.getElementById('play').textContent === 'Play'", seconds=60)
    read = "['label', 'sparsity', 'settled'].map((id) => document.getElementById(id).textContent)"
    last, sparsity, settled = browser.evaluate(read)
    assert (last, sparsity, settled) == ("epoch 30", "95.0 %", "100.0 %")
    browser.evaluate("(t => { t.value = 0; t.dispatchEvent(new Event('input')); })(document.getElementById('time'))")
    assert browser.evaluate(read)[:2] == ["start", "0.0 %"]
    assert browser.errors == []
