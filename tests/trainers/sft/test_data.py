"""SFT data: what is read, what is rendered, what is left out and why, and in which order it is trained on."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.renderer.tokenizer import FastTokenizer
from agents.scripted import ScriptedAgent, scripted_agent
from envs.math import Math
from forge_env.core.episode import Episode, Row, write_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import THOUGHTS, EpisodeLimits, Message, ToolSpec
from forge_env.data.rows import BadRow, shuffled
from forge_env.evaluation.metrics import row_metrics
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from forge_env.utils.settings import with_values
from tests.helpers.rows import rows
from tests.helpers.tokenizer_folders import make_llama
from trainers.batching.batch import Sample
from trainers.settings.supervised import SFTConfig
from trainers.sft import Config
from trainers.sft.data import SFTData
from trainers.sft.rows import RowMaker, count_tokens, token_batches
from trainers.sft.shapes import find_shape

LIMITS = EpisodeLimits()
TOKENS = "training.max_tokens_per_micro_batch"
CHAT = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


def config_for(data: Path | str, **sft: Any) -> Config:
    return Config(sft=SFTConfig(data=str(data), **sft))


def data_of(config: Config) -> SFTData:
    return SFTData(config.sft, training=config.training, env=config.env, model_size=config.model.size)


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


async def prepared(data: Path | str, model: Path, config: Config | None = None, **sft: Any) -> tuple[SFTData, str]:
    output: list[str] = []
    found = data_of(config or config_for(data, **sft))
    await found.prepare(model, output.append)
    return found, "\n".join(output)


async def play(factory: EnvFactory, agent: ScriptedAgent, number: int) -> Episode:
    task = factory.tasks(count=number + 1)[number]
    return await run_episode(factory, agent, task, seed=number, episode_id=str(number), limits=LIMITS)


def written(rows: Sequence[Row]) -> tuple[bytes, ...]:
    """The ids and the masks of rows, to compare and to count."""
    return tuple(values.tobytes() for row in rows for values in (row.token_ids, row.loss_mask))


def learned(model: Path, rows: Sequence[Row]) -> str:
    ids = [token for row in rows for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    return FastTokenizer(model).decode(ids)


# ---- the same rows as rollouts have ----


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("name", ["math", "code_exec"])
async def test_messages_give_the_rows_of_their_episode(tiny_model: Path, llama: Path, name: str, family: str) -> None:
    await messages_give_the_rows({"qwen3": tiny_model, "llama": llama}[family], name)


async def messages_give_the_rows(model: Path, name: str) -> None:
    """From an episode's messages alone, as JSON, come its token ids and its mask."""
    maker, agent = RowMaker(model), scripted_agent(name, model=str(model))
    shape = find_shape(["messages", "tools"], source="test")
    async with make(name) as factory:
        tools = factory.make().tools
        episodes = [await play(factory, agent, number) for number in range(3)]
    for episode in episodes:
        assert episode.reward == 1.0 and len(episode.turns) >= 2
        row = json.loads(json.dumps({"messages": episode.messages, "tools": list(tools)}))
        read = shape.read(row)
        assert maker.render(read.messages, read.tools) == episode.rows
        for message in row["messages"]:  # as the endpoints write them: arguments are text
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        read = shape.read(row)
        assert maker.render(read.messages, read.tools) == episode.rows


