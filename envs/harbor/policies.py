"""What a Harbor task asks for the agent and the verifier of a step: network and time; and what of it is enforced."""

from __future__ import annotations

from collections.abc import Sequence

from envs.harbor.config import HarborTask, Step
from forge_env.core.workspace import LOOPBACK, Network, NetworkMode

_DEFAULT_SECONDS = 600.0


def agent_network(task: HarborTask) -> Network:
    """The network of the agent's workspace; it is the same in all steps."""
    return _network_of(*task.agent_network())


def verifier_network(task: HarborTask, step: Step | None) -> Network:
    return _network_of(*_asked_for_verifier(task, step))


def network_note(task: HarborTask) -> str:
    """Return what the task asks for and does not get, in one sentence; "" if there is nothing."""
    asking = ["agent"] if task.agent_network()[0] == "public" else []
    if any(_asked_for_verifier(task, step)[0] == "public" for step in task.steps):
        asking.append("verifier")
    if not asking:
        return ""
    theirs = "its workspace has only its own loopback" if len(asking) == 1 else "both have only their own loopback"
    return f"the task asks for a public network for its {' and its '.join(asking)}; {theirs}"


def agent_seconds(task: HarborTask, step: Step | None) -> float:
    """How long the agent may work on a step; the time that the model takes to answer does not count."""
    own = step.agent.timeout_sec if step is not None else None
    return own or task.config.agent.timeout_sec or _DEFAULT_SECONDS


def agent_user(task: HarborTask, step: Step | None) -> str | int | None:
    """The user that the task asks for; None is the image's."""
    own = step.agent.user if step is not None else None
    return task.config.agent.user if own is None else own


def _asked_for_verifier(task: HarborTask, step: Step | None) -> tuple[str, Sequence[str] | None]:
    verifier, environment = task.verifier(step), task.config.environment
    if verifier.network_mode is not None:
        return verifier.network_mode, verifier.allowed_hosts
    if task.verifier_place(step) == "separate" and verifier.environment is not None:
        environment = verifier.environment
    return environment.network_mode, environment.allowed_hosts


def _network_of(mode: str, hosts: Sequence[str] | None) -> Network:
    """Return the network of a mode. A public network is not offered: what asks for it gets its own loopback."""
    if mode == "allowlist" and hosts:
        return Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=tuple(hosts))
    return LOOPBACK
