"""Tasks from data sets of programs: HumanEval, MBPP, APPS, LiveCodeBench or the like."""

from __future__ import annotations

from functools import partial

from envs.code_exec.dataset_rows import task_of
from envs.data_tasks import data_tasks
from forge_env.data.tasks import DataTasks


def load_tasks(
    source: str,
    *,
    split: str = "train",
    count: int | None,
    seed: int = 0,
    question: str = "",
    tests: str = "",
    kind: str = "",
    streaming: bool = False,
) -> DataTasks:
    """Load `count` tasks; the same seed gives the same ones in the same order.

    Rows without tests are left out, and rows with asserts that are more than calls with fixed results. So are tests
    with an expected value that is too large for a sandbox to hand back.

    Args:
        source: a file, or a hub id; see `forge_env.data.rows.open_data` and `envs.data_tasks.data_tasks`.
        split: "train", "test" or "all"; of a dataset of the hub one that it has.
        count: how many; None is all of them.
        seed: which ones, and in which order.
        question: name of its column, or of a field in one, where the row is not of a known data set. It is a text, or a
            list of messages.
        tests: the same for the tests: asserts, or inputs and outputs as in APPS, such as "reward_model.ground_truth".
        kind: name of the column with the kind of a problem, such as its difficulty; by default "kind", if there is one.
        streaming: read only the rows that are needed; rows are then shuffled within a buffer.
    """
    make = partial(task_of, question=question, tests=tests, kind=kind)
    return data_tasks(source, split, count=count, seed=seed, make=make, streaming=streaming)
