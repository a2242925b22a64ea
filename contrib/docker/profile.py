"""The seccomp profile of a container: the strict filter without the calls that the agent needs to confine a snippet.

The snippet loads the strict filter on top, so it cannot make these calls.
"""

from __future__ import annotations

import errno
import json
from typing import Any

from sandboxes.guest.seccomp import DENIED_FCNTL, denied_calls

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_FOR_NAMESPACES = {"mount", "mount_setattr", "pivot_root", "setns", "sethostname", "umount2", "unshare"}
_FOR_INPUT = {"memfd_create"}
_OTHER_FAMILIES = (0, 3, 4, 5, 6, 7, 8, 9)  # below 10, all but AF_UNIX and AF_INET; AF_INET6 is 10, and the last
_LOW_WORD = 0xFFFFFFFF
_NAMESPACE_FLAGS = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


def seccomp_profile(machine: str, *, namespaces: bool) -> str:
    """Return the profile as JSON text for the engine.

    Args:
        machine: the engine's architecture, "x86_64" or "aarch64".
        namespaces: whether the agent creates namespaces.
    """
    allowed = _FOR_INPUT | (_FOR_NAMESPACES if namespaces else set())
    rules: list[dict[str, Any]] = [
        _refuse(sorted(denied_calls(machine).keys() - allowed), errno.EPERM),
        # glibc falls back to clone, and a filter can inspect its flags.
        _refuse(["clone3"], errno.ENOSYS),
        _refuse(["socket", "socketpair"], errno.EAFNOSUPPORT, {"value": 10, "op": "SCMP_CMP_GT"}),
    ]
    for family in _OTHER_FAMILIES:
        rules.append(_refuse(["socket", "socketpair"], errno.EAFNOSUPPORT, {"value": family, "op": "SCMP_CMP_EQ"}))
    for command in DENIED_FCNTL.values():
        # The kernel reads only the low word of a command.
        test = {"index": 1, "value": _LOW_WORD, "valueTwo": command, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(_refuse(["fcntl"], errno.EPERM, test))
    for flag in () if namespaces else _NAMESPACE_FLAGS:
        test = {"value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(_refuse(["clone"], errno.EPERM, test))
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [_ARCHITECTURES[machine]], "syscalls": rules}
    )


def _refuse(names: list[str], number: int, test: dict[str, Any] | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return rule | ({"args": [{"index": 0, **test}]} if test else {})
