"""Builds simple Dockerfiles in a workspace: no daemon, no root, and no network but what the caller grants.

FROM, WORKDIR, COPY, ADD of local files, RUN, SHELL, ENV, ARG, USER, and what only describes an image (LABEL, EXPOSE,
CMD, ENTRYPOINT, VOLUME, STOPSIGNAL, HEALTHCHECK). The result is a snapshot.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from contrib.workspaces.contract import LOOPBACK, Network, UnpackedImage, WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.images.cache import in_thread
from contrib.workspaces.images.manifest import MACHINE
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.snapshot import Snapshot
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import UserError

_DESCRIBING = {"LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_CACHE_MOUNTS = re.compile(r"^(--mount=(?=\S*\btype=cache\b)\S+\s+)+")
_SHOWN = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """The files of an image, and how commands run in it."""

    files: UnpackedImage | Snapshot
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether no workspace can be opened from it any more."""
        return not isinstance(self.files, UnpackedImage) and self.files.is_lost

    async def close(self) -> None:
        if not isinstance(self.files, UnpackedImage):
            await self.files.close()


def built_from(image: UnpackedImage) -> BuiltImage:
    """Return an image that needs no building."""
    return BuiltImage(files=image, env=image.env, workdir=image.workdir, user=image.user)


async def build(
    workspaces: Workspaces, folder: Path, *, limits: WorkspaceLimits, timeout_s: float, network: Network = LOOPBACK
) -> BuiltImage:
    """Build the Dockerfile of a folder; its other files are the context.

    Args:
        limits: of the build; its files together may have `disk_bytes`, whatever `transfer_bytes` is.
        timeout_s: of each RUN.
        network: of each RUN; with one that leads everywhere, the image of FROM is pulled if it is not on this machine.
    """
    instructions = list(read_instructions(folder / "Dockerfile"))
    if not instructions or instructions[0].name != "FROM":
        raise UserError(f"{folder / 'Dockerfile'} does not begin with FROM")
    builder = _Builder(folder, timeout_s, is_pulling=network.is_public)
    await in_thread(builder.begin, instructions[0])
    async with AsyncExitStack() as stack:
        copy_limits = replace(limits, transfer_bytes=limits.disk_bytes)
        workspace = await workspaces.open(builder.base, limits=copy_limits, network=network)
        stack.push_async_callback(workspace.close)
        for instruction in instructions[1:]:
            await builder.run(workspace, instruction)
        return BuiltImage(files=await workspace.snapshot(), env=builder.env, workdir=builder.workdir, user=builder.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    name: str
    rest: str
    line: int


def read_instructions(path: Path) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile, with continued lines joined."""
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for number, text in join_lines(lines):
        name, _, rest = text.strip().partition(" ")
        yield Instruction(name=name.upper(), rest=rest.strip(), line=number)


def join_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not comments, with continued ones joined, and the number of the first one of each."""
    text, start = "", 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") or (not line.strip() and not text):
            continue
        start = start if text else number
        text += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield start, text
            text = ""


class _Builder:
    """Carries out instructions in a workspace."""

    def __init__(self, folder: Path, timeout_s: float, *, is_pulling: bool) -> None:
        self._folder, self._timeout_s, self._is_pulling = folder, timeout_s, is_pulling
        self._arguments: dict[str, str] = {}
        self._shell = ["/bin/sh", "-c"]

    def begin(self, instruction: Instruction) -> None:
        words = instruction.rest.split()
        if words[:1] == [f"--platform=linux/{MACHINE}"]:
            del words[0]
        if len(words) == 3 and words[1].upper() == "AS":
            del words[1:]
        if len(words) != 1:
            raise self._refusal(instruction, "builds of several stages, and platforms, need buildah or docker")
        self.base = self._image(instruction, words[0])
        self.env = dict(self.base.env)
        self.workdir = self.base.workdir
        self.user = self.base.user

    async def run(self, workspace: Workspace, instruction: Instruction) -> None:
        match instruction.name:
            case "WORKDIR":
                self.workdir = str(PurePosixPath(self.workdir) / self._value(instruction.rest))
                await self._check(workspace, instruction, ["mkdir", "-p", "--", self.workdir], user="0")
            case "ENV":
                self.env |= self._assignments(instruction)
            case "ARG":
                name, _, value = self._value(instruction.rest).partition("=")
                self._arguments[name] = value.strip("\"'")
            case "USER":
                self.user = self._value(instruction.rest)
            case "SHELL":
                self._shell = _words(instruction.rest) or []
                if not self._shell:
                    raise self._refusal(instruction, "this is no list of texts")
            case "RUN":
                await self._run(workspace, instruction)
            case "COPY" | "ADD":
                await self._copy(workspace, instruction)
            case name if name not in _DESCRIBING:
                raise self._refusal(instruction, f"{name} needs buildah or docker")

    async def _run(self, workspace: Workspace, instruction: Instruction) -> None:
        text = _CACHE_MOUNTS.sub("", instruction.rest)  # a cache is not of the image: the command makes it anew
        if text.startswith("--") or "<<" in text.split("\n")[0]:
            raise self._refusal(instruction, "mounts and texts of RUN need buildah or docker")
        command = _words(text) or [*self._shell, text]
        await self._check(workspace, instruction, command, user=self.user or None)

    async def _copy(self, workspace: Workspace, instruction: Instruction) -> None:
        options, words = [], _words(instruction.rest) or shlex.split(instruction.rest)
        while words and words[0].startswith("--"):
            options.append(words.pop(0))
        flags = dict(option[2:].partition("=")[::2] for option in options)
        if len(words) < 2 or flags.keys() - {"chown", "from"}:
            raise self._refusal(instruction, f"{instruction.name} takes sources, a target, --chown and --from here")
        root = self._folder.resolve()
        if "from" in flags:
            root = (await in_thread(self._image, instruction, flags["from"])).root.resolve()
        *patterns, target = map(self._value, words)
        place = str(PurePosixPath(self.workdir) / target)
        with tempfile.TemporaryDirectory(prefix="forge-env-build.") as stage:
            into_folder = target.endswith("/") or len(patterns) > 1 or target in (".", "./")
            for pattern in patterns:
                name = None if into_folder else PurePosixPath(place).name
                self._stage(instruction, root, pattern, Path(stage), name)
            is_tree = into_folder or any(path.is_dir() for path in self._matches(instruction, root, patterns[0]))
            folder = place if is_tree else str(PurePosixPath(place).parent)
            try:
                await workspace.put_tree(Path(stage), folder, user=flags.get("chown"))
            except WorkspaceFileError as error:
                raise self._refusal(instruction, f"the files cannot be copied: {error}") from error

    def _image(self, instruction: Instruction, name: str) -> UnpackedImage:
        try:
            return find_image(name, pull=self._is_pulling)
        except UserError as error:
            raise self._refusal(instruction, str(error)) from error

    def _stage(self, instruction: Instruction, root: Path, pattern: str, stage: Path, name: str | None) -> None:
        for source in self._matches(instruction, root, pattern):
            if source.is_dir():
                shutil.copytree(source, stage, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(source, stage / (name or source.name), follow_symlinks=False)

    def _matches(self, instruction: Instruction, root: Path, pattern: str) -> list[Path]:
        paths = [Path(path) for path in sorted(glob.glob(str(root / pattern.lstrip("/")), include_hidden=True))]
        if not paths or "://" in pattern:
            raise self._refusal(instruction, f"there is no {pattern!r} in {self._name_of(root)}")
        if any(not path.resolve().is_relative_to(root) for path in paths):
            raise self._refusal(instruction, f"{pattern!r} leads out of {self._name_of(root)}")
        return paths

    def _name_of(self, root: Path) -> str:
        return "the folder of the Dockerfile" if root == self._folder.resolve() else "the image"

    async def _check(
        self, workspace: Workspace, instruction: Instruction, command: str | list[str], *, user: str | None
    ) -> None:
        env = {**self._arguments, **self.env}
        result = await workspace.exec(
            command, user=user, env=env, cwd=None if user == "0" else self.workdir, timeout_s=self._timeout_s
        )
        if not result.ok:
            output = "; ".join([(result.stderr or result.stdout).strip()[-_SHOWN:], *workspace.unreachable])
            raise self._refusal(instruction, f"it ended with {result.status.value} ({result.exit_code}): {output}")

    def _assignments(self, instruction: Instruction) -> dict[str, str]:
        text = self._value(instruction.rest)
        if "=" not in text.split()[0]:  # the old form, ENV NAME VALUE
            name, _, value = text.partition(" ")
            return {name: value}
        return dict(word.split("=", 1) for word in shlex.split(text) if "=" in word)

    def _value(self, text: str) -> str:
        variables = {**self._arguments, **self.env}
        return _VARIABLE.sub(lambda match: variables.get(match[1] or match[3], match[2] or ""), text)

    def _refusal(self, instruction: Instruction, reason: str) -> UserError:
        place = f"{self._folder / 'Dockerfile'}:{instruction.line}"
        return UserError(f"{place}: {instruction.name} {instruction.rest[:80]}: {reason}")


def _words(text: str) -> list[str] | None:
    """Return the texts of a JSON list; None for all else, which is not a mistake: "[ -e x ] && y" is for the shell."""
    try:
        words: Any = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def with_settings(image: BuiltImage, *, env: Mapping[str, str], workdir: str | None) -> BuiltImage:
    """Return an image with further variables, and another working directory if one is given."""
    return replace(image, env={**image.env, **env}, workdir=workdir or image.workdir)
