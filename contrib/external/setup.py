"""What all episodes of external in a process share: the gateway, the command and the scorer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.external.confined import check_programs
from contrib.external.gateway import Gateway, open_gateway
from contrib.external.program import command_of, shown_to
from contrib.external.rooms import Options, Rooms, has_workspaces, is_inside, open_rooms, task_factory
from contrib.external.scoring import Scorer
from contrib.external.told import RULES, read_rules
from forge_env.core.errors import UserError, nearest
from forge_env.core.reward_value import MAX_REWARD
from forge_env.tool_env.rubric import load_reward

FAILURES = ("fault", "score")
SANDBOXES = ("namespaces",)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an episode needs beside its task, whatever plays it."""

    gateway: Gateway
    scorer: Scorer
    scores_failures: bool = False
    """Whether the work of a program that fails is scored."""


@dataclass(frozen=True, kw_only=True)
class ProgramSetup(Setup):
    """What an episode of a program needs."""

    command: list[str]
    host: str
    cwd: str
    sandbox: str
    rooms: Rooms | None = None
    """The workspaces that programs run in; None if they run on this machine."""

    def enforced(self) -> dict[str, Any]:
        """Return what confines the programs; the sandbox was tried when this was opened."""
        if self.rooms is not None:
            return self.rooms.enforced()
        if self.sandbox:
            return {"namespaces": True, "seccomp": True, "missing": ()}
        return {"missing": ("programs are trusted: they run as you do, unless sandbox or image is set",)}


@asynccontextmanager
async def open_setup(
    command: str,
    tasks: str = "",
    reward: str = "",
    host: str = "127.0.0.1",
    cwd: str = "",
    on_failure: str = "fault",
    sandbox: str = "",
    reward_range: str = "-1,1",
    data: str = "",
    image: str = "",
    files: str = "",
    auxiliary: str = "",
    task_options: Options = "",
) -> AsyncIterator[ProgramSetup]:
    """Open what the episodes share.

    Args:
        command: the program and its arguments, split as a shell does; {prompt} in it is the text of the task's prompt.
        tasks: the environment that the tasks come from, which then scores the program's answer. If it has workspaces,
            the program runs in the workspace of its task, and what it leaves there is scored.
        reward: a function that scores it, as `forge_env.tool_env.rubric` says; "module:function" or "file.py:function".
        host: the address of this machine where the gateway listens. Any other than 127.0.0.1 opens it to the network
            behind that address, without encryption: a token alone then keeps others out.
        cwd: the folder that the program starts in; this process's own by default.
        on_failure: "fault" when a program that ends with another exit code than 0 has no reward, "score" when its
            answer is scored all the same; the reward that it gives itself is 0 then.
        sandbox: with "namespaces" the program sees its own files and the gateway only; without, it is trusted.
        reward_range: the least and the largest reward that the program may give itself, "0,100" for example.
        data: the file of the tasks; of `tasks` if that is an environment with such an option.
        image: the image of a workspace that the program runs in, which reaches the gateway only: host,
            host:PACKAGES, or what `contrib.workspaces.images.resolve.find_image` finds.
        files: a folder of this machine that is copied to /agent in the workspace.
        task_options: options of the environment of the tasks, as a JSON object: {"network": "declared"}.
        auxiliary: rules that tell which requests are not part of the work, see `contrib.external.told.read_rules`.
    """
    inside = is_inside(tasks, image)
    rules = (*read_rules(auxiliary), *RULES)
    words = command_of(command, is_inside=inside)
    if inside:
        _check_inside(sandbox, host, cwd)
    if on_failure not in FAILURES:
        raise UserError(f"on_failure is {on_failure!r}; it is {' or '.join(FAILURES)}")
    if cwd and not Path(cwd).is_dir():
        raise UserError(f"cwd is {cwd!r}, and there is no such folder for the program to start in")
    if sandbox:
        await _check_sandbox(sandbox, words, host, cwd)
    async with (
        open_scorer("" if has_workspaces(tasks) else tasks, reward, reward_range, task_options=task_options) as scorer,
        open_gateway(host, rules) as gateway,
        open_rooms(tasks, data=data, image=image, files=files, task_options=task_options) as rooms,
    ):
        yield ProgramSetup(
            command=words,
            gateway=gateway,
            scorer=scorer,
            host=host,
            cwd=cwd,
            scores_failures=on_failure == "score",
            sandbox=sandbox,
            rooms=rooms,
        )


@asynccontextmanager
async def open_scorer(
    tasks: str, reward: str, reward_range: str, giver: str = "program", task_options: Options = ""
) -> AsyncIterator[Scorer]:
    """Open what scores answers; see `open_setup` for the options."""
    bounds = _range(reward_range)
    part = load_reward(reward) if reward else None
    async with AsyncExitStack() as stack:
        env = None
        if tasks and part is None:
            factory = task_factory(tasks, data="", image="", task_options=task_options)
            env = await stack.enter_async_context(factory)
        yield Scorer(part=part, env=env, reward_range=bounds, giver=giver)


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 1.0, -1.0
    if not -MAX_REWARD <= low < high <= MAX_REWARD:
        raise UserError(
            f"reward_range is {text!r}; it is two numbers, the least and the largest reward: 0,1 for example"
        )
    return low, high


def _check_inside(sandbox: str, host: str, cwd: str) -> None:
    """Refuse options that have no meaning for a program in a workspace."""
    for name, value in (("sandbox", sandbox), ("cwd", cwd), ("host", "" if host == "127.0.0.1" else host)):
        if value:
            raise UserError(
                f"{name} is {value!r}, and the program runs in a workspace, where it has no meaning: leave it out; "
                "the option files copies a folder of this machine there"
            )


async def _check_sandbox(sandbox: str, command: list[str], host: str, cwd: str) -> None:
    if sandbox not in SANDBOXES:
        raise UserError(f"sandbox is {sandbox!r}, and there is none of that name. {nearest(sandbox, SANDBOXES)}")
    if host != "127.0.0.1":
        raise UserError(
            f"host is {host!r} and sandbox is {sandbox!r}, where a program reaches only 127.0.0.1: leave host out"
        )
    shown_to(command, cwd)
    await check_programs()
