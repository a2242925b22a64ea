"""What an export takes from the run beside its episodes: the model, and the tools that it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError, UserError
from forge_env.records.run_files import CONFIG, RunSettings, imported_facts, read_object, run_settings
from forge_env.registry.agent_spec import model_at


class RunFacts:
    """The settings of a run, and the tools of its environments: an Episode does not hold them."""

    def __init__(self, run: Path) -> None:
        try:
            self._settings = run_settings(run) or RunSettings()
        except UserError:  # another program's folder; its episodes can be read nevertheless
            self._settings = RunSettings()
        self.agent = self._settings.agent or "forge_env"
        """What acted: the agent of an evaluation, or forge_env."""
        kind, _, rest = self.agent.partition(":")
        rest = model_at(rest) if kind == "openai" else rest
        self.agent = f"openai:{rest}" if kind == "openai" else self.agent
        self._model = rest if kind in ("openai", "vllm", "checkpoint") else _trained_model(run.expanduser())
        self._tools: dict[str, list[Any]] = {}
        self.without_tools: dict[str, str] = {}
        """Environment -> why its tools are not to be had."""

    def model(self, episode: Episode) -> str | None:
        recorded = imported_facts(episode).get("model")
        return recorded if isinstance(recorded, str) else self._model

    def tools(self, episode: Episode) -> list[Any]:
        """Return the tools of an episode's environment, in OpenAI's shape."""
        recorded = imported_facts(episode).get("tools")
        if isinstance(recorded, list):
            return recorded
        if episode.env and episode.env not in self._tools:
            self._tools[episode.env] = self._tools_of(episode.env)
        return self._tools.get(episode.env, [])

    def _tools_of(self, env: str) -> list[Any]:
        from forge_env.rollout.factory import make

        try:
            return list(make(env, **(self._settings.options if env == self._settings.env else {})).make().tools)
        except ForgeError as error:
            self.without_tools[env] = str(error)
            return []


def _trained_model(run: Path) -> str | None:
    folder = run if run.is_dir() else run.parent.parent  # RUN/episodes/train.jsonl
    if not (folder / CONFIG).is_file() or not (folder / "run.json").is_file():
        return None
    try:
        model = read_object(folder / "run.json").get("model")
    except UserError:
        return None
    return model if isinstance(model, str) else None
