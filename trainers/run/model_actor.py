"""ModelActor: a model in processes of its own, one for each rank. Its methods become endpoints by a table.

    class TrainerActor(ModelActor[TitanTrainer]):
        serves = TitanTrainer
        logprobs = of_model(TitanTrainer.logprobs)

The class of the model imports torch and TorchTitan, which the controller does without: `ImportedLater` stands for it,
and a type checker reads the class itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.calls.endpoints import Endpoint
from forge_env.utils.targets import load

if TYPE_CHECKING:
    from trainers.titan.settings import TitanSettings


class Model(Protocol):
    """What an actor asks of every model."""

    @property
    def world_size(self) -> int: ...
    def close(self) -> None: ...


M = TypeVar("M", bound=Model)
P = ParamSpec("P")
R = TypeVar("R")


class ImportedLater:
    """A class that `imported` imports. Its methods can be named before that."""

    def __init__(self, target: str) -> None:
        self._target = target

    def imported(self) -> Any:
        return load(self._target)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # a generic class asks its parameter for some
            raise AttributeError(name)
        return lambda model, *args, **kwargs: getattr(model, name)(*args, **kwargs)


def of_model(method: Callable[Concatenate[M, P], R]) -> Endpoint[ModelActor[M], P, R | None]:
    """Make a method of the model an endpoint. It runs in the actor's thread, and the first rank answers."""

    async def endpoint(self: ModelActor[M], *args: P.args, **kwargs: P.kwargs) -> R | None:
        return await self.in_thread(lambda: method(self.model, *args, **kwargs))

    return Endpoint(endpoint)


class ModelActor(ForgeActor, Generic[M]):
    """One rank of a model.

    In most endpoints the ranks wait for each other, so all of them are called with the same arguments, in the same
    order: `AllRanks` does it. The first rank answers, and the others answer None. The model lives in one thread of its
    own, so that the actor answers while the model computes.

    Args:
        model: a Hugging Face folder.
        settings: of the model.
        imports: a target in a file of the user's, which is imported first; "" for none.
    """

    serves: ClassVar[Any]
    """The class of the model, an `ImportedLater`. It is made of the folder and the settings."""
    model: M

    def __init__(self, *, model: str, settings: TitanSettings, imports: str = "", **base: Any) -> None:
        super().__init__(**base)
        self._arguments, self._imports = (model, settings), imports
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._is_alone = False

    async def on_start(self) -> None:
        with self.phase("import"):
            model_class = await self._run(self.serves.imported)
            if self._imports:
                await self._run(load, self._imports)
        with self.phase("load"):
            self.model = await self._run(model_class, *self._arguments)
        self._is_alone = self.model.world_size == 1

    async def on_finish(self) -> None:
        # Of several ranks, one may wait for another for ever, and so would this. Their processes are ended next anyway.
        if self._is_alone:
            await self._run(self.model.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], R]) -> R | None:
        """Run work in the model's thread; returns its result on the first rank, and None on the others."""
        result = await self._run(work)
        return result if self.rank == 0 else None

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
