"""`forge-env import`: logs become Episodes, exports come back as they were, and what cannot be carried is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrib.records.exports.atif import trajectory
from contrib.records.exports.conversation import conversations, openai_lines, sft_lines
from contrib.records.exports.select import Selected
from contrib.records.imports.atif import read_trajectory
from contrib.records.imports.build import build
from contrib.records.imports.openai import read_chat
from contrib.records.tests.conftest import Command
from contrib.records.tests.imports.test_training_trace import a_turn
from contrib.records.tests.imports.test_training_trace import episodes as sampled_episodes
from forge_env.cli.main import main
from forge_env.core.episode import Episode, Lineage, Turn, read_jsonl
from forge_env.core.types import Outcome, Task, ToolUse
from tests.helpers.packages import needs
from trainers.settings.supervised import SFTConfig
from trainers.sft import Config
from trainers.sft.data import SFTData

PARAMETERS = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "2"}]},
    {"role": "assistant", "content": "2"},
]


@pytest.fixture
def read(tmp_path: Path, command: Command) -> Command:
    """Import a file; the Episodes are under "read"."""

    def run(source: str, log: Path, *more: str, code: int = 0) -> dict[str, Any]:
        out = tmp_path / "episodes.jsonl"
        out.unlink(missing_ok=True)
        result = command("import", str(log), "--from", source, "--out", str(out), *more, code=code)
        assert out.exists() == (code == 0)
        return {**result, "read": list(read_jsonl(out)) if code == 0 else []}

    return run


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


# ---- round trips ----

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(-10, 10, allow_nan=False)
json_texts = st.dictionaries(texts, st.one_of(st.integers(), texts), max_size=2).map(json.dumps)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Episodes of text whose calls have ids and text arguments, which may be no JSON."""
    turns, ids = [], 0
    shown: list[Any] = [{"role": "system", "content": draw(texts)}] * draw(st.booleans())
    shown.append({"role": "user", "content": draw(texts)})
    for _ in range(draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant", "content": draw(texts)}
        if draw(st.booleans()):
            message["reasoning_content"] = draw(texts)
        calls = []
        for arguments in draw(st.lists(st.one_of(json_texts, texts, st.just('{"a":1}')), max_size=2)):
            calls.append({"id": f"c{ids}", "type": "function", "function": {"name": "f", "arguments": arguments}})
            ids += 1
        if calls:
            message["tool_calls"] = calls
        uses = tuple(ToolUse(name="f", seconds=draw(st.floats(0, 9)), error=draw(texts)) for _ in calls)
        reward, seconds = draw(numbers), draw(st.floats(0, 9))
        said: dict[str, Any] = {"observation": tuple(shown), "message": message}
        turns.append(Turn(kind="text", reward=reward, tool_uses=uses, env_seconds=seconds, **said))
        shown = [{"role": "tool", "tool_call_id": call["id"], "content": draw(texts), "name": "f"} for call in calls]
        shown += [{"role": "user", "content": draw(texts)}] * draw(st.integers(0 if calls else 1, 1))
        shown += [{"role": "tool", "tool_call_id": "nobody's", "content": draw(texts)}] * draw(st.booleans())
    outcome = draw(st.sampled_from(Outcome))
    return Episode(
        task=Task(prompt=turns[0].observation[-1:], target=draw(texts), metadata={"a": 1}, id="t", kind="sum"),
        turns=tuple(turns),
        tail=tuple(shown),
        outcome=outcome,
        reward=draw(numbers) if outcome.is_valid else None,
        rewards={"part": draw(numbers)} if outcome.is_valid else {},
        success=draw(st.sampled_from([True, False, None])) if outcome.is_valid else None,
        id="t/0",
        group_id="t",
        env="shop",
        seed=3,
        error=draw(texts),
        ended_by="environment",
    )


def everything_but_turns(episode: Episode) -> dict[str, Any]:
    return {k: v for k, v in json.loads(episode.to_json()).items() if k not in ("turns", "info")}


@given(episodes())
def test_atif_comes_back_as_it_was(episode: Episode) -> None:
    selected = Selected(episode, "", None)
    document = trajectory(selected, agent="a", model="m", tools=[TOOL], tokens=False)
    back = build(read_trajectory(json.loads(json.dumps(document))), None, "x")
    assert back.messages == episode.messages
    assert everything_but_turns(back) == everything_but_turns(episode)
    for was, now in zip(episode.turns, back.turns, strict=True):
        assert (now.message, now.observation) == (was.message, was.observation)
        assert (now.reward, now.tool_uses, now.env_seconds) == (was.reward, was.tool_uses, was.env_seconds)
    assert back.info["imported"] == {"from": "ATIF-v1.8", "tools": [TOOL], "model": "m"}


@given(sampled_episodes())
def test_atif_with_tokens_comes_back_with_the_same_turns_and_rows(episode: Episode) -> None:
    document = trajectory(Selected(episode, "", None), agent="a", model="m", tools=[TOOL], tokens=True)
    log = read_trajectory(json.loads(json.dumps(document)))
    back = build(log, None, "x")
    assert (back.turns, back.rows, back.tail) == (episode.turns, episode.rows, episode.tail)
    assert back.lineage == episode.lineage
    assert (log.missing, log.unversioned) == (set(), False)


def test_atif_of_an_expert_comes_back_with_its_tokens() -> None:
    """They have no logprobs."""
    turns = [replace(a_turn((1, 2), (3,)), kind="tokens", logprobs=(), versions=(), context_digest="")]
    turns.append(replace(turns[0], prompt_ids=(4,), starts_row=False))
    episode = Episode(task=Task(prompt=()), turns=tuple(turns), reward=1.0, id="e")
    document = trajectory(Selected(episode, "", None), agent="a", model=None, tools=[], tokens=True)
    assert build(read_trajectory(json.loads(json.dumps(document))), None, "x").turns == episode.turns


def step(number: int, *lists: list[Any]) -> dict[str, Any]:
    """An answer as Harbor logs it, with the ids of its prompt, its own ids and their logprobs."""
    names = ("prompt_token_ids", "completion_token_ids", "logprobs")
    return {"step_id": number, "source": "agent", "message": "a", "metrics": dict(zip(names, lists, strict=False))}


def harbor(*steps: dict[str, Any]) -> dict[str, Any]:
    asked = {"step_id": 1, "source": "user", "message": "1+1?"}
    return {"schema_version": "ATIF-v1.8", "agent": {"name": "a"}, "steps": [asked, *steps], "extra": {"reward": 1.0}}


def test_atif_of_others_brings_its_tokens_in_rows(tmp_path: Path, read: Command) -> None:
    steps = [step(2, [1, 2], [3, 4], [-0.5, 0]), step(3, [1, 2, 3, 4, 5], [6], [-1]), step(4, [1, 7], [8], [-2])]
    result = read("atif", write(tmp_path / "log.jsonl", harbor(*steps)))
    (episode,) = result["read"]
    assert [tuple(row.token_ids) for row in episode.rows] == [(1, 2, 3, 4, 5, 6), (1, 7, 8)]
    assert [tuple(row.generator_logprobs) for row in episode.rows] == [(0, 0, -0.5, 0, 0, -1), (0, 0, -2)]
    assert episode.is_trainable and "which weights sampled" in result["said"], result["said"]


@pytest.mark.parametrize("lists", [[], [[], [6], [-1]], [[1, 2, 3, 4, 5]]])
def test_atif_without_the_tokens_of_each_answer_is_text(tmp_path: Path, read: Command, lists: list[Any]) -> None:
    first = step(2, [1, 2], [3, 4], [-0.5, 0])
    first["metrics"]["prompt_tokens"] = 2
    result = read("atif", write(tmp_path / "log.jsonl", harbor(first, step(3, *lists))))
    turns = result["read"][0].turns
    assert [(turn.kind, turn.usage) for turn in turns] == [("text", {"prompt_tokens": 2}), ("text", None)]
    assert "token ids, as some steps have none" in result["said"]


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        ([[1, 2], [3, 4], [-0.5]], "it has 1 logprobs for 2 tokens"),
        ([[1, -2], [3], [-0.5]], "a token id is no whole number"),
        ([[1, 2], [True], [-0.5]], "a token id is no whole number"),
        ([[1, 2], [3], ["-0.5"]], "a logprob is no finite number"),
        ([[1, 2], 3, [-0.5]], "are not lists"),
    ],
)
def test_atif_with_tokens_that_contradict_each_other_is_refused(
    tmp_path: Path, read: Command, lists: list[Any], reason: str
) -> None:
    log = write(tmp_path / "log.jsonl", harbor(step(2, *lists)))
    error = read("atif", log, code=2)["error"]
    assert f"{log}:1: step 2: " in error and reason in error


