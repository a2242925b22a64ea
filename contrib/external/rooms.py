"""Where programs run that do not run on this machine itself: in workspaces of an image, or of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contrib.common.adapters import json_object
from contrib.workspaces.contract import UnpackedImage, WorkspaceCapabilities
from contrib.workspaces.env.base import WorkspaceEnv
from contrib.workspaces.images.cache import in_thread
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.open import open_workspaces
from forge_env.core.errors import UserError
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import EnvFactory, make

Options = str | Mapping[str, Any]
FILES = "/agent"
"""Where the files of the program are in a workspace."""


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """The workspaces of programs. Either `factory` is set, or `workspaces` and `image`."""

    files: Path | None
    """A folder of this machine that is copied to FILES in every workspace."""
    factory: EnvFactory | None = None
    """The environment of the tasks, which owns the workspaces."""
    workspaces: Workspaces | None = None
    image: UnpackedImage | None = None

    def enforced(self) -> dict[str, Any]:
        """Return what confines the programs."""
        shared = self.factory.shared.values() if self.factory is not None else [self.workspaces]
        capabilities = [getattr(one, "capabilities", None) for one in shared]
        return next((asdict(one) for one in capabilities if isinstance(one, WorkspaceCapabilities)), {"missing": ()})


def has_workspaces(tasks: str) -> bool:
    """Whether the environment of that name gives its tasks workspaces."""
    return bool(tasks) and issubclass(env_class(tasks), WorkspaceEnv)


def is_inside(tasks: str, image: str) -> bool:
    """Whether programs run in workspaces. Raises UserError for an unknown environment."""
    return bool(image) or has_workspaces(tasks)


def task_factory(tasks: str, *, data: str, image: str, task_options: Options) -> EnvFactory:
    own = json_object(task_options, "task_options", '{"network": "declared"}')
    options: Mapping[str, str] = {"data": data, "image": image if has_workspaces(tasks) else ""}
    return make(tasks, **own, **{name: value for name, value in options.items() if value and name not in own})


@asynccontextmanager
async def open_rooms(
    tasks: str, *, data: str, image: str, files: str, task_options: Options = ""
) -> AsyncIterator[Rooms | None]:
    """Open the workspaces that programs run in; None if they run on this machine."""
    if not is_inside(tasks, image):
        if files:
            raise UserError(
                f"files is {files!r}, which is for a program in a workspace: name an image, or tasks that have "
                "workspaces"
            )
        yield None
        return
    folder = Path(files).expanduser().absolute() if files else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"files is {files!r}, and there is no such folder to copy into the workspace")
    async with AsyncExitStack() as stack:
        if has_workspaces(tasks):
            factory = task_factory(tasks, data=data, image=image, task_options=task_options)
            yield Rooms(files=folder, factory=await stack.enter_async_context(factory))
        else:
            image_folder = await in_thread(find_image, image)
            workspaces = await stack.enter_async_context(open_workspaces())
            yield Rooms(files=folder, workspaces=workspaces, image=image_folder)
