"""Import paths that documents once showed, and where their modules are now: the former ones go on to work.

`import trainers.losses` gives the module `trainers.objective.losses` itself, not a copy of it, so that a class has one
identity whichever path it was imported by.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

FORMER_PATHS = {
    "agents.chat_agent": "agents.chat.agent",
    "agents.chat_client": "agents.chat.client",
    "agents.decoding": "agents.renderer.decoding",
    "agents.dialects": "agents.renderer.dialects",
    "agents.judge": "agents.chat.judge",
    "agents.rendering": "agents.renderer.rendering",
    "agents.tokenizer": "agents.renderer.tokenizer",
    "agents.vllm_engine": "agents.generator.engine",
    "agents.vllm_policy": "agents.generator.policy",
    "agents.vllm_start": "agents.generator.start",
    "envs.actor": "envs.actors.env",
    "envs.reward_actor": "envs.actors.reward",
    "envs.task_actor": "envs.actors.task_source",
    "forge_env.deadlines": "forge_env.utils.deadlines",
    "forge_env.env": "forge_env.core.env",
    "forge_env.episode": "forge_env.core.episode",
    "forge_env.errors": "forge_env.core.errors",
    "forge_env.evaluate": "forge_env.evaluation.evaluate",
    "forge_env.factory": "forge_env.rollout.factory",
    "forge_env.faults": "forge_env.core.faults",
    "forge_env.gymnasium_env": "forge_env.gymnasium.env",
    "forge_env.lockstep": "forge_env.rollout.lockstep",
    "forge_env.protocols": "forge_env.core.protocols",
    "forge_env.rubric": "forge_env.tool_env.rubric",
    "forge_env.sandbox": "forge_env.core.sandbox",
    "forge_env.statistics": "forge_env.utils.statistics",
    "forge_env.toolbox": "forge_env.tool_env.toolbox",
    "forge_env.tools": "forge_env.core.tools",
    "forge_env.types": "forge_env.core.types",
    "sandboxes.insecure": "sandboxes.host.insecure",
    "sandboxes.namespace": "sandboxes.host.namespace",
    "trainers.actor": "trainers.run.trainer_actor",
    "trainers.advantages": "trainers.objective.advantages",
    "trainers.batch": "trainers.batching.batch",
    "trainers.chats": "trainers.sft",
    "trainers.credit": "trainers.objective.credit",
    "trainers.loop": "trainers.controller.loop",
    "trainers.loss_base": "trainers.objective.loss_base",
    "trainers.loss_terms": "trainers.objective.loss_terms",
    "trainers.models": "trainers.model.make",
    "trainers.own_parts": "trainers.objective.plugins",
    "trainers.plain_losses": "trainers.losses",
    "trainers.policy_gradient": "trainers.controller.policy_gradient",
    "trainers.reference": "trainers.run.reference",
    "trainers.replay_buffer": "trainers.run.replay_buffer",
    "trainers.report": "trainers.metrics.report",
    "trainers.setup.read_config": "trainers.setup.options.read_config",
    "trainers.start": "trainers.setup",
}


def accept_former_paths() -> None:
    """Let the import system look former paths up first: a module below a former package would be loaded twice."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Gives a former path, and whatever is below one, the spec of an alias."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parent, _, last = name.rpartition(".")
        present = FORMER_PATHS.get(name) or (f"{FORMER_PATHS[parent]}.{last}" if parent in FORMER_PATHS else None)
        return importlib.machinery.ModuleSpec(name, _Alias(present)) if present else None


class _Alias(importlib.abc.Loader):
    """Loads the module of the present path and puts it at the former one, too."""

    def __init__(self, present: str) -> None:
        self._module = importlib.import_module(present)
        self._spec, self._loader = self._module.__spec__, self._module.__loader__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec into the module: pickle and reload need the real one.
        module.__spec__, module.__loader__ = self._spec, self._loader
