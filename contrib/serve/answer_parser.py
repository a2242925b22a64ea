"""vLLM's server with the run's own reading and writing: answers are read, and messages are handed over, as in the run.

vLLM has no registry of parsers for full answers, thoughts and calls together, so `install` sets them in its process.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall, FunctionCall
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.exceptions import VLLMValidationError
from vllm.parser import Parser, ParserManager
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.renderers import chat_utils
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers import ToolParser, ToolParserManager

from agents.renderer.dialects import to_openai
from agents.renderer.model_json import decode_all
from agents.renderer.reading import THINK, Answer, AnswerForm, ChannelForm
from agents.renderer.rendering import Renderer
from contrib.external.answer_grammar import grammar_of
from contrib.external.constraint import Constraint
from contrib.serve.streamed import read_beginning
from forge_env.core.errors import TurnRefused
from forge_env.core.types import Message, ToolCall, ToolSpec

NAME = "forge_env"
"""Of the parsers, in the options of vLLM's server."""
_UNIQUE = re.compile(r"-[0-9a-f]{12}(x?)$")
"""What is added to the id of a call, since clients expect ids that no other answer has; x if it cannot be read."""
_OPENING = 8
"""The tokens at the end of a prompt that may begin an answer."""


@ToolParserManager.register_module(NAME)
class CallParser(ToolParser):
    """The name for vLLM's option; `AnswerParser` reads the calls."""


@ReasoningParserManager.register_module(AnswerForm.__name__)
class ThoughtParser(ReasoningParser):
    """Tells vLLM's engine, which has the tokenizer only, when a thought has ended, so that a grammar begins there."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return self.vocab[AnswerForm.end_thought] in input_ids[-_OPENING:]

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        return self.vocab[AnswerForm.end_thought] in delta_ids


@ReasoningParserManager.register_module(ChannelForm.__name__)
class ChannelParser(ReasoningParser):
    """The same for answers in channels: a prompt ends as a thought does, and begins none."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return False

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        end = ChannelForm.close_thought
        return self.model_tokenizer.decode(input_ids[-len(end) :]).endswith(end)


