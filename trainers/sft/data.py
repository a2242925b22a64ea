"""The rows of supervised training: Episodes, or chats of a file or of the hub.

    data = SFTData(config.sft, training=config.training, env=config.env)  # reads the first row; data.about describes it
    await data.prepare(model)      # renders, counts what is left out
    data.held_out                  # samples for the loss before and after
    for batch in data.batches():   # one optimizer step each, in an order that the run's seed gives

Nothing is left out silently: every row that cannot be used is counted by its reason, and the first one is named.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.model_folder import context_length
from agents.renderer.conversation_format import ToolsForm
from forge_env.core.episode import Row
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.types import Message, ToolSpec
from forge_env.data.rows import BadRow, LeftOut, shuffled
from forge_env.rollout.factory import make
from forge_env.utils.settings import BY_CASE
from trainers.batching.batch import Sample
from trainers.model.sizes import MODEL_SIZES
from trainers.sft.rows import RowMaker, count_tokens, token_batches
from trainers.sft.shapes import Example
from trainers.sft.source import Source, open_source

if TYPE_CHECKING:
    from trainers.config import TrainingConfig
    from trainers.settings.supervised import SFTConfig
    from trainers.settings.tasks import EnvConfig

CORPUS = 1000  # conversations with the text that trains the tokenizer of a model made on the spot
SHUFFLED = 2048  # conversations among which a stream is shuffled
HELD_OUT_MOST = 128  # conversations of the held-out loss: more would not change its first digits


class SFTData:
    """The samples of a run on `--sft.data`.

    Args:
        env: the section of that name; it says whether thoughts are learned, and has the environment's options.
        model_size: of a model that is made on the spot.
    """

    def __init__(
        self,
        sft: SFTConfig,
        *,
        training: TrainingConfig,
        env: EnvConfig,
        model_size: str = "tiny",
        tools: ToolsForm = "auto",
    ) -> None:
        self._sft, self._training, self._env, self._model_size = sft, training, env, model_size
        self._tools_form: ToolsForm = tools
        self.source: Source = open_source(sft)
        self.about = self.source.about
        self.held_out: list[Sample] = []
        self.left_out = LeftOut()
        self._counts: dict[str, Any] = {}  # of `record`
        self._foreign = 0  # episodes with the tokens of another model
        self._text_losses = 0  # conversations with text that the chat template leaves out
        self._every = round(1 / sft.held_out_share) if sft.held_out_share else 0
        self._held_keys: set[str] = set()
        self._tools: dict[str, tuple[ToolSpec, ...]] = {}
        self._samples: list[Sample] = []
        self._maker: RowMaker | None = None
        self._limit = 0
        per_step = training.max_tokens_per_micro_batch * training.gradient_accumulation_steps
        self._tokens_per_step = sft.tokens_per_step or per_step

    # ---- before the run ----

    def make_model(self, folder: Path) -> int:
        """Make a model with a tokenizer for the data's text; returns its number of parameters."""
        from trainers.model.tiny_model import make_tiny_model

        examples = list(itertools.islice((e for _, e in self.source if isinstance(e, Example)), CORPUS))
        if not examples:
            raise UserError(self._nothing_left())
        tools = {tool["function"]["name"]: tool for example in examples for tool in example.tools}
        size = MODEL_SIZES[self._model_size]
        length = max(size.max_position_embeddings, self._training.seq_len)
        return make_tiny_model(
            folder,
            [(_plain(example.messages), [*tools.values()]) for example in examples],
            seed=self._training.seed,
            size=replace(size, max_position_embeddings=length),
        )

    def check(self, model: Path | None, *, renders_all: bool = False) -> list[str]:
        """Read all of it, and with a model render up to the first row that can be used, or all; returns the facts."""
        count = 0
        if model is not None:
            self._open(model)
            count = sum(1 for _ in itertools.islice(self._read(self.left_out), None if renders_all else 1))
            if not count:
                raise UserError(self._nothing_left())
        if self._maker is None or not renders_all:
            self.left_out, count, self._text_losses = LeftOut(), 0, 0
            for where, example in self.source:
                if isinstance(example, BadRow):
                    self.left_out.add(where, str(example))
                    continue
                count += 1
                if self._maker is not None and not example.rows:
                    self._text_losses += self._maker.drops_text(example.messages)
        if not count:
            raise UserError(self._nothing_left())
        rows = count + self.left_out.total
        return [f"{self.source.name}: {self.about}, {rows:,} rows, {self.left_out}", *self._losses()]

    def _losses(self) -> list[str]:
        what = "conversations hold text beside calls, which the chat template leaves out: it is not learned"
        return [f"{self._text_losses:,} {what}"] if self._text_losses else []

    async def prepare(
        self, model: Path, say: Callable[[str], None] = lambda text: None, began: Mapping[str, Any] | None = None
    ) -> int:
        """Render for this model: everything, or only the held-out part of a stream; returns the number of optimizer
        steps.

        Args:
            began: the `record` of the run that goes on. Its batches stay, whatever micro-batches there are now.
        """
        sft = self._sft
        self._open(model)
        if began:
            self._limit, self._tokens_per_step = began["row_tokens"], began["tokens_per_step"]
        rows: list[tuple[tuple[str, ...], Sample]] = []
        for number, row in enumerate(self._read(self.left_out)):
            rows.append(row)
            if number % 64 == 63:
                await asyncio.sleep(0)  # Ctrl-C is handled between two conversations
            if sft.streaming and number >= self._every * HELD_OUT_MOST:
                break
        self._hold_out(rows)
        if not self._samples:
            raise UserError(self._nothing_left())
        self._counts = {
            "conversations": len(self._samples),
            "repeated": len(rows) - len({keys[0] for keys, _ in rows}),
            "row_tokens": self._limit,
            "tokens_per_step": self._tokens_per_step,
            "digest": _digest(sample for _, sample in rows),
        }
        if began and began["digest"] != self._counts["digest"]:
            raise UserError(
                f"the rows of {sft.data} are other tokens than when this run began, so that it would train other "
                "batches: put the data, and the model's tokenizer and chat template, back as they were, or start a new "
                "run"
            )
        self._say_rows(say)
        if sft.streaming:
            self._samples = []
        if self._training.steps != BY_CASE:
            return self._training.steps
        return sum(1 for epoch in range(sft.epochs) for _ in token_batches(self._epoch(epoch), self._tokens_per_step))

    def _hold_out(self, rows: Sequence[tuple[tuple[str, ...], Sample]]) -> None:
        """Divide the rows; no copy of a held-out row is trained."""
        every, firsts = self._every, _firsts(keys for keys, _ in rows)
        if len(firsts) == 1:  # all are episodes of one task
            rows = [(keys[:1], sample) for keys, sample in rows]
            firsts = _firsts(keys for keys, _ in rows)
        places = firsts[every - 1 : every * HELD_OUT_MOST : every] if every else []
        if every and not places and len(firsts) > 1 and not self._sft.streaming:
            places = firsts[-1:]  # the share of so small a set is less than one conversation
        self.held_out = [rows[place][1] for place in places]
        self._held_keys = {key for place in places for key in rows[place][0]}
        self._samples = [sample for keys, sample in rows if self._held_keys.isdisjoint(keys)]

    def _say_rows(self, say: Callable[[str], None]) -> None:
        num_learned = sum(int(row.loss_mask.sum()) for sample in self._samples for row in sample.rows)
        size = sum(map(count_tokens, self._samples))
        extent = "the beginning of the stream" if self._sft.streaming else "all of it"
        say(
            f"{len(self._samples):,} conversations of {size:,} tokens, {num_learned:,} of them learned "
            f"({extent} was read)"
        )
        if repeats := self._counts["repeated"]:
            say(f"{repeats:,} conversations repeat earlier ones; copies of held-out ones are not trained on")
        if self._every and not self.held_out:
            say("nothing is held out: all conversations are copies of one")
        if self._foreign:
            say(f"{self._foreign:,} episodes hold the tokens of another model, and were rendered from their messages")
        for sentence in self._losses():
            say(sentence)
        if self.left_out.total:
            say(f"{self._sft.data}: {self.left_out}")

    def record(self) -> dict[str, Any]:
        """The result of `prepare` as JSON: the number of conversations, and the rows that were left out."""
        return {
            "source": self._sft.data,
            **self._counts,
            "held_out": len(self.held_out),
            "left_out": self.left_out.record(),
        }

    # ---- in the run ----

    def batches(self) -> Iterator[list[Sample]]:
        """The samples of one optimizer step after the other, without end; each epoch in an order of its own."""
        for epoch in itertools.count():
            yield from token_batches(self._epoch(epoch), self._tokens_per_step)

    def _epoch(self, number: int) -> Iterator[Sample]:
        rng = random.Random(f"{self._training.seed}/sft/{number}")
        if not self._sft.streaming:
            yield from rng.sample(self._samples, len(self._samples))
            return
        self.left_out = LeftOut()  # of this epoch
        rows = self._read(self.left_out)
        yield from shuffled((s for keys, s in rows if self._held_keys.isdisjoint(keys)), rng, buffer=SHUFFLED)

    def _read(self, left_out: LeftOut) -> Iterator[tuple[tuple[str, ...], Sample]]:
        """Go through the data once; each sample has the keys that its copies share, see `copy_keys`."""
        for where, example in self.source:
            if not isinstance(example, Example):
                left_out.add(where, str(example))
                continue
            try:
                rows = self._rows(example)
            except BadRow as bad:
                left_out.add(where, str(bad))
                continue
            if any(len(row.token_ids) > self._limit for row in rows):
                left_out.add(where, f"it is longer than {self._limit:,} tokens (--training.seq_len)")
                continue
            yield copy_keys(example), Sample(rows=rows)

    def _rows(self, example: Example) -> tuple[Row, ...]:
        assert self._maker is not None
        if example.rows and self._maker.has_written(example.rows, example.messages):
            return example.rows
        self._foreign += bool(example.rows)
        tools = example.tools or self._tools_of(example.env)
        rows = self._maker.render(example.messages, tools, context=example.context)
        self._text_losses += self._maker.drops_text(example.messages)
        return rows

    def _tools_of(self, env: str) -> tuple[ToolSpec, ...]:
        """The tools of an environment, to render its episodes: an Episode does not contain them."""
        if env and env not in self._tools:
            options = self._env.options if env == self._env.name else {}
            try:
                self._tools[env] = tuple(make(env, **options).make().tools)
            except ForgeError as error:
                raise BadRow(f"it is text, and the tools of its environment {env} are not to be had: {error}") from None
        return self._tools.get(env, ())

    def _open(self, model: Path) -> None:
        self._maker = RowMaker(model, thinking=self._env.thinking, tools=self._tools_form)
        training, context = self._training, context_length(model)
        if context and training.seq_len > context:
            raise UserError(
                f"--training.seq_len is {training.seq_len}, and the model in {model} reads {context} tokens at most: "
                f"set it to {context} or less"
            )
        self._limit = training.seq_len or min(context or sys.maxsize, training.max_tokens_per_micro_batch)

    def _nothing_left(self) -> str:
        return f"nothing of {self._sft.data} is left to train on: {self.left_out}"


