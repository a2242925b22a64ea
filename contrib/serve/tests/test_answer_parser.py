"""`forge-env serve` reads an answer as a run does, in full and as a stream, and hands over the run's messages."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from agents.renderer.dialects import DIALECTS, new_id, write
from agents.renderer.dialects.harmony import ANSWER, END, FINAL, THOUGHT
from agents.renderer.dialects.table import dialect_of
from agents.renderer.reading import AnswerForm, ChannelForm
from agents.renderer.rendering import Renderer
from agents.renderer.served import texts_of_export
from contrib.chat.agent import ChatAgent, _action
from contrib.chat.reply import read_reply
from contrib.chat.stream import _Answer
from contrib.common.http_server import free_port
from contrib.external.tests.test_answer_grammar import check_masks
from contrib.serve.openai_server import ENVIRON, ModelServer, serve_model
from envs.math import Math
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, Message, ToolCall
from tests.agents.renderer.test_harmony import make_gpt_oss

if TYPE_CHECKING:  # vLLM takes seconds to import, in each process that only counts these tests
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    from contrib.serve.answer_parser import AnswerParser

TOOLS = Math().tools
NAME = TOOLS[0]["function"]["name"]
ONE = ToolCall(id="", name=NAME, arguments={"expression": '1 + "é" {'})
TWO = replace(ONE, arguments={"expression": "2"})


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Renderer:
    return Renderer(tiny_model)


def with_form(renderer: Renderer, **form: Any) -> Renderer:
    """A renderer of a model that writes its answers otherwise."""
    other = object.__new__(Renderer)
    answers = (ChannelForm if form["dialect"] == "harmony" else AnswerForm)(**form)
    other.__dict__ |= renderer.__dict__ | {"format": replace(renderer.format, answers=answers)}
    return other


def answers(dialect: str) -> Iterator[str]:
    """Texts as models write them: answers, calls of each kind, and what is none."""
    one, two = write([ONE], dialect), write([ONE, TWO], dialect)
    marks = [mark for mark in dialect_of(dialect).marks if mark]
    yield from ("", "Three.", " Three\n", '{"name": "Bob", "age": 5}', '{"three": 3}', "[3]", "<th", "a <tool_ca")
    yield from (
        one,
        two,
        f"So:\n{one}",
        f"{one}\nDone.",
        one[: len(one) // 2],
        one[:-1],
        one[1:],
        one.replace('"', "'"),
    )
    yield from (one.replace(NAME, ""), one.replace(NAME, "other"), f"{one}{one}", two[: -len(two) // 4])
    yield from (mark + "x" for mark in marks)
    first, *thoughts = ("<think>\nI add.\n</think>\n\n", f"<think>{one}</think>", "<think></think>", "<think>I add. ")
    yield from (first, f"{first}Three.", f"{first}{one}", f"{first}{one[: len(one) // 2]}")
    for thought in thoughts:
        yield from (thought, f"{thought}{one}")
    yield from ("I add.</think>\n\nThree.", f"{one}</think>{two}")
    channels = (f"{THOUGHT}I add.{END}{ANSWER}", f"{THOUGHT}{one}{END}{ANSWER}", f"{THOUGHT}I add. ")
    for thought in channels if dialect == "harmony" else ():
        yield from (thought, f"{thought}{FINAL}Three.", f"{thought}{one}", f"{thought}{one[: len(one) // 2]}")


def request(**fields: Any) -> ChatCompletionRequest:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    messages = [{"role": "user", "content": "1 + 2?"}]
    return ChatCompletionRequest(**({"model": "m", "messages": messages, "tools": TOOLS} | fields))


def parser_of(renderer: Renderer) -> AnswerParser:
    from contrib.serve.answer_parser import AnswerParser

    return type("Parser", (AnswerParser,), {"renderer": renderer})(None, None)


def served(renderer: Renderer, ids: list[int], asked: ChatCompletionRequest) -> list[Action]:
    """What the client reads from an answer in full and from a stream, as vLLM's server writes them."""
    from vllm.entrypoints.generate.base.protocol import ToolCall as ServedCall
    from vllm.entrypoints.openai.chat_completion.protocol import ChatMessage

    ended = bool(ids) and ids[-1] in renderer.stop_token_ids
    sampled = ids[:-1] if ended else ids
    finish = "stop" if ended else "length"
    thought, content, calls = parser_of(renderer).parse(renderer.decode(sampled), asked, True, ids)
    message = ChatMessage(
        role="assistant",
        reasoning=thought,
        content=content,
        tool_calls=[ServedCall(id=call.id, function=call) for call in calls or ()],
    )
    full = {"choices": [{"message": json.loads(message.model_dump_json()), "finish_reason": finish}]}
    parser, stream = parser_of(renderer), _Answer()
    decoder = DecodeStream(skip_special_tokens=False)  # as vLLM decodes
    for index, token in enumerate(ids):
        is_last = index + 1 == len(ids)
        text = "" if ended and is_last else decoder.step(renderer._tokenizer._tokenizer, token) or ""
        delta = parser.parse_delta(text, [token], asked, None, finished=is_last)
        choice = {"delta": json.loads(delta.model_dump_json(exclude_unset=True))}
        stream.add({"choices": [{**choice, "finish_reason": finish if is_last else None}]})
    replies = [read_reply(full), *([read_reply(stream.body())] if ids else [])]
    return [_action(reply) for reply in replies if reply is not None]


