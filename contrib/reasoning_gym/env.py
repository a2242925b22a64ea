"""reasoning_gym:NAME: each dataset of reasoning-gym is an environment of one turn.

The options of an environment are the fields of its dataset's configuration, and `partial_credit`.
"""

from __future__ import annotations

import functools
import inspect
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic_core import to_jsonable_python

from contrib.common.drawn_solutions import expert_of, remember
from contrib.reasoning_gym.process import require_reasoning_gym, worker
from envs.messages import say
from envs.task_splits import bucket, check_split
from forge_env.core.env import Env, StepResult, after_reset, task_of
from forge_env.core.errors import EnvError, TooFewTasks, UserError, nearest
from forge_env.core.types import Action, Message, Task
from forge_env.utils.deadlines import queued
from forge_env.utils.threads import invoke

SYSTEM_PROMPT = (
    "Think step by step, then give the answer alone between <answer> and </answer>. "
    "Where the question shows an example, follow its format."
)
MAX_ANSWER = 10_000
"""Characters of an answer; a longer one scores 0."""
TEST_SHARE = 5
"""One question in five is held out, chosen by a hash of its text."""

_BLOCK = 50
"""Entries taken of one dataset seed: entries of even index, so datasets with seeds of the other parity share none."""
_MAX_FRUITLESS = 4
"""Consecutive dataset seeds without a new task after which there are no more."""


