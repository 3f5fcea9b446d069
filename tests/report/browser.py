"""A real headless browser, driven through the WebDriver protocol by the standard library alone."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def missing() -> str | None:
    """Return why no browser can be driven here, or None."""
    absent = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
    return f"needs {' and '.join(absent)} (Debian: chromium, chromium-driver)" if absent else None


class Browser:
    """One window of Chromium with an empty profile in `folder`."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._base = f"http://127.0.0.1:{port}"
        self._log = (folder / "chromedriver.log").open("wb")
        self._driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=self._log, stderr=self._log)
        try:
            self._start(folder)
        except BaseException:
            self._stop()
            raise

    def _start(self, folder: Path) -> None:
        self._wait_for_driver()
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        started = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._base += f"/session/{started['sessionId']}"
        self._call("POST", "/timeouts", {"script": 120_000, "pageLoad": 120_000})

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._stop()

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait()
        self._log.close()

    def open(self, path: Path) -> None:
        self._call("POST", "/url", {"url": path.as_uri()})

    def look(self, *, width: int, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """Set the size of the window and the mode that the person prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)
        preference = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[preference])

    def evaluate(self, script: str) -> Any:
        """Return what the body of a function returns in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def wait_for(self, condition: str, seconds: float = 120) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(f"return {condition}")):
            assert time.monotonic() < deadline, f"{condition} is not true after {seconds} s"
            time.sleep(0.1)
        return value

    def messages(self) -> list[str]:
        """Return what the console was told since the last time."""
        return [f"{entry['level']}: {entry['message']}" for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _wait_for_driver(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self._call("GET", "/status")
                return
            except OSError:
                assert time.monotonic() < deadline, "chromedriver did not start within a minute"
                time.sleep(0.05)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(error.read().decode()) from None
