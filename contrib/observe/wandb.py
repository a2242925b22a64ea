"""Weights & Biases, offline or online; the package itself runs in a process of its own, contrib/observe/wandb_run.py.

It is the sink `wandb`, or `wandb:offline` or `wandb:online`; without a mode WANDB_MODE has it, else it is online. The
key comes from the environment (WANDB_API_KEY) and is written nowhere. WANDB_PROJECT (else forge_env) and WANDB_NAME
(else the name of the run's folder) say where the run is shown. Both, and the run's id at W&B, are kept in the run's
folder, so a resumed run is one run there too. Everything lies under `wandb/` of that folder.

Offline, a resumed run begins a new folder with all records up to its checkpoint; it replaces the folders that were not
synced yet. Online, records that were sent stay: the steps after the checkpoint are there twice.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.records.sinks import Record

FINISH_SECONDS = 30.0  # for W&B at the end of a run to send what is left; in a short run, also to start


class WandbError(RuntimeError):
    """The process with the package has ended."""


class Wandb:
    """Hands each record to the process; the first record starts it.

    Args:
        folder: of the run.
        config: of the run, for its page at W&B.
        mode: "offline", "online", or "" for that of WANDB_MODE, or else online.
    """

    @classmethod
    def check(cls, mode: str) -> None:
        mode = _mode(mode)
        if mode not in ("offline", "online"):
            raise UserError(f"the mode is {mode}; it is offline or online")
        if importlib.util.find_spec("wandb") is None:
            raise UserError(
                "wandb is not installed: it comes with the extra of that name, or by pip install 'wandb>=0.22'"
            )
        if mode == "online" and not os.environ.get("WANDB_API_KEY"):
            raise UserError("WANDB_API_KEY is not set: set it to your key, or use wandb:offline")

    def __init__(self, folder: Path, config: Mapping[str, Any], mode: str) -> None:
        self._folder = folder
        self._config = config
        self._mode = _mode(mode)
        self._process: subprocess.Popen[str] | None = None

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self._send({"phase": phase, "step": step, "values": dict(values)})

    def go_back(self, records: Sequence[Record]) -> None:
        if self._mode != "offline":
            return
        for path in (self._folder / "wandb").glob("offline-run-*"):
            if not list(path.glob("*.synced")):
                shutil.rmtree(path, ignore_errors=True)
        for record in records:
            self.log(*record)

    def close(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            if self._process.wait(FINISH_SECONDS + 5.0):
                raise WandbError(self._why())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise WandbError(f"it did not finish within {FINISH_SECONDS + 5.0:g} s") from None

    def _send(self, line: Mapping[str, Any]) -> None:
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except OSError:
            with suppress(OSError):
                self._process.stdin.close()  # otherwise Python 3.13 tries again when the object is freed, and prints it
            self._process.wait()
            raise WandbError(self._why()) from None

    def _start(self) -> subprocess.Popen[str]:
        (self._folder / "wandb").mkdir(exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "contrib.observe.wandb_run"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | self._places(),
                start_new_session=True,  # Ctrl-C is for the run, which then ends this process in order
                text=True,
            )
        assert process.stdin is not None
        options = {
            "mode": self._mode,
            **self._identity(),
            "dir": str(self._folder.resolve()),
            "config": self._config,
            "finish_seconds": FINISH_SECONDS,
        }
        process.stdin.write(json.dumps(options) + "\n")
        process.stdin.flush()
        return process

    def _places(self) -> dict[str, str]:
        """Folders that the package may write to: below the run's folder, and not in the user's home."""
        folder = self._folder.resolve() / "wandb"
        names = {"WANDB_DIR": "", "WANDB_CACHE_DIR": ".cache", "WANDB_CONFIG_DIR": ".config", "WANDB_DATA_DIR": ".data"}
        places = {name: str(folder / part) for name, part in names.items()} | {"WANDB_DIR": str(folder.parent)}
        return places | {"WANDB_ERROR_REPORTING": "false"}

    def _identity(self) -> dict[str, str]:
        """Id, project and name of the run at W&B: made once, and read from their file afterwards."""
        path = self._folder / "wandb" / "run.json"
        if not path.is_file():
            project = os.environ.get("WANDB_PROJECT") or "forge_env"
            name = os.environ.get("WANDB_NAME") or self._folder.resolve().name
            new = {"id": secrets.token_hex(4), "project": project, "name": name}
            path.write_text(json.dumps(new) + "\n", encoding="utf-8")
        identity: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return identity

    @property
    def _log(self) -> Path:
        return self._folder / "wandb" / "process.log"

    def _why(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return f"{next((line for line in reversed(lines) if line.strip()), 'it ended')} ({self._log})"


def _mode(mode: str) -> str:
    return mode or os.environ.get("WANDB_MODE") or "online"
