"""Dialects against the parsers of vLLM: they read alike, except for the cases that stand here with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.renderer.dialects import DIALECTS, new_id, parse, write
from agents.renderer.dialects.table import dialect_of
from forge_env.core.types import ToolCall, ToolSpec

pytestmark = pytest.mark.slow

PARSERS = {
    **{
        name: name
        for name in ("hermes", "mimo", "seed_oss", "pythonic", "lfm2", "olmo3", "mistral", "longcat", "hy_v3")
    },
    **{name: name for name in ("gemma4", "functiongemma", "minimax_m2", "kimi_k2", "minicpm5", "jamba", "granite")},
    **{name: name for name in ("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "xlam")},
    "llama": "llama3_json",
    "qwen_xml": "qwen3_coder",
    "glm": "glm47",
    "phi4_mini": "phi4_mini_json",
    "gigachat": "gigachat3",
    "internlm": "internlm",
}
"""Dialects with a parser of vLLM. The parser of Command R reads with the engine's own state, and cannot be asked."""
EVERY = frozenset(PARSERS)
QUOTED = {"llama", "pythonic", "deepseek_v3", "granite", "phi4_mini", "xlam", "gigachat", "functiongemma"} | {
    "qwen_xml",
    "mimo",
    "seed_oss",
}
"""Here vLLM, too, takes a mark in a value as a part of it."""
DIFFERENT: dict[str, tuple[str, frozenset[str]]] = {
    "words after": (
        "vLLM drops them, or reads no call (xlam, gigachat); here they are content, since the model has said them",
        EVERY - {"lfm2"},
    ),
    "no end": (
        "vLLM completes the call, or shows its text as the answer; here the model is told what is missing",
        EVERY,
    ),
    "a key twice": (
        "vLLM takes the last value, the first (functiongemma), or no call (minicpm5); here the model is told",
        EVERY,
    ),
    "a mark in a value": (
        "vLLM ends the call at the mark or reads none; here a value ends at its quotes or at its own mark",
        EVERY - QUOTED,
    ),
    "words before": (
        "vLLM drops them (olmo3, minicpm5, phi4_mini), takes JSON without its tag anywhere in a text (llama), or drops "
        "the number (functiongemma)",
        frozenset({"llama", "olmo3", "minicpm5", "phi4_mini", "functiongemma"}),
    ),
    "unknown tool": (
        "vLLM drops the call, or makes its values text (gemma4); here the environment names the tools that there are",
        frozenset({"glm", "minimax_m2", "minicpm5", "gemma4", "functiongemma"}),
    ),
    "number for text": (
        "vLLM makes it text; here a value that has a type keeps it, and the environment says what is wrong",
        frozenset({"mistral", "gemma4", "functiongemma", "deepseek_v32", "deepseek_v4", "kimi_k2", "granite"}),
    ),
    "white space": ("vLLM drops a line end, though the template adds none around a value", frozenset({"seed_oss"})),
    "one": ("vLLM drops numbers, booleans, lists and objects", frozenset({"functiongemma"})),
    "two": (
        "vLLM makes null in a list the text null (gemma4), reads no nested list (phi4_mini) and one call only "
        "(gigachat), raises (internlm), or as above (functiongemma)",
        frozenset({"gemma4", "phi4_mini", "gigachat", "internlm", "functiongemma"}),
    ),
}
TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {
                "key_x": {"type": "string"},
                "key_y": {"type": "integer"},
                "key_z": {"type": "array"},
                "key_b": {"type": "boolean"},
            },
        },
    },
}
Read = tuple[str, list[tuple[str, Any]]]


def cases(dialect: str) -> dict[str, str]:
    def calls(*arguments: dict[str, Any]) -> str:
        return write(
            [ToolCall(id=new_id(dialect, "add", i), name="add", arguments=a) for i, a in enumerate(arguments)], dialect
        )

    one = calls({"key_x": 'é "q"', "key_y": 3})
    close = getattr(dialect_of(dialect), "close", "")
    mark = (dialect_of(dialect).marks or ("{",))[-1]
    return {
        "one": one,
        "two": calls({"key_x": "é", "key_y": 3}, {"key_x": "a\nb", "key_b": True, "key_z": ["x", {"y": None}]}),
        "words before": f"so\n{one}",
        "words after": f"{one}\nok",
        "no end": one[: one.rindex(close)] if close else one[:-1],
        "a key twice": calls({"key_x": "a", "key_y": 3}).replace("key_y", "key_x"),
        "a mark in a value": calls({"key_x": f"a {mark} b"}),
        "no arguments": calls({}),
        "empty": calls({"key_x": ""}),
        "white space": calls({"key_x": "  a \n"}),
        "unknown tool": one.replace("add", "sub"),
        "number for text": calls({"key_x": 5}),
        "text for number": calls({"key_y": "three"}),
        "no call": "Hello.",
    }


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Its vocabulary has every mark: vLLM's parsers look for theirs."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])))
    others = "<think> </think> <arg_key> </arg_key> <arg_value> </arg_value> <tool_sep> [ARGS] <|channel> <channel|>"
    made.add_tokens([*{mark for name in DIALECTS for mark in dialect_of(name).marks}, *others.split(), '<|"|>'])
    made.add_tokens(["<｜tool▁sep｜>", "<|tool_call_argument_begin|>"])
    return made


@pytest.mark.parametrize("dialect", PARSERS)
def test_vllm_reads_alike(dialect: str, tokenizer: Any) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    messages = [{"role": "user", "content": "?"}]
    request = ChatCompletionRequest(model="m", messages=messages, tools=[TOOL], tool_choice="auto")
    parser = ToolParserManager.get_tool_parser(PARSERS[dialect])

    def theirs(text: str) -> Read | str:
        try:
            done = parser(tokenizer, request.tools).extract_tool_calls(text, request)
            calls = [(call.function.name, json.loads(call.function.arguments)) for call in done.tool_calls]
            return (done.content or "").strip(), calls
        except Exception as error:  # some of its parsers raise
            return f"raises {type(error).__name__}"

    def ours(text: str) -> Read:
        content, calls = parse(text, dialect, [TOOL])
        return content.strip(), [(call.name, call.arguments) for call in calls]

    expected = {case for case, (_, dialects) in DIFFERENT.items() if dialect in dialects}
    differ = {case: (ours(text), theirs(text)) for case, text in cases(dialect).items() if ours(text) != theirs(text)}
    assert differ.keys() == expected, {case: differ.get(case) for case in differ.keys() ^ expected}