class ReasoningGym(Env):
    """Base of the classes of `resolve`. The answer is scored by the dataset itself, from 0 to 1.

    An answer that the scorer cannot read scores 0, and partial credit is at most 0.1. An entry is made again from the
    metadata of its task: the name of the dataset, its configuration, its seed and the index. An entry becomes no task
    when its gold answer does not get full marks, or when a constant or the question itself gets them.
    """

    made_of: ClassVar[Sequence[str]] = ("reasoning_gym",)
    shared: ClassVar = {"reasoning_worker": "contrib.reasoning_gym.process:open_worker"}
    dataset: ClassVar[str]
    system_prompt: ClassVar[str] = SYSTEM_PROMPT

    def __init__(self, *, partial_credit: bool = True) -> None:
        """Make an instance.

        Args:
            partial_credit: False gives 1 for full marks and 0 for everything else. True gives a tenth of the partial
                credit of the dataset, since many datasets give half of the marks or more for wrong answers.
        """
        self._partial_credit = partial_credit
        self._task: Task | None = None

    @classmethod
    def draw(cls, split: str, *, count: int, seed: int, config: Mapping[str, Any]) -> list[Task]:
        """Return `count` distinct tasks; `tasks` of each dataset calls this with the options of its configuration."""
        check_split(split)
        settings = to_jsonable_python(dict(config))
        cls._check(settings)
        rng = random.Random(f"{split}/{seed}")
        tasks_by_question: dict[str, Task] = {}
        wrongly_paid: Counter[str] = Counter()
        num_fruitless = 0
        while num_fruitless < _MAX_FRUITLESS:
            before = len(tasks_by_question)
            block = 2 * rng.randrange(2**30) + (split == "test")
            for task in cls._block(block, settings, split, count - len(tasks_by_question), wrongly_paid):
                tasks_by_question.setdefault(task.prompt[0]["content"], task)
                if len(tasks_by_question) == count:
                    return list(tasks_by_question.values())
            num_fruitless = 0 if len(tasks_by_question) > before else num_fruitless + 1
        raise TooFewTasks(
            f"{count} distinct {split} tasks were asked for, {len(tasks_by_question)} were found that are sound: "
            f"{_reason(cls.dataset, wrongly_paid) if wrongly_paid else 'ask for fewer'}",
            len(tasks_by_question),
        )

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Return the gold answer of a task that was made in this process."""
        return expert_of("reasoning_gym", messages)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        self._task = task_of(self, options)
        system: Message = {"role": "system", "content": self.system_prompt}
        return (system, *self._task.prompt), {}

    async def step(self, action: Action) -> StepResult:
        task = after_reset(self, self._task)
        answer = extract_answer(action.text)
        score = 0.0
        if answer and len(answer) <= MAX_ANSWER:
            async with queued():  # episodes wait for the helper process in turn; it has its own deadlines
                score = await invoke(self.score, task, answer)
        reward = score if self._partial_credit else float(score == 1.0)
        return (), reward, True, False, {"rewards": {"score": score}}

    @staticmethod
    def score(task: Task, answer: str) -> float:
        """Score an answer, from 0 to 1, by the dataset of the task."""
        result = _request_score(task, answer)
        if "raised" in result and task.target is not None:
            gold = _request_score(task, task.target)
            if "raised" in gold:
                raise EnvError(f"the scorer of {task.metadata['dataset']} raises for its own answer: {gold['raised']}")
        if result.get("signal", signal.SIGPROF) not in (signal.SIGPROF, signal.SIGALRM):
            raise EnvError(f"the scorer of {task.metadata['dataset']} ended by the signal {result['signal']}")
        return float(result.get("score", 0.0))

    @classmethod
    def _check(cls, config: Mapping[str, Any]) -> None:
        invalid = worker.ask({"do": "check", "dataset": cls.dataset, "config": config}).get("invalid")
        if invalid:
            raise UserError(f"the options of reasoning_gym:{cls.dataset} are wrong: {invalid}")

    @classmethod
    def _block(
        cls, seed: int, config: Mapping[str, Any], split: str, num_missing: int, wrongly_paid: Counter[str]
    ) -> Iterator[Task]:
        """Give the tasks of one dataset seed that are in a split; entries are requested as they are needed.

        Wrong answers that got full marks are counted in `wrongly_paid`.
        """
        share = 1 if split == "train" else TEST_SHARE
        size = min(_BLOCK, max(1, num_missing * share + 2))
        for start in range(0, _BLOCK, size):
            indices = [2 * i for i in range(start, min(start + size, _BLOCK))]
            request = {"do": "entries", "dataset": cls.dataset, "config": config, "seed": seed, "indices": indices}
            response = worker.ask(request)
            wrongly_paid.update(response["paid"])
            for entry in response["entries"]:
                if (bucket(entry["question"], TEST_SHARE) == 0) == (split == "test"):
                    yield cls._task_of(entry, seed, config)

    @classmethod
    def _task_of(cls, entry: Mapping[str, Any], seed: int, config: Mapping[str, Any]) -> Task:
        question, answer = entry["question"], entry["answer"]
        metadata = {"dataset": cls.dataset, "seed": seed, "index": entry["index"], "config": dict(config)}
        task = Task(prompt=({"role": "user", "content": question},), target=answer, metadata=metadata)
        if answer is not None:
            remember("reasoning_gym", task, lambda _: say(f"<answer>{answer}</answer>"))
        return task


def _reason(dataset: str, wrongly_paid: Counter[str]) -> str:
    [(probe, count)] = wrongly_paid.most_common(1)
    return (
        f"the scorer of {dataset} gives full marks to {probe[:40]!r}, which was not the answer, {count} times, and "
        "such questions are left out. Choose another dataset, or ask for fewer"
    )


def _request_score(task: Task, answer: str) -> dict[str, Any]:
    response = score_all(task, [answer])
    return response["results"][0] if "results" in response else response


def score_all(task: Task, answers: Sequence[str]) -> dict[str, Any]:
    """Score answers in one request: {"results": [{"score"} or {"raised"}, ...]}, or the {"signal"} that ended it."""
    return worker.ask({"do": "score", **task.metadata, "question": task.prompt[0]["content"], "answers": list(answers)})


def extract_answer(text: str) -> str:
    """Return the text between the last pair of answer tags; "" when there is none.

    >>> extract_answer("<answer>1</answer> no, <answer> 2 </answer>")
    '2'
    """
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end].strip() if start >= 0 else ""


@functools.cache
def resolve(rest: str) -> type[Env]:
    """Return the environment of "reasoning_gym:REST"; REST is the name of a dataset."""
    datasets = _datasets()
    if rest not in datasets:
        raise UserError(f"reasoning-gym has no dataset {rest!r}. {nearest(rest, datasets)}")
    attributes = {
        "dataset": rest,
        "tasks": classmethod(_tasks_of(datasets[rest])),
        "__doc__": f"The reasoning-gym dataset {rest}, one question an episode.",
        "__module__": __name__,
    }
    return type("".join(word.capitalize() for word in rest.split("_")), (ReasoningGym,), attributes)


def dataset_names() -> list[str]:
    return sorted(_datasets())


@functools.cache
def _datasets() -> dict[str, list[str]]:
    """Return the options of each dataset, without "composite", which mixes other datasets."""
    require_reasoning_gym()
    return {
        name: [field for field in fields if field not in ("seed", "size")]
        for name, fields in worker.ask({"do": "datasets"})["datasets"].items()
        if name != "composite"
    }


def _tasks_of(fields: list[str]) -> Callable[..., list[Task]]:
    """A `tasks` with the fields of a configuration as keyword arguments."""

    def tasks(cls: type[ReasoningGym], split: str = "train", *, count: int, seed: int = 0, **config: Any) -> list[Task]:
        """Return `count` tasks of a split, under a configuration of the dataset."""
        return cls.draw(split, count=count, seed=seed, config=config)

    common = [p for p in inspect.signature(tasks).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in fields]
    tasks.__signature__ = inspect.Signature([*common, *options])  # type: ignore[attr-defined]
    return tasks