def test_auxiliary_conversations_are_no_lines_of_chat_and_a_retried_answer_has_no_weight() -> None:
    def turn(text: str, auxiliary: str = "") -> Turn:
        shown = ({"role": "user", "content": f"{text}?"},)
        return Turn(kind="text", observation=shown, message={"role": "assistant", "content": text}, auxiliary=auxiliary)

    rows = (Lineage(turn=0, kind="auxiliary"), Lineage(turn=1), Lineage(turn=3, parent=2, kind="repeated"))
    turns = (turn("title", "a title"), turn("one"), turn("two", "a retry"), turn("three"))
    episode = Episode(task=Task(prompt=()), reward=1.0, id="e", turns=turns, lineage=rows)
    weights = [[(m["content"], m.get("weight")) for m in line["messages"]] for line in sft_lines(episode, [])]
    assert weights == [
        [("one?", None), ("one", None), ("two?", None), ("two", 0)], [("three?", None), ("three", None)],
    ]  # fmt: skip
    scored = list(openai_lines(episode, [], scores=True))
    assert [line["episode"]["row"]["kind"] for line in scored] == ["", "repeated"]
    assert [build(read_chat(line), None, "x").lineage for line in scored] == [(), ()]


@given(episodes())
def test_openai_with_scores_comes_back_as_it_was(episode: Episode) -> None:
    (line,) = openai_lines(episode, [TOOL], scores=True)
    back = build(read_chat(json.loads(json.dumps(line))), None, "x")
    assert back.messages == episode.messages
    assert everything_but_turns(back) == everything_but_turns(episode)
    assert back.info["imported"]["tools"] == [TOOL]
    assert [call.id for turn in back.turns for call in turn.tool_calls] == [
        call["id"] for said in conversations(episode)[0] for call in said.message.get("tool_calls", ())
    ]


