"""The greedy attempts beside the sampled ones of a local model: when there are any, and what is resumed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agents.scripted import ScriptedAgent
from envs.math import Math
from forge_env.core.protocols import Conversation
from forge_env.core.turn import Turn
from forge_env.core.types import Action, ToolSpec
from forge_env.evaluation.api import evaluate_async
from forge_env.registry import agent_spec
from forge_env.registry.agent_spec import AgentSettings


class Local(ScriptedAgent):
    """Stands for a local model: it is right at temperature 0 only."""

    opened: ClassVar[int] = 0
    acted: ClassVar[list[bool]] = []

    def __init__(self, is_greedy: bool = False) -> None:
        super().__init__(Math.expert if is_greedy else lambda messages: {"role": "assistant", "content": "no"})
        self.is_greedy = is_greedy

    def greedily(self) -> Local:
        return Local(is_greedy=True)

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if not conversation.turns:
            self.acted.append(self.is_greedy)
        return await super().act(conversation, tools)


@asynccontextmanager
async def open_local(model: str, settings: AgentSettings) -> AsyncIterator[Local]:
    Local.opened += 1
    yield Local()


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent_spec.OPENERS, "vllm", f"{__name__}:open_local")
    Local.opened, Local.acted = 0, []


async def evaluated(model: Path, out: Path, *, greedy: bool = True, **settings: Any) -> dict[str, Any]:
    settings = {"tasks": 3, "samples": 2, "progress": False, **settings}
    return dict((await evaluate_async("math", f"vllm:{model}", out=out, greedy=greedy, **settings)).figures)


async def test_greedy_success_stands_beside_the_sampled_one(tiny_model: Path, tmp_path: Path) -> None:
    result = await evaluated(tiny_model, tmp_path / "out")
    assert (result["avg@2"], result["greedy"]["avg@1"], result["greedy"]["episodes"]) == (0.0, 1.0, 3)
    assert Local.opened == 1 and sorted(Local.acted) == [False] * 6 + [True] * 3
    assert json.loads((tmp_path / "out" / "eval.json").read_text())["greedy"] == result["greedy"]
    settings = json.loads((tmp_path / "out" / "greedy" / "plan.json").read_text())
    assert (settings["temperature"], settings["n"], settings["tasks"]) == (0.0, 1, 3)


async def test_what_is_there_is_not_played_again_and_the_folder_may_grow(tiny_model: Path, tmp_path: Path) -> None:
    first = await evaluated(tiny_model, tmp_path / "out", greedy=False)
    assert "greedy" not in first and Local.acted == [False] * 6
    second = await evaluated(tiny_model, tmp_path / "out")
    assert (second["episodes_run"], second["greedy"]["episodes"], Local.acted[6:]) == (0, 3, [True] * 3)
    third = await evaluated(tiny_model, tmp_path / "out")
    assert third["greedy"] == second["greedy"] and (Local.opened, len(Local.acted)) == (2, 9)
    larger = await evaluated(tiny_model, tmp_path / "out", tasks=5)
    assert (larger["episodes_run"], larger["greedy"]["episodes"]) == (4, 5)
    assert sorted(Local.acted[9:]) == [False] * 4 + [True] * 2


@pytest.mark.parametrize("settings", [{"temperature": 0.0, "samples": 1}, {"deterministic": True}])
async def test_there_is_no_second_figure_of_a_greedy_evaluation(
    tiny_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    assert "greedy" not in await evaluated(tiny_model, tmp_path / "out", **settings)
    assert not any(Local.acted)


async def test_nor_of_an_agent_that_is_no_local_model(tmp_path: Path) -> None:
    result = await evaluate_async("math", "scripted:expert", tasks=2, progress=False)
    assert "greedy" not in result.figures
