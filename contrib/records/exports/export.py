"""Exports the episodes of a run into a format of other programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from contrib.records.exports.atif import trajectory
from contrib.records.exports.conversation import has_thoughts, json_text, openai_lines, sft_lines
from contrib.records.exports.parquet import ParquetWriter
from contrib.records.exports.select import Selected, Selection, Wanted
from contrib.records.exports.training_trace import training_trace
from contrib.records.run_settings import RunSettings, all_settings
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError, InfraError, UserError, nearest
from forge_env.records.run_files import CONFIG, imported_facts, read_object
from forge_env.registry.agent_spec import model_at
from forge_env.utils.atomic import Target

Format = Literal["hf", "atif", "openai", "sft", "training_trace"]
FORMATS: tuple[Format, ...] = get_args(Format)
NO_REWARD, NO_ANSWER, NO_MESSAGE = "without a reward", "without an answer", "without a message"
LEARNED: frozenset[Format] = frozenset({"openai", "sft", "training_trace"})
"""Formats that a trainer learns answers from: each of their episodes has a reward and an answer."""


@dataclass(slots=True, kw_only=True)
class Exported:
    """What an export has written, and what it has not."""

    episodes: int = 0
    lines: int = 0
    """Rows, lines or files: an episode with several conversations has several lines of chat."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of episodes by the reason."""
    cut: list[str] = field(default_factory=list)
    """FILE:LINE of half-written last lines, which are not episodes."""
    replaced: int = 0
    """Rows, lines or files in which text that is not valid Unicode was replaced."""
    thoughts: int = 0
    """Episodes with thoughts that the format has no place for."""
    without_tools: dict[str, str] = field(default_factory=dict)
    """Environment -> why its tools are not to be had."""


def export(run: Path, out: Path, to: str, choice: Wanted, *, tokens: bool = False, scores: bool = False) -> Exported:
    """Write the wanted episodes of a run; `out` is there only when all of them are written.

    Args:
        run: folder of an evaluation or of a training run, or a file of episodes.
        out: a new file, or for hf, and for atif and training_trace unless it ends in .jsonl, a new folder.
        to: one of `FORMATS`.
        choice: which episodes.
        tokens: whether token ids and logprobs are written; with sft the Episodes themselves are then.
        scores: whether lines of openai say how they were scored, which OpenAI itself refuses.
    """
    if to not in FORMATS:
        raise UserError(f"--to {to}: {nearest(to, FORMATS)}")
    if tokens and to == "openai":
        raise UserError("--tokens does not go with --to openai, which has no place for them: use hf, atif or sft")
    if tokens and to == "training_trace":
        raise UserError("--tokens does not go with --to training_trace, which always has them: leave it out")
    if scores and to != "openai":
        raise UserError(f"--scores is for --to openai: {to} always says how an episode was scored")
    if to in ("openai", "sft") and out.suffix not in (".jsonl", ".ndjson"):
        raise UserError(f"--out {out} must end in .jsonl: --to {to} writes one file of JSON lines")
    selection, facts, result = Selection(run, choice), RunFacts(run), Exported()
    with Target(out) as target:
        with _open_writer(_writer(to, target.path, out, facts, result, tokens=tokens, scores=scores), out) as writer:
            for selected in selection:
                reason = ""
                if to in LEARNED:
                    reason = (
                        NO_REWARD if selected.episode.reward is None else "" if selected.episode.turns else NO_ANSWER
                    )
                if not reason:
                    with _disk_errors(out):
                        reason = writer.add(selected)
                if reason:
                    selection.leave_out(reason)
                else:
                    result.episodes += 1
        result.left_out, result.cut, result.without_tools = selection.left_out, selection.cut, facts.without_tools
        if not result.episodes:
            raise UserError(f"nothing of {run} is left to export: {about_left_out(result) or 'it holds no episode'}")
        with _disk_errors(out):
            target.commit()
    return result


def about_left_out(result: Exported) -> str:
    """What was left out in words: "3 of another outcome, 1 without a reward"."""
    parts = [f"{count:,} {reason}" for reason, count in result.left_out.items()]
    return ", ".join([*parts, *(f"{place} is cut off" for place in result.cut)])