def parts(action: Action) -> tuple[Any, ...]:
    calls = [(call.name, call.arguments, call.raw, call.error) for call in action.tool_calls]
    return action.text, action.message.get("reasoning_content"), calls, action.finish_reason


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_reads_what_the_run_reads(renderer: Renderer, dialect: str) -> None:
    kinds, asked = set(), request()
    # What opens a thought, and what ends at one call, is the same code for all dialects but harmony.
    others = ((True, False), (False, True)) if dialect in ("hermes", "llama", "mistral", "harmony") else ()
    for opens, one_call in ((False, False), *others):
        form = with_form(renderer, dialect=dialect, opens_thought=opens, one_call=one_call)
        for text in answers(dialect):
            for end in (list(renderer.stop_token_ids[:1]), []):
                ids = [*renderer.encode(text), *end]
                if renderer.decode(renderer.encode(text)) != text or (one_call and not end):
                    continue
                inside = form.read(ids, "stop" if end else "length", TOOLS)
                for action in served(form, ids, asked):
                    assert parts(action) == parts(inside), (text, end)
                kinds |= {"error" if call.error else "call" for call in inside.tool_calls} or {"answer"}
    assert kinds == ({"answer"} if dialect == "none" else {"answer", "call", "error"})


def test_a_request_without_tools_or_with_none_to_call_has_an_answer(renderer: Renderer) -> None:
    ids = [*renderer.encode(write([ONE], "hermes")), renderer.stop_token_ids[0]]
    for asked in (request(tools=None), request(tool_choice="none")):
        for action in served(renderer, ids, asked):
            assert parts(action) == parts(renderer.read(ids, "stop", ()))
            assert action.text.startswith("<tool_call>") and not action.tool_calls


def test_a_call_that_cannot_be_read_reaches_the_model_with_the_sentence_of_the_run(renderer: Renderer) -> None:
    ids = [*renderer.encode('<tool_call>\n{"name": "x", "arguments": {\n</tool_call>'), renderer.stop_token_ids[0]]
    [inside] = renderer.read(ids, "stop", TOOLS).tool_calls
    for action in served(renderer, ids, request()):
        [call] = action.tool_calls
        assert call.error == inside.error and call.raw == '{"name": "x", "arguments": {'
        assert "write <tool_call>" in call.error


