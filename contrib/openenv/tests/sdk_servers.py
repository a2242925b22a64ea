"""Three environments written with the SDK of OpenEnv, and their servers: `python sdk_servers.py KIND PORT [SESSIONS]`.

"echo": one text field, done after the text of the task was repeated. "planned": the rewards that a reset asks for.
"guess": a typed action, a number and a reason. "shelf": MCP tools, with a list of tasks. "template": the echo without
an end that the template of the package makes. It runs in an interpreter that has openenv.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class EchoAction(Action):
    message: str = Field(description="What to say.")


class EchoObservation(Observation):
    echo: str = ""


class EchoEnv(Environment):
    """Repeat the word."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
        self._word = f"word{random.Random(seed).randrange(1000)}"
        self._state = State(episode_id=episode_id, step_count=0)
        return EchoObservation(echo=f"Say {self._word} alone.")

    def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:  # type: ignore[override]
        if action.message == "crash":
            raise RuntimeError("the echo broke")
        self._state.step_count += 1
        right = action.message == self._word
        done = right or self._state.step_count == 4
        return EchoObservation(echo=action.message[:100], reward=float(right), done=done, metadata={"right": right})

    @property
    def state(self) -> State:
        return self._state


class GuessAction(Action):
    """Guess the number."""

    number: int = Field(ge=0, le=100, description="Your guess.")
    reason: str = Field(default="", description="Why.")


class GuessObservation(Observation):
    hint: str = ""
    left: int = 0


class GuessEnv(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, most: int = 6, **kwargs: Any
    ) -> GuessObservation:
        self._number = random.Random(seed).randrange(101)
        self._left, self._state = most, State(step_count=0)
        return GuessObservation(hint="Guess my number, 0 to 100.", left=self._left)

    def step(self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any) -> GuessObservation:  # type: ignore[override]
        self._left -= 1
        if action.number == self._number:
            return GuessObservation(hint="Right.", left=self._left, reward=1, done=True)
        hint = "higher" if action.number < self._number else "lower"
        return GuessObservation(hint=hint, left=self._left, reward=None if self._left else 0.0, done=not self._left)

    @property
    def state(self) -> State:
        return self._state


class PlannedEnv(Environment):
    """Gives the rewards of a plan, "0.5 none nan": the first one at the reset, and the end with the last one."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, plan: str = "none 1", **kwargs: Any
    ) -> EchoObservation:
        words = {"none": None, "true": True, "false": False}
        self._plan = [words[word] if word in words else float(word) for word in plan.split()]
        self._state = State(step_count=0)
        return EchoObservation(echo="Say anything.", reward=self._plan.pop(0))

    def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:  # type: ignore[override]
        reward = self._plan.pop(0)
        return EchoObservation(echo=action.message, reward=reward, done=not self._plan)

    @property
    def state(self) -> State:
        return self._state


PRICES = {name: 3 + 7 * i for i, name in enumerate(["apple", "pear", "plum", "fig", "kiwi", "lime"])}
PAIRS = [(a, b) for a in PRICES for b in PRICES if a < b]


class ShelfEnv(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        from fastmcp import FastMCP

        mcp = FastMCP("shelf")
        self._given: int | None = None

        @mcp.tool
        def price(name: str) -> int:
            """Return the price of a fruit."""
            if name not in PRICES:
                raise ValueError(f"there is no {name[:20]}")
            return PRICES[name]

        @mcp.tool
        def answer(total: int) -> str:
            """Give the answer, which ends the episode."""
            self._given = total
            return "thank you"

        super().__init__(mcp)
        self._state = State(step_count=0)
        self._pair = PAIRS[0]

    def list_splits(self) -> list[Any]:
        return ["train", {"name": "eval", "type": "test"}]

    def num_tasks(self, split: str) -> int:
        return len(self._pairs(split))

    def list_tasks(self, split: str) -> list[Any]:
        return [self.get_task(split, i) for i in range(self.num_tasks(split))]

    def get_task(self, split: str, index: int) -> Any:
        a, b = self._pairs(split)[index]
        return {
            "id": f"{split}-{index}",
            "prompt": f"What do {a} and {b} cost together?",
            "answer": PRICES[a] + PRICES[b],
        }

    def _pairs(self, split: str) -> list[tuple[str, str]]:
        return [pair for i, pair in enumerate(PAIRS) if (i % 5 == 0) == (split == "eval")]

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int = 0,
        **kwargs: Any,
    ) -> Observation:
        self._given, self._pair = None, self._pairs(split)[index]
        return Observation(metadata={"shop": "open"})

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(observation, CallToolObservation) and self._given is not None:
            observation.done = True
            observation.reward = float(self._given == sum(PRICES[name] for name in self._pair))
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"error": f"unknown action {action!r}"})

    @property
    def state(self) -> State:
        return self._state


def template_app(sessions: int) -> Any:
    """The app of the environment that the package's template makes, an echo that never ends."""
    import openenv.cli

    source = Path(openenv.cli.__file__).parent / "templates" / "openenv_env"
    names = {"__ENV_CLASS_NAME__": "Template", "__ENV_TITLE_NAME__": "Template", "__ENV_NAME__": "template"}
    modules: dict[str, Any] = {}
    for name, file in (("models", "models.py"), ("server.env", "server/__ENV_NAME___environment.py")):
        text = (source / file).read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        text = text.replace("from ..models", "from models")
        module = modules[name] = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, None))  # type: ignore[arg-type]
        sys.modules[name] = module
        exec(compile(text, file, "exec"), module.__dict__)
    env, models = modules["server.env"], modules["models"]
    return create_app(
        env.TemplateEnvironment, models.TemplateAction, models.TemplateObservation, max_concurrent_envs=sessions
    )


def main(kind: str, port: int, sessions: int) -> None:
    kinds: dict[str, Any] = {
        "echo": (EchoEnv, EchoAction, EchoObservation),
        "planned": (PlannedEnv, EchoAction, EchoObservation),
        "guess": (GuessEnv, GuessAction, GuessObservation),
        "shelf": (ShelfEnv, CallToolAction, CallToolObservation),
    }
    app = (
        template_app(sessions)
        if kind == "template"
        else create_app(*kinds[kind], env_name=kind, max_concurrent_envs=sessions)
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 100)
