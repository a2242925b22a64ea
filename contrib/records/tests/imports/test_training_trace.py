"""TrainingTraces of OpenEnv: out and in without a change, foreign ones, and what OpenEnv and TRL make of ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.renderer.rendering import Renderer
from contrib.records.exports.select import Selected
from contrib.records.exports.training_trace import NO_TOKENS, REFUSED, training_trace
from contrib.records.imports.build import BadRecord, build
from contrib.records.imports.training_trace import read_trace
from contrib.records.tests.conftest import Command
from forge_env.core.episode import Episode, Lineage, Turn, digest, read_jsonl, write_jsonl
from forge_env.core.protocols import Conversation
from forge_env.core.routes import Routes
from forge_env.core.types import NOT_SAMPLED, Outcome, Task, ToolCall, ToolUse
from tests.helpers.own_environment import python_with
from tests.helpers.turns import next_prompt
from trainers.settings.supervised import SFTConfig
from trainers.sft import Config
from trainers.sft.data import SFTData
from trainers.sft.shapes import Example
from trainers.sft.source import open_source

TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
ROUTES = Routes(0, 1, 1, 1, b"\x01\x02")

texts = st.text(max_size=6)
ids = st.integers(0, 2**31 - 2)


@st.composite
def sampled_turns(draw: st.DrawFn, row: list[int], number: int) -> Turn:
    """A turn of several weight versions, with tokens that were inserted or sampled under a grammar."""
    starts = not row or draw(st.booleans())
    prompt = draw(st.lists(ids, min_size=starts, max_size=3))
    counts = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    versions = [(i // 2, n) if i % 2 == 0 else (NOT_SAMPLED, n) for i, n in enumerate(counts)]
    tokens = draw(st.lists(ids, min_size=sum(counts), max_size=sum(counts)))
    shown = [] if starts else [{"role": "tool", "content": draw(texts), "tool_call_id": f"c{number - 1}"}]
    if starts:
        shown += [{"role": "system", "content": draw(texts)}] * draw(st.booleans())
        shown += [{"role": "user", "content": draw(texts)}] * draw(st.integers(0, 2))
    context = [*([] if starts else row), *prompt]
    begins = [0, *(end for end, (v, _) in zip(accumulate(counts[:-1]), versions, strict=False) if v == NOT_SAMPLED)]
    arguments = draw(st.sampled_from(['{"a":1}', '{"a": 1}', "no JSON"]))
    call = {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": arguments}}
    parsed = ToolCall(id=f"c{number}", name="add", arguments=None, raw=arguments, error="It is not read.")
    constrained = draw(st.integers(0, len(tokens)))
    return Turn(
        kind="sampled",
        observation=tuple(shown),  # type: ignore[arg-type]
        message={"role": "assistant", "content": draw(texts), "reasoning_content": "hm", "tool_calls": [call]},
        tool_calls=(parsed,),
        prompt_ids=tuple(prompt),
        token_ids=tuple(tokens),
        logprobs=tuple(0.0 if v == NOT_SAMPLED else draw(st.floats(-99, 1e-5)) for v, n in versions for _ in range(n)),
        versions=tuple(versions),
        starts_row=starts,
        context_digest=" ".join(digest([*context, *tokens[:start]]) for start in begins),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        reward=draw(st.floats(-1, 1)),
        policy_seconds=draw(st.floats(0, 9)),
        env_seconds=draw(st.floats(0, 9)),
        tool_uses=(ToolUse(name="add", seconds=draw(st.floats(0, 9)), error="raised"),),
        routes=(ROUTES,) * draw(st.booleans()),
        constraint="json" if constrained else "",
        constrained=constrained,
        auxiliary=draw(st.sampled_from(["", "", "a title"])),
        is_summary=draw(st.booleans()),
    )


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    turns: list[Turn] = []
    row: list[int] = []
    for number in range(draw(st.integers(1, 4))):
        turn = draw(sampled_turns(row, number))
        row = [*([] if turn.starts_row else row), *turn.prompt_ids, *turn.token_ids]
        turns.append(turn)
    starts = [number for number, turn in enumerate(turns) if turn.starts_row]
    lineage = [Lineage(turn=n, parent=draw(st.sampled_from([None, 0])), agent="a", kind="tools") for n in starts]
    return Episode(
        lineage=tuple(lineage) if len(lineage) > 1 else (),
        task=Task(prompt=({"role": "user", "content": draw(texts)},), target=draw(texts), metadata={"a": 1}, kind="k"),
        turns=tuple(turns),
        tail=({"role": "user", "content": draw(texts)},) * draw(st.booleans()),
        outcome=draw(st.sampled_from([outcome for outcome in Outcome if outcome.is_valid])),
        reward=draw(st.floats(-9, 9)),
        rewards={"part": draw(st.floats(-1, 1))},
        success=draw(st.sampled_from([True, False, None])),
        id="t/0",
        group_id="t",
        env="shop",
        seed=3,
        ended_by="environment",
        info={"a": [1, None]},
    )


def a_turn(prompt: tuple[int, ...], tokens: tuple[int, ...], **more: Any) -> Turn:
    values: dict[str, Any] = {
        "kind": "sampled",
        "observation": ({"role": "user", "content": "2 + 2?"},),
        "message": {"role": "assistant", "content": "4"},
        "prompt_ids": prompt,
        "token_ids": tokens,
        "logprobs": (-0.5,) * len(tokens),
        "versions": ((7, len(tokens)),),
        "starts_row": True,
        "context_digest": digest(prompt),
    }
    return Turn(**{**values, **more})


def an_episode(*turns: Turn, **more: Any) -> Episode:
    values = {"task": Task(prompt=()), "reward": 1.0, "id": "e"}
    return Episode(turns=turns or (a_turn((1, 2), (3, 4)),), **{**values, **more})


def trace_of(episode: Episode) -> Any:
    return training_trace(Selected(episode, "train", 3), model="m", tools=[TOOL])


def a_call(prompt: list[int], tokens: list[int], mask: list[int], *said: str, **more: Any) -> dict[str, Any]:
    """A call as another program records it: user and assistant take turns in `said`."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    return {
        "node_id": f"{len(prompt)}",
        "prompt_token_ids": prompt,
        "completion_token_ids": tokens,
        "per_token_logps": [-0.5] * len(tokens),
        "loss_mask": [0] * len(prompt) + mask,
        "request": {"messages": messages[:-1]},
        "response": {"choices": [{"message": messages[-1], "finish_reason": "stop"}]},
        "metadata": {"model": "m"},
        **more,
    }


