"""The page: the files of static/ joined into one HTML document that loads nothing, for the server and the export.

The policy of the page names the script and the style by their hash, so the browser runs nothing else.
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
    "text.js", "numbers.js", "dom.js", "exported.js", "api.js", "chart.js", "charts.js", "tokens.js", "address.js",
    "lists.js", "curves.js", "rows.js", "conversation.js", "report.js", "overview.js", "settings.js", "runs.js",
    "groups.js", "episodes.js", "episode.js", "compare.js", "faults.js", "timeline.js", "console.js", "live.js",
    "keys.js", "app.js",
)  # fmt: skip
"""Each module stands behind those that it imports."""
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./[a-z]+\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |class |let )", re.MULTILINE)


@lru_cache(maxsize=1)
def _read_static() -> tuple[str, str, str]:
    folder = resources.files("contrib.viewer") / "static"
    script = "".join(
        f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', (folder / name).read_text(encoding='utf-8')))}\n"
        for name in MODULES
    )
    return (
        (folder / "index.html").read_text(encoding="utf-8"),
        (folder / "style.css").read_text(encoding="utf-8"),
        f'"use strict";\n{script}',
    )


def security_policy() -> str:
    _, style, script = _read_static()
    sources = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'"
    others = "img-src data:; base-uri 'none'; form-action 'none'"
    return f"{sources}; {others}; require-trusted-types-for 'script'; trusted-types 'none'"


def render_page(data: Any = None) -> str:
    """The HTML document; with `data` it requests nothing from a server."""
    template, style, script = _read_static()
    policy = security_policy()
    parts = {
        "POLICY": policy if data is None else policy.replace("connect-src 'self'", "connect-src 'none'"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": "" if data is None else to_json(data).replace("<", "\\u003c"),
    }
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)


def to_json(data: Any) -> str:
    """JSON in ASCII; numbers that are not finite become strings."""
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_without_nonfinite(data), allow_nan=False, separators=(",", ":"))


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
