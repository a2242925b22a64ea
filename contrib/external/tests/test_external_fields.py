"""Every field of a request that the installed SDKs know is honoured, refused, or named as ignored."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

from contrib.common.http_server import RequestRefused
from contrib.external.dialects.dialect import Dialect
from contrib.external.dialects.table import DIALECTS
from contrib.external.tests.external_playing import Play

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
FUNCTION = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
PLAIN = {"type": "function", "name": "add", "parameters": SCHEMA}
CUSTOM = {"name": "add", "input_schema": SCHEMA}
NAMESPACE = {"type": "namespace", "name": "sums", "description": "Sums.", "tools": [PLAIN, {"type": "custom"}]}
ONE_CALL = {"disable_parallel_tool_use": True}
HELLO = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"

SDKS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    CHAT: ([chat.CompletionCreateParamsStreaming], {"model": "m", "messages": HELLO, "tools": [FUNCTION]}),
    COMPLETIONS: ([completions.CompletionCreateParamsStreaming], {"model": "m", "prompt": "hi"}),
    RESPONSES: ([responses.ResponseCreateParamsStreaming], {"model": "m", "input": "hi", "tools": [PLAIN]}),
    MESSAGES: (
        [messages.MessageCreateParamsStreaming, beta_messages.MessageCreateParamsStreaming],
        {"model": "m", "messages": HELLO, "max_tokens": 9, "tools": [CUSTOM]},
    ),
}
"""By path: the SDKs' own types of a request, and a request that is answered."""
HEADERS = ("betas",)  # fields of the SDK's that it sends as headers
HONOURED: dict[str, Any] = {
    "model": ("n", "model"), "messages": ([{"role": "user", "content": "x"}], "messages"),
    "prompt": ("x", "prompt"), "input": ("x", "messages"), "instructions": ("Add.", "messages"),
    "system": ("Add.", "messages"), "max_tokens": (7, "max_tokens"), "max_completion_tokens": (7, "max_tokens"),
    "max_output_tokens": (7, "max_tokens"), "stop": (["x"], "stop"), "stop_sequences": (["x"], "stop"),
    "stream": (True, "stream"), "stream_options": ({"include_usage": True}, "include_usage"),
    "tools": ([], "tools"), "tool_choice": ("none", "tools"), "response_format": (FORM, "constraint"),
    "text": ({"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, "constraint"),
    "output_config": ({"format": {"type": "json_schema", "schema": SCHEMA}}, "constraint"),
    "logprobs": (True, "logprobs"), "include": (["message.output_text.logprobs"], "logprobs"),
    "previous_response_id": ("resp_1", "messages"),
}  # fmt: skip
"""A value that changes what is read of a request, and what it changes."""
SAME: dict[str, tuple[Any, Any]] = {
    "n": (1, 2),
    "best_of": (1, 2),
    "modalities": (["text"], ["audio"]),
    "truncation": ("disabled", "auto"),
    "thinking": ({"type": "disabled"}, {"type": "enabled"}),
}
"""A value that asks for what is done anyway, and another one, which is refused, or named."""
KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("disable_parallel_tool_use", "parallel_tool_calls", "store", "stream"), (True, "true or false")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), (0.5, "a number")),
    **dict.fromkeys(("min_p", "temperature", "top_p"), (1, "a number")),
    **dict.fromkeys(("best_of", "max_tool_calls", "n", "seed", "top_k"), (1, "a whole number")),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), (1, "a whole number from 1 on")),
    "stream_options": ({}, "an object"),
}
"""A value of a field, and what its values are."""
HISTORIES: Any = {"resp_1": tuple(HELLO)}


def fields() -> list[tuple[str, str]]:
    known = {(path, name) for path, (types, _) in SDKS.items() for cls in types for name in names(cls)}
    return sorted(known)


def names(cls: Any) -> set[str]:
    """The fields of a typed dictionary and of those that it inherits from."""
    return {*cls.__required_keys__, *cls.__optional_keys__} - {*HEADERS}


def read(path: str, changed: dict[str, Any]) -> Any:
    dialect: Dialect = DIALECTS[path]
    return dialect.read({**SDKS[path][1], **changed}, HISTORIES)


