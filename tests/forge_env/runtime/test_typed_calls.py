"""What a type checker says of calls to endpoints: it follows each call to the method of the actor's class."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

# What follows `# error:` is the code of mypy's error on that line; a line without it has none.
CALLS = """
from agents.generator.policy import PolicyActor
from envs.actors.env import EnvActor
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.runtime.calls.client import ServiceClient
from forge_env.runtime.launcher import Spawned
from forge_env.runtime.process.ranks import AllRanks
from trainers.run.trainer_actor import TrainerActor


async def call(client: ServiceClient[PolicyActor], trainer: AllRanks[TrainerActor], spawned: Spawned) -> None:
    policy = await PolicyActor.options().as_service(model="")
    completion: Completion = await policy.route(PolicyActor.generate, (1, 2), Sampling(), request_id="one")
    pulls: list[dict[str, float]] = await policy.deadline(1.0).fanout(PolicyActor.pull, 3)
    pids: list[int] = await client.session("one").fanout(PolicyActor.pid)
    seconds: float = await trainer.call_one(TrainerActor.take, 3)
    await trainer.call_one(TrainerActor.begin, None)
    pulled: dict[str, float] = await spawned.call_one(PolicyActor.pull, 3)
    await policy.route(PolicyActor.genrate, (1, 2))  # error: attr-defined
    await policy.route(PolicyActor.generate, (1, 2), temperature=1.0)  # error: call-arg
    await policy.route(PolicyActor.pull, "three")  # error: arg-type
    text: str = await policy.route(PolicyActor.generate, (1, 2))  # error: arg-type
    await policy.route(EnvActor.num_episodes)  # error: arg-type
    await client.call_one(PolicyActor.pull)  # error: call-arg
    await trainer.call_one(EnvActor.num_episodes)  # error: call-overload
    await spawned.call_one(PolicyActor.pull, version="three")  # error: call-overload
"""


@pytest.mark.slow
def test_a_type_checker_finds_wrong_calls(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--hide-error-context", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    errors = re.findall(r"calls\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    lines = enumerate(CALLS.splitlines(), start=1)
    assert errors == [(str(number), line.partition("# error: ")[2]) for number, line in lines if "# error: " in line]
