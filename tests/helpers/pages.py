"""What a run leaves where a folder of contrib writes it: its page, and what is observed of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from forge_env.registry.contrib import rows

OBSERVED = bool(rows("observers"))
"""Whether a run has a timeline, system metrics, findings and TensorBoard's files."""
MEASURED = ("--metrics.system_seconds", "1") if OBSERVED else ()


def page_of(run: Path) -> str | None:
    """Return the text of report.html; None where nothing here writes it."""
    return (run / "report.html").read_text() if "report.html" in rows("reports") else None


def data_of(page: str) -> Any:
    """Return the data in an exported page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])
