"""Text that users read: similar names for a misspelled one, what to install, durations, pages in one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType


def plain(name: str) -> str:
    """Return `name` in lower case without `-` and `_`: SparseMomentum and sparse-momentum are the same name.

    >>> plain("Sparse-Momentum")
    'sparsemomentum'
    """
    return name.lower().replace("-", "").replace("_", "")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.4) -> str | None:
    """Return the known name most similar to `name`, ignoring case, if their similarity (0 to 1) is at least `cutoff`.

    >>> nearest("Resnet2O", ["resnet20", "resnet32"])
    'resnet20'
    """
    names = {each.lower(): each for each in known}
    matches = get_close_matches(name.lower(), names, n=3, cutoff=cutoff)
    # Typing errors are rare in the first letters.
    best = max(matches, key=lambda match: _common_start(match, name.lower()), default=None)
    return None if best is None else names[best]


def _common_start(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.4) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string if no name is similar."""
    found = nearest(name, known, cutoff=cutoff)
    return "" if found is None else f" Did you mean {found!r}?"


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra, for a release and for a clone.

    >>> install_hint("report")
    'pip install "regrow[report]" (in a clone: pip install -e ".[report]")'
    """
    return f'pip install "regrow[{extra}]" (in a clone: pip install -e ".[{extra}]")'


def optional_module(name: str, need: str, *, extra: str) -> ModuleType:
    """Import an optional dependency; without it, the error states the `need` and how to install the extra.

    >>> ray = optional_module("ray", "sweeps on Ray need ray", extra="dist")  # doctest: +SKIP
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{need}: {install_hint(extra)}") from error


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(11_100)
    '3 h 05 m'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"


def quantity(number: float) -> str:
    """Format a large number with three digits and a unit.

    >>> quantity(40_812_544)
    '40.8 M'
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return f"{number:.3g}"


def html_page(template: str, parts: Mapping[str, str]) -> str:
    """Return a page under a content security policy that allows its own scripts and styles, and no requests.

    Each `/* name */` in `template` is replaced by the part of this name; scripts lose their `export`.
    """
    for name, part in parts.items():
        inline = re.sub(r"^export ", "", part, flags=re.MULTILINE).replace("import.meta.url", "location.href")
        template = template.replace(f"/* {name} */", inline)
    policy = f"default-src 'none'; script-src {_digests(template, 'script')} 'wasm-unsafe-eval'; "
    policy += f"style-src {_digests(template, 'style')}; img-src blob: data:; base-uri 'none'; form-action 'none'"
    return template.replace("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">')


def script_data(data: object) -> str:
    """Return `data` as JSON that may stand in an inline script; bytes become base64."""
    text = json.dumps(data, default=lambda raw: base64.b64encode(raw).decode())
    return text.replace("<", r"\u003c")


def _digests(html: str, tag: str) -> str:
    """The digests of a page's inline scripts or styles, as a content security policy lists them."""
    bodies = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", html, flags=re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
