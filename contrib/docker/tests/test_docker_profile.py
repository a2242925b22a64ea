"""The seccomp profile that a container gets. What it does is tested with a real engine in test_docker.py."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from contrib.docker.recipe import seccomp_profile
from sandboxes.guest.seccomp import DENIED_FCNTL, denied_calls, supported_machines

AGENT_ONLY = {"mount", "mount_setattr", "pivot_root", "setns", "sethostname", "umount2", "unshare"}


def refused(profile: dict[str, Any]) -> set[str]:
    """Calls that are refused whatever their arguments."""
    return {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}


@pytest.mark.parametrize("machine", supported_machines())
def test_it_refuses_what_the_strict_filter_refuses_but_for_what_the_agent_needs(machine: str) -> None:
    strict = set(denied_calls(machine)) | {"clone3"}
    with_namespaces = refused(json.loads(seccomp_profile(machine, namespaces=True)))
    without = refused(json.loads(seccomp_profile(machine, namespaces=False)))
    assert strict - with_namespaces == AGENT_ONLY | {"memfd_create"}
    assert strict - without == {"memfd_create"}


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_commands_of_fcntl_that_the_strict_filter_refuses_are_refused(namespaces: bool) -> None:
    rules = json.loads(seccomp_profile("aarch64", namespaces=namespaces))["syscalls"]
    tests = [rule["args"][0] for rule in rules if rule["names"] == ["fcntl"]]
    assert {test["valueTwo"] for test in tests} == set(DENIED_FCNTL.values())
    # Only the low word counts for the kernel: a command with other bits above it is the same command.
    assert {(test["index"], test["op"], test["value"]) for test in tests} == {(1, "SCMP_CMP_MASKED_EQ", 2**32 - 1)}


@pytest.mark.parametrize("namespaces", [True, False])
def test_only_the_families_of_the_strict_filter_are_allowed(namespaces: bool) -> None:
    profile = json.loads(seccomp_profile("x86_64", namespaces=namespaces))
    tests = [rule["args"][0] for rule in profile["syscalls"] if "socket" in rule["names"]]
    equal = {test["value"] for test in tests if test["op"] == "SCMP_CMP_EQ"}
    (above,) = (test["value"] for test in tests if test["op"] == "SCMP_CMP_GT")
    assert [family for family in range(50) if family not in equal and family <= above] == [1, 2, 10]
    assert all(rule["errnoRet"] == errno.EAFNOSUPPORT for rule in profile["syscalls"] if "socket" in rule["names"])


def test_without_namespaces_no_clone_makes_any() -> None:
    flags = [
        rule["args"][0]["value"]
        for rule in json.loads(seccomp_profile("x86_64", namespaces=False))["syscalls"]
        if rule["names"] == ["clone"]
    ]
    assert sum(flags) == 0x7E020000
    assert "clone" not in json.dumps(json.loads(seccomp_profile("x86_64", namespaces=True))).replace("clone3", "")
