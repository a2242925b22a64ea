"""The fixture of whole runs."""

from __future__ import annotations

from tests.helpers.runs import start

__all__ = ["start"]