class AnswerParser(Parser):
    """Reads one answer, in full or as a stream, with the reader of the run.

    A stream has the content as it is sampled, until a call may have begun, and the calls at the end.
    """

    renderer: Renderer
    tool_parser_cls = CallParser
    always_adjust_request = True

    def __init__(self, tokenizer: Any, tools: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, tools, *args, **kwargs)
        self._form = self.renderer.format.answers
        self._text, self._token_ids = "", list[int]()
        self._stream_parts = ["", ""]
        """The thought and the content that the stream has had."""
        self._tools: list[ToolSpec] | None = None
        """Of the request of a stream, read once: that takes longer than to read a token."""

    def adjust_request(self, request: Any) -> Any:
        """Sample with marks as text, with the ends of the model's answers, and in the form that is asked for."""
        if hasattr(request, "skip_special_tokens"):
            request.skip_special_tokens = False
        if not isinstance(request, ChatCompletionRequest):
            return request
        request.stop_token_ids = [*dict.fromkeys([*(request.stop_token_ids or ()), *self.renderer.stop_token_ids])]
        request.stop = [*dict.fromkeys([*_stops(request), *self.renderer.stop])]
        if constraint := _constraint(request):
            try:
                form = self.renderer.format.answers
                grammar = grammar_of(constraint, _tools(request), form, self.renderer.token_id)
            except TurnRefused as error:
                raise VLLMValidationError(str(error), parameter="tool_choice") from None
            request.structured_outputs = StructuredOutputsParams(structural_tag=grammar)
            request.response_format = None
        return request

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        """Learn from the prompt whether it has begun a thought: a request may choose otherwise than the server."""
        end = self.renderer.decode(list(prompt_token_ids[-_OPENING:])).rstrip()
        self._form = replace(self._form, opens_thought=end.endswith(THINK))

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return self.reasoning_parser is None or self.reasoning_parser.is_reasoning_end(input_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        ids, end = list(token_ids), self.renderer.end_thought
        first = ids[: ids.index(end)] if end in ids else ids
        return len(first) if self._form.is_in_thought(self.renderer.decode(first)) else 0

    def parse(
        self,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        answer = self._read(model_output, request, model_output_token_ids)
        calls = [
            FunctionCall(id=id_, **call["function"], **_error(read))
            for id_, call, read in zip(_ids(answer.calls), to_openai(answer.calls), answer.calls, strict=True)
        ]
        return answer.thought or None, answer.content or (None if calls else ""), calls

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> DeltaMessage:
        if not self._token_ids and prompt_token_ids is not None:
            self.set_prompt_token_ids(prompt_token_ids)
        self._text += delta_text
        self._token_ids += delta_token_ids
        delta = DeltaMessage()  # without content it still tells the client that the answer goes on
        if finished:
            answer = self._read(self._text, request, self._token_ids)
            thought, content = answer.thought or "", answer.content
            if answer.calls:
                delta.tool_calls = _deltas(answer.calls)
        else:
            if self._tools is None:
                self._tools = _tools(request)
            thought, content = read_beginning(self._form, self._text, tools=self._tools)
        if request.include_reasoning and (more := self._more(0, thought)):
            delta.reasoning = more
        if more := self._more(1, content):
            delta.content = more
        return delta

    def _more(self, part: int, text: str) -> str:
        more = text[len(self._stream_parts[part]) :]
        self._stream_parts[part] += more
        return more

    def _read(self, text: str, request: Any, token_ids: Sequence[int]) -> Answer:
        ids = list(token_ids)
        ends = {*self.renderer.stop_token_ids, *(getattr(request, "stop_token_ids", None) or ())}
        is_cut = bool(ids) and ids[-1] not in ends
        if is_cut and (stops := _stops(request)):
            is_cut = not any(stop in self.renderer.decode(ids) for stop in stops)
        return self._form.read(text, tools=_tools(request), is_cut=is_cut)


def install(renderer: Renderer) -> None:
    """Let vLLM's server in this process read and render with `renderer`."""
    name = type(renderer.format.answers).__name__
    reasoning = ReasoningParserManager.get_reasoning_parser(name) if renderer.thinks else None
    parser = type("Parser", (AnswerParser,), {"renderer": renderer, "reasoning_parser_cls": reasoning})
    ParserManager.get_parser = classmethod(lambda cls, **options: parser)
    chat_utils._postprocess_messages = lambda messages: None  # it would parse what is prepared already
    for server in (OnlineRenderer, OpenAIServingResponses):  # gpt-oss would have other prompts than its template's
        server.use_harmony = property(lambda self: False, lambda self, value: None)
    preprocess, full = OnlineRenderer.preprocess_chat, OpenAIServingChat.chat_completion_full_generator

    async def preprocess_chat(
        self: Any, request: Any, messages: Any, default_template: Any, *args: Any, tool_dicts: Any = None, **more: Any
    ) -> Any:
        tools = list(renderer.prepared_tools(tool_dicts)) if tool_dicts else tool_dicts
        template = renderer.format.template.source
        return await preprocess(self, request, prepare(renderer, messages), template, *args, tool_dicts=tools, **more)

    async def chat_completion_full_generator(
        self: Any, request: Any, results: AsyncIterator[Any], *args: Any, **more: Any
    ) -> Any:
        """vLLM says "tool_calls" also if a limit has cut an answer, and a run ends such an episode."""
        last: Any = None

        async def watch() -> AsyncIterator[Any]:
            nonlocal last
            async for last in results:
                yield last

        response = await full(self, request, watch(), *args, **more)
        for choice in getattr(response, "choices", ()):
            if last.outputs[choice.index].finish_reason == "length":
                choice.finish_reason = "length"
        return response

    OnlineRenderer.preprocess_chat = preprocess_chat
    OpenAIServingChat.chat_completion_full_generator = chat_completion_full_generator


def prepare(renderer: Renderer, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a request as the run would hand them to the chat template."""
    ready = renderer.prepare([_message(message) for message in messages])
    for message in ready:
        if thought := message.get("reasoning_content"):
            message["reasoning"] = thought  # the field that vLLM reads
    return ready


def _message(message: Mapping[str, Any]) -> Message:
    """A message of a request as the run has it: texts in one piece, and calls as they were read."""
    plain: Any = {**message, "content": _text_of(message.get("content"))}
    if thought := plain.pop("reasoning", None) or plain.pop("reasoning_content", None):
        plain["reasoning_content"] = thought
    if "tool_call_id" in plain:
        plain["tool_call_id"] = _UNIQUE.sub("", str(plain["tool_call_id"]))
    if (calls := plain.pop("tool_calls", None)) is not None and (items := list(calls)):
        plain["tool_calls"] = [_call(call) for call in items]
    return plain


def _text_of(content: Any) -> Any:
    if not isinstance(content, (list, tuple)):
        return content or ""
    texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    return "\n".join(map(str, texts)) if len(texts) == len(content) else content


def _call(call: Any) -> Any:
    """A call with the id and the arguments that the answer had; `ChatAgent` wraps arguments that are not an object."""
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    id_, arguments = str(call.get("id") or ""), function.get("arguments")
    if isinstance(arguments, str) and (unique := _UNIQUE.search(id_)) and unique[1]:
        value, _ = decode_all(arguments)
        if isinstance(value, dict) and isinstance(value.get("unreadable"), str):
            function = {**function, "arguments": value["unreadable"]}
    return {**call, "id": _UNIQUE.sub("", id_), "function": dict(function)}


def _ids(calls: Sequence[ToolCall]) -> list[str]:
    return [f"{call.id}-{uuid.uuid4().hex[:12]}{'x' * (call.arguments is None)}" for call in calls]


def _error(call: ToolCall) -> dict[str, str]:
    """The sentence on a call that cannot be read, in a field that other clients ignore."""
    return {"unreadable": call.error} if call.error else {}


def _deltas(calls: Sequence[ToolCall]) -> list[DeltaToolCall]:
    return [
        DeltaToolCall(
            index=index, id=id_, type="function", function=DeltaFunctionCall(**call["function"]), **_error(read)
        )
        for index, (id_, call, read) in enumerate(zip(_ids(calls), to_openai(calls), calls, strict=True))
    ]


def _tools(request: Any) -> list[ToolSpec]:
    if request.tool_choice == "none":
        return []
    tools = [tool if isinstance(tool, Mapping) else tool.model_dump() for tool in request.tools or ()]
    functions = [tool.get("function") or tool for tool in tools if tool.get("type", "function") == "function"]
    return [
        {
            "type": "function",
            "function": {
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": function.get("parameters") or {"type": "object", "properties": {}},
            },
        }
        for function in functions
    ]


def _stops(request: Any) -> list[str]:
    stop = getattr(request, "stop", None) or []
    return [stop] if isinstance(stop, str) else list(stop)


def _constraint(request: ChatCompletionRequest) -> Constraint | None:
    """The form of the answer that a request asks for; None if any answer will do, or vLLM's own options say it."""
    names = tuple(tool["function"]["name"] for tool in _tools(request))
    form = request.response_format
    schema = ""
    if form is not None and form.type == "json_schema" and form.json_schema is not None:
        schema = json.dumps(form.json_schema.json_schema)
    if request.structured_outputs is not None:
        return None
    if request.tool_choice in (None, "none", "auto"):
        return Constraint(schema=schema, tools=names) if schema else None
    required_tools = (request.tool_choice.function.name,) if request.tool_choice != "required" else names
    return Constraint(tools=required_tools)
