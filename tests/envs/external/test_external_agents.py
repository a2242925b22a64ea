"""The agents of examples/agents with their unmodified packages, each in an environment of its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agents.renderer.decoding import open_decoder
from agents.token_agent import TokenAgent
from forge_env.core.episode import Episode, write_jsonl
from forge_env.core.protocols import Agent
from forge_env.core.types import Completion, EpisodeLimits, Outcome, Sampling, Task
from forge_env.records.audit import audit
from forge_env.registry.agent_spec import AgentSettings, open_agent
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.envs.external.external_playing import ENGINE_LIMITS, SaysPolicy, calls, make_long_model
from tests.helpers.own_environment import python_with

ROOT = Path(__file__).resolve().parents[3]
TASK = Task(prompt=({"role": "user", "content": "What is 19 + 23, and what is one more?"},), target="43")
REWARD = f"{__file__}:grade"
OPENAI = "openai==3.57.0"
ANTHROPIC = "anthropic==2.13.0"
SMOLAGENTS = ("smolagents[openai]==1.26.0", OPENAI)
PYDANTIC_AI = "pydantic-ai-slim[openai,anthropic]==2.68.0"


def grade(answer: str, target: str) -> float:
    """Whether the answer is the target."""
    return float(answer.strip() == target)


@dataclass(frozen=True)
class Case:
    """An example, its packages, and what its episode looks like."""

    program: str
    packages: tuple[str, ...]
    rows: int = 1
    kinds: frozenset[str] = frozenset()
    constrained: bool = False  # whether its answers are sampled under a grammar, and left out of the loss


class FormsPolicy(SaysPolicy):
    """Says what has the form that a request asks for, as an engine with a grammar does."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        done = await super().generate(prompt_ids, sampling, request_id=request_id, session=session)
        return replace(done, constrained=len(done.token_ids) if sampling.grammar else 0)


CASES = [
    Case("openai_chat_agent.py", (OPENAI,)),
    Case("openai_responses_agent.py", (OPENAI,)),
    Case("anthropic_agent.py", (ANTHROPIC,)),
    Case("smolagents_agent.py auto", SMOLAGENTS, rows=3, kinds=frozenset({"edited_message"})),
    Case("smolagents_agent.py required", SMOLAGENTS, rows=3, kinds=frozenset({"edited_message"}), constrained=True),
    Case("langgraph_agent.py", ("langgraph==1.2.24", "langchain-openai==1.7.4", OPENAI)),
    Case("litellm_agent.py", ("litellm==1.110.2", OPENAI)),
    Case("pydantic_ai_agent.py openai-chat", (PYDANTIC_AI, OPENAI)),
    Case("pydantic_ai_agent.py openai-responses", (PYDANTIC_AI, OPENAI)),
    Case("pydantic_ai_agent.py anthropic", (PYDANTIC_AI, ANTHROPIC)),
]
IDS = [case.program.replace("_agent.py", "") for case in CASES]


async def episode_of(case: Case, agent: Agent, limits: EpisodeLimits) -> Episode:
    """Play an example once."""
    program, *arguments = case.program.split()
    command = [str(python_with(*case.packages)), str(ROOT / "examples" / "agents" / program), *arguments]
    async with make("external", command=shlex.join(command), reward=REWARD, on_failure="score") as factory:
        return await run_episode(factory, agent, TASK, seed=0, episode_id=IDS[CASES.index(case)], limits=limits)


def script(model: Path, case: Case) -> TokenAgent:
    """A model that adds twice and then answers; smolagents wants its answer as a call."""
    ends_by_call = case.program.startswith("smolagents")
    last = calls("final_answer", answer="43") if ends_by_call else "43"
    messages = [calls("add", a=19, b=23), calls("add", a=42, b=1), last]
    return TokenAgent(str(model), FormsPolicy(model, messages))


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the packages
@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_an_agent_as_it_is_solves_a_task_with_tools(case: Case, tiny_model: Path, tmp_path: Path) -> None:
    episode = await episode_of(case, script(tiny_model, case), EpisodeLimits(max_tokens=40_000))
    told = json.dumps(episode.info.get("program"), indent=1)
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), told
    assert "refused_requests" not in episode.info, told
    assert {bool(turn.constrained) for turn in episode.turns} == {case.constrained}
    began = episode.lineage[1:]
    assert (len(episode.turns), len(episode.rows)) == (3, case.rows), began
    assert {row.kind for row in began} == case.kinds, began
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, [episode])
    assert audit(file, open_decoder(tiny_model)).problems == []


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the packages, and starts an engine
async def test_a_real_engine_answers_every_agent_and_its_tokens_are_exact(tiny_model: Path, tmp_path: Path) -> None:
    """A random model solves nothing: what is asserted is that requests are answered, and what was recorded."""
    for case in CASES:
        python_with(*case.packages)
    make_long_model(tiny_model, tmp_path / "model")
    settings = AgentSettings(env="external", max_tokens=ENGINE_LIMITS.max_tokens, concurrency=1)
    async with open_agent(f"checkpoint:{tmp_path}", settings) as agent:
        episodes = [await episode_of(case, agent, ENGINE_LIMITS) for case in CASES]
    told = {e.id: (e.outcome, e.error, e.info.get("refused_requests"), len(e.turns)) for e in episodes}
    assert all(e.outcome in (Outcome.SCORED, Outcome.TRUNCATED) and e.turns for e in episodes), told
    assert not any("refused_requests" in e.info for e in episodes), told
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, episodes)
    result = audit(file, open_decoder(tiny_model))
    assert (result.problems, result.episodes) == ([], len(CASES)), told
    assert result.decoded_turns == result.turns == sum(len(e.turns) for e in episodes)