def histories(renderer: Renderer) -> Iterator[list[Message]]:
    """Conversations with calls that can be read, that cannot be read, and several of them."""
    texts = [
        write([ONE], "hermes"),
        "So: " + write([ONE, TWO], "hermes"),
        '<tool_call>\n{"name": "x", "arguments": {\n</tool_call>',
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        write([ONE], "hermes") + "\n<tool_call>\n[1, 2]\n</tool_call>",
        '<tool_call>\n{"name": "calculator", "arguments": {"unreadable": "x"}}\n</tool_call>',
        "Three <|im_end|>\n<|im_start|>user",
    ]
    for text in texts:
        ids = [*renderer.encode(text.replace("<|im_end|>", "<|im _end|>")), renderer.stop_token_ids[0]]
        [action, _] = served(renderer, ids, request())
        results = [{"role": "tool", "content": "3 <|im_end|>", "tool_call_id": c.id} for c in action.tool_calls]
        message = {**action.message, "content": text} if "im_end" in text else action.message
        yield [{"role": "user", "content": "1 + 2?"}, message, *(results or [{"role": "user", "content": "Sure?"}])]


@pytest.mark.parametrize(
    "form", [{"dialect": "hermes"}, {"dialect": "hermes", "one_call": True}, {"dialect": "mistral"}]
)
async def test_the_messages_of_a_request_are_those_of_the_run(renderer: Renderer, form: dict[str, Any]) -> None:
    from contrib.serve.answer_parser import prepare

    form = with_form(renderer, **form)
    async with ChatAgent("m", "http://127.0.0.1:1/v1", api_key_env="") as agent:
        for messages in histories(form):
            asked = request(messages=agent.sent(messages))
            ours = prepare(form, asked.messages)
            inside: Any = [{**message, "content": message["content"] or ""} for message in messages]
            for message in inside:  # the run has no reason for ids that no other answer has
                for index, call in enumerate(message.get("tool_calls") or ()):
                    call["id"] = new_id(form.format.answers.dialect, call["function"]["name"], index)
            for index, message in enumerate([message for message in inside if message["role"] == "tool"]):
                message["tool_call_id"] = inside[1]["tool_calls"][index]["id"]
            assert ours == form.prepare(inside)


def test_content_in_parts_and_a_thought_in_another_field_are_those_of_the_run(renderer: Renderer) -> None:
    from contrib.serve.answer_parser import prepare

    parts_of_text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b <|im_end|>"}]
    thought = {"role": "assistant", "content": None, "reasoning": "So."}
    ours = prepare(renderer, [{"role": "user", "content": parts_of_text}, thought])
    assert ours[0] == {"role": "user", "content": "a\nb < |im_end|>"}
    assert ours[1] == {"role": "assistant", "content": "", "reasoning": "So.", "reasoning_content": "So."}


def test_a_request_is_sampled_in_the_form_that_it_asks_for(renderer: Renderer) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    forms: list[dict[str, Any]] = []
    named = {"type": "function", "function": {"name": NAME}}
    for fields in ({"tool_choice": "required"}, {"tool_choice": named}, {"response_format": schema}):
        asked = parser_of(renderer).adjust_request(request(**fields))
        assert asked.response_format is None and not asked.skip_special_tokens
        assert set(renderer.stop_token_ids) <= set(asked.stop_token_ids)
        forms.append(json.loads(asked.structured_outputs.structural_tag)["format"])
    assert forms[0] == forms[1] and forms[0]["type"] == "sequence"
    assert [form["type"] for form in forms[2]["elements"]] == ["sequence", "json_schema"]
    asked = parser_of(renderer).adjust_request(request(stop="\n"))
    assert asked.structured_outputs is None and asked.stop[0] == "\n"


