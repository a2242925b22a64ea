"""An evaluation says where an endpoint renders prompts otherwise than the run whose model it serves was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agents.renderer.chat_template import QWEN3_TEMPLATE, TEMPLATE
from agents.renderer.rendering import Renderer
from agents.renderer.served import texts_of_export, with_template
from contrib.chat.agent import ChatAgent
from contrib.chat.rendering_check import compare_rendering
from contrib.chat.tests.conftest import ChatServer
from envs.math import Math
from forge_env.core.errors import UserError
from forge_env.core.types import Message

TOOLS = Math().tools
PROMPT: tuple[Message, ...] = ({"role": "user", "content": "2 + 2?"},)


@pytest.fixture
def run(tiny_model: Path, tmp_path: Path) -> Path:
    """The folder of a run without thinking, as far as it is read."""
    folder = tmp_path / "run"
    shutil.copytree(tiny_model, folder / "model")
    for name, text in texts_of_export(tiny_model, "off", "auto", temperature=1.0)[0].items():
        (folder / "model" / name).write_text(text)
    (folder / "config.yaml").write_text("env: {name: math, thinking: 'off'}\n")
    return folder


def renders(server: ChatServer, model: Path, template: str) -> None:
    """Let the server render with a template as vLLM's does."""
    renderer, tokenizer = Renderer(model), AutoTokenizer.from_pretrained(str(model))

    def render(body: dict[str, Any]) -> list[int]:
        return with_template(renderer, tokenizer, template, body["tools"])(body["messages"])

    server.render = render


async def compare(server: ChatServer, like: str = "", **settings: Any) -> str:
    async with ChatAgent("m", server.url, api_key_env="", **settings) as agent:
        return await compare_rendering(agent, PROMPT, TOOLS, like=like)


async def test_an_endpoint_with_the_template_of_the_export_renders_the_same(chat_server: ChatServer, run: Path) -> None:
    renders(chat_server, run / "model", (run / "model" / TEMPLATE).read_text())
    assert await compare(chat_server, str(run)) == ""
    chat_server.root = str(run / "model")
    assert await compare(chat_server) == ""


async def test_another_template_is_shown_by_its_first_difference(chat_server: ChatServer, run: Path) -> None:
    renders(chat_server, run / "model", QWEN3_TEMPLATE.read_text())  # which thinks by default
    chat_server.root = str(run / "model")
    for like in (str(run), ""):
        found = await compare(chat_server, like)
        assert f"does not render what {run}" in found
        assert r"the run has '<think>\n\n</think>\n\n', and it has its end" in found


async def test_an_adapter_is_compared_with_the_model_of_its_run(chat_server: ChatServer, run: Path) -> None:
    (run / "adapter").mkdir()
    (run / "adapter" / "adapter_config.json").write_text("{}")
    renders(chat_server, run / "model", QWEN3_TEMPLATE.read_text())
    chat_server.root = str(run / "adapter")
    assert "does not render what" in await compare(chat_server)


async def test_thoughts_of_earlier_turns_are_sent_to_a_model_that_thinks(chat_server: ChatServer, run: Path) -> None:
    (run / "config.yaml").write_text("env: {name: math, thinking: 'on'}\n")
    renders(chat_server, run / "model", QWEN3_TEMPLATE.read_text())
    assert await compare(chat_server, str(run), sends_thoughts=True) == ""
    assert "the run has '<think>" in await compare(chat_server, str(run))


async def test_an_endpoint_that_cannot_be_asked_is_only_named_if_a_run_was(chat_server: ChatServer, run: Path) -> None:
    chat_server.root = str(run / "model")
    assert await compare(chat_server) == ""
    assert "was not compared with" in await compare(chat_server, str(run))
    chat_server.root = str(run / "nowhere")
    assert await compare(chat_server) == ""
    chat_server.root = str(run / "model")
    (run / "model" / TEMPLATE).write_text("{{ messages")
    assert await compare(chat_server) == ""
    with pytest.raises(UserError, match="the chat template in .* is not valid Jinja"):
        await compare(chat_server, str(run))
    with pytest.raises(UserError, match=r"--like .* holds no model/ with a tokenizer.json: name a finished"):
        await compare(chat_server, str(run / "nowhere"))


def test_the_probe_reads_arguments_as_a_server_sends_them() -> None:
    agent = ChatAgent("m", "http://127.0.0.1:9/v1", api_key_env="", sends_thoughts=True)
    call: Any = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    message: Message = {"role": "assistant", "content": "", "reasoning_content": "So.", "tool_calls": [call]}
    [sent] = agent.sent([message])
    assert (sent["reasoning"], sent["reasoning_content"]) == ("So.", "So.")
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
