"""Messages to tokens and back, by the model's own chat template. Sampled tokens are never tokenised again.

Only the renderer writes special tokens. If a message or the spec of a tool spells one out, in any of its fields, it
becomes plain text: a space follows its first character. The prompt is then tokenised in one piece, as servers do it.

The prompt of a new turn continues the sampled ids with what the template writes behind the turn. If the template
rewrites earlier turns, the next turn starts a new row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from agents.renderer.call_form import trial_calls
from agents.renderer.conversation_format import Thinking, ToolsForm, learn_format
from agents.renderer.defusing import Defuser
from agents.renderer.dialects import to_openai
from agents.renderer.reading import END_THINK, THINK, ChannelForm
from agents.renderer.template_parts import TemplateParts, learn_template_parts
from agents.renderer.tokenizer import FastTokenizer
from agents.renderer.trial import prompts, trial, trial_tools
from forge_env.core.errors import TemplateError, UserError
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, NO_IDS, Ids, as_list, join_arrays
from forge_env.core.types import Action, Message, ToolSpec


class Renderer:
    """Renders conversations for the model in a Hugging Face folder, by its chat template.

    Args:
        thinking: whether the model thinks before it answers. The thoughts of earlier turns are kept or dropped as the
            template does: Qwen3 keeps those since the last message of a user, so they stay through a loop of calls.
        template: a file with another chat template than the folder's, as an adapter has it.

    Raises:
        UserError: the folder has no tokenizer or no chat template that a run can use, or `thinking` does not fit it.
    """

    def __init__(
        self, model: str | Path, *, thinking: Thinking = "off", tools: ToolsForm = "auto", template: Path | None = None
    ) -> None:
        self._tokenizer = FastTokenizer(model)
        self.format = learn_format(Path(model), self._tokenizer, thinking, tools, template)
        """What the chat template does."""
        self._render = self.format.render
        self.thinks = self.format.thinks
        self.stop_token_ids: tuple[int, ...] = self.format.stop_token_ids
        self.stop: tuple[str, ...] = tuple(end for end in self.format.ends if end not in self.format.tokens)
        """The ends of an answer that are ordinary text to the tokenizer."""
        self._defuser = Defuser(self.format, self.stop)
        self.spelt_by = self._defuser.spelt_by
        answers = self.format.answers
        self._think, self._end_think = (self._tokenizer.token_id(mark) for mark in (THINK, answers.end_thought))
        closing = answers.close_thought + answers.begin_content if self.thinks else ""
        self.close_thought: tuple[int, ...] = tuple(self._tokenizer.encode(closing))
        """The tokens that end a thought; the answer comes next."""
        self.end_thought: int = -1 if self._end_think is None else self._end_think
        """The token that ends a thought; -1 if the tokenizer has none, and then the model does not think."""
        self._first_prompts: dict[Any, TemplateParts | None] = {}
        self._ends = {role: self._tokenizer.token_id(self._end_before(role)) for role in ("tool", "user")}
        self._bridges = {role: self._learn_bridge(role) for role in ("tool", "user")}
        self._continues = True
        self.notes: tuple[str, ...] = (*self.format.notes, *self._proof())
        """Sentences on what the run does otherwise than the model's template, and when a row begins."""

    def next_prompt(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[np.ndarray, list[int]]:
        """The next prompt in two parts: the tokens of earlier turns, none if a row starts, and the new tokens.

        Raises:
            TemplateError: the template has no place for the messages or the tools.
        """
        self.check_tools(tools)
        if any(message["role"] == "system" for message in conversation.observation):
            self._check_system(conversation.messages)
        row = _last_row(conversation)
        tools, text_of_tools = self._defuser.tools(tools)
        if not conversation.turns:
            return NO_IDS, self._first_prompt(self._defuser.messages(conversation.observation), tools, text_of_tools)
        if len(row) and self._continues and (new_ids := self._continuation(conversation, tools)) is not None:
            return row, new_ids
        text = self._render(self._defuser.messages(conversation.messages), tools, add_generation_prompt=True)
        return NO_IDS, self._tokenizer.encode(text)

    def with_hint(self, rows: Sequence[Ids], prompt: Ids, messages: Sequence[Message], hint: str) -> list[list[int]]:
        """Rows of a conversation as if the last of the messages of its first prompt had ended with an empty line and a
        hint; a row that begins with another prompt stays as it is.

        Raises:
            TemplateError: the prompt does not end with its last message.
        """
        with_text: Message = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{hint}"}
        plain, longer = (
            self._tokenizer.encode(self._render(self._defuser.messages(each), add_generation_prompt=True))
            for each in (messages, [*messages[:-1], with_text])
        )
        same, ids = _common(plain, longer), as_list(prompt)
        plain_end, longer_end = plain[same:], longer[same:]
        before, after = len(ids) - len(plain_end), _common(plain_end[::-1], longer_end[::-1])
        if ids[before:] != plain_end:
            raise TemplateError(f"the chat template in {self._tokenizer.name_or_path} has no place for a hint")
        head, longer_end = ids[: len(ids) - after], [*ids[:before], *longer_end[: len(longer_end) - after]]
        return [longer_end + row[len(head) :] if row[: len(head)] == head else row for row in map(as_list, rows)]

    def check_tools(self, tools: Sequence[object]) -> None:
        """Check that the template can be used with these tools.

        Raises:
            TemplateError: it cannot.
        """
        if tools and self.format.tools_problem:
            remedy = "set renderer.tools to text, and they are described in the system message"
            if not self.format.has_system:
                remedy = "it has no place for a system message either, so take a template for tools"
            raise TemplateError(
                f"the chat template in {self._tokenizer.name_or_path} {self.format.tools_problem}, and the environment "
                f"has tools: {remedy}"
            )

    def _check_system(self, messages: Sequence[Message]) -> None:
        if not self.format.has_system:
            raise TemplateError(
                f"the chat template in {self._tokenizer.name_or_path} has no place for a system message, and the "
                "conversation has one: put its text into the first message of the user, or give it a place in the "
                "template"
            )
        if self.format.one_system and any(message["role"] == "system" for message in messages[1:]):
            raise TemplateError(
                f"the chat template in {self._tokenizer.name_or_path} leaves out a system message behind the first "
                "message, and the conversation has one: put its text into the first"
            )

    def plain_prompt(self, conversation: Conversation, prompt: str | Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Like `next_prompt`, for a prompt without a template.

        A prompt that begins with the full last row continues the row's tokens.

        Raises:
            TemplateError: it is empty, or has a token outside the vocabulary.
        """
        row = _last_row(conversation)
        if isinstance(prompt, str):
            text = self.decode(row)
            is_old = len(row) > 0 and prompt.startswith(text) and len(prompt) > len(text)
            new = self.encode(prompt[len(text) :] if is_old else prompt)
        else:
            is_old = 0 < len(row) < len(prompt) and list(prompt[: len(row)]) == row.tolist()
            new = list(prompt[len(row) :] if is_old else prompt)
        if not new:
            raise TemplateError("the prompt to complete is empty: write at least one token")
        if wrong := [token for token in new if not 0 <= token < len(self._tokenizer)]:
            raise TemplateError(
                f"token {wrong[0]} of the prompt is not in the vocabulary, which is 0 to {len(self._tokenizer) - 1}"
            )
        return (row if is_old else NO_IDS), new

    def write(self, message: Message, tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The tokens of `message` as a model would sample them, with the tokens that end a turn.

        With thinking they begin with the message's reasoning, or with an empty thought, as the template renders it.

        Raises:
            UserError: the message has reasoning, and the model does not think; or it has several calls, or a text
                beside a call, and the template has room for one.
        """
        self.check_tools(message.get("tool_calls") or ())
        [message] = self._defuser.messages([message])
        thought = (message.get("reasoning_content") or "").strip()
        if thought and not self.thinks:
            raise UserError(
                f"a message holds reasoning, and the model in {self._tokenizer.name_or_path} answers without: "
                f"let it think (thinking on), or leave the thought out of {message!r}"
            )
        if self.format.answers.one_call and len(message.get("tool_calls") or ()) > 1:
            raise UserError(
                f"a message holds {len(message['tool_calls'])} calls, and the chat template in "
                f"{self._tokenizer.name_or_path} has room for one call in an answer: write one a message"
            )
        if self.format.drops == "calls" and message.get("tool_calls") and message.get("content"):
            raise UserError(
                f"a message holds a text and a call, and the chat template in {self._tokenizer.name_or_path} "
                "leaves out the call then: leave out the text"
            )
        question = self.format.question
        base = self._render(question, tools, add_generation_prompt=True).removesuffix(self.format.opening)
        full = self._render([*question, message], tools)
        if not full.startswith(base):
            raise UserError(f"the chat template in {self._tokenizer.name_or_path} does not write {message!r:.200}")
        answer = full[len(base) :]
        _, end = self._first_end(answer)
        answer = answer[:end] if end else answer + self._end_before("tool" if message.get("tool_calls") else "user")
        # Text rather than ids: no model could sample a token that spans the end of the prompt.
        text = self._after_opening(answer)
        form = self.format.answers
        written, _, rest = text.rpartition(form.end_thought)
        if thought not in written:  # the template drops it, and the model writes it
            text = thought + (text if form.opens_thought else form.close_thought + rest.lstrip("\n"))
            text = text if form.opens_thought else f"{THINK}\n{text}"
        return self._tokenizer.encode(text)

    def _after_opening(self, answer: str) -> str:
        """An answer as a conversation holds it, without what the prompt has begun of it."""
        opening = self.format.opening
        close = self.format.answers.close_thought if self.format.answers.opens_thought else ""
        if answer.startswith(opening):
            answer = answer[len(opening) :]
            return answer if END_THINK in answer else close + answer
        content = (
            answer.rpartition(END_THINK)[2].lstrip("\n") if answer.lstrip().startswith((THINK, END_THINK)) else answer
        )
        return close + content

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens in it are recognised."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Ids) -> str:
        """Text of tokens, with special tokens."""
        return self._tokenizer.decode(token_ids)

    def plain_text(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the stop token."""
        has_end = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        return self.decode(token_ids[:-1] if has_end else token_ids)

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """A conversation as the template writes it, with special tokens, also those that a message spells out."""
        return self._render(messages, tools)

    def token_text(self, token_id: int) -> str:
        """The text of a token as the vocabulary has it; "" if there is none of this id."""
        return self._tokenizer.token_text(token_id)

    def token_id(self, text: str) -> int | None:
        """The id of a text that is one token of the vocabulary, such as a mark; otherwise None."""
        return self._tokenizer.token_id(text)

    def is_in_thought(self, token_ids: Sequence[int]) -> bool:
        """Whether the tokens of a turn are a thought, or begin one, and do not end it."""
        if isinstance(self.format.answers, ChannelForm):
            return self.format.answers.is_in_thought(self.decode(token_ids))
        if self._end_think in token_ids:
            return False
        if self.format.answers.opens_thought:
            return True
        if self._think is None or self._think not in token_ids:
            return False
        return not self.decode(token_ids[: list(token_ids).index(self._think)]).strip()

    def read(self, token_ids: Ids, finish_reason: str, tools: Sequence[ToolSpec] | None = None) -> Action:
        """Parse sampled tokens into an action, see `AnswerForm.read`. No sampled text raises.

        Args:
            finish_reason: "length" if a limit has cut it.
        """
        ids = as_list(token_ids)
        end = min([ids.index(stop) for stop in self.stop_token_ids if stop in ids], default=len(ids))
        text = self.decode(ids[:end])
        for stop in self.stop:
            text = text.partition(stop)[0]
        answer = self.format.answers.read(text, tools=tools, is_cut=finish_reason == "length")
        message: Message = {"role": "assistant", "content": answer.content}
        if answer.thought:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = to_openai(answer.calls)
        return Action(message=message, tool_calls=answer.calls, finish_reason=finish_reason)

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as the chat template takes them, for a server that executes it: see `next_prompt`."""
        return [self.format.prepare(message) for message in self._defuser.messages(messages)]

    def prepared_tools(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        return self._defuser.tools(tools)[0]

    # ---- the tokens behind a turn ----

    def _proof(self) -> tuple[str, ...]:
        """Play a trial and compare each prompt with the template's of the full conversation, token by token.

        If one differs, no row is continued: each turn begins a row with the template's own tokens. So a tokenizer may
        join what the prompt ends with and what is sampled, or a template may write an answer in another way later.

        Returns:
            Sentences on when rows begin.
        """
        tools = trial_tools(self)
        turns = trial(self, tools=tools)
        for messages, ids in prompts(turns):
            if ids != self._tokenizer.encode(self._render(messages, tools, add_generation_prompt=True)):
                self._continues = False
                return ("each turn begins a row, since earlier turns are other tokens in the chat template",)
        begins = {turn.observation[-1]["role"] for turn in turns[1:] if turn.starts_row}
        who = {"tool": "a result of a tool", "user": "a message of a user"}
        return tuple(
            f"{who[role]} begins a row, since the chat template rewrites earlier turns then" for role in sorted(begins)
        )

    def _continuation(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> list[int] | None:
        """The tokens that continue a row; None if the template rewrites the row."""
        new = self._defuser.messages(conversation.observation)
        if not new:
            return None
        sampled = conversation.turns[-1].token_ids.tolist()
        role = new[0]["role"]
        parts = self._bridges[role] if role in self._bridges and self._is_plain(role, sampled) else None
        if parts is not None and (len(new) == 1 or parts.between) and all(m["role"] == role for m in new):
            return parts.fill(self._tokenizer, [message["content"] for message in new])
        messages = self._defuser.messages(conversation.messages)
        behind = self._behind(messages[: -len(new) - 1], messages[-len(new) - 1], new, tools, self.decode(sampled))
        return None if behind is None else self._tokens_behind(sampled, behind)

    def _is_plain(self, role: str, sampled: Sequence[int]) -> bool:
        """Whether what follows depends on the new messages only: the turn has ended, and no thought may be dropped."""
        is_ended = not self.stop and sampled[-1] == self._ends[role]
        if not self.thinks:
            return is_ended and self._think not in sampled
        has_thought = self.format.opening or self._think in sampled or self._end_think in sampled
        return is_ended and role == "tool" and not has_thought

    def _end_before(self, role: str) -> str:
        """What ends an answer before a message of this role."""
        return (role == "tool" and self.format.mark_of_results) or self.format.ends[0]

    def _behind(
        self, before: Sequence[Any], answer: Mapping[str, Any], new: Sequence[Any], tools: Sequence[ToolSpec], text: str
    ) -> str | None:
        """What the template writes between the end of an answer and the next answer.

        None if it rewrites what came before: the prompt of the answer, or the thought in it.
        """
        prompt = self._render(before, tools, add_generation_prompt=True)
        full = self._render([*before, answer, *new], tools, add_generation_prompt=True)
        if not full.startswith(prompt):
            return None
        answer_text = full[len(prompt) :]
        start, end = self._first_end(answer_text)
        if not end:
            return None
        if text and self.format.mark_of_results and not text.endswith(answer_text[start:end]):
            return None  # it ended with another mark
        thought = str(answer.get("reasoning_content") or "").strip()
        has_end = END_THINK not in text or END_THINK[1:] in answer_text[:start]  # it may be defused
        if thought not in answer_text[:start] or not has_end:
            return None
        return answer_text[end:]

    def _first_end(self, text: str) -> tuple[int, int]:
        """The place of the first end of an answer in a text: its start, and the index after it, 0 if there is none."""
        places = [(text.index(end), len(end)) for end in self.format.ends if end in text]
        start, length = min(places, default=(0, 0))
        return start, start + length

    def _tokens_behind(self, sampled: Sequence[int], behind: str) -> list[int] | None:
        if sampled[-1] in self.stop_token_ids:  # a special token before a text decides how the text begins
            return self._tokenizer.encode(self._tokenizer.token_text(sampled[-1]) + behind)[1:]
        text = self.decode(sampled) if self.stop else ""
        if ends := [text.index(stop) + len(stop) for stop in self.stop if stop in text]:
            rest = text[min(ends) :]  # the last token may reach beyond the end of the answer
            return self._tokenizer.encode(behind[len(rest) :]) if behind.startswith(rest) else None
        return self._tokenizer.encode(self.format.ends[0] + behind)

    def _learn_bridge(self, role: str) -> TemplateParts | None:
        """Learn the template parts of messages that follow a turn, if they are the same after each turn."""
        user: Any = {"role": "user", "content": "?"}
        answer: Any = {"role": "assistant", "content": "a"}
        other: Any = {"role": "assistant", "content": "b c"}
        both = trial_calls(2, self.format.answers.dialect)
        if role == "tool":
            answer, other = {**answer, "tool_calls": both[:1]}, {**other, "tool_calls": both[1:]}
        cases = [([user], answer), ([user, {"role": "assistant", "content": "b"}, user], other)]
        if role == "tool":
            cases.append(([user, answer, {"role": "tool", "content": "r", "tool_call_id": both[0]["id"]}], other))

        def render(contents: Sequence[str]) -> list[int] | None:
            try:
                texts = {self._behind(before, case, _following(role, case, contents), (), "") for before, case in cases}
            except TemplateError:
                return None
            text = texts.pop()
            end = self._ends[role]
            return None if text is None or texts or end is None else self._tokens_behind([end], text)

        if self.stop or not self.stop_token_ids:
            return None
        return learn_template_parts(self._tokenizer, render, most=3) or learn_template_parts(self._tokenizer, render)

    # ---- first prompts ----

    def _first_prompt(self, messages: list[Message], tools: Sequence[ToolSpec], text_of_tools: str) -> list[int]:
        """Render a first prompt. First prompts of one environment differ only in the last message."""
        *others, last = messages
        key = (text_of_tools, *((m["role"], m["content"]) for m in others))
        if last["role"] != "user" or any(m.keys() != {"role", "content"} for m in others):
            return self._tokenizer.encode(self._render(messages, tools, add_generation_prompt=True))
        if key not in self._first_prompts:
            if len(self._first_prompts) >= 64:
                self._first_prompts.clear()
            self._first_prompts[key] = self._learn_first_prompt(others, tools)
        parts = self._first_prompts[key]
        if parts is None:
            return self._tokenizer.encode(self._render(messages, tools, add_generation_prompt=True))
        return parts.fill(self._tokenizer, [last["content"]])

    def _learn_first_prompt(self, others: list[Message], tools: Sequence[ToolSpec]) -> TemplateParts | None:
        def render(contents: Sequence[str]) -> list[int]:
            last: Message = {"role": "user", "content": contents[0]}
            return self._tokenizer.encode(self._render([*others, last], tools, add_generation_prompt=True))

        return learn_template_parts(self._tokenizer, render)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _following(role: str, answer: Mapping[str, Any], contents: Sequence[str]) -> list[dict[str, Any]]:
    calls = answer.get("tool_calls") or [{"id": ""}]
    return [{"role": role, "content": content, "tool_call_id": calls[0]["id"]} for content in contents]


def _last_row(conversation: Conversation) -> np.ndarray:
    parts: list[np.ndarray] = []
    for turn in conversation.turns:
        if turn.starts_row:
            parts.clear()
        parts += (turn.prompt_ids, turn.token_ids)
    return join_arrays(IDS, *parts)