# ---- what others have logged ----


def test_openai_logs_of_both_shapes(tmp_path: Path, read: Command) -> None:
    request = {"model": "m-1", "messages": CHAT[:3], "tools": [TOOL]}
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    choices = [{"message": {**CHAT[3], "reasoning": "Hm."}, "finish_reason": "length"}]
    pair = {"request": request, "response": {"model": "m-1-today", "choices": choices, "usage": usage}}
    log = write(tmp_path / "log.jsonl", {"messages": CHAT, "tools": [TOOL], "reward": 0.5}, pair)
    result = read("openai", log, "--reward", "1")
    chat, pair = result["read"]
    assert (chat.reward, pair.reward, result["defaulted"]) == (0.5, 1.0, 1)
    assert "1 of them hold no reward" in result["said"]
    assert len(chat.turns) == 2 and chat.turns[0].tool_calls[0].arguments == {"a": 1}
    assert chat.turns[1].observation == ({"role": "tool", "content": "2", "tool_call_id": "c"},)
    (turn,) = pair.turns  # the rest is history, which this response did not write
    assert len(turn.observation) == 3 and turn.finish_reason == "length"
    assert turn.message["reasoning_content"] == "Hm."
    assert turn.usage == usage and pair.info["imported"]["model"] == "m-1-today"
    assert chat.id == f"{log}:1" and chat.task.prompt == chat.turns[0].observation