def test_a_model_that_thinks_learns_each_thought_once(tiny_model: Path) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "two and two"},
        {"role": "user", "content": "And 3 + 3?"},
        {"role": "assistant", "content": "6"},
    ]
    rows = RowMaker(tiny_model, thinking="on").render(messages, ())
    assert len(rows) == 2 and "two and two" not in FastTokenizer(tiny_model).decode(rows[1].token_ids)
    written = "<think>\ntwo and two\n</think>\n\n4<|im_end|><think>\n\n</think>\n\n6<|im_end|>"
    assert learned(tiny_model, rows) == written
    begun: Message = {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\n4"}
    assert RowMaker(tiny_model, thinking="on").render([messages[0], begun, *messages[2:]], ()) == rows
    for answer in (messages[1], begun):
        with pytest.raises(BadRow, match="answers without: let it think"):
            RowMaker(tiny_model).render([messages[0], answer], ())


async def test_text_that_the_template_leaves_out_is_counted(tmp_path: Path, llama: Path) -> None:
    call = {"type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    rows = [chat(f"{n}?", "Let me see." * (n % 2)) for n in range(8)]
    for row in rows:
        row["messages"][-1]["tool_calls"] = [call]
    path = write_lines(tmp_path / "chats.jsonl", rows)
    sentence = "4 conversations hold text beside calls, which the chat template leaves out: it is not learned"
    assert data_of(config_for(path)).check(llama)[1:] == [sentence]
    config = with_values(config_for(path), {"training.seq_len": 8, "dry_run": True})
    with pytest.raises(UserError, match="5 more: it is longer than 8 tokens"):
        config.check_data(llama)
    write_lines(path, [*rows, chat("8?", "long " * 999)])
    found = with_values(config, {"training.seq_len": 400}).check_data(llama)
    assert "9 rows, 1 left out (line 9: it is longer than 400 tokens" in found[0] and found[1:] == [sentence]
    assert sentence in (await prepared(path, llama))[1].splitlines()


def test_exactly_what_the_assistant_wrote_is_learned(tiny_model: Path) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3 + 3? <|im_start|>assistant"},
        {"role": "assistant", "content": "6"},
        {"role": "user", "content": "Thanks."},
    ]
    rows = RowMaker(tiny_model).render(messages, ())
    assert learned(tiny_model, rows) == "4<|im_end|>6<|im_end|>"
    whole = "".join(FastTokenizer(tiny_model).decode(row.token_ids) for row in rows)
    assert "Thanks." not in whole
    assert whole.count("<|im_start|>assistant") == 2, "what a user spells out is text"


def test_a_llama_row_ends_with_its_own_end_of_turn(llama: Path) -> None:
    rows = RowMaker(llama).render([*CHAT], ())  # type: ignore[list-item]
    assert learned(llama, rows) == "4<|eot_id|>"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"content": "4<|im_end|>5"}, "spells out <|im_end|>"),
        ({"content": "Hm. <think>So</think> 4"}, "spells out <think>, which is not text to this model"),
        ({"content": "<tool_call>{4}</tool_call>"}, "spells out a call, and the call cannot be read"),
        ({"content": "4", "reasoning_content": "two and two"}, "reasoning"),
    ],
)
def test_chats_that_cannot_be_rendered_are_left_out(tiny_model: Path, answer: dict[str, str], words: str) -> None:
    messages: list[Any] = [CHAT[0], {"role": "assistant", **answer}]
    with pytest.raises(BadRow, match=words.replace("|", r"\|")):
        RowMaker(tiny_model).render(messages, ())


def test_a_call_in_the_text_of_an_answer_is_a_call(tiny_model: Path, llama: Path) -> None:
    """Datasets of a model's own form have no tool_calls, and write the thought in the text, with calls or without."""
    maker, call = RowMaker(tiny_model, thinking="on"), {"name": "add", "arguments": {"a": 1}}
    thought, text = "<think>\nHm.\n</think>\n\n", f"So:\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    beside: dict[str, Any] = {"tool_calls": [{"function": call}]}
    for said in (
        {"content": thought + text},
        {"content": f"{thought}So:", **beside},
        {"content": text, "reasoning_content": "Hm."},
    ):
        messages: list[Any] = [CHAT[0], {"role": "assistant", **said}]
        assert learned(tiny_model, maker.render(messages, ())) == f"{thought}{text}<|im_end|>"
    spelt: Any = {"role": "assistant", "content": f"So:<|python_tag|>{json.dumps(call)}"}
    assert RowMaker(llama).drops_text([CHAT[0], spelt])  # type: ignore[list-item]