def test_a_grammar_begins_behind_the_thought(renderer: Renderer, tiny_model: Path, tmp_path: Path) -> None:
    from vllm.reasoning import ReasoningParserManager

    from contrib.serve.answer_parser import ThoughtParser

    gpt_oss = make_gpt_oss(tmp_path / "model")
    channels = Renderer(gpt_oss, thinking="on")
    cases = (
        (tiny_model, renderer, "<|im_start|>assistant\n", "<think>\nHm.\n", "</think>"),
        (gpt_oss, channels, f"?{END}{ANSWER}", f"{THOUGHT}Hm.", f"{END}{ANSWER}"),
    )
    for folder, form, prompt, thought, end in cases:
        kind = ReasoningParserManager.get_reasoning_parser(type(form.format.answers).__name__)
        parser = kind(PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")))
        first, ids = form.encode(prompt), form.encode(thought + end)
        assert not parser.is_reasoning_end(first)
        ends = [parser.is_reasoning_end_streaming([*first, *ids[:n]], ids[n - 1 : n]) for n in range(1, len(ids) + 1)]
        assert ends.index(True) == len(ids) - 1
        answer = parser_of(form)
        assert answer.count_reasoning_tokens([*ids, *form.encode("Three.")]) == len(form.encode(thought))
        assert answer.count_reasoning_tokens(form.encode(f"{FINAL}Three.{end}")) == 0
    closed = renderer.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert ThoughtParser(PreTrainedTokenizerFast(tokenizer_file=str(tiny_model / "tokenizer.json"))).is_reasoning_end(
        closed
    )


def test_a_mark_is_allowed_after_other_requests_with_grammars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In vLLM's engine, with the environment that its server gets."""
    import vllm.envs
    from vllm.config import VllmConfig
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    vllm.envs.disable_envs_cache()  # an engine of this process has read them
    channels = Renderer(make_gpt_oss(tmp_path / "model"), thinking="on")
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "model" / "tokenizer.json"))
    engine = XgrammarBackend(VllmConfig(), tokenizer=tokenizer, vocab_size=len(tokenizer))
    check_masks(engine.compiler, channels.encode, channels.token_id, len(tokenizer))


def test_a_stop_text_of_the_client_is_no_limit(renderer: Renderer) -> None:
    call = write([ONE], "hermes")
    ids = renderer.encode(f"<think>I call. {call} END")
    parser = parser_of(renderer)
    assert parser.parse(f"<think>I call. {call} ", request(stop=["END"]), True, ids)[2]
    assert not parser.parse(f"<think>I call. {call} END", request(), True, ids)[2]


@pytest.mark.slow
async def test_a_served_model_is_read_and_prompted_as_in_the_run(
    renderer: Renderer, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's server on a tiny model, which is held to the texts that are to be read."""
    shutil.copytree(tiny_model, tmp_path / "model")
    for name, text in texts_of_export(tiny_model, "off", "auto", temperature=1.0)[0].items():
        (tmp_path / "model" / name).write_text(text)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    announced: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve_model(
            ModelServer(run=str(tmp_path / "model"), port=free_port("127.0.0.1", 0)),
            "secret",
            lambda name, url, options: announced.set_result((name, url)),
        )
    )
    try:
        await asyncio.wait({announced, server}, return_when=asyncio.FIRST_COMPLETED)
        name, url = announced.result()
        question: Message = {"role": "user", "content": "1 + 2?"}
        kinds: list[str] = []
        for text in answers("hermes"):
            ids = renderer.encode(text)
            if not text.strip() or renderer.decode(ids) != text:
                continue
            inside = parts(renderer.read([*ids, renderer.stop_token_ids[0]], "stop", TOOLS))
            for idle in (None, 300.0):  # in full, and as a stream
                more = {"structured_outputs": {"choice": [text]}}
                async with ChatAgent(name, url, timeout=300.0, idle_timeout=idle, extra_body=more) as agent:
                    asked = Conversation(request_id="", observation=(question,), max_turn_tokens=400, max_tokens=1500)
                    assert parts((await agent.act(asked, TOOLS))[1]) == inside, text
            kinds += {"error" if call[3] else "call" for call in inside[2]} or {"answer"}
        assert min(kinds.count(kind) for kind in ("answer", "call", "error")) > 5
        async with ChatAgent(name, url) as agent, httpx.AsyncClient(trust_env=False, timeout=60.0) as client:
            for messages in histories(renderer):
                body = {"model": name, "messages": agent.sent(messages), "tools": TOOLS}
                answer = await client.post(f"{url.removesuffix('/v1')}/tokenize", json=body)
                first = Conversation(request_id="", observation=tuple(messages))
                assert answer.json()["tokens"] == renderer.next_prompt(first, TOOLS)[1], messages
    finally:
        server.cancel()
        await asyncio.wait({server})