def read(*calls: dict[str, Any]) -> Episode:
    record = json.loads(json.dumps({"schema_version": 1, "turns": calls}))
    return Episode.from_json(build(read_trace(record), 1.0, "x").to_json())  # reading it checks the digests


# ---- out and in ----


@given(episodes())
def test_a_trace_comes_back_as_it_was(episode: Episode) -> None:
    trace = json.loads(json.dumps(trace_of(episode)))
    back = build(read_trace(trace), None, "x")
    assert back.rows == episode.rows
    assert [tuple(turn.logprobs) for turn in back.turns] == [tuple(turn.logprobs) for turn in episode.turns]
    assert back.info["imported"] == {"from": "OpenEnv TrainingTrace v1", "tools": [TOOL], "model": "m"}
    assert replace(back, info=episode.info) == episode
    assert trace_of(replace(back, info=episode.info)) == trace_of(episode)


@given(episodes())
def test_tokens_and_masks_survive_without_what_forge_env_keeps(episode: Episode) -> None:
    """Versions and the borders of rows that go on are ours alone; each token is learned once all the same."""
    calls = [{**call, "metadata": {}} for call in json.loads(json.dumps(trace_of(episode)))["turns"]]
    back = read(*calls)
    for was, now in zip(calls, trace_of(back)["turns"], strict=True):
        for name in ("prompt_token_ids", "completion_token_ids", "loss_mask"):
            assert now[name] == was[name], name
        learned = was["loss_mask"][len(was["prompt_token_ids"]) :]
        assert [p for p, bit in zip(now["per_token_logps"], learned, strict=True) if bit] == [
            p for p, bit in zip(was["per_token_logps"], learned, strict=True) if bit
        ]