@pytest.mark.parametrize(("path", "name"), fields())
def test_a_field_is_honoured_refused_or_named(path: str, name: str) -> None:
    dialect = DIALECTS[path]
    assert (
        sum(name in group for group in (dialect.fields.honoured, dialect.fields.ignored, dialect.fields.refused)) == 1
    )
    if name in dialect.fields.refused:
        with pytest.raises(RequestRefused, match=f"{name} is .* leave it out") as error:
            read(path, {name: {"a": 1}})
        assert (error.value.status, error.value.param) == (400, name)
        assert read(path, {name: None}) == read(path, {})
    elif name in dialect.fields.ignored:
        assert read(path, {name: KINDS.get(name, ("x",))[0]}).ignored == (name,)
    elif name in SAME:
        same, other = SAME[name]
        assert read(path, {name: same}) == read(path, {})
        try:
            assert name in read(path, {name: other}).ignored
        except RequestRefused as refusal:
            assert refusal.param == name
    else:
        value, changes = HONOURED[name]
        if (path, name) == (COMPLETIONS, "logprobs"):
            value = 0
        if (path, name) == (MESSAGES, "tool_choice"):
            value = {"type": value}
        request = read(path, {name: value})
        assert getattr(request, changes) != getattr(read(path, {}), changes)
        assert request.ignored == ()


