"""task.toml, schema version 1.4 of Harbor (harborframework.com, package `harbor` 0.26), and the files beside it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
import os
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contrib.workspaces.machines.proxy import Allowlist
from forge_env.core.errors import UserError, nearest

CONFIG = "task.toml"
_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_NO_STEP = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]|^\s*$|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)\s*(\.|$)', re.IGNORECASE)
"""What is in no name of a step: it is the name of a folder on every system."""
_IS_SECRET = re.compile(r"auth|cookie|key|token|secret|password", re.IGNORECASE)
_CANARY = re.compile(r"\A(?:[ \t]*(?:<!--.*canary.*-->|#.*canary.*)[ \t]*(?:\n|\Z))+", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

_Seconds = Annotated[float, Field(ge=0)]
NetworkMode = Literal["public", "no-network", "allowlist"]
VerifierMode = Literal["shared", "separate"]
VerifierPlace = Literal["shared", "separate", "fork"]
"""With all files of the agent; with the declared artefacts only; with all files but the programs of the agent."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Author(_Section):
    name: str
    email: str | None = None


class Package(_Section):
    name: str
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: list[Author] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _of_an_organisation(cls, value: str) -> str:
        if not _PACKAGE.fullmatch(value) or ".." in value:
            raise ValueError(f"[task] name is {value!r}; it is ORGANISATION/NAME, of letters, digits, - _ and .")
        return value


class Healthcheck(_Section):
    command: str
    interval_sec: float = 5.0
    timeout_sec: _Seconds = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class McpServer(_Section):
    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    headers: dict[str, str] = Field(default_factory=dict)

    @field_validator("transport", mode="before")
    @classmethod
    def _by_its_other_name(cls, value: Any) -> Any:
        return "streamable-http" if value == "http" else value

    @model_validator(mode="after")
    def _of_its_transport(self) -> McpServer:
        is_stdio = self.transport == "stdio"
        if is_stdio and (not self.command or self.headers):
            raise ValueError(f"the MCP server {self.name!r} is started, so it needs a command, and takes no headers")
        if not is_stdio and not self.url:
            raise ValueError(f"the MCP server {self.name!r} has the transport {self.transport}, so it needs a url")
        for header, value in self.headers.items():
            if _IS_SECRET.search(header) and not _REFERENCE.search(value):
                raise ValueError(
                    f"the MCP server {self.name!r} has a credential in its header {header}; write it as ${{VARIABLE}}"
                )
        return self


