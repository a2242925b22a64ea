"""The check of what keeps text and code of models in, where an environment runs them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from forge_env.check.subject import Failed, Subject
from forge_env.utils.threads import invoke

_QUIET = ("missing", "backend")


async def isolation(subject: Subject) -> str:
    """Name what is enforced by the sandboxes and workers that the episodes share, as they found out by trying it.

    A sandbox has `capabilities`; a worker has `enforced()`, which returns a mapping with the sentences of "missing".
    """
    for name, shared in subject.factory.shared.items():
        if (enforced := await _enforced(shared)) is not None:
            subject.isolation[name] = enforced
    nothing = [name for name, enforced in subject.isolation.items() if _is_open(enforced)]
    if nothing:
        raise Failed(
            f"{nothing[0]} isolates nothing: {'; '.join(subject.isolation[nothing[0]]['missing'])}; for what you trust "
            "only"
        )
    if not subject.isolation:
        return "the episodes share no sandbox and no worker, so nothing is to be enforced"
    return ". ".join(f"{name}: {sentence(enforced)}" for name, enforced in subject.isolation.items())


async def _enforced(shared: Any) -> dict[str, Any] | None:
    capabilities = getattr(shared, "capabilities", None)
    if is_dataclass(capabilities) and not isinstance(capabilities, type):
        return asdict(capabilities)
    tell = getattr(shared, "enforced", None)
    told = await invoke(tell) if callable(tell) else None
    return dict(told) if isinstance(told, Mapping) else None


def _is_open(enforced: Mapping[str, Any]) -> bool:
    """Whether it is a sandbox that shuts nothing off; a worker, which is no sandbox, may be that."""
    return enforced.get("seccomp") is False and enforced.get("mount_namespace") is False


def sentence(enforced: Mapping[str, Any]) -> str:
    """Return what is enforced in one line, and what is not.

    >>> sentence({"seccomp": True, "uid_drop": False, "limits": ("core", "stack"), "missing": ("memory is free",)})
    'seccomp, limits of core, stack; not enforced: uid drop; memory is free'
    """
    kept, lost = [], []
    for name, value in enforced.items():
        if name in _QUIET:
            continue
        words = name.replace("_", " ")
        if isinstance(value, list | tuple):
            kept += [f"{words} of {', '.join(value)}"] if value else []
            lost += [] if value else [words]
        elif isinstance(value, str):
            kept.append(f"{words} by {value}")
        else:
            (kept if value else lost).append(words)
    parts = [", ".join(kept)] if kept else []
    if lost or enforced.get("missing"):
        parts.append("not enforced: " + "; ".join([*([", ".join(lost)] if lost else []), *enforced.get("missing", ())]))
    return "; ".join(parts)