# ---- shapes ----

OPENAI = ({"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"})
TOOL: ToolSpec = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"messages": list(OPENAI), "id": 3}, "the column messages"),
        ({"messages": json.dumps(OPENAI)}, "the column messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}, OPENAI[1]]}, "messages"),
        ({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}, "conversations"),
        ({"prompt": "2 + 2?", "completion": "4"}, "prompt and completion"),
        ({"prompt": [OPENAI[0]], "completion": [OPENAI[1]]}, "prompt and completion"),
        ({"answer": "4", "question": "2 + 2?"}, "question and answer"),
        ({"prompt": "2 + 2?", "response": "4"}, "prompt and response"),
        ({"instruction": "2 + 2?", "input": "", "output": "4"}, "instruction and output"),
    ],
)
def test_the_shapes(row: dict[str, Any], found: str) -> None:
    shape = find_shape(row, source="test")
    assert found in shape.columns
    read = shape.read(row)
    assert (read.messages, read.tools) == (OPENAI, ())


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_has_several_names(name: str) -> None:
    thoughts = dict.fromkeys(THOUGHTS[THOUGHTS.index(name) :], "So.") | {name: "Hm."}
    for answer in (OPENAI[1], {"from": "gpt", "value": "4"}, {"from": "function_call", "value": '{"name": "add"}'}):
        read = find_shape(["messages"], source="test").read({"messages": [OPENAI[0], {**answer, **thoughts}]})
        assert read.messages[1]["reasoning_content"] == "Hm."


def test_an_input_stands_behind_the_instruction() -> None:
    row = {"instruction": "Add.", "input": "2 + 2", "output": "4"}
    assert find_shape(row, source="test").read(row).messages[0] == {"role": "user", "content": "Add.\n\n2 + 2"}


def test_a_column_of_another_name() -> None:
    shape = find_shape(["dialogue", "id"], source="test", messages_field="dialogue")
    assert shape.read({"dialogue": list(OPENAI)}).messages == OPENAI
    with pytest.raises(UserError, match=r"messages_field is 'dialog', and test has the columns prompt, completion"):
        find_shape(["prompt", "completion"], source="test", messages_field="dialog")


OTHERS = {"name": "add", "description": "Add.", "input_schema": json.dumps(TOOL["function"]["parameters"])}


@pytest.mark.parametrize("tools", [[TOOL], [TOOL["function"]], json.dumps([TOOL]), [json.dumps(TOOL)], [OTHERS]])
def test_calls_and_tools(tools: Any) -> None:
    """OpenAI's and ShareGPT's ways of writing one call and its result are read as the same conversation."""
    function = {"name": "add", "arguments": {"a": 1}}
    openai = [
        {"role": "developer", "content": "Add."},
        {"role": "user", "content": "1?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "1", "tool_call_id": "call_0"},
        {"role": "assistant", "content": "1"},
    ]
    sharegpt = [
        {"from": "human", "value": "1?"},
        {"from": "function_call", "value": json.dumps(function)},
        {"from": "observation", "value": "1"},
        {"from": "gpt", "value": "1"},
    ]
    one = find_shape(["messages"], source="test").read({"messages": openai, "tools": tools})
    other = find_shape(["conversations"], source="test").read(
        {"conversations": sharegpt, "system": "Add.", "tools": tools}
    )
    assert one.tools == other.tools == (TOOL,)
    assert one.messages[2]["tool_calls"] == other.messages[2]["tool_calls"]
    assert [(m["role"], m["content"]) for m in one.messages] == [(m["role"], m["content"]) for m in other.messages]


@pytest.mark.parametrize(("row", "words"), rows(__file__, "bad_rows.tsv"))
def test_a_row_that_is_no_conversation_to_learn_from(row: str, words: str) -> None:
    with pytest.raises(BadRow) as refused:
        find_shape(["messages"], source="test").read(json.loads(row))
    assert words in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5) | st.sampled_from(["user", "assistant", "[]"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "from", "value", "tool_calls", "function", "name", "arguments", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "completion", "tools", "system"]), JSON))
