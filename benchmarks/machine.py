"""Describes the machine that a benchmark ran on, so that a result can be read later."""

from __future__ import annotations

from typing import Any

from trainers.run.run_record import machine, versions


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system and package versions."""
    return {**machine(), "versions": versions()}
