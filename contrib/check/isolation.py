"""The check of isolation: what the shared sandboxes and workers enforce against the model's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from contrib.check.context import CheckContext, CheckFailed
from forge_env.utils.threads import invoke

_NOT_LISTED = ("missing", "backend")


async def isolation(context: CheckContext) -> str:
    """Report what the shared sandboxes and workers enforce, as they have measured it; one without isolation fails.

    A sandbox has `capabilities`; a worker has `enforced()`, which returns a mapping with the sentences of "missing".
    """
    for name, shared in context.factory.shared.items():
        if (report := await _report_of(shared)) is not None:
            context.isolation[name] = report
    for name, report in context.isolation.items():
        # A sandbox that enforces nothing. A worker has no mount namespace to report, and may do so.
        if report.get("seccomp") is False and report.get("mount_namespace") is False:
            problems = "; ".join(report["missing"])
            raise CheckFailed(f"{name} isolates nothing: {problems}; use it only for code that you trust")
    if not context.isolation:
        return "the episodes share no sandbox and no worker, so nothing is to be enforced"
    return ". ".join(f"{name}: {sentence(report)}" for name, report in context.isolation.items())


async def _report_of(shared: Any) -> dict[str, Any] | None:
    capabilities = getattr(shared, "capabilities", None)
    if is_dataclass(capabilities) and not isinstance(capabilities, type):
        return asdict(capabilities)
    method = getattr(shared, "enforced", None)
    report = await invoke(method) if callable(method) else None
    return dict(report) if isinstance(report, Mapping) else None


def sentence(report: Mapping[str, Any]) -> str:
    """Return one line: what is enforced, and what is not.

    >>> sentence({"seccomp": True, "uid_drop": False, "limits": ("core", "stack"), "missing": ("memory is free",)})
    'seccomp, limits of core, stack; not enforced: uid drop; memory is free'
    """
    enforced_names: list[str] = []
    missing_names: list[str] = []
    for name, value in report.items():
        if name in _NOT_LISTED:
            continue
        words = name.replace("_", " ")
        if isinstance(value, list | tuple):
            enforced_names += [f"{words} of {', '.join(value)}"] if value else []
            missing_names += [] if value else [words]
        elif isinstance(value, str):
            enforced_names.append(f"{words} by {value}")
        else:
            (enforced_names if value else missing_names).append(words)
    missing = [", ".join(missing_names)] if missing_names else []
    missing += report.get("missing", ())
    parts = [", ".join(enforced_names)] if enforced_names else []
    parts += ["not enforced: " + "; ".join(missing)] if missing else []
    return "; ".join(parts)
