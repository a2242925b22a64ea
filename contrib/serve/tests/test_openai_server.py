"""What vLLM's server is started with for a run, a model or an adapter; contrib/serve/serve_model.md runs it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from agents.renderer.chat_template import QWEN3_TEMPLATE, TEMPLATE
from agents.renderer.rendering import Renderer
from agents.renderer.served import texts_of_export
from contrib.serve.openai_server import ModelServer, _end, open_renderer
from forge_env.core.errors import UserError
from forge_env.records.run_files import MANIFEST
from forge_env.registry.agent_spec import AgentSettings, open_agent
from tests.helpers.waiting import is_alive, until, wait_until


@pytest.fixture
def run(tiny_model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "my run"
    shutil.copytree(tiny_model, folder / "model")
    for name, text in texts_of_export(tiny_model, "off", "auto", temperature=1.0)[0].items():
        (folder / "model" / name).write_text(text)
    (folder / "config.yaml").write_text("env: {name: math, thinking: 'off'}\n")
    return folder


def make_adapter(folder: Path, model: Path, *, base: str | None = None, **files: str) -> Path:
    """An adapter of the first q_proj of a model, with further files."""
    folder.mkdir(parents=True)
    name = "model.layers.0.self_attn.q_proj"
    with safe_open(model / "model.safetensors", framework="pt") as weights:
        outputs, inputs = weights.get_slice(f"{name}.weight").get_shape()
    halves = {"lora_A": torch.ones(2, inputs), "lora_B": torch.zeros(outputs, 2)}
    tensors = {f"base_model.model.{name}.{half}.weight": value for half, value in halves.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": base or str(model)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    for file, text in files.items():
        (folder / file.replace("_jinja", ".jinja")).write_text(text)
    return folder


def options_of(server: ModelServer) -> tuple[str, dict[str, Any]]:
    name, _, words = server.command()
    options: dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            options[word] = []
        else:
            options[list(options)[-1]].append(word)
    return name, {option: values[0] if len(values) == 1 else values for option, values in options.items()}


def renderer_of(server: ModelServer) -> Renderer:
    return open_renderer(server.command()[1])


def test_a_run_is_served_by_its_name_with_our_parser(run: Path) -> None:
    name, options = options_of(ModelServer(run=str(run), port=8001))
    assert name == options["--served-model-name"] == "my run"
    assert options["--model"] == str(run / "model")
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "8001")
    assert options["--tool-call-parser"] == "forge_env" and "--enable-auto-tool-choice" in options
    assert not options.keys() & {"--reasoning-parser", "--enable-lora"}
    renderer = renderer_of(ModelServer(run=str(run)))
    assert renderer.format.template.source == (run / "model" / TEMPLATE).read_text()
    assert (renderer.thinks, renderer.format.answers.dialect) == (False, "hermes")


def test_a_checkpoint_is_served_by_the_name_of_its_run_and_its_step(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    checkpoint = run / "checkpoints" / "step_000040"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_text("{}")
    (run / "model").rename(checkpoint / "model")
    for given in (run, f"{run.name}@40", checkpoint, checkpoint / "model"):
        name, options = options_of(ModelServer(run=str(given)))
        assert (name, options["--model"]) == ("my run@40", str(checkpoint / "model"))
    assert not renderer_of(ModelServer(run=f"{run}@40")).thinks
    with pytest.raises(UserError, match="has no weights @20: it has the weights of the step 40"):
        ModelServer(run=f"{run}@20").command()


def test_a_model_that_thinks_gets_the_parser_of_thoughts(run: Path) -> None:
    server = ModelServer(run=str(run), thinking="on")
    assert options_of(server)[1]["--reasoning-parser"] == "AnswerForm"
    assert renderer_of(server).thinks
    (run / "config.yaml").write_text("env: {name: math, thinking: template}\n")
    assert not renderer_of(ModelServer(run=str(run))).thinks
    (run / "model" / TEMPLATE).write_text(texts_of_export(run / "model", "on", "auto", temperature=1.0)[0][TEMPLATE])
    assert options_of(ModelServer(run=str(run)))[1]["--reasoning-parser"] == "AnswerForm"


def test_adapters_are_served_beside_their_model_with_the_template_that_they_were_trained_with(run: Path) -> None:
    model = run / "model"
    trained = texts_of_export(model, "on", "auto", temperature=1.0)[0][TEMPLATE]
    adapter = make_adapter(run / "adapter", model, chat_template_jinja=trained)
    name, options = options_of(ModelServer(run=str(model), adapters=(f"mine={adapter}",)))
    assert (name, options["--lora-modules"]) == ("my run", f"mine={adapter}")
    assert (options["--max-loras"], options["--max-lora-rank"]) == ("1", "8")
    (run / "config.yaml").unlink()
    assert renderer_of(ModelServer(run=str(model), adapters=(f"mine={adapter}",))).format.template.source == trained
    (adapter / TEMPLATE).write_text((model / TEMPLATE).read_text())
    (model / TEMPLATE).write_text(QWEN3_TEMPLATE.read_text())  # the model thinks by default, and the adapter does not
    name, options = options_of(ModelServer(run=str(adapter)))
    assert (name, options["--served-model-name"], options["--model"]) == ("my run", "my run-base", str(model))
    assert options["--lora-modules"] == f"my run={adapter}"
    assert "--reasoning-parser" not in options
    assert "--reasoning-parser" in options_of(ModelServer(run=str(model)))[1]


def test_a_mistake_is_one_sentence(run: Path) -> None:
    adapter = make_adapter(run / "adapter", run / "model", chat_template_jinja="a")
    other = make_adapter(run / "other", run / "model", chat_template_jinja="b")
    for server, words in (
        (ModelServer(run=str(run), adapters=(str(adapter),)), "two of the names to serve, my run, my run, are"),
        (ModelServer(run=str(run), adapters=(f"a={adapter}", f"b={other}")), "the adapters a, b have different chat"),
        (ModelServer(run=str(run), adapters=("nowhere",)), "--lora is nowhere, which is no folder"),
        (ModelServer(run=str(run / "nothing")), "there is no model folder"),
    ):
        with pytest.raises(UserError, match=words):
            server.command()
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match="holds neither a model/ folder, which .* nor a checkpoint"):
        ModelServer(run=str(run)).command()


async def test_an_adapter_that_names_no_model_or_is_given_another_is_refused(run: Path) -> None:
    adapter = make_adapter(run / "adapter", run / "model")
    with pytest.raises(UserError, match="is an adapter, and mine is given beside it"):
        await open_agent(f"vllm:{adapter}", AgentSettings(env="math", adapter="mine")).__aenter__()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="names no base_model_name_or_path: name the model, and .* with --adapter"):
        await open_agent(f"vllm:{adapter}", AgentSettings(env="math")).__aenter__()


STAYS = """
import os, signal, time
from multiprocessing.shared_memory import SharedMemory

memory = SharedMemory(create=True, size=1)
child = os.fork()
if child:
    print(memory.name, os.getpid(), child, flush=True)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
"""A module in the place of vLLM's, with a process and shared memory of its own, as vLLM has."""


def test_a_server_leaves_nothing_if_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(STAYS)
    code = f"""
        import os, subprocess, sys
        sys.path.insert(0, {str(tmp_path)!r})
        started = "from contrib.serve import openai_server as s; import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        started += "s.SERVER, s.use_parser = 'stays', dict; s.main()"
        child = subprocess.Popen([sys.executable, "-c", started, str(os.getpid()), "{{}}"], start_new_session=True)
        child.wait()
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    memory, *pids = owner.stdout.readline().split()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not any(is_alive(int(pid)) for pid in pids), "the end of the server and of its process")
    wait_until(lambda: not Path("/dev/shm", memory).exists(), "the end of its shared memory")


async def test_a_server_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as file:
        server = await asyncio.create_subprocess_exec(sys.executable, "-c", STAYS, stdout=file, start_new_session=True)
    await until(lambda: output.read_text().endswith("\n"))
    memory, _, pid = output.read_text().split()
    await _end(server)
    assert not is_alive(int(pid)) and not Path("/dev/shm", memory).exists()