def test_a_trace_says_which_call_a_row_comes_from_and_masks_auxiliary_ones() -> None:
    """Under the names of OpenEnv's graph, which are read back from traces of other programs."""
    title, work = a_turn((8, 9), (3, 4), auxiliary="a title"), a_turn((1, 2), (3, 4))
    lineage = (Lineage(turn=0, parent=1, agent="t", kind="auxiliary"), Lineage(turn=1, agent="main"))
    calls = json.loads(json.dumps(trace_of(an_episode(title, work, lineage=lineage))))["turns"]
    assert [call["loss_mask"] for call in calls] == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert calls[0]["metadata"]["parent_id"] == "e#1" and calls[0]["metadata"]["harness_session_id"] == "t"
    del calls[0]["metadata"]["forge_env"], calls[1]["metadata"]["forge_env"]
    back = read(calls[1], calls[0])
    assert [(row.turn, row.parent, row.agent, row.kind) for row in back.lineage] == [
        (0, None, "main", ""), (1, 0, "t", "imported"),
    ]  # fmt: skip
    assert [tuple(row.loss_mask) for row in back.rows] == [(False, False, True, True), (False,) * 4]


def test_a_trace_has_whole_prompts_and_masks() -> None:
    second = a_turn(
        (5,), (6, 7), starts_row=False, context_digest=digest((1, 2, 3, 4, 5)), constraint="json", constrained=1
    )
    trace = trace_of(an_episode(a_turn((1, 2), (3, 4)), second))
    assert trace["schema_version"] == 1
    first, last = trace["turns"]
    assert (first["node_id"], last["node_id"]) == ("e#0", "e#1")
    assert last["prompt_token_ids"] == [1, 2, 3, 4, 5] and last["completion_token_ids"] == [6, 7]
    assert last["loss_mask"] == [0, 0, 0, 0, 0, 1, 0] and last["per_token_logps"] == [-0.5, -0.5]
    assert [message["content"] for message in last["request"]["messages"]] == ["2 + 2?", "4", "2 + 2?"]
    assert last["metadata"]["forge_env"]["weight_versions"] == [[7, 2]]
    assert first["metadata"]["forge_env"]["episode"]["reward"] == 1.0


def test_what_no_trace_can_hold_is_left_out_and_counted(tmp_path: Path, command: Command) -> None:
    demonstration = a_turn((1,), (2,), kind="tokens", logprobs=(), versions=(), context_digest="")
    write_jsonl(
        tmp_path / "run.jsonl",
        [
            an_episode(id="good"),
            an_episode(demonstration, id="expert"),
            an_episode(id="fault", reward=None, outcome=Outcome.INFRA_FAULT),
            an_episode(a_turn((), (2,)), id="no prompt"),
            an_episode(a_turn((1,), (2,), logprobs=(float("nan"),)), id="nan"),
            Episode(task=Task(prompt=()), reward=0.0, id="no turn"),
        ],
    )
    result = command("export", str(tmp_path / "run.jsonl"), "--to", "training_trace", "--out", str(tmp_path / "out"))
    left_out = {NO_TOKENS: 1, "without a reward": 1, REFUSED: 2, "without an answer": 1}
    assert (result["episodes"], result["left_out"]) == (1, left_out)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["000000-good.json"]
    result = command("import", str(tmp_path / "out"), "--from", "training_trace", "--out", str(tmp_path / "in.jsonl"))
    assert (result["episodes"], result["defaulted"], result["unversioned"]) == (1, 0, 0)
    assert next(read_jsonl(tmp_path / "in.jsonl")).rows == an_episode().rows


# ---- traces of others ----


