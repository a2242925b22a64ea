"""Small actors for the tests of the runtime; imported by the tests and by Monarch's child processes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from forge_env.errors import PolicyError, ServiceError, UserError
from forge_env.runtime import weights
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint
from forge_env.runtime.client import ServiceClient
from forge_env.runtime.torchstore_compat import import_torchstore

OWN = {kind.__name__: kind for kind in (UserError, PolicyError, ServiceError)}


class Worker(ForgeActor):
    """Does what a test tells it."""

    def __init__(self, *, failure: str = "", finishing: str = "", broken: bool = False, **base: Any) -> None:
        super().__init__(**base)
        if broken:
            raise ValueError("the constructor broke")
        self._failure = failure
        self._finishing = finishing

    async def on_start(self) -> None:
        if self._failure in OWN:
            raise OWN[self._failure]("cannot start: no weights in /nowhere")
        if self._failure == "exit":
            os._exit(3)
        if self._failure:
            raise ValueError(self._failure)

    async def on_finish(self) -> None:
        if self._finishing:
            Path(self._finishing).touch()
            await asyncio.sleep(1.0)
            Path(self._finishing).unlink()

    @concurrent_endpoint
    async def add(self, a: int, b: int) -> int:
        return a + b

    @concurrent_endpoint
    async def environ(self, name: str) -> str:
        return os.environ.get(name, "")

    @concurrent_endpoint
    async def write(self) -> None:
        print("a line by Python")
        print("a line of errors", file=sys.stderr)
        os.write(1, b"a line past Python\n")
        subprocess.run(["echo", "a line by a child"], check=True)
        sys.stdout.flush()

    @concurrent_endpoint
    async def fail(self, kind: str, message: str) -> None:
        class LocalError(Exception):
            """Cannot be pickled by reference."""

        kinds = {**OWN, "ValueError": ValueError, "TimeoutError": TimeoutError, "LocalError": LocalError}
        raise kinds[kind](message)

    @concurrent_endpoint
    async def hold(self, failing_rank: int = -1) -> None:
        """Never answer; one rank raises instead."""
        if self.rank == failing_rank:
            raise UserError(f"rank {failing_rank} cannot take part")
        await asyncio.Event().wait()


class Counting(Worker):
    """A worker for services: says who answers, and leaves a mark where a call arrives."""

    idempotent = frozenset({"answer_when", "pid"})

    @concurrent_endpoint
    async def answer_when(self, go: str, marks: str) -> int:
        """Answer with the process's id once the file `go` is there."""
        (Path(marks) / str(os.getpid())).touch()
        while not Path(go).exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    @concurrent_endpoint
    async def mark_and_hold(self, marks: str) -> None:
        (Path(marks) / str(os.getpid())).touch()
        await asyncio.Event().wait()


class Caller(ForgeActor):
    """Calls a service from a process of its own."""

    def __init__(self, *, client: ServiceClient, **base: Any) -> None:
        super().__init__(**base)
        self._client = client

    @concurrent_endpoint
    async def ask(self) -> int:
        pid: int = await self._client.pid.route()
        return pid


class Team(Worker):
    """Ranks that add numbers up over all of them, in a thread, as a trainer does."""

    async def on_start(self) -> None:
        import torch.distributed as dist

        await asyncio.to_thread(dist.init_process_group, "gloo")
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.sums: list[float] = []

    @concurrent_endpoint
    async def sum(self, value: float) -> list[float] | None:
        """Add value * (rank + 1) up over the ranks; returns all sums so far."""
        await asyncio.get_running_loop().run_in_executor(self.thread, self._sum, value)
        return list(self.sums) if self.rank == 0 else None

    @concurrent_endpoint
    async def places(self) -> tuple[int, str, str]:
        return self.rank, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]

    def _sum(self, value: float) -> None:
        import torch
        import torch.distributed as dist

        total = torch.tensor(value * (self.rank + 1))
        dist.all_reduce(total)
        self.sums.append(total.item())


class Holder(ForgeActor):
    """Publishes and fetches weights that both sides can make from a seed."""

    async def on_start(self) -> None:
        import_torchstore()

    @concurrent_endpoint
    async def publish(self, version: int, seed: int) -> None:
        await weights.publish(version, make_state_dict(seed))

    @concurrent_endpoint
    async def publish_then_change(self, version: int, seed: int) -> None:
        """Publish, and then go on training in place."""
        state_dict = make_state_dict(seed)
        await weights.publish(version, state_dict)
        for tensor in state_dict.values():
            tensor.zero_()

    @concurrent_endpoint
    async def fetch(self, version: int) -> dict[str, str]:
        """Fetch, and change what was fetched; returns the fingerprints from before that."""
        state_dict = await weights.fetch(version)
        prints = fingerprints(state_dict)
        for tensor in state_dict.values():
            tensor.zero_()
        return prints


def make_state_dict(seed: int) -> dict[str, Any]:
    """Tensors of many dtypes and shapes, with the names of a real model and the values that are easily lost."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    def whole(low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high, shape, generator=generator)

    return {
        "model.embed_tokens.weight": normal(330, 16),
        "model.layers.0.self_attn.q_proj.weight": normal(16, 16).to(torch.bfloat16),
        "model.layers.0.input_layernorm.weight": normal(16).half(),
        "model.layers.10.mlp.weight": normal(4, 3, 2).double(),
        "model.layers.1.mlp.weight": normal(6, 4).t(),  # not contiguous
        "lm_head.weight": normal(16, 330)[:, ::2],
        "special": torch.tensor([float("inf"), -float("inf"), -0.0, float("nan"), 1e-45]),
        "scalar": normal(),
        "empty": torch.empty(0, 5),
        "steps": whole(-(2**40), 2**40, 7),
        "bytes": whole(0, 256, 5).to(torch.uint8),
        "signed": whole(-128, 128, 2, 2).to(torch.int8),
        "mask": whole(0, 2, 3, 3).bool(),
    }


def fingerprints(state_dict: dict[str, Any]) -> dict[str, str]:
    """Shape, dtype and a digest of the bytes of every tensor."""
    import torch

    def fingerprint(tensor: Any) -> str:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(raw).hexdigest()}"

    return {name: fingerprint(tensor) for name, tensor in state_dict.items()}