def test_any_row_is_read_or_refused(row: dict[str, Any]) -> None:
    for columns in (["messages"], ["conversations"], ["prompt", "completion"]):
        try:
            read = find_shape(columns, source="test").read(row)
        except BadRow:
            continue
        assert any(message["role"] == "assistant" for message in read.messages)


ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def test_a_message_of_weight_0_is_context_only(tiny_model: Path) -> None:
    messages = [ASKED, {**SAID, "content": "first", "weight": 0}, ASKED, {**SAID, "content": "second", "weight": 1}]
    messages = [ASKED, {**SAID, "content": "", "weight": 0}, *messages]
    read = find_shape(["messages"], source="test").read({"messages": messages, "system": "Be brief."})
    assert not any("weight" in message for message in read.messages)
    weighted = RowMaker(tiny_model).render(read.messages, (), context=read.context)
    plain = RowMaker(tiny_model).render(read.messages, ())
    assert read.context == {2, 4} and learned(tiny_model, weighted) == "second<|im_end|>"
    assert [tuple(row.token_ids) for row in weighted] == [tuple(row.token_ids) for row in plain]


def test_the_older_form_of_calls_is_what_the_newer_one_is(tiny_model: Path) -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    result = {"role": "function", "name": "add", "content": "2"}
    older = [ASKED, {"role": "assistant", "content": None, "function_call": call}, result, SAID]
    newer = [ASKED, {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}, result, SAID]
    read = find_shape(["messages"], source="test").read
    old, new = read({"messages": older, "functions": [TOOL["function"]]}), read({"messages": newer, "tools": [TOOL]})
    assert old == new and old.messages[1]["tool_calls"] and old.messages[2]["role"] == "tool"
    assert '"name": "add"' in learned(tiny_model, RowMaker(tiny_model).render(old.messages, old.tools))


@pytest.mark.parametrize(
    "message", [{"content": None, "refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}]
)
def test_a_refusal_is_what_the_assistant_wrote(message: dict[str, Any]) -> None:
    read = find_shape(["messages"], source="test").read({"messages": [ASKED, {"role": "assistant", **message}]})
    assert read.messages[-1]["content"] == "No."


# ---- files ----


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "byte order mark"])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
async def test_the_kinds_of_files(tmp_path: Path, tiny_model: Path, suffix: str, mark: bytes) -> None:
    import datasets

    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(10)]
    path = tmp_path / f"chats{suffix}"
    if suffix == ".jsonl":
        write_lines(path, rows)
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        table = datasets.Dataset.from_list(rows)
        table.to_csv(path) if suffix == ".csv" else table.to_parquet(path)
    if suffix != ".parquet":
        path.write_bytes(mark + path.read_bytes())
    data, output = await prepared(path, tiny_model, held_out_share=0)
    assert data.about == "chats in the columns question and answer"
    assert output.startswith("10 conversations") and "left out" not in output
    batch = next(data.batches())
    assert {learned(tiny_model, sample.rows) for sample in batch} == {f"{2 * n}<|im_end|>" for n in range(10)}


async def test_a_table_with_calls_of_different_tools(tmp_path: Path, tiny_model: Path) -> None:
    """A Parquet file has one type for all rows' arguments: what a row has not got is no argument."""
    import datasets

    def row(**arguments: int) -> dict[str, Any]:
        call = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": arguments}}
        return {"messages": [OPENAI[0], {"role": "assistant", "content": "", "tool_calls": [call]}]}

    datasets.Dataset.from_list([row(a=1), row(b=2)]).to_parquet(tmp_path / "calls.parquet")
    data, _ = await prepared(tmp_path / "calls.parquet", tiny_model, held_out_share=0)
    texts = sorted(learned(tiny_model, sample.rows) for sample in next(data.batches()))
    assert ['"arguments": {"a": 1}' in texts[0], '"arguments": {"b": 2}' in texts[1]] == [True, True]


