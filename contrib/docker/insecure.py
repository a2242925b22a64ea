"""The "subprocess" sandbox: plain child processes. It does NOT isolate: code in it can do whatever this user can.

Use it for debugging, and for code that you would run by hand. It has the contract of the isolating backends, so an
environment can be tried on a machine that allows no isolating one. It must be named and explicitly allowed.

Enforced: a fresh process and folder per run; the wall-clock limit; CPU time, address space and file size per process;
capped output. Not enforced: the code can reach this user's files, processes, network and environment variables; the
number of processes and `tmp_bytes` are not limited; background processes that leave their process group survive.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from typing import Any

from contrib.docker.spawner import GUEST_PLAIN, Spawner
from forge_env.core.errors import UserError
from forge_env.core.sandbox import Capabilities
from sandboxes.host.controlled import GUEST
from sandboxes.host.namespace import NamespaceSandbox
from sandboxes.host.zygote import ExitReport
from sandboxes.settings import AUTO

NAME = "subprocess (insecure)"
_CAPABILITIES = Capabilities(
    backend=NAME,
    memory_limit="rlimit",
    process_limit="none",
    missing=(f"everything that isolates: use the {' or the '.join(AUTO)} sandbox for code that you do not trust",),
)


async def open_insecure(
    *, allow_insecure: bool = False, slots: int | None = None, max_sessions: int = 256
) -> NamespaceSandbox:
    """Open the sandbox, if `allow_insecure` is true or FORGE_ENV_ALLOW_INSECURE_SANDBOX is 1."""
    if not (allow_insecure or os.environ.get("FORGE_ENV_ALLOW_INSECURE_SANDBOX") == "1"):
        choice = " or ".join(f'"{name}"' for name in AUTO)
        raise UserError(
            "The subprocess sandbox isolates nothing: code in it can read, change and send whatever you can. Use "
            f"{choice}, or allow it with allow_insecure=True or FORGE_ENV_ALLOW_INSECURE_SANDBOX=1."
        )

    async def start() -> InsecureSpawner:
        return InsecureSpawner()

    slots = slots if slots is not None else 2 * len(os.sched_getaffinity(0))
    sandbox = NamespaceSandbox(
        await start(), "not used", slots=slots, max_sessions=max_sessions, start=start, backend=NAME
    )
    sandbox.capabilities = _CAPABILITIES
    return sandbox


class InsecureSpawner(Spawner):
    def __init__(self) -> None:
        super().__init__(str(GUEST_PLAIN), str(GUEST))

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        folder = tempfile.mkdtemp(prefix="forge-env-insecure-")
        try:
            number, report = super().submit(order | {"folder": folder}, fds)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        report.add_done_callback(lambda _: shutil.rmtree(folder, ignore_errors=True))
        return number, report
