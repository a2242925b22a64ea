"""What a chat template does, learnt by executing it on trial messages.

Nothing is known by the name of a model. The template writes an answer, and the text around it tells what a prompt
begins of an answer and what ends it. What no run can use is refused here in one sentence, before anything else starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from agents.renderer.call_form import TRIAL_TOOLS, CallForm, learn_calls, trial_calls
from agents.renderer.chat_template import (
    DATE,
    QWEN3_TEMPLATE,
    THINKING_FLAGS,
    ChatTemplate,
    effective,
    find_template,
    flag_line,
)
from agents.renderer.dialects import from_openai, write
from agents.renderer.dialects.harmony import FINAL
from agents.renderer.reading import END_THINK, THINK, AnswerForm, ChannelForm
from agents.renderer.tokenizer import FastTokenizer
from forge_env.core.errors import TemplateError, UserError, nearest
from forge_env.core.types import Message, ToolCall, ToolSpec
from forge_env.records.run_files import read_object

Thinking = Literal["off", "on", "template"]
"""Whether a model thinks before it answers; "template" is the default of its chat template."""
ToolsForm = Literal["auto", "template", "text"]
"""Who describes the tools: the chat template, or a text in the system message; "auto" is the text if the template has
no place for them."""

_MARK = "@probe@"
_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_USER: Message = {"role": "user", "content": "What is it?"}
_EMPTY = re.compile(rf"\s*(?:{THINK}(?:\s*{END_THINK})?|{END_THINK})?\s*")
"""What a template may write before the content of an answer: white space, and the marks of an empty thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFormat:
    """The facts of a chat template that a renderer needs."""

    template: ChatTemplate
    """As it is executed, with the additions of a run."""
    opening: str = ""
    """What the prompt writes of the answer: nothing, the beginning of a thought, or an empty thought."""
    ends: tuple[str, ...]
    """Texts that end an answer; the template writes the first one."""
    mark_of_results: str = ""
    """The one after calls, if answers end with the mark of the next message (GLM-4.5); then `ends` begins with a
    user's."""
    tokens: frozenset[str] = frozenset()
    """Tokens that only the template writes: special ones, and other added ones that it names."""
    stop_token_ids: tuple[int, ...] = ()
    """The ends that are tokens. An end that is several tokens is ordinary text, at which sampling stops."""
    question: tuple[Message, ...] = (_USER,)
    """The shortest conversation that the template takes."""
    thinks: bool = False
    answers: AnswerForm
    tools_problem: str = ""
    """Why the template cannot be used with tools; "" if it can."""
    arguments_are_text: bool = False
    """Whether the template takes the arguments of a call as JSON text."""
    drops: Literal["", "text", "calls"] = ""
    """What the template leaves out of an answer with a text and calls."""
    has_system: bool = True
    one_system: bool = False
    """Whether a system message that is not the first message is left out without a word."""
    notes: tuple[str, ...] = ()
    """Sentences on what the run does otherwise than the model's template, for the plan of a run."""

    def prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template takes it. Calls that cannot be read, or are too many, are text again."""
        copy = {**message, "content": message.get("content") or ""}
        tool_calls = copy.pop("tool_calls", None)
        if isinstance(self.answers, ChannelForm) and (thought := copy.pop("reasoning_content", None)):
            copy["thinking"] = thought
        if tool_calls and "thinking" in copy:  # beside a call the template has room for one of the two
            copy |= {"content": "", "thinking": "\n\n".join(filter(None, (copy["thinking"], copy["content"])))}
        if message["role"] != "assistant" or not tool_calls:
            return copy
        calls = from_openai(message)
        if any(call.arguments is None for call in calls) or (self.answers.one_call and len(calls) > 1):
            return {**copy, "content": write(message, self.answers.dialect)}  # type: ignore[arg-type]
        return {**copy, "tool_calls": [self._call(call) for call in calls]}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = json.dumps(call.arguments or {}, ensure_ascii=False)
        if not self.arguments_are_text:
            arguments = json.loads(arguments)  # numbers as a server of the model reads them
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def render(
        self, messages: Sequence[Any], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = False
    ) -> str:
        template_messages = [self.prepare(message) for message in messages]
        return self.template.render(template_messages, tools, add_generation_prompt=add_generation_prompt)


def learn_format(
    folder: Path, tokenizer: FastTokenizer, thinking: str, tools: str = "auto", template: Path | None = None
) -> ConversationFormat:
    """Learn the format of the model in a Hugging Face folder.

    Args:
        template: a file with another chat template than the folder's.
    """
    for name, value, choices in (("thinking", thinking, Thinking), ("renderer.tools", tools, ToolsForm)):
        if value not in get_args(choices):
            raise UserError(f"{name} is {value!r}. {nearest(value, get_args(choices))}")
    own = find_template(folder, template)
    return _Learner(folder, tokenizer, own, thinking, tools).learn()


class _Learner:
    def __init__(self, folder: Path, tokenizer: FastTokenizer, own: ChatTemplate, thinking: str, tools: str) -> None:
        self._folder, self._tokenizer, self._own = folder, tokenizer, own
        self._thinking, self._tools = thinking, tools
        self._question = [_USER]
        self._has_thoughts = False
        self._has_channels = False
        self._notes: list[str] = []

    def learn(self) -> ConversationFormat:
        template = self._effective()
        has_system = _renders(template, [_SYSTEM, _USER])
        if not has_system:
            self._notes.append("the chat template has no place for a system message")
        opening, ends = self._around_answers(template)
        template = self._that_keeps(template, opening) if END_THINK in opening else template
        thinks = self._thoughts(template, opening)
        tokens = self._tokens(template)
        calls = learn_calls(template, self._question, opening=opening, ends=ends)
        problem = calls.problem or self._lost(template, calls)
        if calls.one_call:
            self._notes.append("the chat template has room for one call in an answer")
        ends += [calls.end] if calls.end else []
        ids = [self._tokenizer.token_id(end) for end in ends if end in tokens]
        return ConversationFormat(
            template=template,
            opening=opening,
            ends=tuple(ends),
            mark_of_results=calls.mark_of_results,
            tokens=frozenset(tokens),
            stop_token_ids=tuple(id_ for id_ in ids if id_ is not None),
            question=tuple(self._question),
            thinks=thinks,
            answers=(ChannelForm if self._has_channels else AnswerForm)(
                dialect=calls.dialect,
                has_thoughts=self._has_thoughts,
                opens_thought=THINK in opening and END_THINK not in opening,
                one_call=calls.one_call,
            ),
            tools_problem=problem,
            arguments_are_text=calls.arguments_are_text,
            drops=calls.drops,
            has_system=has_system,
            one_system=has_system and self._drops_system(template),
            notes=tuple(self._notes),
        )

    def _refuse(self, what: str, remedy: str) -> UserError:
        return UserError(f"the chat template in {self._folder} {what}: {remedy}")

    def _effective(self) -> ChatTemplate:
        """The template with its flags, a date that stays, and a text of the tools if it has no place for them."""
        thinks = None if self._thinking == "template" else self._thinking == "on"
        template = effective(self._own, thinks=thinks)
        self._question = self._first_question(template)
        first = template.render(self._question, add_generation_prompt=True)
        if template.render(self._question, add_generation_prompt=True) != first:
            raise self._refuse(
                "writes something else for the same conversation each time",
                "take what is random out of it, since a run renders a conversation turn by turn",
            )
        with_text = self._tools == "text" or (self._tools == "auto" and not self._holds_tools(template))
        if template.formats:
            self._notes.append(f"the chat template writes today's date, which is {DATE} in every prompt of the run")
        if with_text:
            cause = "" if self._tools == "text" else ", since the chat template has no place for tools"
            self._notes.append(
                "tools are described in the system message, and calls are text between <tool_call> and </tool_call>"
                + cause
            )
        return effective(self._own, thinks=thinks, formats=template.formats, with_text_tools=with_text)

    def _tokens(self, template: ChatTemplate) -> set[str]:
        """The special tokens, and the other added tokens that the template writes: a vocabulary may have thousands."""
        in_template = (token for token in self._tokenizer.added_tokens if token in template.source)
        return {token for token in (*self._tokenizer.special_tokens, *in_template) if len(token.strip()) > 1}

    def _first_question(self, template: ChatTemplate) -> list[Message]:
        """The shortest conversation that the template takes."""
        try:
            template.render([_USER], add_generation_prompt=True)
        except TemplateError:
            if not _renders(template, [_SYSTEM, _USER]):
                raise
            return [_SYSTEM, _USER]
        return [_USER]

    def _holds_tools(self, template: ChatTemplate) -> bool:
        for messages in (self._question, [_SYSTEM, _USER]):
            try:
                plain = template.render(messages, add_generation_prompt=True)
                return template.render(messages, TRIAL_TOOLS, add_generation_prompt=True) != plain
            except TemplateError:
                continue
        return False

    def _around_answers(self, template: ChatTemplate) -> tuple[str, list[str]]:
        prompt = template.render(self._question, add_generation_prompt=True)
        text = template.render([*self._question, {"role": "assistant", "content": _MARK}])
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise self._refuse("does not write the content of an answer", "take a template for conversations")
        # What a prompt of the question begins of an answer: from the marks of a thought on.
        tail = prompt.rpartition(_USER["content"])[2]
        places = [tail.index(mark) for mark in (THINK, END_THINK) if mark in tail]
        opening = tail[min(places) :] if places else ""
        base = prompt.removesuffix(opening)
        rest = before.removeprefix(base)
        self._has_thoughts = END_THINK in rest
        self._has_channels = rest == FINAL
        if not before.startswith(base) or not (self._has_channels or _EMPTY.fullmatch(rest)):
            raise self._refuse(
                f"begins an answer with {prompt[-40:]!r} in a prompt and with {before[-40:]!r} in a conversation",
                "make the two equal, so that what is sampled can stand in a conversation",
            )
        special = self._tokens(template)
        end_tokens = [self._own.token("eos_token"), *map(self._tokenizer.token_text, _saved_ends(self._folder))]
        end_tokens = [token for token in dict.fromkeys(end_tokens) if token and token in special]
        ends = [(after.index(token), -len(token), token) for token in special if token and token in after]
        end = min(ends)[2] if ends else after.strip()
        if not end:  # some templates end only those answers that something follows
            more = [*self._question, {"role": "assistant", "content": _MARK}, _USER]
            after = template.render(more, add_generation_prompt=True).partition(_MARK)[2].lstrip()
            end = next((token for token in end_tokens if after.startswith(token)), "")
        if not end:
            raise self._refuse(
                "writes nothing after an answer, so that its end could not be told",
                "let it write the token that ends an answer",
            )
        return opening, [end, *(token for token in end_tokens if token != end)]

    def _that_keeps(self, template: ChatTemplate, opening: str) -> ChatTemplate:
        """Qwen3's format without thoughts: the same template, but the empty thought stays in earlier answers.

        It is taken only if it writes the same as the model's template in each trial, but for the empty thoughts.
        """
        lines = "".join(flag_line(name, False) for name in THINKING_FLAGS if name in self._own.reads)
        ours = self._own.with_source(lines + QWEN3_TEMPLATE.read_text(encoding="utf-8"))
        if ours.source == template.source:
            return template
        for messages, tools in _conversations():
            for prompt in (False, True):
                try:
                    texts = [each.render(messages, tools, add_generation_prompt=prompt) for each in (template, ours)]
                except TemplateError:
                    return template
                if len({text.replace(opening, "") for text in texts}) > 1:
                    return template
        self._notes.append(
            "the empty thought before an answer stays in the prompts of later turns, where the chat template drops it"
        )
        return ours

    def _thoughts(self, template: ChatTemplate, opening: str) -> bool:
        """Whether the model thinks in the run."""
        if self._has_channels:
            if self._thinking == "off":
                raise UserError(
                    f"thinking is off, and the model in {self._folder} answers in channels, one of which is for "
                    "its thoughts: set it to on, or choose another model"
                )
            self._has_thoughts = True
            return True
        answer = {"role": "assistant", "content": _MARK, "reasoning_content": "probe thought"}
        text = template.render([*self._question, answer])
        writes = THINK in text.split("probe thought")[0][-40:] and END_THINK in text and "probe thought" in text
        is_off = END_THINK in opening
        tokens = [mark for mark in (THINK, END_THINK) if self._tokenizer.token_id(mark) is None]
        drops = not writes and self._drops_thoughts(template)
        # What the model writes of a thought is no content; the templates of Hermes 4 and Phi 4 only ask for one.
        self._has_thoughts |= writes or drops or THINK in opening or END_THINK in template.source
        has_thoughts = writes or (drops and not tokens) or THINK in opening
        if self._thinking == "on" and (not has_thoughts or is_off):
            raise UserError(
                f"thinking is on, and the model in {self._folder} has no thinking, by its chat template: set it to "
                "off, or choose another model"
            )
        thinks = has_thoughts and not is_off and (self._thinking != "off" or THINK in opening)
        if thinks and self._thinking == "off":
            raise UserError(
                f"thinking is off, and the chat template in {self._folder} begins a thought before each answer: set it "
                "to on, or choose another model"
            )
        if thinks and tokens:
            raise UserError(
                f"the model in {self._folder} thinks, and {tokens[0]} is no token of its tokenizer: add {THINK} and "
                f"{END_THINK} to it as tokens, or set thinking to off"
            )
        return thinks

    def _drops_thoughts(self, template: ChatTemplate) -> bool:
        """Whether the template takes the thought out of an answer's content, as DeepSeek R1's does."""
        answer = {"role": "assistant", "content": f"{THINK}\nprobe thought\n{END_THINK}\n\n{_MARK}"}
        try:
            text = template.render([*self._question, answer, _USER])
        except TemplateError:
            return False
        return _MARK in text and "probe thought" not in text

    def _drops_system(self, template: ChatTemplate) -> bool:
        other: Message = {"role": "system", "content": _MARK}
        for messages in (
            [_SYSTEM, other, _USER],
            [_SYSTEM, _USER, {"role": "assistant", "content": "So."}, other, _USER],
        ):
            try:
                if _MARK not in template.render(messages, add_generation_prompt=True):
                    return True
            except TemplateError:  # the conversation is refused by itself
                continue
        return False

    def _lost(self, template: ChatTemplate, form: CallForm) -> str:
        """What a template that writes calls leaves out of a conversation with tools; "" if it is nothing."""
        calls = trial_calls(1, form.dialect, as_text=form.arguments_are_text)
        answer = {"role": "assistant", "content": "", "tool_calls": calls}
        result = {"role": "tool", "content": _MARK, "name": "look_up", "tool_call_id": calls[0]["id"]}
        try:
            text = template.render([*self._question, answer, result], TRIAL_TOOLS, add_generation_prompt=True)
        except TemplateError:  # the first result says so
            return ""
        parts = (("the parameters of tools", "exact"), ("the results of calls", _MARK))
        return next((f"leaves out {what}" for what, part in parts if part not in text), "")


def _conversations() -> list[tuple[list[Any], Sequence[ToolSpec]]]:
    """Trial conversations, with and without tools and a system message."""
    call = {"role": "assistant", "content": "", "tool_calls": trial_calls(1)}
    two = {"role": "assistant", "content": "So:", "tool_calls": trial_calls(2)}
    results = [{"role": "tool", "content": text, "tool_call_id": f"call_{i}"} for i, text in enumerate(("{}", " é\n"))]
    answer, more = {"role": "assistant", "content": "A letter."}, {"role": "user", "content": "Sure?\n"}
    return [
        ([_USER], ()),
        ([_SYSTEM, _USER, answer, more, answer, _USER], ()),
        ([_SYSTEM, _USER, call, results[0], answer, more], TRIAL_TOOLS),
        ([_USER, two, *results, call, results[0], answer, more, answer, more], TRIAL_TOOLS),
    ]


def _renders(template: ChatTemplate, messages: Sequence[Message]) -> bool:
    try:
        return messages[0]["content"] in template.render(messages, add_generation_prompt=True)
    except TemplateError:
        return False


def _saved_ends(folder: Path) -> list[int]:
    """The tokens that end an answer, from the settings of generation and of the model."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_object(file).get("eos_token_id") if file.is_file() else None
        ids += [id_ for id_ in (value if isinstance(value, list) else [value]) if type(id_) is int]
    return ids