class Environment(_Section):
    build_timeout_sec: _Seconds = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, ge=0)
    storage_mb: int | None = Field(default=None, ge=0)
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    allow_internet: bool | None = None
    """Of older versions: `network_mode` is public or no-network by it."""

    @model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, data: Any) -> Any:
        """Read `memory = "2G"`, `storage = "10G"` and `allow_internet` as the fields that have taken their place."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if isinstance(data.get(old), str):
                text = data.pop(old)
                if data.setdefault(new, _megabytes(old, text)) != _megabytes(old, text):
                    raise ValueError(f"{old} is {text!r} and {new} is {data[new]!r}; leave {old} out")
        if (internet := data.get("allow_internet")) is not None:
            is_public = str(internet).lower() in ("true", "1", "yes", "y", "on", "t")
            data.setdefault("network_mode", "public" if is_public else "no-network")
        if isinstance(data.get("os"), str):
            data["os"] = data["os"].lower()
        return data


def _megabytes(name: str, text: str) -> int:
    """Read a size such as "2G". Raises ValueError for anything else."""
    size = text.strip().upper()
    try:
        return int(float(size[:-1]) * {"G": 1024.0, "M": 1.0, "K": 1 / 1024}[size[-1:]])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{name} is {text!r}; it is a size such as '2G' or '512M', or use {name}_mb") from None


class Artifact(_Section):
    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None

    @field_validator("destination")
    @classmethod
    def _below_the_logs(cls, value: str | None) -> str | None:
        path = PurePosixPath(value or "some")
        is_bad = path.is_absolute() or not path.parts or ".." in path.parts or "\\" in str(path)
        if is_bad or str(path) == "manifest.json":
            raise ValueError(f"the destination of an artefact is {value!r}; it is a relative path, not manifest.json")
        return value


class Collect(_Section):
    command: str
    service: str = "main"
    timeout_sec: _Seconds = 60.0
    user: str | int | None = None


class Verifier(_Section):
    timeout_sec: _Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    environment_mode: VerifierMode | None = None
    environment: Environment | None = None
    collect: list[Collect] = Field(default_factory=list)

    @model_validator(mode="after")
    def _of_one_mind(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                "[verifier] environment_mode is 'shared', and [verifier.environment] is for a separate one"
            )
        return self


class Agent(_Section):
    timeout_sec: _Seconds | None = None
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Solution(_Section):
    env: dict[str, str] = Field(default_factory=dict)


class Step(_Section):
    name: str
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = Field(default_factory=list)


class Config(_Section):
    """The whole of task.toml. `metadata` is free in what it holds."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    steps: list[Step] = Field(default_factory=list)
    artifacts: list[str | Artifact] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HarborTask:
    folder: Path
    config: Config
    digest: str
    """Of every file of the folder."""

    @property
    def name(self) -> str:
        return self.config.task.name if self.config.task else self.folder.name

    @property
    def steps(self) -> Sequence[Step | None]:
        """The steps; one that is None for a task without steps."""
        return self.config.steps or [None]

    @property
    def environment_folder(self) -> Path:
        return self.folder / "environment"

    def part(self, step: Step | None, name: str) -> Path:
        """The folder or file `name` of a step; of the whole task where the step has none of its own, or for None."""
        own = self.folder / "steps" / step.name / name if step else self.folder / name
        return own if own.exists() else self.folder / name

    def instruction(self, step: Step | None) -> str:
        """The text of a task or a step, without the lines at its head that mark its origin (canaries)."""
        return _CANARY.sub("", self.part(step, "instruction.md").read_text()).strip()

    def verifier_place(self, step: Step | None) -> VerifierPlace:
        """Where the verifier runs: as the step or the task asks, else in a fork."""
        for verifier in ([step.verifier] if step else []) + [self.config.verifier]:
            if verifier.environment_mode is not None:
                return verifier.environment_mode
            if verifier.environment is not None:
                return "separate"
        return "fork"

    def verifier(self, step: Step | None) -> Verifier:
        """The settings of the verifier: the task's, and over them a step's own. A step has a time limit of its own."""
        task = self.config.verifier
        if step is None:
            return task
        own = step.verifier
        network = task if own.network_mode is None else own
        return own.model_copy(
            update={
                "env": {**task.env, **own.env},
                "user": task.user if own.user is None else own.user,
                "network_mode": network.network_mode,
                "allowed_hosts": network.allowed_hosts,
                "environment": own.environment or task.environment,
                "collect": [*task.collect, *own.collect],
            }
        )

    def verifier_image(self, step: Step | None) -> tuple[Path, Environment, bool]:
        """The image of a separate verifier: its folder, its section, and whether it brings /tests."""
        section = self.verifier(step).environment or self.config.environment
        places = [(self.config.verifier, self.folder / "tests")]
        if step is not None:
            places.insert(0, (step.verifier, self.folder / "steps" / step.name / "tests"))
        for verifier, folder in places:
            image = verifier.environment and verifier.environment.docker_image
            if image or (folder / "Dockerfile").is_file():
                return folder, section.model_copy(update={"docker_image": image or None}), True
        return self.environment_folder, section, False

    def agent_network(self) -> tuple[NetworkMode, Sequence[str]]:
        """The network that is asked for, and its hosts; it is the same in all steps."""
        agent, environment = self.config.agent, self.config.environment
        section = environment if agent.network_mode is None else agent
        return section.network_mode or "public", section.allowed_hosts or ()

    def artifacts(self, step: Step | None) -> list[Artifact]:
        entries = [*self.config.artifacts, *(step.artifacts if step else ())]
        return [Artifact(source=entry) if isinstance(entry, str) else entry for entry in entries]


