"""TRL: the rollout loop of its asynchronous trainer, with every token; the model is in its process.

`AsyncRolloutWorker` starts this loop in a process of its own, and refuses without vLLM; so the loop runs here, and its
request to vLLM's server, the method `_generate_one_turn`, is replaced. What HTTP and the queue between two processes
cost is left out, in TRL's favour.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import trl
from accelerate.state import PartialState
from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from benchmarks.rivals.play import Play
from benchmarks.rivals.task import TASKS, TURNS, calculate, message_of, question, target
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import make
from trainers.model.make import make_model

SIBLINGS, AT_ONCE = 8, 1024
DUE: ContextVar[Iterator[list[int]]] = ContextVar("the answers of an episode that are due")
TEMPLATE = Path(trl.__file__).with_name("chat_templates") / "qwen3.jinja"


class Calculator:
    """TRL makes an object for each episode, and its public methods are the tools."""

    def reset(self, **row: Any) -> None:
        return None

    def calculator(self, expression: str) -> str:
        """
        Calculate.

        Args:
            expression: What to calculate.
        """
        return calculate(expression)


def right(completions: list[Any], index: list[int], **_: Any) -> list[float]:
    return [float(one[-1]["content"].strip() == target(i)) for one, i in zip(completions, index, strict=True)]


class Loop(_AsyncRolloutLoop):
    """Plays as many episodes as it is asked for, and ends."""

    def prepare(self, seconds: float) -> None:
        self.seconds, self.to_dispatch, self.dispatched = seconds, 0, asyncio.Event()
        self.answers = {question(i): [self.tokens_of(question(i), turn) for turn in range(TURNS)] for i in range(TASKS)}

    def tokens_of(self, text: str, turn: int) -> list[int]:
        write = partial(
            self.tokenizer.apply_chat_template, tools=self.tools, chat_template=self.chat_template, return_dict=False
        )
        before = [{"role": "user", "content": text}]
        ids = write([*before, message_of(text, turn)])[len(write(before, add_generation_prompt=True)) :]
        return ids[: ids.index(self.eos_token_ids[0]) + 1]

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number in range(self.to_dispatch):
            if number == self.to_dispatch - 1:
                self.dispatched.set()
            yield number // SIBLINGS, self.dataset[number // SIBLINGS % TASKS]

    async def _generate_one(self, prompt: Any, **others: Any) -> Any:
        DUE.set(iter(self.answers[prompt[-1]["content"]]))
        return await super()._generate_one(prompt, **others)

    async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        await asyncio.sleep(self.seconds)
        ids = next(DUE.get())
        return ids, [-0.001] * len(ids)


@asynccontextmanager
async def loop_of_trainer(seconds: float) -> AsyncIterator[Play]:
    PartialState()
    with tempfile.TemporaryDirectory() as folder:
        await make_model(Path(folder), make("math"), seed=0, limits=EpisodeLimits())
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    rows = [{"prompt": [{"role": "user", "content": question(i)}], "index": i} for i in range(TASKS)]
    value = multiprocessing.Value
    buffer: queue.Queue[Any] = queue.Queue()
    loop = Loop(
        model_name="policy", dataset=Dataset.from_list(rows), reward_funcs=[right], processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id], rollout_buffer=buffer, model_version_value=value("i", 0),
        heartbeat_value=value("d", 0.0), failed_event=multiprocessing.Event(), exception_info_queue=queue.Queue(),
        metrics_queue=queue.Queue(), environment_factory=Calculator, num_generations=SIBLINGS,
        max_inflight_tasks=AT_ONCE, score_queue_maxsize=AT_ONCE,
    )  # fmt: skip
    loop.prepare(seconds)

    async def play(episodes: int) -> None:
        loop.to_dispatch = episodes
        loop.dispatched.clear()
        await asyncio.gather(loop._generate_loop(stop_event=loop.dispatched), loop._score_loop(asyncio.Event()))
        samples = [buffer.get_nowait() for _ in range(buffer.qsize())]
        assert len(samples) == episodes and all(sample.metrics["reward"] == 1.0 for sample in samples)

    yield play
    loop._tool_pool.shutdown()


PACKAGE = "trl"
WAYS = {"asynchronous trainer's loop": (loop_of_trainer, AT_ONCE)}
