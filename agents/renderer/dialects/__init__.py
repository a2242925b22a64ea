"""Text to tool calls and back, for every form that model families write. No tokenizer is needed.

A dialect is the form of calls in plain text; `table.py` lists all of them:

- ``hermes``, of Qwen and Hermes: ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``
- ``llama``, of Llama 3.1 and later: ``{"name": "add", "parameters": {"a": 1}}``, several separated by ";" or newlines,
  after ``<|python_tag|>`` if other words come first
- ``qwen_xml``, of Qwen3-Coder: ``<tool_call><function=add><parameter=a>1</parameter></function></tool_call>``
- ``openai``: a JSON object or list of calls in the shape of OpenAI's ``tool_calls``
- ``none``: no calls, everything is content

`agents.renderer.model_json.read_arguments` reads JSON arguments of all of them.

A model's text never raises: an unreadable call becomes a ToolCall without arguments, with one sentence in `error` that
has the problem and the right form. `from_openai` and `to_openai` convert message dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.renderer.dialects.calls import Calls, with_ids
from agents.renderer.dialects.openai import from_openai, to_openai
from agents.renderer.dialects.table import DIALECTS, dialect_of, id_form
from forge_env.core.types import Message, ToolCall, ToolSpec

__all__ = ["DIALECTS", "begin_of", "from_openai", "matching", "new_id", "parse", "to_openai", "write"]


def parse(text: str, dialect: str, tools: Sequence[ToolSpec] = ()) -> tuple[str, Calls]:
    """The content without the calls, and the calls in order.

    Args:
        text: of a model, with special tokens as text, and without the one that ends a turn.
        tools: those that are offered. A value that is written without quotes has the type of its parameter, and JSON
            without a mark is a call if it names one of them.

    Returns:
        The content and the calls. A call without an id in the text gets "call_0", "call_1", ..., or what `new_id` says.
    """
    content, calls = dialect_of(dialect).read(text, tools)
    return content, with_ids(calls, id_form(dialect))


def write(message: Message | Sequence[ToolCall], dialect: str) -> str:
    """A message, or only calls, as a model writes them: the text that `parse` reads.

    Reasoning is left out. The dialect "none" writes the content alone.
    """
    writer = dialect_of(dialect)
    if isinstance(message, Mapping):
        return writer.write(message.get("content") or "", from_openai(message))
    return writer.write("", tuple(message))


def new_id(dialect: str, name: str, index: int) -> str:
    """An id that templates of the dialect accept, for the call with this index in its message."""
    return id_form(dialect).format(name=name, index=index)


def begin_of(dialect: str) -> str:
    """The mark before a call; "" if the dialect has none."""
    return getattr(dialect_of(dialect), "open", "")


def matching(text: str, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
    """The dialect of a text that a template wrote for some calls; "" if no dialect reads exactly these calls from it.

    If several do, it is one that leaves the least of the text as content, and that writes the calls as the text has
    them.

    Args:
        text: a turn of the model, without its thought and without the token that ends it.
    """
    pairs = [(call.name, call.arguments) for call in calls]
    fitting: list[tuple[int, bool, str]] = []
    for name in DIALECTS:
        content, read = parse(text, name, tools)
        if [(call.name, call.arguments) for call in read] == pairs:
            fitting.append((len(content), write(calls, name) not in text, name))
    return min(fitting, key=lambda each: each[:2], default=(0, False, ""))[2]
