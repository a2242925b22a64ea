"""A stateful environment with several tools: a filing cabinet with notes, and a task that needs all of them.

One instance is one episode, so the state is a plain attribute. It shows typed arguments, an error that the model sees,
a tool that may run beside others, two reward parts with weights, and an expert for demonstrations.

    forge-env register examples/filing_cabinet.py:FilingCabinet --name filing_cabinet
    forge-env check filing_cabinet
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

import forge_env
from agents.scripted import ScriptedAgent
from forge_env import Message, Task, ToolEnv, reward, tool

DRAWERS = ("red", "green", "blue", "grey")
NAMES = ("tea", "ink", "rope", "salt", "wax", "tin", "cork", "yarn")


class FilingCabinet(ToolEnv):
    """Find a note, and file its amount under a new name."""

    system_prompt = "Use the drawers. Say done when you are done."

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Drawers and notes are drawn at random; copies have even numbers in training, and odd ones in other splits."""
        rng = random.Random(f"{split}/{seed}")
        return [_make_task(rng, f"copy {rng.randrange(100, 1000, 2) + (split != 'train')}") for _ in range(count)]

    def setup(self) -> None:
        """Fill the drawers; it runs at the start of every episode, when `self.task` is set."""
        self.drawers: dict[str, dict[str, int]] = {name: {} for name in DRAWERS}
        for drawer, note, amount in self.task.metadata["notes"]:
            self.drawers[drawer][note] = amount

    @tool(parallel=True)
    def find_note(self, note: str) -> str:
        """Say in which drawer a note is.

        Args:
            note: the name on it
        """
        for colour, notes in self.drawers.items():
            if note in notes:
                return colour
        raise ValueError(f"there is no note {note!r} in any drawer")  # the model reads this

    @tool(parallel=True)
    def read_note(self, colour: str, note: str) -> int:
        """Read the amount on a note.

        Args:
            colour: the drawer
            note: the name on it
        """
        drawer = self._drawer(colour)
        if note not in drawer:
            raise ValueError(f"there is no note {note!r} in the {colour} drawer")
        return drawer[note]

    @tool
    def file_note(self, colour: str, note: str, amount: int) -> str:
        """Put a note with an amount into a drawer."""
        self._drawer(colour)[note] = amount
        return "filed"

    @reward
    def filed(self) -> float:
        """The right amount under the right name, in any drawer: what counts is the cabinet, and not what was said."""
        wanted: dict[str, Any] = self.task.target
        return float(any(drawer.get(wanted["note"]) == wanted["amount"] for drawer in self.drawers.values()))

    @reward(weight=-0.1)
    def litter(self) -> float:
        """Notes more than there should be."""
        before, now = len(self.task.metadata["notes"]), sum(map(len, self.drawers.values()))
        return float(max(0, now - before - 1))

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Find the note, read it, file its amount: from what the conversation shows and nothing else."""
        question = next(m["content"] for m in messages if m["role"] == "user")
        name, target = re.findall(r'"([^"]+)"', question)
        match [m["content"] for m in messages if m["role"] == "tool"]:
            case []:
                return _call("find_note", note=name)
            case [colour]:
                return _call("read_note", colour=colour, note=name)
            case [_, amount]:
                return _call("file_note", colour="grey", note=target, amount=int(amount))
        return {"role": "assistant", "content": "done"}

    def _drawer(self, colour: str) -> dict[str, int]:
        if colour not in self.drawers:
            raise ValueError(f"there is no {colour} drawer; the drawers are {', '.join(DRAWERS)}")
        return self.drawers[colour]


def _make_task(rng: random.Random, target: str) -> Task:
    names = rng.sample(NAMES, 5)
    notes = [[rng.choice(DRAWERS), name, rng.randint(10, 99)] for name in names]
    question = f'Copy the amount on the note "{names[0]}" to a new note "{target}".'
    return Task(
        prompt=({"role": "user", "content": question},),
        target={"note": target, "amount": notes[0][2]},
        metadata={"notes": notes},
    )


def _call(name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


async def main() -> None:
    async with forge_env.EnvFactory(FilingCabinet) as factory:
        [task] = factory.tasks("test", count=1)
        episode = await forge_env.run_episode(
            factory,
            ScriptedAgent(FilingCabinet.expert),
            task,
            seed=0,
            episode_id="example",
            limits=forge_env.EpisodeLimits(),
        )
        print(task.prompt[0]["content"])
        for turn in episode.turns:
            for call in turn.tool_calls:
                print("  ", call.name, call.arguments)
        print("reward", episode.reward, dict(episode.rewards))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
