"""The page: static/ put together into one HTML document that loads nothing, for the server and the export alike.

The modules are joined in the order of their imports. Script and style are named in the policy by their hash, so nothing
else can run, whatever ends up in the document.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from functools import lru_cache
from importlib import resources
from typing import Any

MODULES = (
    "text.js", "dom.js", "api.js", "chart.js", "tokens.js", "lists.js", "runs.js", "groups.js", "episodes.js",
    "conversation.js", "episode.js", "faults.js", "timeline.js", "console.js", "keys.js", "app.js",
)  # fmt: skip
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./[a-z]+\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class |let )", re.MULTILINE)


@lru_cache(maxsize=1)
def _parts() -> tuple[str, str, str]:
    """Template, style and script."""
    folder = resources.files("forge_env.viewer") / "static"
    script = "".join(
        f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', (folder / name).read_text(encoding='utf-8')))}\n"
        for name in MODULES
    )
    return (
        (folder / "index.html").read_text(encoding="utf-8"),
        (folder / "style.css").read_text(encoding="utf-8"),
        f'"use strict";\n{script}',
    )


def policy() -> str:
    """The Content-Security-Policy of the page."""
    _, style, script = _parts()
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def page(data: Any = None) -> str:
    """The document; with data it needs no server, and asks none."""
    template, style, script = _parts()
    parts = {
        "POLICY": policy() if data is None else policy().replace("connect-src 'self'", "connect-src 'none'"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": "" if data is None else to_json(data).replace("<", "\\u003c"),
    }
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)


def to_json(data: Any) -> str:
    """JSON in ASCII; numbers that JSON does not have become texts."""
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