def test_calls_that_append_are_one_row_and_others_begin_one() -> None:
    episode = read(
        a_call([1, 2], [3, 4], [1, 1], "a", "b"),
        a_call([1, 2, 3, 4, 5], [6], [1], "a", "b", "c", "d"),
        a_call([9, 9], [8], [1], "summary", "e", node_id="another"),
    )
    assert [tuple(row.token_ids) for row in episode.rows] == [(1, 2, 3, 4, 5, 6), (9, 9, 8)]
    assert [[m["content"] for m in turn.observation] for turn in episode.turns] == [["a"], ["c"], ["summary"]]
    assert [tuple(row.versions) for row in episode.rows] == [(-1, -1, 0, 0, -1, 0), (-1, -1, 0)]
    assert episode.reward == episode.turns[-1].reward == 1.0


def test_history_that_is_written_otherwise_goes_on_where_its_tokens_do() -> None:
    episode = read(
        a_call([1, 2], [3, 4], [1, 1], "a", "b"), a_call([1, 2, 3, 4, 5], [6], [1], "a", "b as sent", "c", "d")
    )
    assert [message["content"] for message in episode.messages] == ["a", "b", "c", "d"]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.lists(st.integers(0, 1), min_size=1, max_size=3))
@example([0, 0], [0])
@example([0, 1], [1])
def test_any_mask_is_that_of_the_row(first: list[int], second: list[int]) -> None:
    tokens = list(range(3, 3 + len(first)))
    prompt = [1, 2, *tokens, 9]
    episode = read(
        a_call([1, 2], tokens, first, "a", "b"), a_call(prompt, [5] * len(second), second, "a", "b", "c", "d")
    )
    (row,) = episode.rows
    assert tuple(row.loss_mask) == tuple(map(bool, [0, 0, *first, 0, *second]))
    assert tuple(row.generator_logprobs) == tuple(-0.5 * bit for bit in [0, 0, *first, 0, *second])


def test_a_call_without_a_sampled_token_is_history(tmp_path: Path, command: Command) -> None:
    calls = [a_call([1], [], [], "a", ""), a_call([1, 2], [3], [1], "a", "", "b", "c")]
    (tmp_path / "log.jsonl").write_text(json.dumps({"turns": calls}) + "\n")
    words = ["--from", "training_trace", "--out", str(tmp_path / "in.jsonl"), "--reward", "0.5"]
    result = command("import", str(tmp_path / "log.jsonl"), *words)
    assert result["not_carried"] == {"calls without a sampled token": 1}
    assert (result["unversioned"], result["defaulted"]) == (1, 1)
    assert "do not say which weights sampled their tokens: the version is 0" in result["said"]
    (episode,) = read_jsonl(tmp_path / "in.jsonl")
    assert len(episode.turns) == 1 and [m["content"] for m in episode.messages] == ["a", "", "b", "c"]


GOOD = a_call([1, 2], [3], [1], "a", "b")


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"schema_version": 2, "turns": [GOOD]}, "its schema_version is 2"),
        ({"schema_version": True, "turns": [GOOD]}, "its schema_version is True"),
        ({"schema_version": 1, "turns": [GOOD], "reward": 1}, "no other key than schema_version"),
        ({"schema_version": 1}, "has a list of turns"),
        ({"turns": [GOOD, GOOD]}, "turn 2: the node_id '2' is there twice"),
        ({"turns": [{**GOOD, "reward": 1}]}, "unknown key 'reward'"),
        ({"turns": [{**GOOD, "node_id": ""}]}, "it has no node_id"),
        ({"turns": [{**GOOD, "prompt_token_ids": [], "loss_mask": [1]}]}, "it has no prompt_token_ids"),
        ({"turns": [{**GOOD, "completion_token_ids": [True]}]}, "a token id is no whole number"),
        ({"turns": [{**GOOD, "completion_token_ids": [2**31]}]}, "a token id is no whole number"),
        ({"turns": [{**GOOD, "per_token_logps": []}]}, "it has 0 logprobs for 1 tokens"),
        ({"turns": [{**GOOD, "per_token_logps": [0.1]}]}, "a logprob is no finite number up to 0"),
        ({"turns": [{**GOOD, "loss_mask": [0, 1]}]}, "its loss_mask is not one 0 or 1 for each token"),
        ({"turns": [{**GOOD, "loss_mask": [0, 0, 2]}]}, "its loss_mask is not one 0 or 1 for each token"),
        ({"turns": [{**GOOD, "loss_mask": [0, 1, 1]}]}, "its loss_mask is over tokens of the prompt"),
        ({"turns": [{**GOOD, "response": {"choices": [{}, {}]}}]}, "its response is not one with one choice"),
        ({"turns": [{**GOOD, "metadata": {"forge_env": {"reward": 1}}}]}, "has kept of it is broken (KeyError"),
    ],
)
def test_a_record_that_openenv_would_refuse_is_refused(record: Any, sentence: str) -> None:
    with pytest.raises(BadRecord) as raised:
        read_trace(record)
    assert sentence in str(raised.value)


