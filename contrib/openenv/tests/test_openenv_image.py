"""openenv:IMAGE: a container of an image, in whose place a base image with our interpreter mounted is enough."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib.check.strategies import StrategyAgent, actions_in_order, final_answer
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode

ROOT = Path(__file__).resolve().parents[3]
BASE = os.environ.get("FORGE_ENV_SANDBOX_BASE_IMAGE", "")
WHY_NOT = os.environ.get("FORGE_ENV_NO_DOCKER") or "run it with .ci/docker-engine, which starts an engine"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.skipif(not BASE, reason=WHY_NOT)]
PORT = 18_734
SERVE = (
    "import uvicorn; from contrib.openenv.tests.small_server import SmallServer; "
    f"uvicorn.run(SmallServer().app, host='127.0.0.1', port={PORT}, log_level='error')"
)
# The engine of the tests has no bridge, so the container has the network of the host.
MOUNTED = f"--network host -v {ROOT}:{ROOT}:ro -v {sys.base_prefix}:{sys.base_prefix}:ro -w {ROOT}"


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def containers() -> list[str]:
    return [name for name in docker("ps", "-a", "--format", "{{.Names}}").split() if "forge-env-openenv" in name]


@pytest.fixture
def image() -> Iterator[str]:
    """An image whose command serves the small server."""
    name, command = f"forge-env-test-{uuid.uuid4().hex[:8]}:latest", [sys.executable, "-c", SERVE]
    made = docker("create", BASE, "true")
    docker("commit", "--change", f"CMD {json.dumps(command)}", made, name)
    docker("rm", made)
    yield name
    docker("rmi", name)


async def play(factory: object, answer: str) -> object:
    task = factory.tasks("train", count=1)[0]  # type: ignore[attr-defined]
    said = str(task.metadata["seed"] % 10) if answer == "right" else answer
    agent = StrategyAgent(actions_in_order(final_answer(said)))
    return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=EpisodeLimits())  # type: ignore[arg-type]


async def test_a_container_serves_episodes_is_started_again_and_removed(image: str) -> None:
    async with make(f"openenv:{image}", port=PORT, docker_run=MOUNTED) as factory:
        [name] = containers()
        episode = await play(factory, "right")
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error  # type: ignore[attr-defined]
        docker("kill", name)
        await asyncio.wait_for(factory.shared["server"]._container._process.wait(), 60)
        again = await play(factory, "right")
        assert (again.outcome, again.reward) == (Outcome.SCORED, 1.0), again.error  # type: ignore[attr-defined]
        assert containers() != [name]
    assert containers() == []


OWNER = """
import asyncio, sys
from forge_env.rollout.factory import make
async def main():
    async with make(sys.argv[1], port=int(sys.argv[2]), docker_run=sys.argv[3]):
        print("open", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_container_ends_with_its_killed_owner(image: str) -> None:
    command = [sys.executable, "-c", OWNER, f"openenv:{image}", str(PORT), MOUNTED]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    assert len(containers()) == 1
    owner.kill()
    owner.wait()
    owner.stdout.close()
    async with asyncio.timeout(60):
        while containers():
            await asyncio.sleep(0.2)


async def test_what_cannot_be_started_is_one_sentence(image: str) -> None:
    with pytest.raises(UserError, match="the image 'nix:latest' cannot be started: .*build or pull it, or name a URL"):
        async with make("openenv:nix:latest"):
            pass
    with pytest.raises(ServiceError, match="the container of the OpenEnv image ended; it wrote: .*no such file"):
        async with make(f"openenv:{image}", port=PORT, docker_run="--network host"):
            pass
    assert containers() == []
