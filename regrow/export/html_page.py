"""HTML pages that need no other file: scripts, pictures and networks are inside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping


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
