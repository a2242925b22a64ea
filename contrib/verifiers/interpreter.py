"""The interpreter that has verifiers, and what it says about an environment and its tasks."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contrib.common.adapters import json_object
from contrib.common.guard import guarded
from contrib.common.http_clients import no_proxy
from contrib.common.programs import last_words
from contrib.verifiers import worker
from forge_env.core.errors import ServiceError, UserError

LIST_SECONDS = 600.0
_INSTALL = (
    "uv venv verifiers-env && uv pip install --python verifiers-env/bin/python verifiers; install the environment "
    "there as well, and add --option python=verifiers-env/bin/python"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an environment of verifiers is made of; hashable."""

    id: str
    python: str
    config: str
    """A JSON object, checked."""
    harness: str
    runtime: str

    def command(self, what: str, **more: Any) -> list[str]:
        settings = {
            "id": self.id,
            "config": json.loads(self.config),
            "harness": self.harness,
            "runtime": self.runtime,
            **more,
        }
        return [self.python, "-P", os.path.abspath(worker.__file__), what, json.dumps(settings)]


def make_settings(id_: str, *, python: str, config: str, harness: str, runtime: str) -> Settings:
    return Settings(
        id=id_, python=_interpreter(python), config=configuration(config, "config"), harness=harness, runtime=runtime
    )


def configuration(text: str, option: str) -> str:
    """Check fields of the environment's own configuration; they are returned in one order."""
    return json.dumps(json_object(text, option, '{"taskset": {"level": 2}}'), sort_keys=True)


def _interpreter(python: str) -> str:
    if not python:
        if importlib.util.find_spec("verifiers") is None:
            raise UserError(
                f"verifiers is not installed beside forge-env, with which its versions disagree: {_INSTALL}"
            )
        return sys.executable
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise UserError(f"the option python is {python!r}, and there is no such interpreter: {_INSTALL}")
    return os.path.abspath(path)


@functools.lru_cache(maxsize=16)
def describe(settings: Settings, most: int) -> Mapping[str, Any]:
    """Return what the worker lists: "version", "max_turns", "bounded" and up to `most` "tasks". Takes seconds."""
    command = guarded(settings.command("list", most=most))
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=LIST_SECONDS, env=environment(), stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServiceError(f"verifiers:{settings.id} did not list its tasks within {LIST_SECONDS:g} s") from None
    return read_line(done.stdout, settings, last_words(done.stderr))


def read_line(line: bytes, settings: Settings, stderr: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = {}
    if not isinstance(value, dict):
        value = {}
    if "missing" in value:
        raise UserError(f"{settings.python} has no verifiers with its API v1 ({value['missing']}): {_INSTALL}")
    if "refused" in value:
        raise UserError(f"{value['refused']} (in {settings.python})")
    if "failed" in value or not value:
        raise ServiceError(
            f"verifiers:{settings.id} did not start: {value.get('failed') or stderr or 'without a word'}"
        )
    return value


def environment() -> dict[str, str]:
    """The variables of a worker: this process's, without the variables that show our packages to its interpreter."""
    own = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSAFEPATH"}
    variables = {name: value for name, value in os.environ.items() if name not in own}
    return {**variables, **no_proxy(), "PYTHONUNBUFFERED": "1"}