async def test_bad_lines_are_counted_and_the_first_is_named(tmp_path: Path, tiny_model: Path) -> None:
    rows = [chat("1?", "1"), "", "{broken", [1], {"messages": 3}, chat("2?", "2"), chat("3?", "3<|im_end|>")]
    data, output = await prepared(write_lines(tmp_path / "chats.jsonl", rows), tiny_model, held_out_share=0)
    assert output.startswith("2 conversations")
    assert "4 left out (line 3: it is no JSON" in output
    assert "line 4: it is [1], not an object" in output and "line 7: an assistant message spells out" in output
    assert data.left_out.total == 4


async def test_rows_longer_than_the_limit_are_left_out(tmp_path: Path, tiny_model: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [chat("1?", "1"), chat("2?", "2 " * 100), chat("3?", "3")])
    config = config_for(path, held_out_share=0)
    config = with_values(config, {"training.seq_len": 64})
    _, output = await prepared(path, tiny_model, config)
    assert output.startswith("2 conversations")
    assert "1 left out (line 2: it is longer than 64 tokens (--training.seq_len))" in output
    config = with_values(config, {"training.seq_len": 100_000})
    with pytest.raises(UserError, match="reads 1024 tokens at most"):
        await prepared(path, tiny_model, config)


async def test_nothing_left_says_why(tmp_path: Path, tiny_model: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": [OPENAI[0]]}] * 3)
    with pytest.raises(UserError, match=r"nothing of .* is left.*3 left out \(line 1, .*: it has no assistant"):
        await prepared(path, tiny_model)
    with pytest.raises(UserError, match="nothing of"):
        data_of(config_for(path)).make_model(tmp_path / "model")
    with pytest.raises(UserError, match=r"nothing of .* is left.*3 left out \(line 1, .*: it has no assistant"):
        data_of(config_for(path)).check(None)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere.jsonl", None, "there is no file /"),
        ("no where", None, "it is no hub id like"),
        ("./nowhere", None, "it is no hub id like"),
        ("notes.txt", "hello", "ends in none of .jsonl, .jsonl.gz"),
        ("empty.jsonl", "", "empty"),
        ("broken.jsonl", "{\n", "line 1: it is no JSON"),
        ("text.jsonl", '{"text": "hello", "id": 1}\n', "has the columns text, id"),
        ("broken.parquet", "PAR", "cannot be"),
    ],
)
def test_data_that_cannot_be_used_is_refused(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    where = name if content is None and not name.endswith("jsonl") else str(tmp_path / name)
    with pytest.raises(UserError) as refused:
        data_of(config_for(where))
    assert words in str(refused.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        data_of(config_for(tmp_path))


# ---- Episodes ----


async def episodes(model: Path | None, count: int = 4) -> list[Episode]:
    agent = ScriptedAgent(Math.expert, model=str(model) if model else "")
    async with EnvFactory(Math, name="math") as factory:
        return [await play(factory, agent, number) for number in range(count)]


async def test_token_exact_episodes_are_taken_as_they_are(tmp_path: Path, tiny_model: Path) -> None:
    played = await episodes(tiny_model)
    write_jsonl(tmp_path / "episodes.jsonl", played)
    data, output = await prepared(tmp_path / "episodes.jsonl", tiny_model, held_out_share=0)
    assert data.about == "Episodes" and "another model" not in output
    assert Counter(written(s.rows) for s in next(data.batches())) == Counter(
        written(episode.rows) for episode in played
    )


async def test_tokens_under_a_grammar_are_learned(tmp_path: Path, tiny_model: Path) -> None:
    """No policy gradient is over them, since their logprobs are not the model's own; an imitation needs none."""
    [plain] = await episodes(tiny_model, count=1)

    def sampled(constrained: bool) -> Episode:
        counts = [len(turn.token_ids) for turn in plain.turns]
        turns = [
            replace(
                turn,
                kind="sampled",
                logprobs=(-0.5,) * count,
                versions=((0, count),),
                constrained=count * constrained,
                constraint="json 0" * constrained,
            )
            for turn, count in zip(plain.turns, counts, strict=True)
        ]
        return replace(plain, turns=tuple(turns))

    free, formed = sampled(False), sampled(True)
    assert not any(any(row.loss_mask) for row in formed.rows)
    assert row_metrics([free, formed])["rollout/constrained_tokens"] == 0.5
    assert "rollout/constrained_tokens" not in row_metrics([free])
    write_jsonl(tmp_path / "episodes.jsonl", [formed])
    data, _ = await prepared(tmp_path / "episodes.jsonl", tiny_model, held_out_share=0)
    [sample] = next(data.batches())
    assert sample.rows == free.rows and any(any(row.loss_mask) for row in sample.rows)


@pytest.mark.parametrize("recorded_with", ["text", "another model"])
async def test_other_episodes_are_rendered(tmp_path: Path, tiny_model: Path, llama: Path, recorded_with: str) -> None:
    """Of text, or of another tokenizer: they become what this model's own episodes are, tools included."""
    write_jsonl(tmp_path / "episodes.jsonl", await episodes(None if recorded_with == "text" else llama))
    data, output = await prepared(tmp_path / "episodes.jsonl", tiny_model, held_out_share=0)
    assert ("4 episodes hold the tokens of another model" in output) == (recorded_with == "another model")
    expected = await episodes(tiny_model)
    assert Counter(written(s.rows) for s in next(data.batches())) == Counter(
        written(episode.rows) for episode in expected
    )


async def test_episodes_of_too_little_reward_are_left_out(tmp_path: Path, tiny_model: Path) -> None:
    good, bad, broken, digest = [json.loads(episode.to_json()) for episode in await episodes(tiny_model)]
    bad["reward"] = 0.5
    broken |= {"reward": None, "outcome": "env_fault"}
    digest["turns"][0]["context_digest"] = "0" * 16
    path = write_lines(tmp_path / "episodes.jsonl", [bad, good, broken, digest, {**good, "schema_version": 1}])
    data, output = await prepared(path, tiny_model, held_out_share=0)
    assert output.startswith("1 conversations") and data.left_out.total == 4
    assert "4 left out (line 1: its reward is below 1 (--sft.min_reward)" in output
    assert "line 3: it has no reward, as its outcome is env_fault" in output
    assert "line 4: episode invariant broken" in output
    _, output = await prepared(path, tiny_model, held_out_share=0, min_reward=0.5)
    assert output.startswith("2 conversations")


# ---- order, batches, held-out ----


def many(tmp_path: Path, count: int = 200) -> Path:
    return write_lines(tmp_path / "chats.jsonl", [chat(f"{n} + {n}?", str(2 * n)) for n in range(count)])


async def test_every_epoch_has_every_row_once_in_an_order_of_the_seed(tmp_path: Path, tiny_model: Path) -> None:
    config = config_for(many(tmp_path), tokens_per_step=300, epochs=2)
    data = data_of(config)
    number = await data.prepare(tiny_model)
    assert len(data.held_out) == 4
    batches = data.batches()
    steps = [next(batches) for _ in range(number)]
    assert all(sum(map(count_tokens, batch)) <= 300 for batch in steps)
    trained = [written(sample.rows) for batch in steps for sample in batch]
    assert len(trained) == 2 * 196
    first, second = trained[:196], trained[196:]
    assert first != second and Counter(first) == Counter(second)
    assert not {written(sample.rows) for sample in data.held_out} & set(first)
    again, _ = await prepared("", tiny_model, config)
    assert [s.rows for s in next(again.batches())] == [s.rows for s in steps[0]]
    config = with_values(config, {"training.seed": 1})
    other, _ = await prepared("", tiny_model, config)
    assert [s.rows for s in next(other.batches())] != [s.rows for s in steps[0]]
    assert [s.rows for s in other.held_out] == [s.rows for s in data.held_out]


async def test_a_stream_has_the_same_rows(tmp_path: Path, tiny_model: Path) -> None:
    path = many(tmp_path)
    whole, _ = await prepared(path, tiny_model)
    write_lines(path, [path.read_text().rstrip(), "{broken"])
    config = with_values(config_for(path, streaming=True), {"training.steps": 5})
    stream, output = await prepared(path, tiny_model, config)
    assert "the beginning of the stream" in output and config.training.steps == 5
    assert stream.held_out == whole.held_out
    one_epoch = Counter(written(sample.rows) for sample in next(whole.batches()))
    assert Counter(written(sample.rows) for sample in next(stream.batches())) == one_epoch
    beginning, output = await prepared(path, tiny_model, with_values(config, {"sft.held_out_share": 0.0}))
    assert "left out" not in output and next(beginning.batches())
    assert beginning.left_out.total == 1


async def test_two_conversations_are_one_to_train_and_one_held_out(tmp_path: Path, tiny_model: Path) -> None:
    data, _ = await prepared(many(tmp_path, 2), tiny_model)
    assert (len(data.held_out), len(next(data.batches()))) == (1, 1)


def spoken(sample: Sample, model: Path) -> str:
    return " ".join(FastTokenizer(model).decode(sample.rows[0].token_ids).casefold().split())


@pytest.mark.parametrize(
    ("copy", "streaming"),
    [
        ({}, False),
        ({}, True),
        ({"id": 7, "source": "b"}, False),
        (
            {"messages": [{"role": "user", "content": " WHAT  is 1?\n"}, {"role": "assistant", "content": "one 1"}]},
            False,
        ),
        ({"tail": {"role": "user", "content": "thanks"}}, False),
        ({"head": {"role": "system", "content": "Be brief."}}, False),
    ],
)
async def test_no_copy_of_a_held_out_conversation_is_trained(
    tmp_path: Path, tiny_model: Path, copy: dict[str, Any], streaming: bool
) -> None:
    """300 chats of which 60 differ."""
    rows = []
    for number in range(300):
        row = chat(f"what is {number % 60}?", f"one {number % 60}")
        if number >= 60:
            if number % 60 == 1 and "messages" in copy:
                row = copy
            row = {**row, **{name: value for name, value in copy.items() if name in ("id", "source")}}
            head, tail = ([copy[name]] if name in copy else [] for name in ("head", "tail"))
            row["messages"] = [*head, *row["messages"], *tail]
        rows.append(row)
    config = config_for(write_lines(tmp_path / "chats.jsonl", rows), held_out_share=0.1, streaming=streaming)
    config = with_values(config, {"training.steps": 1} if streaming else {})
    data, output = await prepared("", tiny_model, config)
    assert len(data.held_out) == 6
    assert "240 conversations repeat earlier ones" in output and data.record()["repeated"] == 240
    trained = [sample for batch in itertools.islice(data.batches(), 1) for sample in batch]
    held_out = {int(spoken(sample, tiny_model).split("what is ")[1].split("?")[0]) for sample in data.held_out}
    numbers = [int(spoken(sample, tiny_model).split("what is ")[1].split("?")[0]) for sample in trained]
    assert len(numbers) > 20 and not held_out & set(numbers)


async def test_copies_of_one_conversation_are_trained_and_not_measured(tmp_path: Path, tiny_model: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [chat("What is 2?", "2")] * 50)
    data, output = await prepared(path, tiny_model)
    assert not data.held_out and "nothing is held out: all conversations are copies of one" in output
    assert len(next(data.batches())) == 50


async def test_the_episodes_of_a_held_out_task_are_not_trained(tmp_path: Path, tiny_model: Path) -> None:
    episodes = []
    for attempt in range(4):

        async def say(messages: list[Message], text: str = f"attempt {attempt}") -> Message:
            return {"role": "assistant", "content": text}

        episodes += [await play(make("math"), ScriptedAgent(say), number) for number in range(10)]
    write_jsonl(tmp_path / "episodes.jsonl", episodes)
    data, _ = await prepared(tmp_path / "episodes.jsonl", tiny_model, min_reward=0, held_out_share=0.2)
    assert len(data.held_out) == 2
    assert len(next(data.batches())) == 40 - 8
    write_jsonl(tmp_path / "one_task.jsonl", episodes[::10])
    data, _ = await prepared(tmp_path / "one_task.jsonl", tiny_model, min_reward=0, held_out_share=0.5)
    assert (len(data.held_out), len(next(data.batches()))) == (2, 2)


@pytest.mark.parametrize("tokens", [100, 2000])
async def test_a_run_that_goes_on_trains_the_batches_that_it_began_with(
    tmp_path: Path, tiny_model: Path, tokens: int
) -> None:
    rows = [chat("long " * (n if n % 50 == 0 else 1), f"{n}") for n in range(200)]
    config = with_values(config_for(write_lines(tmp_path / "c", rows).rename(tmp_path / "c.jsonl")), {TOKENS: 400})
    began = data_of(config)
    steps = await began.prepare(tiny_model)
    again = data_of(with_values(config, {TOKENS: tokens}))
    assert await again.prepare(tiny_model, began=began.record()) == steps
    for batches in itertools.islice(zip(began.batches(), again.batches(), strict=True), steps):
        assert [written(s.rows) for s in batches[0]] == [written(s.rows) for s in batches[1]]


async def test_a_run_does_not_go_on_with_other_rows(tmp_path: Path, tiny_model: Path) -> None:
    began, _ = await prepared(many(tmp_path), tiny_model)
    other = data_of(config_for(write_lines(tmp_path / "chats.jsonl", [chat("What is 2?", "2")] * 200)))
    with pytest.raises(UserError, match=r"the rows of .*chats.jsonl are other tokens than when this run began"):
        await other.prepare(tiny_model, began=began.record())


@given(st.lists(st.integers(2, 30), max_size=40), st.integers(1, 60))
def test_batches_keep_order_and_budget(lengths: list[int], budget: int) -> None:
    samples = [
        Sample(rows=(Row(token_ids=(1,) * n, loss_mask=(True,) * n, generator_logprobs=(), versions=()),))
        for n in lengths
    ]
    batches = list(token_batches(samples, budget))
    assert [sample for batch in batches for sample in batch] == samples
    assert all(len(batch) == 1 or sum(map(count_tokens, batch)) <= budget for batch in batches)
    assert all(count_tokens(b[0]) + sum(map(count_tokens, a)) > budget for a, b in itertools.pairwise(batches))


@given(st.integers(0, 50), st.integers(1, 20), st.integers())
def test_a_buffer_loses_nothing(count: int, buffer: int, seed: int) -> None:
    taken = list(shuffled(range(count), random.Random(seed), buffer=buffer))
    assert sorted(taken) == list(range(count))
    assert all(item < place + buffer for place, item in enumerate(taken)), "no item comes before it was read"


def test_the_tiny_model_knows_the_words_of_the_data(tmp_path: Path) -> None:
    rows = [chat(f"How many parakeets are {n} parakeets?", f"{n} parakeets.") for n in range(50)]
    parameters = data_of(config_for(write_lines(tmp_path / "chats.jsonl", rows))).make_model(tmp_path / "model")
    assert parameters > 100_000
    assert len(FastTokenizer(tmp_path / "model").encode("How many parakeets are 7 parakeets?")) < 12
