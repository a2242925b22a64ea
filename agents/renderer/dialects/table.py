"""All dialects by name, most often seen first.

They have the names of vLLM's parsers for the same forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agents.renderer.dialects.bodies import Either, Json, Literal, Named, Pairs, Python
from agents.renderer.dialects.calls import Calls, Tools
from agents.renderer.dialects.harmony import Harmony
from agents.renderer.dialects.marked import Bare, Marked
from agents.renderer.dialects.openai import OpenAI
from agents.renderer.dialects.unmarked import Llama, looks_like_json_list, looks_like_python
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import ToolCall


class Dialect(Protocol):
    """A form of calls in the text of a model."""

    @property
    def form(self) -> str:
        """As a model is told to write it."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that may be one token in a vocabulary."""

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        """The content and the calls; an id is empty if the text has none. Text without calls stays as it is."""

    def write(self, content: str, calls: Calls) -> str: ...


class NoCalls:
    """No calls: everything is content."""

    form, marks = "no call", ()

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        return text, []

    def write(self, content: str, calls: Calls) -> str:
        return content


def _xml(tag: str, *, pad: str = "\n") -> Marked:
    """``<tag><function=NAME><parameter=P>VALUE</parameter></function></tag>``."""
    arguments = Pairs(start="<parameter=", key_end=">", end="</parameter>", pad=pad)
    body = Named(lead="<function=", sep=">\n", arguments=arguments, tail="</function>")
    return Marked(open=f"<{tag}>", close=f"</{tag}>", pad="\n", body=body)


def _arg_keys(tag: str, *, prefix: str = "", suffix: str = "", sep: str = "\n", section: bool = False) -> Marked:
    """``<tag>NAME<arg_key>P</arg_key><arg_value>VALUE</arg_value></tag>``, with a line for each part."""
    key, value = f"{prefix}arg_key{suffix}", f"{prefix}arg_value{suffix}"
    arguments = Pairs(
        start=f"<{key}>",
        key_end=f"</{key}>",
        gap="\n",
        value_start=f"<{value}>",
        end=f"</{value}>",
    )
    return Marked(
        open=f"<{tag}{suffix}>",
        close=f"</{tag}{suffix}>",
        section=(f"<{tag}s{suffix}>\n", f"\n</{tag}s{suffix}>") if section else ("", ""),
        body=Named(sep=sep, arguments=arguments),
    )


def _invokes(section: str, *, mark: str = "") -> Marked:
    """``<invoke name="NAME"><parameter name="P">VALUE</parameter></invoke>`` in a section."""
    type_mark = ' string="?"' if mark else ""
    arguments = Pairs(start=f'<{mark}parameter name="', key_end=f'"{type_mark}>', end=f"</{mark}parameter>")
    return Marked(
        section=(f"<{mark}{section}>\n", f"\n</{mark}{section}>"),
        open=f'<{mark}invoke name="',
        close=f"</{mark}invoke>",
        body=Named(sep='">\n', arguments=arguments),
    )


def _json(mark: str, close: str, *, is_list: bool = False, pad: str = "", keys: tuple[str, ...] = ()) -> Marked:
    return Marked(open=mark, close=close, pad=pad, body=Json(is_list=is_list, keys=keys or Json.keys))


def _mistral(*, writes_json: bool) -> Marked:
    body = Either(
        json=Json(is_list=True),
        named=Named(sep="[ARGS]", id_mark="[CALL_ID]"),
        writes_json=writes_json,
        is_list=writes_json,
    )
    return Marked(open="[TOOL_CALLS]", between="", body=body)


def _deepseek(*, lead: str = "", sep: str = "", tail: str = "", between: str = "") -> Marked:
    body = Named(lead=lead, sep=f"<｜tool▁sep｜>{sep}", tail=tail) if not lead else Named(lead=lead, sep=sep, tail=tail)
    return Marked(
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        between=between,
        body=body,
    )


