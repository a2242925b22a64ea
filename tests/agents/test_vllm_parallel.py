"""An engine over two processes of vLLM's own: it says what one says, takes weights over, and leaves no process behind.

On a CPU, where it is slow and of no use but for this: a run asks for it on GPUs only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from safetensors.torch import load_file

from agents.generator.engine import VLLMEngine
from agents.generator.policy import PolicyActor
from agents.generator.settings import EngineSettings
from forge_env.core.errors import PolicyError
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.weights import SharedMemoryStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each engine starts in half a minute and more
SETTINGS = EngineSettings(max_model_len=256, max_requests=16, tensor_parallel=2)


class ForActors(SharedMemoryStore):
    """A store that only an actor may fetch from, as TorchStore is."""

    actors_only = True


@pytest.fixture(autouse=True)
def no_cpu_memory_left() -> Iterator[None]:
    """Remove what vLLM's processes on a CPU share between them and never remove; those on GPUs have none."""
    there = set(Path("/dev/shm").glob("vllm_dist_*cpushm*"))
    yield
    for path in set(Path("/dev/shm").glob("vllm_dist_*cpushm*")) - there:
        path.unlink()


@pytest_asyncio.fixture
async def store(tiny_model: Path) -> AsyncIterator[SharedMemoryStore]:
    """Holds as version 7 the model's weights times 1.1."""
    store = SharedMemoryStore()
    await store.open()
    weights = load_file(tiny_model / "model.safetensors")
    await store.publish(7, {name: value * 1.1 for name, value in weights.items()})
    yield store
    await store.close()


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, tensor_parallel=1, worker_process=True)], ids=[2, 1])
async def test_worker_processes_answer_like_one_process_for_every_version(
    tiny_model: Path, store: SharedMemoryStore, settings: EngineSettings
) -> None:
    one = VLLMEngine(str(tiny_model), EngineSettings(max_model_len=256, max_requests=16))
    await one.start()
    expected = [await ask(one)]
    async with store.fetch(7) as weights:
        await one.update_weights(7, weights)
    expected.append(await ask(one))
    await one.close()
    two = VLLMEngine(str(tiny_model), settings)
    await two.start()
    workers = workers_of(psutil.Process(), settings.tensor_parallel)
    assert all("forkserver" in "".join(worker.parent().cmdline()) for worker in workers)  # vLLM is not imported again
    found = [await ask(two)]
    seconds = await two.pull_weights(7, store)
    found.append(await ask(two))
    await two.close()
    for ours, theirs in zip(found, expected, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert tuple(mine.token_ids) == tuple(other.token_ids) and mine.versions == other.versions
            assert mine.logprobs.tolist() == pytest.approx(other.logprobs.tolist(), abs=1e-4)
    assert {version for completion in found[1] for version, _ in completion.versions} == {7}
    assert found[0] != found[1]
    assert seconds.pop("wake") == 0.0  # it was awake
    assert set(seconds) == {"fetch", "swap"} and all(value > 0 for value in seconds.values())
    assert not psutil.wait_procs(workers, timeout=30)[1]


async def ask(engine: VLLMEngine) -> list[Completion]:
    calls = [engine.generate([5, 6, 7 + i], Sampling(max_tokens=12, seed=i), f"request {i}") for i in range(3)]
    return list(await asyncio.gather(*calls))


def workers_of(engine: psutil.Process, count: int = 2) -> list[psutil.Process]:
    """The processes of vLLM's own, by the name that they give themselves."""
    found = [child for child in engine.children(recursive=True) if "VLLM" in "".join(child.cmdline())]
    assert len(found) == count
    return found


async def test_weights_that_only_an_actor_can_fetch_are_handed_on(tiny_model: Path, store: SharedMemoryStore) -> None:
    only = ForActors(store.folder)
    async with Launcher():
        service = await PolicyActor.options(start_seconds=400).as_service(
            model=str(tiny_model), settings=SETTINGS, store=only
        )
        for _ in range(2):  # a replacement is given the version that it has already
            (seconds,) = await service.fanout(PolicyActor.pull, 7)
        assert set(seconds) == {"fetch", "swap", "wake"}
        completion = await service.route(PolicyActor.generate, [1, 2, 3], Sampling(max_tokens=4, seed=0))
        assert completion.versions == ((7, 4),)


async def test_a_process_of_the_engine_that_dies_breaks_it_and_nothing_waits(tiny_model: Path) -> None:
    engine = VLLMEngine(str(tiny_model), SETTINGS)
    await engine.start()
    workers = workers_of(psutil.Process())
    running = asyncio.ensure_future(engine.generate([1, 2], Sampling(max_tokens=200, seed=0), "long"))
    await engine.generate([1], Sampling(max_tokens=1, seed=0), "marker")
    workers[0].kill()
    with pytest.raises(PolicyError, match="the engine broke"):
        await asyncio.wait_for(running, 120)
    assert engine.why_broken
    await engine.close()
    assert not psutil.wait_procs(workers, timeout=30)[1]


def test_an_engine_that_is_killed_leaves_no_process(tiny_model: Path) -> None:
    code = f"""
import asyncio
from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings


async def main():
    engine = VLLMEngine({str(tiny_model)!r}, EngineSettings(max_model_len=256, tensor_parallel=2))
    await engine.start()
    print("ready", flush=True)
    await asyncio.sleep(3600)

if __name__ == "__main__":
    asyncio.run(main())
"""
    script = tiny_model.parent / "engine_of_two.py"
    script.write_text(code)
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    try:
        assert process.stdout is not None
        assert any(line.strip() == "ready" for line in process.stdout)
        engine = psutil.Process(process.pid)
        everyone = engine.children(recursive=True)
        assert set(workers_of(engine)) <= set(everyone)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert not psutil.wait_procs(everyone, timeout=30)[1]