def find_tasks(path: Path) -> list[HarborTask]:
    """Return the tasks of a folder: the folder itself, or those below it, sorted by name."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path} with Harbor tasks")
    folders = [path] if (path / CONFIG).is_file() else sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
    if not folders:
        raise UserError(f"{path} has no Harbor task: neither it nor a folder in it has a {CONFIG}")
    return [read_task(folder) for folder in folders]


def read_task(folder: Path) -> HarborTask:
    folder = folder.resolve()
    return _read(folder, _folder_digest(folder))


@functools.lru_cache(maxsize=4096)
def _read(folder: Path, digest: str) -> HarborTask:
    path = folder / CONFIG
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if "version" in data:  # its name before schema version 1.1
        data.setdefault("schema_version", data.pop("version"))
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {_problem(error)}") from None
    task = HarborTask(folder, config, digest)
    _check(task)
    return task


def _check(task: HarborTask) -> None:
    path, config = task.folder / CONFIG, task.config
    if config.schema_version not in _VERSIONS:
        raise UserError(f"{path}: schema_version is {config.schema_version!r}; known are {', '.join(_VERSIONS)}")
    environments = [
        config.environment,
        *(v.environment for v in (config.verifier, *(s.verifier for s in config.steps))),
    ]
    for environment in filter(None, environments):
        _check_environment(path, environment)
    for server in config.environment.mcp_servers:
        _check_server(path, task, server)
    names = [step.name for step in config.steps]
    for name in names:
        if _NO_STEP.search(name) or len(name.encode()) > 255:
            raise UserError(f"{path}: the step {name!r} has no name for a folder")
    if len({unicodedata.normalize("NFC", name).casefold() for name in names}) < len(names):
        raise UserError(f"{path}: two steps have the same name, but for capitals")
    for section in (
        *environments,
        config.agent,
        config.verifier,
        *(part for s in config.steps for part in (s.agent, s.verifier)),
    ):
        if section is not None:
            _check_hosts(path, section)
    for own in config.steps:
        if own.agent.network_mode not in (None, config.agent.network_mode or config.environment.network_mode):
            raise UserError(
                f"{path}: the step {own.name!r} asks for another network of its agent; a workspace keeps the network "
                "that it begins with, set it in [agent]"
            )
    for step in task.steps:
        for hook in task.verifier(step).collect:
            if hook.service != "main":
                raise UserError(f"{path}: [[verifier.collect]] is for the service {hook.service!r}; a workspace is one")
        has_tests = task.verifier_place(step) == "separate" and task.verifier_image(step)[2]
        for file_name in ("instruction.md", *([] if has_tests else ["tests/test.sh"])):
            if not task.part(step, file_name).is_file():
                raise UserError(f"{task.folder} has no {file_name}{f' for its step {step.name}' if step else ''}")
        for artifact in task.artifacts(step):
            if artifact.service not in (None, "main") or ".." in Path(artifact.source).parts:
                raise UserError(f"{path}: the artefact {artifact.source!r} is no path of the one workspace there is")


def _check_environment(path: Path, environment: Environment) -> None:
    absent = {
        "os": environment.os == "windows" and "Windows",
        "gpus": bool(environment.gpus) and f"{environment.gpus} GPUs",
        "tpu": environment.tpu is not None and "a TPU",
    }
    for field, value in absent.items():
        if value:
            raise UserError(f"{path}: [environment] {field} asks for {value}, which a workspace does not have")
    if (path.parent / "environment" / "docker-compose.yaml").exists():
        raise UserError(f"{path}: its environment has several services (docker-compose.yaml); a workspace is one")


def _check_server(path: Path, task: HarborTask, server: McpServer) -> None:
    """An MCP server elsewhere is for an agent that may reach its host."""
    if server.transport == "stdio":
        return
    try:
        host, port = server_address(server)
    except ValueError:
        raise UserError(
            f"{path}: the url of the MCP server {server.name!r} is {server.url!r}; it has no host"
        ) from None
    if _is_loopback(host):
        raise UserError(
            f"{path}: the MCP server {server.name!r} is at {host}, the workspace's own loopback: start it with "
            "transport = 'stdio'"
        )
    mode, hosts = task.agent_network()
    if mode != "public" and not (hosts and Allowlist([f"{entry}:{port}" for entry in hosts]).allows(host, port)):
        raise UserError(
            f"{path}: the MCP server {server.name!r} is at {host}, which the agent does not reach: set network_mode = "
            "'allowlist' and name it in allowed_hosts, or start a server in the workspace with transport = 'stdio'"
        )


def server_address(server: McpServer) -> tuple[str, int]:
    """Return host and port. Raises ValueError for a URL without a host."""
    parts = urlsplit(server.url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(server.url)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _check_hosts(path: Path, section: Environment | Agent | Verifier) -> None:
    hosts = section.allowed_hosts
    if section.network_mode == "allowlist" and hosts:
        try:
            Allowlist((), hosts)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        if ports := [host for host in hosts if host.count(":") == 1]:
            raise UserError(f"{path}: allowed_hosts has {ports[0]!r}; the format has hosts without a port")
    elif section.network_mode != "allowlist" and (hosts or (hosts is not None and section.network_mode is None)):
        raise UserError(f"{path}: allowed_hosts is {section.allowed_hosts}, which needs network_mode = 'allowlist'")


def resolved(variables: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Return variables with "${NAME}" and "${NAME:-default}" replaced by this process's variables."""

    def value(match: re.Match[str]) -> str:
        value_of_variable = os.environ.get(match[1], match[2])
        if value_of_variable is None:
            raise UserError(f"{where} needs the environment variable {match[1]}, which is not set")
        return value_of_variable

    return {name: _REFERENCE.sub(value, text) for name, text in variables.items()}


def _problem(error: ValidationError) -> str:
    """The first mistake in one sentence; for an unknown field with the nearest one."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    if first["type"] != "extra_forbidden":
        return f"{place} is {first['input']!r:.80}: {first['msg'].lower()}"
    section: Any = Config
    for part in first["loc"][:-1]:  # an index of a list leads to no other section
        if inner := section.model_fields.get(part):
            section = _model_of(inner.annotation)
    return f"there is no field {place}. {nearest(str(first['loc'][-1]), section.model_fields)}"


def _model_of(annotation: Any) -> Any:
    """The section in an annotation such as `list[Step]` or `Environment | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = [_model_of(part) for part in getattr(annotation, "__args__", ())]
    return next((model for model in models if model is not None), None)


def _folder_digest(folder: Path) -> str:
    """Return a digest of paths and contents; links are refused, since they could lead out of the task."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() and not path.resolve().is_relative_to(folder):
            raise UserError(f"{path} is a link out of its task; a task has only its own files")
        digest.update(f"{name}\0".encode())
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
