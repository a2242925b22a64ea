"""Tasks of `workspace`: rows of data, each an instruction, files, and a command that verifies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from forge_env.core.errors import nearest
from forge_env.core.types import Task
from forge_env.data.rows import BadRow

DEFAULT_IMAGE = "host:pytest"


def _below_the_root(path: str) -> str:
    if not path.startswith("/") or not PurePosixPath(path).name or ".." in PurePosixPath(path).parts:
        raise ValueError("it is an absolute path of a folder below /")
    return str(PurePosixPath(path))


Folder = Annotated[str, AfterValidator(_below_the_root)]


class Row(BaseModel):
    """One task. Paths that are not absolute are below `workdir`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instruction: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    """A command line of /bin/sh; exit code 0 is a reward of 1, any other 0. Its standard input is the final answer."""
    image: str = ""
    """In the form of `contrib.workspaces.images.resolve.find_image`; by default the option `image`."""
    workdir: Folder = "/workspace"
    files: dict[str, str] = Field(default_factory=dict)
    """Path -> text, there from the beginning."""
    setup: str = ""
    """A command line, run once, as root, before anybody works."""
    env: dict[str, str] = Field(default_factory=dict)
    user: str = ""
    """Of the agent; the image's by default. The files and the working directory are that user's."""
    collect: list[str] = Field(default_factory=list)
    """What the verifier is to see of the agent's work; the working directory by default."""
    exclude: list[str] = Field(default_factory=list)
    """Patterns of paths that are not collected, as of `tar --exclude`."""
    verifier_files: dict[str, str] = Field(default_factory=dict)
    """Path -> text, there only for the verifier; they replace what the agent has left at their paths."""
    verifier_seconds: float = Field(default=120.0, gt=0, le=600)
    solution: str = ""
    """A command line that solves the task: what the expert plays."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Hosts that the agent reaches, through a proxy; none by default."""
    memory_mb: int = Field(default=2048, ge=16)
    disk_mb: int = Field(default=1024, ge=1)
    cpus: float = Field(default=1.0, gt=0)
    name: str = ""
    kind: str = ""

    @field_validator("files", "verifier_files", "collect")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        for path in value:
            parts = PurePosixPath(path).parts
            if ".." in parts or not PurePosixPath(path).name or "\0" in path:
                raise ValueError(f"{path!r} is no path of a file or folder below /")
        return value

    def place(self, path: str) -> str:
        return str(PurePosixPath(self.workdir) / path)

    @property
    def places(self) -> list[str]:
        """What the verifier is to see, absolute."""
        return [self.place(path) for path in self.collect or [self.workdir]]

    def counts(self, path: PurePosixPath) -> bool:
        """Whether what the agent leaves at a path is there for the verifier."""
        at = self.place(str(path))
        is_given = at in map(self.place, self.verifier_files)
        return not is_given and any(PurePosixPath(at).is_relative_to(place) for place in self.places)

    @property
    def title(self) -> str:
        return repr(self.name or self.instruction[:60])


_HIDDEN = ("verifier", "verifier_files", "solution", "collect", "exclude", "verifier_seconds")


def read_row(values: Mapping[str, Any]) -> Task:
    """Return the task of a row. A field that is null is not there."""
    try:
        row = Row.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise BadRow(f"it is no task of workspace: {problem_of(error, Row)}") from None
    data = row.model_dump(exclude_defaults=True, exclude={"instruction", "kind"})
    return Task(
        prompt=({"role": "user", "content": row.instruction},),
        target={name: data[name] for name in _HIDDEN if name in data},
        metadata={name: value for name, value in data.items() if name not in _HIDDEN},
        kind=row.kind,
    )


def row_of(task: Task) -> Row:
    """Return the row of a task that `read_row` made."""
    return Row.model_validate({"instruction": task.prompt[-1]["content"], **task.metadata, **task.target})


def problem_of(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first mistake in a few words; for an unknown field with the nearest one."""
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"there is no field {field}. {nearest(field, model.model_fields)}"
    if first["type"] == "missing":
        return f"it has no {field}"
    reason = first["msg"].removeprefix("Value error, ")
    return f"{field or 'it'} is {first['input']!r:.80}: {reason[:1].lower()}{reason[1:]}"
