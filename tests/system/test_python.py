"""A run that Python starts where an event loop runs already, as in a notebook, with an environment of the script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, gc, json
from forge_env import Task, ToolEnv, UserError, reward
from trainers import Callback, train


class Echo(ToolEnv):
    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        texts = [f"{split} {number:03}" for number in range(count)]
        return [Task(id=text, prompt=[{"role": "user", "content": text}], target=text) for text in texts]

    @staticmethod
    def expert(messages):
        return {"role": "assistant", "content": messages[-1]["content"]}

    @reward
    def same(self, answer, target):
        return float(answer.strip() == target)


class Two(Callback):
    steps, evaluated, refused = [], [], ""

    def on_evaluation(self, record):
        self.evaluated.append(record["step"])

    def on_step(self, record):
        self.steps.append(record["step"])
        if record["step"] == 2:
            try:
                train("math")
            except UserError as error:
                self.refused = str(error)
            self.run.stop()


async def cell():
    settings = {"warmup": {"steps": 4, "demonstrations": 32}, "dataset.held_out": 8, "training.batch_size": 4}
    two = Two()
    run = train(Echo, steps=9, output="run", settings=settings | {"training.entropy_coef": 0.01}, callbacks=[two])
    print(json.dumps([two.steps, two.evaluated, two.refused, run.stopped, run.best, str(run.model), run.summary]))
    print(json.dumps([*[len(records) for records in run.metrics.values()][:3], gc.get_freeze_count()]))


asyncio.run(cell())
"""


@pytest.mark.slow  # the quick tests are tests/trainers/test_python.py, without processes
@pytest.mark.timeout(300)
def test_a_run_in_a_running_loop_is_stopped_by_its_callback(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    *console, said, numbers = done.stdout.splitlines()
    steps, evaluated, refused, stopped, best, model, summary = json.loads(said)
    assert (steps, evaluated, stopped, best, summary) == ([1, 2], [0], True, None, {})
    assert "while a run is under way in this process" in refused
    assert json.loads(numbers) == [2, 1, 4, 0]
    assert model == f"{tmp_path}/run/checkpoints/step_000002/model" and Path(model, "config.json").is_file()
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["env"] == f"{tmp_path}/run/environment.pkl:Echo" and "class Echo" in facts["code"]["environment"]
    assert console[-1].endswith("go on from step 2 with python -m trainers.grpo --output run --resume")