@pytest.mark.parametrize("path", SDKS)
def test_a_value_of_another_kind_is_refused_in_one_sentence(path: str) -> None:
    dialect = DIALECTS[path]
    for name, (value, kind) in KINDS.items():
        if name not in (*dialect.fields.honoured, *dialect.fields.ignored):
            continue
        read(path, {name: value})
        for wrong in ("false", "1", "0.5", "", [], True if kind != "true or false" else 1):
            with pytest.raises(RequestRefused, match=rf"{name} is .*; it is {kind}$") as error:
                read(path, {name: wrong})
            assert (error.value.status, error.value.param) == (400, name)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *[(path, {"max_tokes": 5}, "'max_tokes' is no field that is known here: leave it out") for path in SDKS],
    *[(path, {"tools": "x"}, "tools is .*; it is a list of objects") for path in SDKS if path != COMPLETIONS],
    *[(path, {"tools": [3]}, "tools is .*; it is a list of objects") for path in SDKS if path != COMPLETIONS],
    (CHAT, {"n": 2}, "n is 2.*a request has one answer"),
    (CHAT, {"logit_bias": {"5": 1}}, "logit_bias"),
    (CHAT, {"response_format": {"type": "grammar"}}, "response_format is"),
    (CHAT, {"logprobs": "false"}, "logprobs is .*; it is true or false"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"stream_options": {"include_usage": "false"}}, "include_usage is .*; it is true or false"),
    (CHAT, {"stop": [""]}, "stop is a text"),
    (CHAT, {"max_tokens": "many"}, "max_tokens is"),
    (CHAT, {"messages": []}, "messages is missing"),
    (CHAT, {"messages": ["hi"]}, "no role"),
    (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, "no role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "guess", "guess": {"url": "x"}}]}]}, "text only"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [5]}]}, "tool_calls"),
    (CHAT, {"tools": [{"type": "function", "function": {}}]}, "no function with a name"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": 1}}}, "tool_choice is"),
    (MESSAGES, {"max_tokens": None}, "max_tokens is missing"),
    (MESSAGES, {"messages": []}, "messages is missing or empty"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image' without data"),
    (MESSAGES, {"messages": [*HELLO, {"role": "assistant", "content": "b"}]}, "is not continued"),
    (MESSAGES, {"messages": [{"role": "judge", "content": "a"}]}, "no role out of"),
    (MESSAGES, {"tools": [{"description": "a tool"}]}, r"tools\[0\] has no name"),
    (MESSAGES, {"tool_choice": "tool"}, "it is auto, none, any, or tool with a name"),
    (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": "no"}}, "it is true or false"),
    (MESSAGES, {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers is"),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, "is no JSON Schema"),
    (MESSAGES, {"stop_sequences": [1]}, "stop_sequences is a text or"),
    (RESPONSES, {"input": []}, "input is missing or empty"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'; items are"),
    (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "no role out of"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "computer_screenshot"}]}]}, "no text"),
    (RESPONSES, {"tools": [{"name": "add"}]}, r"tools\[0\] has no type"),
    (RESPONSES, {"tools": [{"type": "namespace", "name": "n"}]}, "a namespace without a name or tools"),
    (RESPONSES, {"tools": [{**NAMESPACE, "tools": [{"type": "function"}]}]}, r"tools\[0\].tools\[0\] is a"),
    (RESPONSES, {"tools": [NAMESPACE, {**PLAIN, "name": "sums__add"}]}, "so is a tool of another namespace"),
    (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "and the tools are none"),
    (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, "is no JSON Schema"),
    (RESPONSES, {"background": True}, "background is true"),
    (RESPONSES, {"conversation": "conv_1"}, "none are kept"),
    (RESPONSES, {"previous_response_id": []}, r"previous_response_id is \[\]"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens is 0"),
]


@pytest.mark.parametrize(("path", "changed", "sentence"), REFUSED)
def test_what_a_dialect_cannot_do_is_refused_in_one_sentence(path: str, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestRefused, match=sentence) as error:
        read(path, changed)
    assert (error.value.status, "\n" in str(error.value)) == (400, False)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_tools_that_are_no_functions_are_left_out_and_named(path: str) -> None:
    own = SDKS[path][1]["tools"]
    others = [{"type": "web_search"}, {"type": "custom_tool", "custom_tool": {"name": "x"}}, {"type": "web_search"}]
    request = read(path, {"tools": [others[0], *own, *others[1:]]})
    assert request.tools == read(path, {}).tools and len(request.tools) == 1
    assert request.ignored[:2] == ("tools web_search", "tools custom_tool")
    assert read(path, {"tools": others}).tools == ()


STRICT = {**FUNCTION["function"], "strict": True}  # type: ignore[dict-item]
PARTS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    (CHAT, {"stream_options": {"include_obfuscation": True}}, ("stream_options.include_obfuscation",)),
    (CHAT, {"tools": [{"type": "function", "function": STRICT}]}, ("tools.function.strict",)),
    (RESPONSES, {"include": ["reasoning.encrypted_content"]}, ("include reasoning.encrypted_content",)),
    (RESPONSES, {"text": {"verbosity": "low"}}, ("text.verbosity",)),
    (RESPONSES, {"tools": [{**PLAIN, "strict": True}]}, ("tools.strict",)),
    (RESPONSES, {"tools": [NAMESPACE]}, ("tools custom", "tools.namespace.description")),
    (MESSAGES, {"output_config": {"effort": "low"}}, ("output_config.effort",)),
    (MESSAGES, {"tools": [{**CUSTOM, "cache_control": {"type": "ephemeral"}}]}, ("tools.cache_control",)),
    (MESSAGES, {"tool_choice": {"type": "auto", **ONE_CALL}}, ("tool_choice.disable_parallel_tool_use",)),
]


@pytest.mark.parametrize(("path", "changed", "expected"), PARTS)
def test_a_part_of_a_field_that_is_ignored_is_named(
    path: str, changed: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert read(path, changed).ignored == expected


CONTENT = bytes(range(10))
B64 = base64.b64encode(CONTENT).decode()
PNG, PDF = f"data:image/png;base64,{B64}", f"data:application/pdf;base64,{B64}"
HELD = {"type": "base64", "media_type": "image/png", "data": B64}
IN = [{"type": "text", "text": "In"}, {"type": "image", "source": HELD}]
MEDIA: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}, "[image: image/png, 10 bytes]"),
    (CHAT, {"type": "image_url", "image_url": PNG.replace("data:", "DATA:")}, "[image: image/png, 10 bytes]"),
    (CHAT, {"type": "image_url", "image_url": {"url": "https://a/b.png"}}, "[image: https://a/b.png]"),
    (CHAT, {"type": "image_url", "image_url": "data:image/svg+xml,%3Csvg%2F%3E"}, "[image: image/svg+xml, 6 bytes]"),
    (CHAT, {"type": "input_audio", "input_audio": {"data": B64, "format": "wav"}}, "[audio: audio/wav, 10 bytes]"),
    (CHAT, {"type": "audio", "data": B64, "mimeType": "audio/wav"}, "[audio: audio/wav, 10 bytes]"),  # of MCP
    (CHAT, {"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}}, "[document: application/pdf, 10 bytes]"),
    (CHAT, {"type": "file", "file": {"file_data": B64, "filename": "a.pdf"}}, "[document: application/pdf, 10 bytes]"),
    (CHAT, {"type": "file", "file": {"file_id": "file-1"}}, "[document: file-1]"),
    (CHAT, {"type": "video_url", "video_url": {"url": "https://a/b.mp4"}}, "[video: https://a/b.mp4]"),
    (MESSAGES, {"type": "image", "source": HELD, "cache_control": {}}, "[image: image/png, 10 bytes]"),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://a/b"}}, "[image: https://a/b]"),
    (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "f1"}}, "[image: f1]"),
    (MESSAGES, {"type": "document", "title": "T", "source": HELD}, "[document: image/png, 10 bytes]"),
    (MESSAGES, {"type": "document", "source": {"type": "text", "data": "Read."}}, "Read."),
    (MESSAGES, {"type": "document", "source": {"type": "content", "content": IN}}, "In\n[image: image/png, 10 bytes]"),
    (MESSAGES, {"type": "container_upload", "file_id": "f1"}, "[document: f1]"),
    (RESPONSES, {"type": "input_image", "image_url": PNG, "detail": "auto"}, "[image: image/png, 10 bytes]"),
    (RESPONSES, {"type": "input_image", "file_id": "file-1", "image_url": None}, "[image: file-1]"),
    (RESPONSES, {"type": "input_file", "filename": "a.pdf", "file_data": PDF}, "[document: application/pdf, 10 bytes]"),
    (RESPONSES, {"type": "input_file", "file_url": "https://a/b.pdf"}, "[document: https://a/b.pdf]"),
    (RESPONSES, {"type": "input_audio", "input_audio": {"data": B64, "format": "mp3"}}, "[audio: audio/mp3, 10 bytes]"),
]  # fmt: skip
"""A part that holds no text, by the API that it is of, and what a model reads."""