def test_a_changed_mask_or_a_lost_turn_is_refused() -> None:
    second = a_turn((5,), (6,), starts_row=False, context_digest=digest((1, 2, 3, 4, 5)))
    trace = trace_of(an_episode(a_turn((1, 2), (3, 4)), second))
    changed = {**trace["turns"][0], "loss_mask": [0, 0, 1, 0]}
    with pytest.raises(BadRecord, match=r"turn 1: its loss_mask is another than its metadata\.forge_env says"):
        read_trace({"turns": [changed]})
    with pytest.raises(BadRecord, match="turn 1: its prompt does not go on"):
        read_trace({"turns": trace["turns"][1:]})


# ---- what it is for ----


def test_imported_traces_are_scored_filtered_audited_and_trained_on(
    tmp_path: Path, tiny_model: Path, command: Command
) -> None:
    """The tokens are those of the model, so they are decoded again, and SFT learns exactly what the mask says."""
    renderer, calls = Renderer(tiny_model), []
    conversation, messages = Conversation(request_id=""), [("What is 2 + 2?", "4"), ("And 3 + 3?", "7")]
    said: list[str] = []
    for number, (question, answer) in enumerate(messages):
        conversation.observation = ({"role": "user", "content": question},)
        prompt, _, _ = next_prompt(renderer, conversation, ())
        tokens = list(renderer.write({"role": "assistant", "content": answer}))
        mask = [1] * len(tokens) if number else [0] * len(tokens)
        said += [question, answer]
        calls.append(a_call(list(prompt), tokens, mask, *said))
        message = {"role": "assistant", "content": answer}
        played = a_turn(tuple(prompt), tuple(tokens), observation=conversation.observation, message=message)
        conversation.turns.append(played)
    log, file = tmp_path / "log.jsonl", str(tmp_path / "in.jsonl")
    log.write_text(json.dumps({"schema_version": 1, "turns": calls}) + "\n" + json.dumps({"turns": calls}) + "\n")
    command("import", str(log), "--from", "training_trace", "--out", file, "--reward", "1")
    found = command("audit", file, "--model", str(tiny_model))
    assert (found["problems"], found["decoded_turns"]) == ([], 4)

    (tmp_path / "reward.py").write_text("def six(answer):\n    return float(answer == '6')\n")
    scored = command("score", file, "--reward", f"{tmp_path}/reward.py:six", "--out", str(tmp_path / "scored.jsonl"))
    assert (scored["phases"][0]["reward_before"], scored["phases"][0]["reward_now"]) == (1.0, 0.0)
    none = ["--to", "sft", "--out", str(tmp_path / "none.jsonl"), "--min-reward", "1"]
    assert "nothing of" in command("export", str(tmp_path / "scored.jsonl"), *none, code=2)["error"]

    config = Config(sft=SFTConfig(data=file, held_out_share=0.5))
    data = SFTData(config.sft, training=config.training, env=config.env)
    asyncio.run(data.prepare(tiny_model))
    [sample, *_] = next(data.batches())
    rows = sample.rows
    assert [tuple(row.token_ids) for row in rows] == [tuple(row.token_ids) for row in next(read_jsonl(Path(file))).rows]
    assert sum(map(sum, (row.loss_mask for row in rows))) == sum(calls[1]["loss_mask"])

    broken = json.loads(Path(file).read_text().splitlines()[0])
    broken["turns"][1]["message"]["content"] = "6"
    Path(file).write_text(json.dumps(broken) + "\n")
    assert "its tokens decode to" in command("audit", file, "--model", str(tiny_model), code=1)["problems"][0]


