"""Task files in the shape of SWE-bench: rows with its columns, and where the repository is."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contrib.workspaces.env.rows import Folder, problem_of
from forge_env.core.types import Task
from forge_env.data.rows import BadRow

_PROGRESS = re.compile(r"\[ *\d+%\]")
"""A word of pytest's log that two published rows of pytest-dev/pytest have as an id."""
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/-]*")


class Instance(BaseModel):
    """One task. Columns that are not named here are ignored, as published files have many more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    instance_id: str = Field(min_length=1)
    problem_statement: str = Field(min_length=1)
    repo: str = ""
    """Its name, which is the kind of the task."""
    base_commit: str = ""
    """Commit, tag or branch that the agent begins at; the snapshot as it is by default."""
    snapshot: str = Field(default="", validation_alias=AliasChoices("snapshot", "repo_path"))
    """A folder, a tar archive or a git bundle, relative to the task file; "" is what the image has in `workdir`."""
    image: str = Field(default="", validation_alias=AliasChoices("image", "image_name", "docker_image"))
    """In the form of `contrib.workspaces.images.resolve.find_image`, with git, Python and pytest. By default the option
    `image`."""
    workdir: Folder = "/testbed"
    setup: str = ""
    """A command line, run once in `workdir`, before anybody works."""
    patch: str = ""
    """The solution."""
    test_patch: str = ""
    """Applied after the agent, before the tests run."""
    fail_to_pass: list[str] = Field(validation_alias=AliasChoices("FAIL_TO_PASS", "fail_to_pass"))
    """Ids of pytest, as `tests/test_a.py::test_b`; failing before the solution."""
    pass_to_pass: list[str] = Field(default=[], validation_alias=AliasChoices("PASS_TO_PASS", "pass_to_pass"))
    test_seconds: float = Field(default=600.0, gt=0, le=3600)
    memory_mb: int = Field(default=4096, ge=64)
    disk_mb: int = Field(default=2048, ge=8)
    cpus: float = Field(default=2.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data

    @field_validator("patch", "test_patch")
    @classmethod
    def _whole_lines(cls, value: str) -> str:
        """SWE-bench puts an end to the last line, without which git takes a patch for a damaged one."""
        return value if value.endswith("\n") or not value else value + "\n"

    @field_validator("fail_to_pass", "pass_to_pass", mode="before")
    @classmethod
    def _a_list(cls, value: Any) -> Any:
        """Published files have these lists as texts: of JSON, and SWE-bench Pro of Python."""
        if not isinstance(value, str):
            return value
        for read in (json.loads, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, RecursionError):
                return read(value)
        raise ValueError("it is a list of ids, or the JSON text of one")

    @field_validator("fail_to_pass", "pass_to_pass")
    @classmethod
    def _ids(cls, value: list[str]) -> list[str]:
        value = [test for test in value if not _PROGRESS.fullmatch(test)]
        for test in value:
            path = PurePosixPath(test.partition("::")[0])
            if "::" not in test or path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{test!r:.80} is no id of pytest, such as tests/test_a.py::test_b")
        return value

    @field_validator("base_commit")
    @classmethod
    def _a_commit(cls, value: str) -> str:
        if value and not _COMMIT.fullmatch(value):
            raise ValueError("it is no name of a commit")
        return value


_HIDDEN = ("patch", "test_patch", "fail_to_pass", "pass_to_pass", "test_seconds")


def read_instance(values: Mapping[str, Any], folder: Path) -> Task:
    """Return the task of a row.

    Args:
        folder: of the task file; paths of snapshots are relative to it.
    """
    try:
        instance = Instance.model_validate(dict(values))
    except ValidationError as error:
        raise BadRow(f"it is no task in the shape of SWE-bench: {problem_of(error, Instance)}") from None
    if not instance.fail_to_pass and not instance.pass_to_pass:
        raise BadRow("it names no tests: FAIL_TO_PASS and PASS_TO_PASS are empty")
    if instance.repo.startswith("swesmith/") and not (instance.snapshot or instance.setup):
        raise BadRow(
            "the patch of a row of SWE-smith makes the bug, and the repository of its image has none: write a setup "
            "that applies it, and the reverse of it as patch"
        )
    data = instance.model_dump(exclude_defaults=True, exclude={"problem_statement"})
    if instance.snapshot:
        path = (folder / Path(instance.snapshot).expanduser()).absolute()
        if not path.exists():
            raise BadRow(f"there is no snapshot {path}: a folder, a tar archive or a git bundle")
        data["snapshot"] = str(path)
    prompt = f"The repository is in {instance.workdir}. Solve this problem in its code:\n\n{instance.problem_statement}"
    return Task(
        prompt=({"role": "user", "content": prompt},),
        target={name: data[name] for name in _HIDDEN if name in data},
        metadata={name: value for name, value in data.items() if name not in _HIDDEN},
        kind=instance.repo,
    )


def instance_of(task: Task) -> Instance:
    return Instance.model_validate({"problem_statement": task.prompt[-1]["content"], **task.metadata, **task.target})
