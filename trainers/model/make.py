"""Finds the model of a run: a local folder, a hub id, or a small one made on the spot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from agents.model_folder import weight_files
from agents.model_weights import places
from agents.scripted import scripted_agent
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.reward_value import reaches
from forge_env.core.types import EpisodeLimits, Message, Task, ToolSpec
from forge_env.evaluation.evaluate import evaluate, is_success
from forge_env.rollout.compaction import COMPACT_PROMPT, SUMMARY
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_episode, run_group
from trainers.model.sizes import MODEL_SIZES

FEW = 4  # tasks of the expert that a limit ended, which are played again without it
CORPUS_TASKS = 192  # demonstrations with the text that trains the tokenizer of a model made on the spot


def count_parameters(model: Path) -> int:
    """Count the parameters of a Hugging Face folder from the headers of its files."""
    return sum(math.prod(place.shape) for place in places(weight_files(model)).values())


async def make_model(folder: Path, *factories: EnvFactory, seed: int, limits: EpisodeLimits, size: str = "tiny") -> int:
    """Make a model with a tokenizer for the text of environments; returns its number of parameters.

    Args:
        seed: of the weights, and of the tasks for the tokenizer.
    """
    from trainers.model.tiny_model import make_tiny_model

    corpus: list[tuple[Sequence[Message], Sequence[ToolSpec]]] = []
    for factory in factories:
        async with factory:
            conversations = await _expert_conversations(factory, seed=seed, limits=limits)
            tools = factory.make().tools
        corpus += [(conversation, tools) for conversation in conversations]
    return make_tiny_model(folder, corpus, seed=seed, size=MODEL_SIZES[size])


async def _expert_conversations(factory: EnvFactory, *, seed: int, limits: EpisodeLimits) -> list[list[Message]]:
    from agents.scripted import scripted_agent

    agent = scripted_agent(factory.name)
    tasks_of_env = factory.tasks("train", count=CORPUS_TASKS, seed=seed, at_most=True)
    tasks = [task for task in tasks_of_env if factory.env_class.can_demonstrate(task)]
    evaluation = await evaluate(
        lambda task, index: run_group(
            factory, agent, GroupSpec(task=task, count=1, seed=index, group_id=f"corpus/{index}"), limits=limits
        ),
        tasks,
        concurrency=16,
    )
    conversations = [episode.messages for episode in evaluation.episodes if _solves(episode)]
    if len(conversations) < len(tasks):
        failures = [episode for episode in evaluation.episodes if not _solves(episode)]
        cut = [episode.task for episode in failures if episode.ended_by == "max_turns"]
        most_turns = max((len(episode.turns) for episode in await solved_by_expert(factory, cut[:FEW])), default=0)
        if most_turns > limits.max_turns:
            raise UserError(too_few_turns(factory.name, most_turns, limits.max_turns))
        raise UserError(f"the expert of {factory.name} failed on {len(failures)} tasks: {min(map(_why, failures))}")
    request: Message = {"role": "user", "content": f"{COMPACT_PROMPT} {SUMMARY}"}
    return conversations + [[request]] * (len(conversations) if limits.compact_at else 0)


def _why(episode: Episode) -> str:
    limit = "" if episode.ended_by in ("", "environment") else f", ended by --env.{episode.ended_by}"
    return episode.error or f"reward {episode.reward:g}{limit}"


def _solves(episode: Episode) -> bool:
    return episode.reward is not None and reaches(episode.reward, 1.0)


AMPLE = EpisodeLimits(max_turns=64)


async def solved_by_expert(factory: EnvFactory, tasks: Iterable[Task]) -> list[Episode]:
    """The episodes of these tasks that the expert solves; `factory` is open."""
    agent = scripted_agent(factory.name)
    episodes = [
        await run_episode(factory, agent, task, seed=number, episode_id=f"expert/{number}", limits=AMPLE)
        for number, task in enumerate(tasks)
    ]
    return [episode for episode in episodes if is_success(episode)]


def too_few_turns(env: str, turns: int, limit: int) -> str:
    """The sentence about a limit of turns that ends the expert's episodes."""
    return f"the expert of {env} needs {turns} turns, and --env.max_turns is {limit}: set it to {turns} or more"
