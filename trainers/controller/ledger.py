"""The prompt ledger: the state of every prompt of a run, each counted exactly once.

A prompt has a number in the endless sequence of prompts, and one of its environment. It gets its task when it is
admitted. Then it is running, ready, and at the end trained or dropped, with the reason. The ledger is saved with every
checkpoint, and so are the ready groups. A resumed run begins again what was running, with the same task: no prompt is
trained twice, and none is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from forge_env.core.errors import InvariantError
from trainers.controller.mixture import Mixture
from trainers.controller.sampler import TaskSampler

Open = Literal["running", "ready"]


class Prompt(NamedTuple):
    """Which prompt it is of its environment."""

    env: str
    """The label of the environment; "" is the only one."""
    place: int
    """Its number in the endless sequence of the environment's prompts."""
    task: int
    """The index of its task among the environment's training tasks."""


class Ledger:
    """States of prompts by number. A wrong transition is a defect of the run and raises InvariantError.

    Args:
        mixture: chooses the environment of each new prompt; by default there is one environment.
        samplers: choose its task, by the label of the environment. Without one the number of a prompt is its task.
    """

    def __init__(self, mixture: Mixture | None = None, samplers: Mapping[str, TaskSampler] | None = None) -> None:
        self.mixture, self.samplers = mixture or Mixture(), samplers or {}
        self.trained = 0
        self.dropped: Counter[str] = Counter()
        """Dropped prompts by reason."""
        self._next = 0
        self._again: list[int] = []  # running when the run stopped, in order
        self._open: dict[int, Open] = {}
        self._prompts: dict[int, Prompt] = {}  # of those that are open, or begin again

    def prompts(self) -> Iterator[int]:
        """The prompts to admit, without end: first those that were running at the last stop, then new ones."""
        while True:
            if self._again:
                number = self._again.pop(0)
            else:
                number, self._next = self._next, self._next + 1
                env, place = self.mixture.begin()
                task = self.samplers[env].draw() if env in self.samplers else place
                self._prompts[number] = Prompt(env, place, task)
            self._open[number] = "running"
            yield number

    def prompt(self, number: int) -> Prompt:
        return self._prompts[number]

    def observe(self, number: int, successes: int, episodes: int) -> None:
        """The prompt's group came back: the numbers of its episodes with a reward, and of the solved ones."""
        prompt = self._prompts[number]
        if prompt.env in self.samplers:
            self.samplers[prompt.env].observe(prompt.task, successes, episodes)

    def finish(self, number: int, tokens: int = 0) -> None:
        """The prompt's group is ready to be trained on; `tokens` were sampled in it."""
        self._move(number, "running")
        self._open[number] = "ready"
        self.mixture.finish(self._prompts[number].env, tokens)

    def train(self, number: int) -> None:
        """The prompt's group went into an optimizer step."""
        self._move(number, "ready")
        del self._prompts[number]
        self.trained += 1

    def again(self, number: int) -> None:
        """The step that took the prompt's group came to nothing: a resumed run samples the prompt again."""
        self._move(number, "ready")
        self._open[number] = "running"

    def drop(self, number: int, reason: str) -> None:
        """The prompt's group will never be trained on."""
        self._move(number, "running")
        del self._prompts[number]
        self.dropped[reason] += 1

    @property
    def counts(self) -> dict[str, int]:
        """How many prompts were begun, and how many are in each state; the states add up to `begun`."""
        states = Counter(self._open.values())
        running = states["running"] + len(self._again)
        parts = {"running": running, "ready": states["ready"], "trained": self.trained, "dropped": self.dropped.total()}
        return {"begun": self._next, **parts}

    @property
    def metrics(self) -> dict[str, float]:
        """The shares of several environments, and visits/POOL, or visits/POOL/LABEL: the prompts by pool of task."""
        visits = {
            f"visits/{pool}{f'/{env}' if env else ''}": float(count)
            for env, sampler in self.samplers.items()
            for pool, count in sampler.visits.items()
        }
        return self.mixture.metrics | visits

    def state_dict(self) -> dict[str, Any]:
        return {
            "next": self._next,
            "open": sorted([*self._open, *self._again]),
            "ready": sorted(number for number, state in self._open.items() if state == "ready"),
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "prompts": sorted([number, *prompt] for number, prompt in self._prompts.items()),
            "mixture": {name: dict(of_env) for name, of_env in self.mixture.counts.items()},
            "samplers": {env: sampler.state_dict() for env, sampler in self.samplers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`: running prompts begin again, ready ones stay ready."""
        ready = state["ready"]
        self._next, self._again = state["next"], [number for number in state["open"] if number not in ready]
        self._open = dict.fromkeys(ready, "ready")
        self.trained, self.dropped = state["trained"], Counter(state["dropped"])
        self._prompts = {number: Prompt(*prompt) for number, *prompt in state["prompts"]}
        self.mixture.counts = {name: Counter(of_env) for name, of_env in state["mixture"].items()}
        for env, sampler in self.samplers.items():
            sampler.load_state_dict(state["samplers"][env])
        counts = self.counts
        if counts["begun"] != sum(counts.values()) - counts["begun"]:
            raise InvariantError(f"the ledger does not add up: {counts}")

    def _move(self, number: int, expected: Open) -> None:
        state = self._open.pop(number, None)
        if state != expected:
            raise InvariantError(f"prompt {number} is {state or 'not open'}, not {expected}")
