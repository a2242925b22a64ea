"""From conversations to training rows: the same tokens, and the same mask, as after a rollout of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agents.renderer.conversation_format import Thinking, ToolsForm
from agents.renderer.dialects import to_openai
from agents.renderer.rendering import Renderer
from agents.renderer.tokenizer import FastTokenizer
from forge_env.core.episode import Episode, Row, Turn
from forge_env.core.errors import UserError
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, array_of
from forge_env.core.types import Message, Outcome, Task, ToolSpec
from forge_env.data.rows import BadRow
from trainers.batching.batch import Sample


class RowMaker:
    """Makes rows for the model in a Hugging Face folder.

    The model learns exactly what it would have to sample: each assistant message up to and with its end-of-turn token.
    If the template renders a turn differently once it is history, a new row begins, as in a rollout.
    """

    def __init__(self, model: str | Path, *, thinking: Thinking = "off", tools: ToolsForm = "auto") -> None:
        self._renderer = Renderer(model, thinking=thinking, tools=tools)
        self._tokenizer = FastTokenizer(model)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, context: Collection[int] = ()
    ) -> tuple[Row, ...]:
        """The rows of a conversation; messages after the last assistant message are left out."""
        conversation = Conversation(request_id="")
        pending: list[Message] = []
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                pending.append(message)
                continue
            conversation.observation = tuple(pending)
            turn = self._turn(conversation, message, tools)
            # Constrained tokens of a turn have no loss, because the model did not choose them.
            conversation.turns.append(replace(turn, constrained=len(turn.token_ids)) if place in context else turn)
            pending = []
        task = Task(prompt=(), id="sft")
        return Episode(task=task, turns=tuple(conversation.turns), outcome=Outcome.SCORED, reward=0.0, id="sft").rows

    def _turn(self, conversation: Conversation, message: Message, tools: Sequence[ToolSpec]) -> Turn:
        message = self._as_read(message)
        try:
            row, new = self._renderer.next_prompt(conversation, tools)
            tokens = self._renderer.write(message, tools)
        except UserError as error:
            raise BadRow(str(error)) from None
        return Turn(
            kind="tokens",
            observation=conversation.observation,
            message=message,
            prompt_ids=array_of(new, IDS),
            token_ids=array_of(tokens, IDS),
            starts_row=not len(row),
        )

    def _as_read(self, message: Message) -> Message:
        """A message with the thought and the calls that its text spells out in the model's own form."""
        text, form = message["content"], self._renderer.format.answers
        if message["role"] != "assistant" or not self._renderer.spelt_by(text):
            return message
        is_answer = form.opens_thought and form.end_thought not in text
        tools = () if message.get("tool_calls") else None
        answer = form.read(form.close_thought * is_answer + text, tools=tools, is_cut=False)
        if error := next((call.error for call in answer.calls if call.arguments is None), ""):
            raise BadRow(f"an assistant message spells out a call, and {error[0].lower()}{error[1:]}")
        if answer.thought and "reasoning_content" in message:
            raise BadRow("an assistant message spells out a thought, and has another one beside its text")
        if mark := self._renderer.spelt_by(f"{answer.content}\n{answer.thought}"):
            raise BadRow(f"an assistant message spells out {mark}, which is not text to this model")
        read: Message = {**message, "content": answer.content}
        if answer.thought:
            read["reasoning_content"] = answer.thought
        if answer.calls:
            read["tool_calls"] = to_openai(answer.calls)
        return read

    def drops_text(self, messages: Sequence[Message]) -> bool:
        """Whether the template leaves out a text that an assistant wrote beside its calls."""
        if self._renderer.format.drops != "text":
            return False
        with suppress(BadRow):  # the row is left out
            return any(m.get("tool_calls") and m["content"].strip() for m in map(self._as_read, messages))
        return False

    def has_written(self, rows: Sequence[Row], messages: Sequence[Message]) -> bool:
        """Whether these rows are of this model's tokenizer: they decode to what the assistant said."""
        ids = [token for row in rows for token in row.token_ids.tolist()]
        if max(ids, default=0) >= len(self._tokenizer):
            return False
        text = self._tokenizer.decode(ids)
        contents = (message["content"].strip() for message in messages if message["role"] == "assistant")
        return all(content in text for content in contents)


def token_batches(samples: Iterable[Sample], tokens: int) -> Iterator[list[Sample]]:
    """Cut a stream of samples into batches of at most `tokens` tokens; a larger sample is a batch of its own."""
    batch: list[Sample] = []
    total = 0
    for sample in samples:
        size = count_tokens(sample)
        if batch and total + size > tokens:
            yield batch
            batch, total = [], 0
        batch.append(sample)
        total += size
    if batch:
        yield batch


def count_tokens(sample: Sample) -> int:
    return sum(len(row.token_ids) for row in sample.rows)
