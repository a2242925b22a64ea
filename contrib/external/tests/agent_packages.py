"""The agent packages of PyPI that run as they are: their programs, and what their episodes look like."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from contrib.external.tests.external_playing import calls
from forge_env.core.episode import Episode
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Message, Task
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.own_environment import python_with

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).resolve().parents[3] / "contrib" / "external" / "examples" / "agents"
TASK = Task(prompt=({"role": "user", "content": "What is 19 + 23, and what is one more?"},), target="43")
REWARD = f"{__file__}:grade"
OPENAI = "openai==3.57.0"
ANTHROPIC = "anthropic==2.13.0"
OPENAI_AGENTS = "openai-agents==0.24.0"
MINI_SWE = "mini-swe-agent==2.4.6"
EDITED = frozenset({"edited_message"})
SMOLAGENTS = ("smolagents[openai]==1.26.0", OPENAI)
PYDANTIC_AI = "pydantic-ai-slim[openai,anthropic]==2.68.0"
FIRST, SECOND = calls("add", a=19, b=23), calls("add", a=42, b=1)
SUBMITS = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 2"


def grade(answer: str, target: str) -> float:
    """Whether the answer is the target."""
    return float(answer.strip() == target)


@dataclass(frozen=True)
class Case:
    """A program, its packages, and what its episode looks like."""

    program: str
    """A file of contrib/external/examples/agents, or of this folder, and its arguments."""
    packages: tuple[str, ...]
    says: tuple[Message | str, ...] = (FIRST, SECOND, "43")
    """What a model says that solves TASK."""
    rows: int = 1
    kinds: frozenset[str] = frozenset()
    constrained: bool = False
    """Whether its answers are sampled under a grammar, and left out of the loss."""

    @property
    def id(self) -> str:
        name, *arguments = self.program.split()
        return " ".join([name.removesuffix(".py").removesuffix("_agent").removesuffix("_program"), *arguments])

    @property
    def package(self) -> tuple[str, str]:
        """Name and version of the first package."""
        name, _, version = self.packages[0].partition("==")
        return name.partition("[")[0], version


ENDS_BY_CALL = (FIRST, SECOND, calls("final_answer", answer="43"))  # smolagents wants its answer as a call
CASES = [
    Case("openai_chat_agent.py", (OPENAI,)),
    Case("openai_responses_agent.py", (OPENAI,)),
    Case("anthropic_agent.py", (ANTHROPIC,)),
    Case("smolagents_agent.py auto", SMOLAGENTS, says=ENDS_BY_CALL, rows=3, kinds=EDITED),
    Case("smolagents_agent.py required", SMOLAGENTS, says=ENDS_BY_CALL, rows=3, kinds=EDITED, constrained=True),
    Case("langgraph_agent.py", ("langgraph==1.2.24", "langchain-openai==1.7.4", OPENAI)),
    Case("litellm_agent.py", ("litellm==1.110.2", OPENAI)),
    Case("pydantic_ai_agent.py openai-chat", (PYDANTIC_AI, OPENAI)),
    Case("pydantic_ai_agent.py openai-responses", (PYDANTIC_AI, OPENAI)),
    Case("pydantic_ai_agent.py anthropic", (PYDANTIC_AI, ANTHROPIC)),
    Case("openai_agents_program.py default", (OPENAI_AGENTS,), says=(FIRST, "42", SECOND, "43")),
    Case("openai_agents_program.py chat", (OPENAI_AGENTS,), says=(FIRST, "42", SECOND, "43")),
    Case("mini_swe_program.py fixed", (MINI_SWE,), says=(calls("bash", command="ls"), calls("bash", command=SUBMITS))),
]


async def episode_of(case: Case, agent: Agent, limits: EpisodeLimits) -> Episode:
    """Play a program once; those of this folder give themselves their reward."""
    name, *arguments = case.program.split()
    own = HERE / name
    command = [str(python_with(*case.packages)), str(own if own.exists() else EXAMPLES / name), *arguments]
    options = {} if own.exists() else {"reward": REWARD}
    async with make("external", command=shlex.join(command), on_failure="score", **options) as factory:
        return await run_episode(factory, agent, TASK, seed=0, episode_id=case.id, limits=limits)