def an_atif(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    return {"schema_version": "ATIF-v1.5", "agent": {"name": "a", "version": "1"}, "steps": numbered, **more}


ASKED = {"source": "user", "message": "hello"}
METRICS = {"prompt_tokens": 3, "completion_token_ids": [1], "cost_usd": 1}
ANSWERED = {"source": "agent", "message": "hi", "metrics": METRICS}


def test_a_folder_of_harbor_brings_its_verdicts(tmp_path: Path, read: Command) -> None:
    for name, verdict, text in (("a", "reward.txt", " .5\n"), ("b", "reward.json", '{"reward": true, "tests": 3}')):
        for folder in ("agent", "verifier"):
            (tmp_path / "job" / name / folder).mkdir(parents=True)
        write(tmp_path / "job" / name / "agent" / "trajectory.json", an_atif(ASKED, ANSWERED, session_id="same"))
        (tmp_path / "job" / name / "verifier" / verdict).write_text(text)
        write(tmp_path / "job" / name / "config.json", {})
    result = read("atif", tmp_path / "job")
    assert [(episode.id, episode.reward) for episode in result["read"]] == [("same", 0.5), ("same#2", 1.0)]
    assert result["other_files"] == 3  # two of config, and the verdict
    assert "does not hold what some records have:" in result["said"]
    assert result["not_carried"] == {"token ids": 2, "costs": 2}


def test_steps_without_a_model_and_results_without_calls(tmp_path: Path, read: Command) -> None:
    copied = {"source": "agent", "message": "before", "is_copied_context": True}
    decided = {"source": "agent", "message": "by rule", "llm_call_count": 0}
    ran = {"source": "agent", "message": "ls", "observation": {"results": [{"content": "file"}]}, "llm_call_count": 1}
    log = write(tmp_path / "log.jsonl", an_atif(ASKED, copied, decided, ran, ANSWERED))
    (episode,) = read("atif", log, "--reward", "0")["read"]
    assert [turn.message["content"] for turn in episode.turns] == ["ls", "hi"]
    assert [message["content"] for message in episode.turns[0].observation[1:]] == ["before", "by rule"]
    assert episode.turns[1].observation == ({"role": "user", "content": "file"},)


BROKEN: tuple[dict[str, Any], ...] = (
    {"finish_reason": "error"},
    {"finish_reason": "content_filter"},
    {"finish_reason": "stop", "error": {"message": "gone"}},
)


def test_what_no_episode_can_hold_is_left_out_and_named(tmp_path: Path, read: Command) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
    old_call = {"role": "assistant", "content": None, "function_call": {}}
    chats = [{"messages": chat} for chat in ([image, CHAT[3]], CHAT[:1], [CHAT[0], old_call], CHAT)]
    answers = [{"choices": [{"message": CHAT[3], **end}]} for end in BROKEN]
    pairs = [{"request": {"messages": CHAT[:1]}, "response": answer} for answer in answers]
    log = write(tmp_path / "log.jsonl", *chats, *pairs)
    result = read("openai", log, "--reward", "1")
    assert result["episodes"] == 1 and list(result["left_out"].values()) == [1, 1, 1, len(BROKEN)]
    assert "with an answer that its endpoint calls broken" in result["left_out"]
    assert f"with image_url, where an Episode holds text only (the first: {log}:1)" in result["said"]


@pytest.mark.parametrize(
    ("source", "record", "sentence"),
    [
        ("openai", '{"messages": [', "Expecting value"),
        ("openai", "[1]", "it is a list, not an object"),
        ("openai", {"prompt": "x"}, "it has no messages"),
        ("openai", {"messages": [{"role": "robot", "content": ""}]}, "the role 'robot'"),
        ("openai", {"messages": [CHAT[0], {"role": "tool", "content": "2"}, CHAT[3]]}, "no tool_call_id"),
        ("openai", {"messages": CHAT, "reward": "high"}, "its reward is 'high'"),
        ("openai", {"messages": CHAT, "reward": float("nan")}, "its reward is nan"),
        ("openai", {"messages": CHAT, "reward": 10**400}, "0, not a number of a size of 1e+09 at most"),
        ("openai", {"messages": CHAT, "episode": {"reward": 1, "task": {"prompt": 5}}}, "the messages are a int"),
        ("openai", {"messages": CHAT}, "it holds no reward"),
        ("openai", {"messages": 5}, "it has no messages"),
        ("openai", "[" * 100_000, "recursion"),
        ("atif", {"schema_version": "ATIF-v2.0", "steps": []}, "forge_env reads ATIF-v1.0 to ATIF-v1.8"),
        ("atif", an_atif(ASKED, {"source": "robot", "message": ""}), "step 2: its source is 'robot'"),
        ("atif", an_atif(), "it has no list of steps"),
    ],
)
def test_a_broken_record_names_its_place(
    source: str, record: Any, sentence: str, tmp_path: Path, read: Command
) -> None:
    good = an_atif(ASKED, ANSWERED, extra={"reward": 1}) if source == "atif" else {"messages": CHAT, "reward": 1}
    log = write(tmp_path / "log.jsonl", good, record, good)
    error = read(source, log, code=2)["error"]
    assert error.startswith(f"{log}:2: ") and sentence in error
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_half_written_end_is_said(tmp_path: Path, read: Command) -> None:
    log = write(tmp_path / "log.jsonl", {"messages": CHAT, "reward": 1})
    log.write_text(log.read_text() + '{"messages": [')
    result = read("openai", log)
    assert result["episodes"] == 1 and f"{log}:2 is cut off" in result["said"]


def test_hostile_text_is_kept(tmp_path: Path, read: Command) -> None:
    text = "half \ud83d pair \x00 " + "x" * 1_000_000
    log = write(tmp_path / "log.jsonl", {"messages": [CHAT[0], {"role": "assistant", "content": text}], "reward": 1})
    assert read("openai", log)["read"][0].messages[1]["content"] == text


def test_other_mistakes(tmp_path: Path, read: Command) -> None:
    log = write(tmp_path / "log.jsonl", {"messages": CHAT})
    assert "does not exist" in read("openai", tmp_path / "nothing.jsonl", code=2)["error"]
    assert "is a folder" in read("openai", tmp_path, code=2)["error"]
    assert "--from csv:" in read("csv", log, code=2)["error"]
    log.write_text("")
    assert "it is empty" in read("openai", log, code=2)["error"]


# ---- what it is for ----


async def test_imported_logs_train_with_their_tools(tmp_path: Path, tiny_model: Path, read: Command) -> None:
    """The rows are those of the chats that were imported: tools are in the prompt."""
    log = write(tmp_path / "log.jsonl", *[{"messages": CHAT, "tools": [TOOL], "reward": 1}] * 2)
    read("openai", log)
    found = []
    for path in (log, tmp_path / "episodes.jsonl"):
        config = Config(sft=SFTConfig(data=str(path)))
        data = SFTData(config.sft, training=config.training, env=config.env)
        await data.prepare(tiny_model)
        found.append([sample.rows for sample in next(data.batches())])
    assert found[0] == found[1] and found[0]


@needs("datasets")
async def test_a_response_is_learned_and_the_history_of_its_request_is_not(
    tmp_path: Path, tiny_model: Path, read: Command
) -> None:
    """As an Episode, and in each export of it: they give the rows of a chat whose history has the weight 0."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    chat += [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]
    request = {"messages": [{**message, "weight": 1} for message in chat[:3]]}
    pair = {"request": request, "response": {"choices": [{"message": chat[3]}]}}
    read("openai", write(tmp_path / "log.jsonl", pair, pair), "--reward", "1")
    paths = [write(tmp_path / "chat.jsonl", *[{"messages": chat}] * 2), tmp_path / "episodes.jsonl"]
    for to, name in (("sft", "sft.jsonl"), ("openai", "openai.jsonl"), ("hf", "hf")):
        assert main(["export", str(tmp_path / "episodes.jsonl"), "--to", to, "--out", str(tmp_path / name)]) == 0
        paths.append(tmp_path / name if to != "hf" else tmp_path / "hf" / "data" / "train-00000.parquet")
    found = []
    for path in paths:
        config = Config(sft=SFTConfig(data=str(path), held_out_share=0.5))
        data = SFTData(config.sft, training=config.training, env=config.env)
        await data.prepare(tiny_model)
        found.append([sample.rows for sample in next(data.batches())])
    assert found == [found[0]] * 5 and found[0]


def test_imported_logs_are_filtered_and_audited(
    tmp_path: Path, read: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = (an_atif(ASKED, ANSWERED, extra={"reward": reward}) for reward in (1, 0))
    read("atif", write(tmp_path / "log.jsonl", good, bad))
    file = tmp_path / "episodes.jsonl"
    assert main(["audit", str(file)]) == 0
    assert main(["export", str(file), "--to", "sft", "--out", str(tmp_path / "x.jsonl"), "--min-reward", "1"]) == 0
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 1
    first, _, rest = file.read_text().partition("\n")
    file.write_text(first.replace('"outcome": "scored", ', '"outcome": "timeout", ') + "\n" + rest)
    assert main(["audit", str(file)]) == 1
    assert f"{file}:1: " in capfd.readouterr().out


# ---- the published models of the format ----


@pytest.mark.slow
def test_harbor_takes_what_is_exported(tmp_path: Path) -> None:
    """Validates trajectories with the pydantic models of the package harbor, in an environment of its own.

    Harbor asks for Python 3.12; its models of trajectories need pydantic only.
    """
    python = tmp_path / "venv" / "bin" / "python"
    environ = {**os.environ, "HOME": str(tmp_path)}  # pip asks rustc for its version, which writes there
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", python.parents[1]],
        [*pip, "pydantic>=2.11"],
        [*pip, "--no-deps", "--ignore-requires-python", "harbor==0.25.0"],
    ):
        subprocess.run(command, check=True, env=environ)
    documents = []

    @given(episodes(), st.booleans())
    def collect(episode: Episode, tokens: bool) -> None:
        selected = Selected(episode, "train", 3)
        documents.append(trajectory(selected, agent="a", model="m", tools=[TOOL], tokens=tokens))

    collect()
    episode = Episode(task=Task(prompt=()), turns=(a_turn((1,), (2,)),), reward=1.0)
    documents.append(trajectory(Selected(episode, "", None), agent="a", model=None, tools=[], tokens=True))
    write(tmp_path / "all.jsonl", *documents)
    code = (
        "import sys, json\nfrom harbor.models.trajectories import Trajectory\n"
        "for line in open(sys.argv[1], encoding='utf-8'): Trajectory.model_validate(json.loads(line))"
    )
    done = subprocess.run([python, "-c", code, tmp_path / "all.jsonl"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(documents) > 20