def _writer(
    to: str, path: Path, out: Path, facts: RunFacts, result: Exported, *, tokens: bool, scores: bool
) -> _Lines | _Dataset:
    if to == "hf":
        return _Dataset(path, facts, result, tokens)

    def documents(selected: Selected) -> list[Any] | str:
        """Make the JSON documents of an episode, or say why it is left out."""
        episode = selected.episode
        if to == "sft" and tokens:
            return [episode.to_json()]
        model, tools = facts.model(episode), facts.tools(episode)
        match to:
            case "atif":
                document = trajectory(selected, agent=facts.agent, model=model, tools=tools, tokens=tokens)
                return NO_MESSAGE if document is None else [document]
            case "training_trace":
                trace = training_trace(selected, model=model, tools=tools)
                return trace if isinstance(trace, str) else [trace]
            case "openai":
                result.thoughts += not scores and has_thoughts(episode)
                return list(openai_lines(episode, tools, scores=scores))
            case _:
                return list(sft_lines(episode, tools))

    is_lines = to in ("openai", "sft") or out.suffix in (".jsonl", ".ndjson")
    return (_Lines if is_lines else _Files)(path, documents, result)


@contextmanager
def _open_writer(writer: _Lines | _Dataset, out: Path) -> Iterator[_Lines | _Dataset]:
    try:
        yield writer
    except BaseException:
        writer.abandon()
        raise
    with _disk_errors(out):
        writer.close()


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InfraError(f"--out {out} could not be written: {reason}; nothing is left of it") from error


class _Lines:
    def __init__(self, path: Path, documents: Callable[[Selected], list[Any] | str], result: Exported) -> None:
        self._documents, self._result = documents, result
        self._open(path)

    def add(self, selected: Selected) -> str:
        """Write an episode; returns why it is left out, or ""."""
        documents = self._documents(selected)
        if isinstance(documents, str):
            return documents
        for document in documents:
            text, is_replaced = json_text(document) if not isinstance(document, str) else (document, False)
            self._write(text + "\n", selected.episode.id)
            self._result.replaced += is_replaced
            self._result.lines += 1
        return ""

    def _open(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8", newline="\n")

    def _write(self, text: str, episode_id: str) -> None:
        self._file.write(text)

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self.close()


class _Files(_Lines):
    """A folder with one JSON file for each episode, numbered, with its id as far as a file name may hold it."""

    def _open(self, path: Path) -> None:
        self._folder = path
        path.mkdir()

    def _write(self, text: str, episode_id: str) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", episode_id)[:80]
        (self._folder / f"{self._result.lines:06d}-{name}.json").write_text(text, encoding="utf-8")

    def close(self) -> None:
        pass


class _Dataset:
    def __init__(self, path: Path, facts: RunFacts, result: Exported, tokens: bool) -> None:
        self._facts, self._result = facts, result
        self._parquet = ParquetWriter(path, tokens=tokens)
        self.abandon = self._parquet.abandon

    def add(self, selected: Selected) -> str:
        episode = selected.episode
        self._parquet.add(selected, model=self._facts.model(episode), tools=self._facts.tools(episode))
        self._result.lines += 1
        return ""

    def close(self) -> None:
        self._parquet.close()
        self._result.replaced = self._parquet.replaced


class RunFacts:
    """The settings of a run, and the tools of its environments: an Episode does not hold them."""

    def __init__(self, run: Path) -> None:
        try:
            self._settings = all_settings(run)
        except UserError:  # another program's folder; its episodes can be read nevertheless
            self._settings = {}
        agent = next((one.agent for one in self._settings.values()), "") or "forge_env"
        kind, _, rest = agent.partition(":")
        rest = model_at(rest) if kind == "openai" else rest
        self.agent = f"openai:{rest}" if kind == "openai" else agent
        """What acted: the agent of an evaluation, or forge_env."""
        self._model = rest if kind in ("openai", "vllm", "checkpoint") else _trained_model(run.expanduser())
        self._tools: dict[str, list[Any]] = {}
        self.without_tools: dict[str, str] = {}
        """Environment -> why its tools are not to be had."""

    def model(self, episode: Episode) -> str | None:
        name = imported_facts(episode).get("model")
        return name if isinstance(name, str) else self._model

    def tools(self, episode: Episode) -> list[Any]:
        specs = imported_facts(episode).get("tools")
        if isinstance(specs, list):
            return specs
        if episode.env and episode.env not in self._tools:
            self._tools[episode.env] = self._tools_of(episode.env)
        return self._tools.get(episode.env, [])

    def _tools_of(self, env: str) -> list[Any]:
        from forge_env.rollout.factory import make

        try:
            of_run = {one.env: one for one in self._settings.values()} | self._settings
            settings = of_run.get(env, RunSettings(env=env))
            return list(make(settings.env, **settings.options).make().tools)
        except ForgeError as error:
            self.without_tools[env] = str(error)
            return []


def _trained_model(run: Path) -> str | None:
    folder = run if run.is_dir() else run.parent.parent  # RUN/episodes/train.jsonl
    if not (folder / CONFIG).is_file() or not (folder / "run.json").is_file():
        return None
    try:
        model = read_object(folder / "run.json").get("model")
    except UserError:
        return None
    return model if isinstance(model, str) else None