def said(path: str, content: Any, *, by_tool: bool) -> dict[str, Any]:
    """What changes in a request that has a content, of the user or of a tool."""
    if not by_tool:
        return {"input" if path == RESPONSES else "messages": [{"role": "user", "content": content}]}
    if path == RESPONSES:
        call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
        return {"input": [*HELLO, call, {"type": "function_call_output", "call_id": "c", "output": content}]}
    if path == MESSAGES:
        result = {"type": "tool_result", "tool_use_id": "c", "content": content}
        called = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
        return {"messages": [*HELLO, {"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]}
    made = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [made]}
    return {"messages": [*HELLO, asked, {"role": "tool", "tool_call_id": "c", "content": content}]}


@pytest.mark.parametrize("by_tool", [False, True])
@pytest.mark.parametrize(("path", "part", "note"), MEDIA)
def test_media_are_shown_as_notes(path: str, part: dict[str, Any], note: str, by_tool: bool) -> None:
    kind = "input_text" if path == RESPONSES else "text"
    content = [{"type": kind, "text": "See:"}, part, {"type": kind, "text": "And"}, {"type": kind, "text": " this."}]
    for parts, text in ((content, f"See:\n{note}\nAnd this."), ([part], note)):
        message = read(path, said(path, parts, by_tool=by_tool)).messages[-1]
        assert (message["role"], message["content"]) == ("tool" if by_tool else "user", text)


def test_a_search_result_is_its_text() -> None:
    found = {"type": "search_result", "title": "T", "source": "https://a", "content": [{"type": "text", "text": "It."}]}
    assert read(MESSAGES, said(MESSAGES, [found], by_tool=True)).messages[-1]["content"] == "T\nhttps://a\nIt."


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {}}),
        (CHAT, {"type": "input_audio", "input_audio": None}),
        (CHAT, {"type": "guess", "guess": "x"}),
        (MESSAGES, {"type": "image", "source": {}}),
        (MESSAGES, {"type": "document", "source": {"type": "text"}}),
        (RESPONSES, {"type": "input_file", "file_data": 5}),
        (RESPONSES, {"type": ["input_image"]}),
    ],
)
def test_parts_that_hold_nothing_are_refused(path: str, part: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match="holds a part|holds content"):
        read(path, said(path, [part], by_tool=True))


async def test_the_record_has_the_digests_of_media_and_not_the_media(play: Play) -> None:
    large = base64.b64encode(bytes(1 << 20)).decode()
    async with play("A picture.", "The same.") as program:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{large}"}}
        asked: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
        first = await program.chat(*asked)
        await program.chat(*asked, {"role": "assistant", "content": first.choices[0].message.content}, "And now?")
        episode = await program.end()
    assert episode.messages[0]["content"] == "What is it?\n[image: image/png, 1048576 bytes]"
    assert (len(episode.turns), len(episode.rows)) == (2, 1), "the conversation goes on"
    assert episode.info["media"] == {hashlib.sha256(bytes(1 << 20)).hexdigest(): "[image: image/png, 1048576 bytes]"}
    assert len(episode.to_json()) < 20_000