def copy_keys(example: Example) -> tuple[str, ...]:
    """What a conversation shares with its copies: what was said, and an Episode's task.

    System messages, white space, capitals and the ids of calls do not tell two conversations apart.
    """
    messages = []
    for message in example.messages:
        if message["role"] != "system":
            calls = [call.get("function") for call in message.get("tool_calls", ())]
            messages.append((message["role"], " ".join(message["content"].casefold().split()), calls))
    while messages and messages[-1][0] != "assistant":
        messages.pop()  # no row has them
    text = hashlib.sha256(json.dumps(messages, sort_keys=True).encode(errors="replace")).hexdigest()
    return (text, f"{example.env}/{example.task}") if example.task else (text,)


def _firsts(keys: Iterable[tuple[str, ...]]) -> list[int]:
    """The places of the rows that share no key with an earlier one."""
    keys_so_far, places = set[str](), []
    for place, of_row in enumerate(keys):
        if keys_so_far.isdisjoint(of_row):
            places.append(place)
        keys_so_far.update(of_row)
    return places


def _digest(samples: Iterable[Sample]) -> str:
    digest = hashlib.sha256()
    for row in itertools.chain.from_iterable(sample.rows for sample in samples):
        digest.update(len(row.token_ids).to_bytes(8, "little") + row.token_ids.tobytes() + row.loss_mask.tobytes())
    return digest.hexdigest()


def _plain(messages: Sequence[Message]) -> list[Message]:
    """Messages without reasoning: a tokenizer is made of text that every model writes."""
    return [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]  # type: ignore[misc]