def test_an_answer_that_no_loss_is_over_is_not_learned_as_text_either(tmp_path: Path, command: Command) -> None:
    calls = [a_call([1, 2], [3, 4], [0, 0], "a", "b"), a_call([1, 2, 3, 4, 5], [6], [1], "a", "b", "c", "d")]
    log, file = tmp_path / "log.jsonl", str(tmp_path / "in.jsonl")
    log.write_text(json.dumps({"turns": calls}) + "\n")
    command("import", str(log), "--from", "training_trace", "--out", file, "--reward", "1")
    command("export", file, "--to", "sft", "--out", str(tmp_path / "sft.jsonl"))
    messages = json.loads((tmp_path / "sft.jsonl").read_text())["messages"]
    assert [(m["content"], m.get("weight")) for m in messages] == [("a", None), ("b", 0), ("c", None), ("d", None)]
    [(_, episode)] = open_source(SFTConfig(data=file))
    assert isinstance(episode, Example) and episode.context == {1}


# ---- the published readers of the format ----

_READ = """
import json, sys
from openenv.core.harness.training import TrainingTrace
for line in open(sys.argv[1], encoding="utf-8"):
    print(TrainingTrace.model_validate_json(line).model_dump_json())
"""
_CHAIN = """
import json, sys
from openenv.core.harness.training import TrainingTrace
from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences
from trl.experimental.async_grpo.openenv_harness import _messages_from_trace, _turns_from_training_trace
for line in open(sys.argv[1], encoding="utf-8"):
    trace = TrainingTrace.model_validate_json(line)
    rows, _ = _chain_to_sequences(_turns_from_training_trace(trace), "r", 0)
    last = _messages_from_trace(trace.to_trace_entries())[-1]
    print(json.dumps([last["content"], [[r.input_ids, r.completion_mask, r.old_log_probs] for r in rows]]))
"""


def run_in(python: Path, code: str, traces: list[Any], folder: Path) -> list[Any]:
    """Run code that prints a line of JSON for each trace."""
    file = folder / "traces.jsonl"
    file.write_text("".join(json.dumps(trace) + "\n" for trace in traces), encoding="utf-8")
    done = subprocess.run([python, "-c", code, file], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line.startswith(("{", "["))]


@pytest.mark.slow
@pytest.mark.timeout(500)  # it installs the package
def test_openenv_takes_what_is_exported_and_gives_it_back(tmp_path: Path) -> None:
    found: list[Episode] = []

    @given(episodes())
    def collect(episode: Episode) -> None:
        found.append(episode)

    collect()
    written = run_in(python_with("openenv==0.10.0"), _READ, [trace_of(episode) for episode in found], tmp_path)
    for episode, trace in zip(found, written, strict=True):
        assert replace(build(read_trace(trace), None, "x"), info=episode.info) == episode
    assert len(found) >= 20


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it installs the packages
def test_the_asynchronous_trainer_of_trl_reads_the_rows_that_were_sampled(tmp_path: Path) -> None:
    going_on = a_turn(
        (5,), (6, 7), starts_row=False, context_digest=digest((1, 2, 3, 4, 5)), constraint="json", constrained=1
    )
    third = a_turn((9, 8), (7,), message={"role": "assistant", "content": "last"})
    episode = an_episode(a_turn((1, 2), (3, 4), logprobs=(-0.25, 1e-6)), going_on, third)
    python = python_with("trl==1.16.0", "openenv==0.10.0", "torch==2.13.0")
    ((last, rows),) = run_in(python, _CHAIN, [trace_of(episode)], tmp_path)
    assert last == "last"
    assert [(ids, mask) for ids, mask, _ in rows] == [
        (list(row.token_ids), [int(bit) for bit in row.loss_mask]) for row in episode.rows
    ]
    learned = [[p for p, bit in zip(logprobs, mask, strict=True) if bit] for _, mask, logprobs in rows]
    assert learned == [[-0.25, 0.0, -0.5], [-0.5]]
