"""Takes pictures of the demo pages, light and dark, wide and narrow: `python docs/demo/screenshots.py FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.browser.chromium import Chromium

STATIC = Path(__file__).parents[1] / "_static"
SIZES = ((1280, 900), (390, 844))


def main(folder: Path) -> None:
    """Write PAGE-WIDTH-SCHEME.png for each page, and fail if one complains."""
    folder.mkdir(parents=True, exist_ok=True)
    with Chromium() as browser:
        for name in ("draw", "masks"):
            for width, height in SIZES:
                for scheme in ("light", "dark"):
                    browser.screen(width, height, dark=scheme == "dark", touch=width < 600)
                    browser.open((STATIC / f"{name}.html").as_uri())
                    browser.wait_for("document.body.dataset.ready")
                    time.sleep(3 if name == "masks" else 0.2)  # a few epochs
                    browser.screenshot(folder / f"{name}-{width}-{scheme}.png")
        if browser.errors:
            raise SystemExit("\n".join(browser.errors))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
