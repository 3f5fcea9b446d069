"""Takes pictures of pages, light and dark, 1280 and 390 px wide, and says what is wider than its window.

`python docs/screenshots.py FOLDER` takes them of the built documentation (`make docs`);
`python docs/screenshots.py FOLDER report.html` of that page. Needs Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.browser.chromium import Chromium  # noqa: E402

BUILT = ROOT / "docs" / "_build" / "html"
SIZES = ((1280, 900), (390, 844))
# Code that is hidden behind an edge, and elements that stick out of the window with nothing around them that scrolls.
# In a wide window no table may need scrolling; on a phone it scrolls inside its frame.
TOO_WIDE = """
(() => {
  const cut = ["auto", "scroll", "hidden", "clip"];
  const scrolls = (element) => element && element !== document.body
    && (cut.includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  const hidden = [...document.querySelectorAll(innerWidth > 600 ? "pre, .table-wrapper" : "pre")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1);
  const outside = [...document.querySelectorAll("pre, table, img, svg, figure, h1, h2, h3, p, dt")]
    .filter((each) => each.getClientRects().length && each.getBoundingClientRect().right > innerWidth + 1)
    .filter((each) => !scrolls(each.parentElement));
  return [...hidden, ...outside].map((each) => `${each.tagName.toLowerCase()} ${each.textContent.trim().slice(0, 40)}`);
})()
"""


def main(folder: Path, pages: list[Path]) -> None:
    """Write NAME-WIDTH-SCHEME.png for each page, and fail if something overflows or the page reports an error."""
    folder.mkdir(parents=True, exist_ok=True)
    complaints = []
    with Chromium() as browser:
        for page in pages:
            for width, height in SIZES:
                for scheme in ("light", "dark"):
                    browser.screen(width, height, dark=scheme == "dark", touch=width < 600)
                    browser.open(page.resolve().as_uri())
                    if browser.evaluate("document.querySelector('.chart') !== null"):
                        browser.wait_for("document.documentElement.dataset.drawn")
                    wide = browser.evaluate("document.documentElement.scrollWidth > innerWidth")
                    wider = browser.evaluate(TOO_WIDE) or (["the page scrolls sideways"] if wide else [])
                    complaints += [f"{page.name} at {width} px: {what}" for what in wider]
                    browser.screenshot(folder / f"{page.stem}-{width}-{scheme}.png")
        complaints += browser.errors
    if complaints:
        raise SystemExit("\n".join(dict.fromkeys(complaints)))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]] or sorted(BUILT.glob("*.html")))