_TABLE: dict[str, Dialect] = {
    # Qwen, Hermes, Granite 4, EXAONE and many others
    "hermes": _json("<tool_call>", "</tool_call>", pad="\n"),
    "step3_vl": Marked(
        section=("<tool_calls>\n", "\n</tool_calls>"), open="<tool_call>", close="</tool_call>", pad="\n", body=Json()
    ),
    # Llama 3.1 and later
    "llama": Llama(),
    # Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5
    "qwen_xml": _xml("tool_call"),
    "mimo": _xml("tool_call", pad=""),
    "seed_oss": _xml("seed:tool_call", pad=""),
    "zyphra": _xml("zyphra_tool_call"),
    # Llama 3.2 and 4
    "pythonic": Bare(body=Python(), looks=looks_like_python),
    "lfm2": Marked(open="<|tool_call_start|>", close="<|tool_call_end|>", body=Python()),
    "olmo3": Marked(open="<function_calls>", close="</function_calls>", body=Python(has_brackets=False)),
    # From Mistral Small 3.1 on, and before
    "mistral": _mistral(writes_json=False),
    "mistral_json": _mistral(writes_json=True),
    # GLM 4.5 and later
    "glm": _arg_keys("tool_call"),
    "longcat": _json("<longcat_tool_call>", "</longcat_tool_call>", pad="\n"),
    "longcat_xml": _arg_keys("longcat_tool_call", prefix="longcat_"),
    "hy_v3": _arg_keys("tool_call", sep="<tool_sep>\n", section=True),
    "hy_v3_opensource": _arg_keys("tool_call", suffix=":opensource", sep="<tool_sep:opensource>\n", section=True),
    "solar": Marked(
        open="<|tool_call:start|>",
        close="<|tool_call:end|>",
        body=Named(
            sep="\n", arguments=Pairs(start="<|tool_arg:start|>", key_end="<|tool_arg:value|>", end="<|tool_arg:end|>")
        ),
    ),
    # Gemma 4, and FunctionGemma
    "gemma4": Marked(
        open="<|tool_call>call:",
        close="<tool_call|>",
        between="",
        body=Named(sep="{", arguments=Literal(quote='<|"|>')),
    ),
    "functiongemma": Marked(
        open="<start_function_call>call:",
        close="<end_function_call>",
        between="",
        body=Named(sep="{", arguments=Literal(quote="<escape>")),
    ),
    "minimax_m2": _invokes("minimax:tool_call"),
    # DeepSeek V3.2 and V4, R1 and V3, V3.1
    "deepseek_v32": _invokes("function_calls", mark="｜DSML｜"),
    "deepseek_v4": _invokes("tool_calls", mark="｜DSML｜"),
    "deepseek_v3": _deepseek(lead="function<｜tool▁sep｜>", sep="\n```json\n", tail="\n```", between="\n"),
    "deepseek_v31": _deepseek(),
    "kimi_k2": Marked(
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        open="<|tool_call_begin|>",
        close="<|tool_call_end|>",
        between="",
        body=Named(sep="<|tool_call_argument_begin|>", is_id=True),
    ),
    # MiniCPM 5
    "minicpm5": Marked(
        open='<function name="',
        close="</function>",
        body=Named(
            sep='">', arguments=Pairs(start='<param name="', key_end='">', end="</param>", between="", has_cdata=True)
        ),
    ),
    # Functionary 3.1, Kanana 1.5
    "functionary": Marked(open="<function=", close="</function>", between="", body=Named(sep=">")),
    "hunyuan": Marked(
        section=("<tool_calls>", "</tool_calls>"),
        open="<tool_call>",
        close="</tool_call>",
        body=Named(sep="\n```json\n", tail="\n```"),
    ),
    # Jamba, Apriel
    "jamba": _json("<tool_calls>", "</tool_calls>", is_list=True),
    # Nemotron of Llama 3.x, Nemotron Nano 2
    "nemotron": _json("<TOOLCALL>", "</TOOLCALL>", is_list=True),
    # Granite 3
    "granite": _json("<|tool_call|>", "", is_list=True),
    "phi4_mini": _json("functools", "", is_list=True),
    "xlam": Bare(body=Json(is_list=True), looks=looks_like_json_list),
    # Falcon 3: OpenAI's shape in Hermes' marks
    "falcon": _json("<tool_call>", "</tool_call>", is_list=True, pad="\n"),
    # Command R7B and later
    "cohere": Marked(
        open="<|START_ACTION|>", close="<|END_ACTION|>", body=Json(is_list=True, name="tool_name", keys=("parameters",))
    ),
    # GigaChat 3.1
    "gigachat": Marked(open="<|function_call|>", between="", body=Json()),
    # InternLM 2 and later
    "internlm": _json("<|action_start|><|plugin|>", "<|action_end|>", pad="\n", keys=("parameters", "arguments")),
    # Step Audio R1
    "step_audio": Marked(
        open="<|CALL_START|>", close="<|CALL_END|>", between="", body=Named(lead="function\n", sep="\n")
    ),
    # gpt-oss
    "harmony": Harmony(),
    "openai": OpenAI(),
    "none": NoCalls(),
}
DIALECTS = tuple(_TABLE)
_IDS: Mapping[str, str] = {
    "mistral": "call{index:05}",
    "mistral_json": "call{index:05}",
    "kimi_k2": "functions.{name}:{index}",
}
"""Forms of ids: nine letters and digits for Mistral, since its templates refuse other ids."""


def dialect_of(name: str) -> Dialect:
    if name not in _TABLE:
        raise UserError(f"there is no dialect {name!r} of tool calls. {nearest(name, _TABLE)}")
    return _TABLE[name]


def id_form(name: str) -> str:
    """The form of new ids in a dialect, with the fields `name` and `index`."""
    return _IDS.get(name, "call_{index}")
