"""Harbor tasks as episodes: `harbor:PATH`, a folder of tasks or one task.

The agent works in a workspace of the task's image. When it ends, its processes are killed, and the tests run in a fresh
workspace of that image, and appear there only then. The task says which of the agent's files are there. With a separate
verifier only the artefacts are, without links and special files. If the task says nothing, the workspace is a fork: it
has all that the agent has made, but programs, libraries and the files that they read at their start come from the
image. With a shared verifier the tests run on a copy of the agent's whole file system: an agent that has replaced an
interpreter there can forge the verdict, and the episode says so (`info["verdict"]["forgeable"]`).

No verdict is not a zero. When the verifier writes no reward, it is run on an untouched workspace: if it writes one
there, the agent's work is what broke it, and the reward is 0; if not, the task is broken, which is a fault.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from contrib.common.task_audit import TaskAudit
from contrib.harbor.config import (
    Environment,
    HarborTask,
    McpServer,
    Step,
    VerifierPlace,
    find_tasks,
    read_task,
    resolved,
)
from contrib.harbor.mcp_servers import Place, configured, open_servers
from contrib.harbor.needs import network_need, require_consent
from contrib.harbor.oracle import audit_of, cheats_of, play_solution
from contrib.harbor.policies import (
    agent_network,
    agent_seconds,
    agent_user,
    build_network,
    network_facts,
    read_consent,
    verifier_network,
)
from contrib.harbor.staging import begin_step, by_bash, limits_of, make_image, set_up_again
from contrib.harbor.verify import (
    HarborVerdict,
    Submission,
    collect_artifacts,
    combine,
    passes,
    prepare_folders,
    run_verifier,
    sources,
    take_work,
)
from contrib.workspaces.contract import Network, UnpackedImage, WorkspaceFileError
from contrib.workspaces.env.obstacles import names_network, task_faults
from contrib.workspaces.env.prepared_env import PreparedEnv
from contrib.workspaces.env.submission import copy_in
from contrib.workspaces.images.dockerfile import BuiltImage, with_settings
from contrib.workspaces.machines.snapshot import Snapshot
from contrib.workspaces.machines.workspace import Workspace
from envs.task_splits import bucket, check_split
from forge_env.core.env import Env, StepResult
from forge_env.core.errors import EnvError, ServiceError, TooFewTasks, UserError
from forge_env.core.tools import Tool
from forge_env.core.types import Action, Message, Task
from forge_env.utils.deadlines import Deadline, queued

_NO_LIMIT = 1e9
_SHOWN = 20
_FORGEABLE = "the verifier ran with the agent's files, so a replaced interpreter or library could have decided"


class Harbor(PreparedEnv):
    """Tasks in Harbor's format. The reward is what the verifier of the task writes."""

    made_of: ClassVar[Sequence[str]] = ("contrib.workspaces.images.dockerfile",)
    path: ClassVar[str] = ""
    """The folder of tasks; set by `resolve`."""

    _steps: Sequence[Step | None] = (None,)

    def __init__(
        self, *, use_tools: bool = True, shared_verifiers: bool = False, network: str = "off", mirrors: str = ""
    ) -> None:
        """Make an instance.

        Args:
            shared_verifiers: verifiers are shared, as Harbor's are, where their task does not say.
            network: "declared" grants tasks the network that they declare; hosts grant these, also with private
                addresses, to tasks that ask for a network; both, with commas between.
            mirrors: caches of packages that the workspaces use, such as "pypi=URL,npm=URL,apt=URL".
        """
        super().__init__(use_tools=use_tools)
        self._shared_verifiers, self._consent = shared_verifiers, read_consent(network, mirrors)
        self._servers = AsyncExitStack()
        self._agent_seconds = 0.0
        """Seconds that the agent has worked on the present step."""
        self._verdicts: list[HarborVerdict] = []  # of the steps so far

    @classmethod
    def tasks(
        cls, split: str = "train", *, count: int, seed: int = 0, network: str = "off", mirrors: str = ""
    ) -> Sequence[Task]:
        """Return tasks of the folder: a tenth of them, chosen by their names, is "test", the others are "train".

        A folder with one task has it in "train". "all" is every task. A folder with tasks that cannot run without a
        network is refused if the user has not consented to one.
        """
        check_split(split, ("train", "test", "all"))
        tasks = find_tasks(Path(cls.path))
        require_consent(tasks, read_consent(network, mirrors))
        by_name = sorted(tasks, key=lambda task: bucket(task.name, 2**32))
        held_out = by_name[: max(len(tasks) // 10, len(tasks) > 1)]
        if split != "all":
            tasks = [task for task in tasks if (task in held_out) == (split == "test")]
        if count > len(tasks):
            text = f"{count} {split} tasks were asked for, {cls.path} has {len(tasks)}: ask for fewer"
            raise TooFewTasks(text, len(tasks))
        return [_task_of(task) for task in random.Random(seed).sample(tasks, count)]

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """The longest times of the tasks; turns and tokens are not limited by the format, so these are generous."""
        tasks = find_tasks(Path(cls.path))
        agent = max(sum(agent_seconds(task, step) for step in task.steps) for task in tasks)
        # With a copy of the artefacts, and a second run on an untouched workspace if no reward was written.
        verifiers = [task.verifier(step) for task in tasks for step in task.steps]
        scoring = max(2 * v.timeout_sec + sum(hook.timeout_sec for hook in v.collect) for v in verifiers)
        # The environment ends an agent that is out of time. The limits of the episode are for cases that it cannot end.
        seconds = 1.1 * agent + 60.0
        return {
            "max_turns": 100,
            "episode_seconds": seconds,
            "step_seconds": seconds,
            "scoring_seconds": scoring + 60.0,
        }

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str | Sequence[Message]]:
        return list(cheats_of(read_task(Path(task.metadata["folder"]))).values())

    @classmethod
    def audit(cls, *, network: str = "off", mirrors: str = "") -> Sequence[TaskAudit]:
        """Return how `forge-env check` audits each task; refuses as `tasks` does."""
        tasks = find_tasks(Path(cls.path))
        require_consent(tasks, read_consent(network, mirrors))
        return [audit_of(_task_of(task), task) for task in tasks]

    # The agent's workspace.

    @property
    def workdir(self) -> str:
        return self._image.workdir

    @property
    def agent_env(self) -> Mapping[str, str]:
        return self._image.env

    @property
    def agent_user(self) -> str | int | None:
        user = agent_user(self._task, self._step)
        return self._image.user or None if user is None else user

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        messages, info = await super().reset(seed=seed, options=options)
        self._task = read_task(Path(self.task.metadata["folder"]))
        if self._task.digest != self.task.metadata["digest"]:
            raise EnvError(f"the files of {self._task.folder} have changed since its task was read")
        if not self._consent and (need := network_need(self._task)):
            raise EnvError(f"{self._task.name} needs a network ({need}): set the option network=declared")
        self._steps = self._task.steps
        self._verdicts, self._agent_seconds = [], 0.0
        self._image = await self._image_of(self._task.environment_folder, self._task.config.environment)
        servers = self._task.config.environment.mcp_servers
        is_program = bool(self.listeners)  # it has tools of its own, and `mcp_servers`
        self.set_tools(await self._tools_of(servers) if servers and not is_program else {})
        if facts := network_facts(self._task, self._consent):
            info = {**info, "network": facts}
        return messages, info

    @property
    def mcp_servers(self) -> Mapping[str, Mapping[str, Any]]:
        try:
            return configured(self._task.config.environment.mcp_servers)
        except UserError as error:
            raise EnvError(f"the tools of {self._task.name} cannot be had: {error}") from error

    async def _tools_of(self, servers: Sequence[McpServer]) -> Mapping[str, Tool]:
        try:
            place = Place(workspace=await self.open(), user=self.agent_user, env=self.agent_env, cwd=self.workdir)
            return await open_servers(
                self._servers, servers, place, other_names=self._tools, network=self.agent_network
            )
        except (ServiceError, UserError) as error:
            raise EnvError(f"the tools of {self._task.name} cannot be had: {error}") from error

    async def _image_of(self, folder: Path, environment: Environment) -> BuiltImage:
        """Return an image, which stays open until this episode ends."""
        network = build_network(self._consent)
        key = (self._task.digest, str(folder), environment.model_dump_json(), network)
        lease = self.bases.lease(key, lambda: make_image(self.workspaces, folder, environment, network))
        return await self._leases.enter_async_context(lease)

    @property
    def _step(self) -> Step | None:
        return self._steps[len(self._verdicts)]

    @property
    def agent_network(self) -> Network:
        return agent_network(self._task, self._consent)

    async def open_fresh(
        self, image: UnpackedImage | Snapshot | None = None, *, network: Network | None = None
    ) -> Workspace:
        return await self._open(self._image.files if image is None else image, self._task.config.environment, network)

    async def _open(
        self, files: UnpackedImage | Snapshot, environment: Environment, network: Network | None
    ) -> Workspace:
        async with queued():
            return await self.workspaces.open(
                files, limits=limits_of(environment), network=network or self.agent_network
            )

    async def close(self) -> None:
        await self._servers.aclose()
        await super().close()

    async def prepare(self, workspace: Workspace) -> None:
        await prepare_folders(workspace, self.workdir, user=self.agent_user)
        await begin_step(workspace, self._task, self._step, self._image, self.agent_user)

    # Steps and the verdict.

    async def step(self, action: Action) -> StepResult:
        """Take one action. The answer of a step that is not the last brings the instruction of the next one.

        An agent that has used up its time is ended, and what it has done is verified, as Harbor does.
        """
        with task_faults():
            if action.tool_calls:
                return await self._act(action)
            if len(self._verdicts) + 1 == len(self._steps):
                return await super().step(action)
            self.messages.append(action.message)
            return await self._end_step(action.text)

    async def _act(self, action: Action) -> StepResult:
        limit = agent_seconds(self._task, self._step)
        self.seconds_left = limit - self._agent_seconds
        clock = Deadline(_NO_LIMIT)
        with clock:  # pauses where the agent is not at work
            observation, reward, terminated, truncated, info = await super().step(action)
        self._agent_seconds += clock.seconds_used
        if self._agent_seconds < limit:
            return observation, reward, terminated, truncated, info
        info = {**info, "agent_timeout": f"the agent has worked for {limit:g} s, which is all that the task allows"}
        if len(self._verdicts) + 1 == len(self._steps):
            total, parts = await self._score("")
            return observation, total, True, False, {**info, "rewards": parts, "verdict": dict(self._verdict or {})}
        messages, total, terminated, truncated, more = await self._end_step("")
        return [*observation, *messages], total, terminated, truncated, {**info, **more}

    async def _end_step(self, answer: str) -> StepResult:
        """Verify a step that is not the last, and begin the next one if its rewards allow that."""
        step, workspace = self._step, await self.open()
        async with queued():  # the verifier's time does not count as the model's
            await workspace.end_processes()
            total, facts = await self.grade(await self.collect(workspace), answer)
            if step is not None and not passes(self._verdicts[-1], step.min_reward):
                return [], total, True, False, {"verdict": dict(facts)}
            self._shell, self._agent_seconds = None, 0.0
            await begin_step(workspace, self._task, self._step, self._image, self.agent_user)
        message: Message = {"role": "user", "content": self._task.instruction(self._step)}
        self.messages.append(message)
        return [message], 0.0, False, False, {}

    async def collect(self, workspace: Workspace) -> Submission:
        """Copy what the verifier is to see: the artefacts, or all files where the verifier is shared."""
        step, verifier = self._step, self._task.verifier(self._step)
        for hook in verifier.collect:
            await workspace.exec(
                by_bash("-c", hook.command), user=hook.user, env=self.agent_env, timeout_s=hook.timeout_sec
            )
            await workspace.end_processes()
        place, artifacts = self._place_of(step), self._task.artifacts(step)
        if place == "shared":
            return Submission(snapshot=await workspace.snapshot())
        if place == "fork":
            return await self._fork(workspace, sources(self._task, step, self.workdir), verifier.env)
        return Submission(copies=await collect_artifacts(workspace, artifacts, self.workdir))

    async def _fork(self, workspace: Workspace, artifacts: Sequence[str], env: Mapping[str, str]) -> Submission:
        submission = Submission(fork=await self._open_for(self._step, self._image.files))
        assert submission.fork is not None
        try:
            await self._set_up_again(submission.fork)
            env = {**self._image.env, **env}
            submission.not_counted = await take_work(submission.fork, workspace, artifacts, self.workdir, env)
        except WorkspaceFileError as error:
            submission.problem = f"the agent's files cannot be copied: {error}"
        except BaseException:
            await submission.close()
            raise
        return submission

    async def _set_up_again(self, workspace: Workspace) -> None:
        steps = self._steps[: len(self._verdicts) + 1]
        await set_up_again(workspace, self._task, steps, self._image, self.agent_user)

    async def grade(self, work: Submission | None, answer: str) -> tuple[float, Mapping[str, Any]]:
        submission = work or Submission()
        try:
            self._verdicts.append(await self._verify(submission))
        finally:
            await submission.close()
        rewards = self._step_rewards()
        return HarborVerdict(rewards=rewards).reward, self._facts(rewards)

    def _step_rewards(self) -> Mapping[str, float]:
        if len(self._steps) == 1:
            return self._verdicts[0].rewards or {"reward": 0.0}
        return combine(self._verdicts, self._task.config.multi_step_reward_strategy)

    def _place_of(self, step: Step | None) -> VerifierPlace:
        place = self._task.verifier_place(step)
        return "shared" if place == "fork" and self._shared_verifiers else place

    def _facts(self, rewards: Mapping[str, float]) -> dict[str, Any]:
        places = [self._place_of(step) for step in self._steps]
        is_shared, last = "shared" in places, self._verdicts[-1]
        not_counted = list(dict.fromkeys(path for verdict in self._verdicts for path in verdict.not_counted))
        steps = [dict(verdict.rewards or {}) for verdict in self._verdicts]
        return {
            "rewards": dict(rewards),
            "verifier": "shared" if is_shared else places[-1],
            "forgeable": is_shared,
            **({"forgeable_because": _FORGEABLE} if is_shared else {}),
            "reason": last.reason,
            "output": last.output,
            "verifier_seconds": sum(verdict.seconds for verdict in self._verdicts),
            **({"not_counted": not_counted[:_SHOWN]} if not_counted else {}),
            **({"steps": steps} if len(self._steps) > 1 else {}),
        }

    async def _verify(self, submission: Submission) -> HarborVerdict:
        if submission.copies.problem:
            return HarborVerdict(rewards=None, reason=f"the artefact {submission.copies.problem}")
        if submission.problem:
            return HarborVerdict(rewards=None, reason=submission.problem)
        verdict = replace(await self._run(self._step, submission), not_counted=submission.not_counted)
        if verdict.rewards is None or verdict.obstacle:
            control = verdict if submission.is_untouched else await self._run(self._step, Submission())
            if control.obstacle and control.reward == verdict.reward:  # any other reward was judged
                asks = names_network(control.obstacle) and not self._consent
                hint = " (a network: --option network=declared)" if asks else ""
                raise EnvError(
                    f"the verifier of {self._task.name} cannot run here{hint}, whatever was done: {control.obstacle}"
                )
            if verdict.rewards is None and control.rewards is None:
                raise EnvError(
                    f"the verifier of {self._task.name} gives no reward, nor does it for an untouched workspace: "
                    f"{control.reason}. {' '.join(control.output.split())[-300:]}"
                )
        return verdict

    async def _run(self, step: Step | None, submission: Submission) -> HarborVerdict:
        """Run the verifier on a submission; on an untouched one in a workspace that is as the agent's was at first."""
        image, has_tests = await self._verifier_image(step)
        workspace = submission.fork or await self._open_for(step, submission.snapshot or image.files)
        try:
            if submission.is_untouched and self._place_of(step) != "separate":
                await self._set_up_again(workspace)
            await copy_in(workspace, submission.copies)
            verdict = await run_verifier(
                workspace,
                self._task,
                step,
                env=image.env,
                workdir=image.workdir,
                has_tests=has_tests,
                place=self._place_of(step),
            )
            return replace(verdict, obstacle="; ".join(workspace.unreachable) or verdict.obstacle)
        finally:
            await workspace.close()

    async def _open_for(self, step: Step | None, files: UnpackedImage | Snapshot) -> Workspace:
        environment = self._task.config.environment
        if self._place_of(step) == "separate":
            environment = self._task.verifier(step).environment or environment
        return await self._open(files, environment, verifier_network(self._task, step, self._consent))

    async def _verifier_image(self, step: Step | None) -> tuple[BuiltImage, bool]:
        """Return the image, and whether it may bring /tests."""
        if self._place_of(step) != "separate":
            return self._image, False
        folder, environment, has_tests = self._task.verifier_image(step)
        if has_tests:
            return await self._image_of(folder, environment), True
        env = resolved(environment.env, where=f"the environment of the verifier of {self._task.name}")
        return with_settings(self._image, env=env, workdir=environment.workdir), False


def _task_of(task: HarborTask) -> Task:
    first = task.config.steps[0] if task.config.steps else None
    metadata = {"folder": str(task.folder), "digest": task.digest, "name": task.name}
    kind = task.config.metadata.get("category") or task.config.metadata.get("difficulty") or ""
    return Task(prompt=({"role": "user", "content": task.instruction(first)},), metadata=metadata, kind=str(kind))


@functools.cache
def resolve(rest: str) -> type[Env]:
    path = Path(rest).expanduser().absolute()
    find_tasks(path)
    attributes = {
        "path": str(path),
        "expert": staticmethod(functools.partial(play_solution, path)),
        "__doc__": f"The Harbor tasks of {path}.",
        "__module__": __name__,
    }
    return type("Harbor", (Harbor,), attributes)
