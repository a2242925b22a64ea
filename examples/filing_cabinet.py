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
    """Add up the amounts on two notes, and file the sum under a new name."""

    system_prompt = "Use the drawers. Say done when you are done."

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Drawers and notes are drawn at random; the splits have other names for the sum."""
        rng = random.Random(f"{split}/{seed}")
        return [_make_task(rng, f"{split} sum {i}") for i in range(count)]

    def setup(self) -> None:
        """Fill the drawers; it runs at the start of every episode, when `self.task` is set."""
        self.drawers: dict[str, dict[str, int]] = {name: {} for name in DRAWERS}
        for drawer, note, amount in self.task.metadata["notes"]:
            self.drawers[drawer][note] = amount

    @tool(parallel=True)
    def open_drawer(self, colour: str) -> list[str]:
        """List the notes in a drawer.

        Args:
            colour: red, green, blue or grey
        """
        return sorted(self._drawer(colour))

    @tool(parallel=True)
    def read_note(self, colour: str, note: str) -> int:
        """Read the amount on a note.

        Args:
            colour: the drawer
            note: the name on it
        """
        drawer = self._drawer(colour)
        if note not in drawer:
            raise ValueError(f"there is no note {note!r} in the {colour} drawer")  # the model reads this
        return drawer[note]

    @tool
    def file_note(self, colour: str, note: str, amount: int) -> str:
        """Put a note with an amount into a drawer."""
        self._drawer(colour)[note] = amount
        return "filed"

    @reward
    def filed(self) -> float:
        """The right sum under the right name, in any drawer: what counts is the cabinet, and not what was said."""
        wanted: dict[str, Any] = self.task.target
        return float(any(drawer.get(wanted["note"]) == wanted["amount"] for drawer in self.drawers.values()))

    @reward(weight=-0.1)
    def litter(self) -> float:
        """Notes more than there should be."""
        before, now = len(self.task.metadata["notes"]), sum(map(len, self.drawers.values()))
        return float(max(0, now - before - 1))

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Open every drawer, read both notes, file the sum: from what the conversation shows and nothing else."""
        question = next(m["content"] for m in messages if m["role"] == "user")
        first, second, target = re.findall(r'"([^"]+)"', question)
        answers = [m["content"] for m in messages if m["role"] == "tool"]
        if not answers:
            return _calls(*(("open_drawer", {"colour": colour}) for colour in DRAWERS))
        places = {
            note: colour
            for colour in DRAWERS
            for note in (first, second)
            if f'"{note}"' in answers[DRAWERS.index(colour)]
        }
        if len(answers) == len(DRAWERS):
            return _calls(*(("read_note", {"colour": places[note], "note": note}) for note in (first, second)))
        if len(answers) == len(DRAWERS) + 2:
            total = sum(int(answer) for answer in answers[-2:])
            return _calls(("file_note", {"colour": "grey", "note": target, "amount": total}))
        return {"role": "assistant", "content": "done"}

    def _drawer(self, colour: str) -> dict[str, int]:
        if colour not in self.drawers:
            raise ValueError(f"there is no {colour} drawer; the drawers are {', '.join(DRAWERS)}")
        return self.drawers[colour]


def _make_task(rng: random.Random, target: str) -> Task:
    names = rng.sample(NAMES, 5)
    notes = [[rng.choice(DRAWERS), name, rng.randint(10, 99)] for name in names]
    amounts = {name: amount for _, name, amount in notes}
    question = f'Add the amounts on the notes "{names[0]}" and "{names[1]}", and file the sum as "{target}".'
    return Task(
        prompt=({"role": "user", "content": question},),
        target={"note": target, "amount": amounts[names[0]] + amounts[names[1]]},
        metadata={"notes": notes},
    )


def _calls(*calls: tuple[str, dict[str, Any]]) -> Message:
    functions = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"role": "assistant", "content": "", "tool_calls": functions}


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
