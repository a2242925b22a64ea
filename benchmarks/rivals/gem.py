"""GEM: environments in one of its vectors, which a batch of answers steps."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import gem
from gem.utils.sandbox import run_python

from benchmarks.rivals.play import Play, threads
from benchmarks.rivals.task import TURNS, calculate, question, read_tags, tags_of, target


class Calculator(gem.Env):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._index = seed

    def reset(self, seed: int | None = None) -> tuple[str, dict]:
        return question(self._index), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        tag, text = read_tags(action)
        if tag == "calculator":
            return calculate(text), 0.0, False, False, {}
        return "", float(text == target(self._index)), True, False, {}


gem.register("rivals:Calculator", Calculator)


def way(async_mode: bool):
    @asynccontextmanager
    async def open_way(seconds: float) -> AsyncIterator[Play]:
        vectors = {}

        async def play(episodes: int) -> None:
            if episodes not in vectors:
                vectors[episodes] = gem.make_vec(["rivals:Calculator"] * episodes, async_mode=async_mode)
            questions, _ = vectors[episodes].reset()
            for turn in range(TURNS):
                await asyncio.sleep(seconds)
                answers = [tags_of(text, turn) for text in questions]
                _, rewards, ends, _, _ = vectors[episodes].step(answers)
            assert ends.all() and rewards.sum() == episodes

        yield play

    return open_way


PACKAGE = "gem-llm"
WAYS = {"SyncVectorEnv": (way(False), 1024), "AsyncVectorEnv": (way(True), 1024)}


def code(kind: str):
    return threads(lambda text: run_python(text, kind)[1])


CODE = {"run_python, none": code("none")} | ({"run_python, bwrap": code("bwrap")} if shutil.which("bwrap") else {})
