"""Drives a headless Chromium through its debugging pipe: pages, mouse, keys, screenshots. Needs no other package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and answers on descriptor 4.
_LAUNCH = """
import os, sys
for descriptor, wanted in zip(sys.argv[1:3], (3, 4)):
    os.dup2(int(descriptor), wanted)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A browser with one page.

    >>> with Chromium() as browser:                       # doctest: +SKIP
    ...     browser.open("file:///tmp/index.html")
    ...     browser.evaluate("document.title")
    """

    def __init__(self, *flags: str) -> None:
        executable = find()
        if executable is None:
            raise FileNotFoundError(f"no Chromium is installed: looked for {', '.join(NAMES)}")
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._commands = os.pipe()
        self._answers, theirs_out = os.pipe()
        # Out of the way of descriptors 3 and 4.
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        browser = [executable, *_FLAGS, *flags, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *map(str, passed), *browser], pass_fds=passed, stderr=subprocess.DEVNULL
        )
        for fd in (theirs_in, theirs_out, *passed):
            os.close(fd)
        self._buffer, self._number = b"", 0
        self.errors: list[str] = []
        """Errors of the page: exceptions, console errors, refused requests."""
        self._session: str | None = None
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Load a page and wait until it has loaded."""
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 30) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(condition)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{condition} is not true after {seconds} s; errors: {self.errors}")
            time.sleep(0.02)
        return value

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Scroll to an element; return its left, top, width and height in the window."""
        find = f"document.querySelector({json.dumps(selector)})"
        box = self.evaluate(
            f"(() => {{ {find}.scrollIntoView({{ block: 'center' }}); const b = {find}.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        left, top, width, height = box
        return left, top, width, height

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        left, top, width, height = self.box(selector)
        self.drag([(left + width / 2, top + height / 2)])

    def screen(self, width: int, height: int, *, dark: bool = False, touch: bool = False) -> None:
        """Set the size of the window, the color scheme, and whether the screen is a phone's."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if touch else 1,
            mobile=touch,
        )
        self._call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def mouse(self, kind: str, x: float, y: float, **details: Any) -> None:
        """Send an event of the mouse, such as "mouseMoved" or "mouseWheel"."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **details)

    def drag(self, points: Sequence[tuple[float, float]]) -> None:
        """Move the mouse along `points` with its button pressed."""
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [*points, points[-1]], strict=True):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def touch(self, points: Sequence[tuple[float, float]]) -> None:
        """Move a finger along `points`."""
        for i, (x, y) in enumerate(points):
            kind = "touchMove" if i else "touchStart"
            self._call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def key(self, key: str) -> None:
        """Press and release a key, such as "Tab" or "7"."""
        codes = {"Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, "ArrowLeft": 37, "ArrowUp": 38, " ": 32}
        code = codes.get(key, ord(key[0].upper()))
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._notice(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise RuntimeError("Chromium has ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _notice(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(value.get("value")) for value in params["args"]))
