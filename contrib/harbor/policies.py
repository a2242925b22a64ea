"""What a Harbor task asks for the agent and the verifier of a step: network and time; and what of it is granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contrib.harbor.config import HarborTask, Step
from contrib.workspaces.contract import LOOPBACK, Network, NetworkMode
from contrib.workspaces.machines.proxy import PORT, THIS_MACHINE, Allowlist, names_private, ports_of, read_mirrors
from forge_env.core.errors import UserError

_DEFAULT_SECONDS = 600.0
_PUBLIC = ("public", None)
Asked = tuple[str, Sequence[str] | None]
"""A network mode of the format, and its hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """What the user grants to tasks that ask for a network."""

    is_declared: bool = False
    """Whether they have what they declare."""
    hosts: tuple[str, ...] = ()
    """What they have beside it, or instead; these may have private addresses."""
    mirrors: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.is_declared or bool(self.hosts)

    def to(self, request: Asked) -> Network:
        """Return the network of a place that asks for one. A task cannot name a private address, only the user can."""
        mode, names = request
        hosts: tuple[str, ...] = ()
        if self.is_declared and mode != "no-network":
            hosts = ("*",) if mode == "public" else tuple(host for host in names or () if not names_private(host))
        own = () if mode == "no-network" else self.hosts
        if not hosts and not own:
            return LOOPBACK
        return Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=hosts, own_hosts=own, mirrors=self.mirrors)


def read_consent(network: str, mirrors: str) -> Consent:
    words = [word.strip().lower() for word in network.split(",") if word.strip()]
    hosts = tuple(word for word in words if word not in ("off", "declared"))
    if not words or ("off" in words and len(words) > 1):
        raise UserError(
            f"network is {network!r}; it is off, or declared (what each task declares), or hosts with commas between, "
            "such as declared,cache.example.org:8080"
        )
    if hosts:
        Allowlist((), hosts)
    for host in hosts:
        if host in THIS_MACHINE:
            raise UserError(f"network has {host!r}; a server of this machine is named with its port, as {host}:8080")
    consent = Consent(is_declared="declared" in words, hosts=hosts, mirrors=read_mirrors(mirrors))
    if consent.mirrors and not consent:
        raise UserError("mirrors are for tasks with a network, and network is off: set network=declared as well")
    if PORT in ports_of(build_network(consent))[:-1]:
        raise UserError(f"port {PORT} of a workspace is its proxy's: let your server have another port of this machine")
    return consent


def build_network(consent: Consent) -> Network:
    """The network of the RUN lines of a Dockerfile: a build is public in Harbor, whatever the task declares."""
    return consent.to(_PUBLIC)


def agent_network(task: HarborTask, consent: Consent) -> Network:
    """The network of the agent's workspace; it is the same in all steps."""
    return consent.to(task.agent_network())


def verifier_network(task: HarborTask, step: Step | None, consent: Consent) -> Network:
    return consent.to(asked_for_verifier(task, step))


def network_facts(task: HarborTask, consent: Consent) -> dict[str, Any]:
    """Return which networks are granted to a task that asks for one; {} for one that asks for none."""
    requests: list[tuple[str, Asked]] = [("agent", task.agent_network())]
    requests += [("verifier", asked_for_verifier(task, step)) for step in task.steps]
    networks = {place: consent.to(network) for place, network in requests if network[0] != "no-network"}
    facts: dict[str, Any] = {place: _description(network) for place, network in networks.items()}
    if consent:
        facts["build"] = _description(build_network(consent))
        facts["mirrors"] = [kind for kind, _ in consent.mirrors]
    elif networks:
        theirs = (
            "its workspace has only its own loopback" if len(networks) == 1 else "both have only their own loopback"
        )
        facts["note"] = f"the task asks for a network for its {' and its '.join(networks)}; {theirs}"
    return facts


def agent_seconds(task: HarborTask, step: Step | None) -> float:
    """How long the agent may work on a step; the time that the model takes to answer does not count."""
    own = step.agent.timeout_sec if step is not None else None
    return own or task.config.agent.timeout_sec or _DEFAULT_SECONDS


def agent_user(task: HarborTask, step: Step | None) -> str | int | None:
    """The user that the task asks for; None is the image's."""
    own = step.agent.user if step is not None else None
    return task.config.agent.user if own is None else own


def asked_for_verifier(task: HarborTask, step: Step | None) -> Asked:
    verifier, environment = task.verifier(step), task.config.environment
    if verifier.network_mode is not None:
        return verifier.network_mode, verifier.allowed_hosts
    if task.verifier_place(step) == "separate" and verifier.environment is not None:
        environment = verifier.environment
    return environment.network_mode, environment.allowed_hosts


def _description(network: Network) -> str | list[str]:
    if network == LOOPBACK:
        return "loopback"
    hosts = ["public" if host == "*" else host for host in network.allowed_hosts]
    return [*hosts, *network.own_hosts]
