"""Three environments, served with the SDK of the standard that is installed: `python FILE PORT NAME...`.

Both packages, ors-sdk and openreward, have the same classes.
"""

from __future__ import annotations

import random
import sys
from typing import Any

try:
    from openreward.environments import Environment, Server, Split, TextBlock, ToolOutput, tool
except ImportError:
    from ors import Environment, Server, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Number(BaseModel):
    value: int


class Move(BaseModel):
    key: str
    text: str = ""


def said(text: str, **more: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **more)


class Small(Environment):
    """Splits of 20 and 10 tasks."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="held_out", type="test")]

    @classmethod
    def list_tasks(cls, split: str):
        first, count = (0, 20) if split == "train" else (100, 10)
        return [{"number": first + i} for i in range(count)]


class Sums(Small):
    """One call, which is graded."""

    def get_prompt(self):
        return [TextBlock(text=f"What is {self.task_spec['number']} + 7?"), TextBlock(text="Submit the sum.")]

    @tool
    def submit(self, params: Number) -> ToolOutput:
        """Submit the answer."""
        right = params.value == self.task_spec["number"] + 7
        return said("Right." if right else "Wrong.", reward=1.0 if right else 0.0, finished=True)


class Guess(Small):
    """Several turns, each with a reward; the session holds the state."""

    def setup(self):
        self.low, self.high, self.tries = 0, 128, 0

    def get_prompt(self):
        return [TextBlock(text="Guess a number from 0 to 127 within 7 tries.")]

    @tool
    def guess(self, params: Number) -> ToolOutput:
        """Make a guess."""
        self.tries += 1
        target = self.task_spec["number"]
        if params.value == target:
            return said("Found.", reward=1.0, finished=True, metadata={"tries": self.tries})
        word = "Higher." if params.value < target else "Lower."
        return said(word, reward=-0.01, finished=self.tries >= 7)


class Notes(Small):
    """Tools with a store, and one without arguments."""

    async def setup(self):
        self.notes: dict[str, str] = {}

    async def get_prompt(self):
        return [TextBlock(text=f"Write the number {self.task_spec['number']} under the key 'n', then finish.")]

    @tool
    async def write(self, params: Move) -> ToolOutput:
        """Write a note."""
        self.notes[params.key] = params.text
        return said("Written.")

    @tool
    async def read_all(self) -> ToolOutput:
        """Read all notes."""
        return said("".join(f"{k}={v}\n" for k, v in self.notes.items()) or "Nothing.")

    @tool
    async def finish(self) -> ToolOutput:
        """End the episode."""
        right = self.notes.get("n") == str(self.task_spec["number"])
        return said("Done.", reward=float(right), finished=True)


WORDS = {"none": None, "nan": float("nan"), "0": 0.0, "1": 1.0, "0.5": 0.5, "-0.25": -0.25, "0.1": 0.1}
_draw = random.Random(5)
PLANS = [" ".join(_draw.choices([*WORDS], k=_draw.randrange(1, 5))) for _ in range(60)]


class Planned(Small):
    """Gives the rewards of a plan, one with each call."""

    @classmethod
    def list_tasks(cls, split: str):
        return [{"plan": plan} for plan in PLANS]

    def setup(self):
        self.plan = self.task_spec["plan"].split()

    def get_prompt(self):
        return [TextBlock(text="Call pull.")]

    @tool
    def pull(self) -> ToolOutput:
        """Give the next reward."""
        return said("Here.", reward=WORDS[self.plan.pop(0)], finished=not self.plan)


class Compared(Sums):
    """Sums whose episodes are compared as well, where the SDK knows that."""

    async def score_group(self, candidates: Any) -> list[float]:
        return [float(len(candidate.messages)) for candidate in candidates]


class Faulty(Notes):
    """A tool that raises, one that is slow, and one with a long output."""

    @tool
    async def fail(self) -> ToolOutput:
        """Raise."""
        raise RuntimeError("the tool is broken")

    @tool
    async def long(self, params: Number) -> ToolOutput:
        """Give a text of many characters, with blanks at the ends of the server's chunks, and lines of Unicode."""
        return said((" \u2028\u0085" * params.value)[: params.value])


if __name__ == "__main__":
    names = sys.argv[2:] or ["Sums", "Guess", "Notes", "Faulty", "Compared", "Planned"]
    Server([globals()[name] for name in names]).run(host="127.0.0.1", port=int(sys.argv[1]))
