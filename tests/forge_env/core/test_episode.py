"""Episode and Group: what is refused at construction, and what survives disk and pickle."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import struct
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forge_env.core.episode import Episode, Group, Lineage, Row, Turn, digest, read_jsonl, write_jsonl
from forge_env.core.errors import InvariantError, UserError
from forge_env.core.tokens import MOST_NUMBERS
from forge_env.core.types import Outcome, Task, ToolCall

few = settings(max_examples=25, deadline=None)
TASK = Task(prompt=({"role": "user", "content": "2+2?"},), target="4")


def sampled(prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], context: tuple[int, ...], **more: Any) -> Turn:
    """A sampled turn whose engine reports `context` as the prompt that it saw."""
    fields = {
        "observation": ({"role": "user", "content": "2+2?"},),
        "message": {"role": "assistant", "content": "4"},
        "logprobs": (-0.5,) * len(token_ids),
        "versions": ((0, len(token_ids)),),
        "context_digest": digest(context),
    }
    return Turn(kind="sampled", prompt_ids=prompt_ids, token_ids=token_ids, **{**fields, **more})


def episode(*turns: Turn, **more: Any) -> Episode:
    fields = {"task": TASK, "outcome": Outcome.SCORED, "reward": 1.0, "id": "g/0"}
    return Episode(turns=turns, **{**fields, **more})


words = st.text(max_size=6)
ids = st.integers(0, 2**31 - 2)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": words}), max_size=2
).map(tuple)
calls = st.lists(
    st.builds(
        ToolCall, id=words, name=words, arguments=st.none() | st.dictionaries(words, plain, max_size=2), raw=words
    ),
    max_size=2,
).map(tuple)


@st.composite
def spans(draw: st.DrawFn, tokens: int) -> tuple[tuple[int, int], ...]:
    """Cut `tokens` tokens into spans of rising weight versions."""
    cuts = sorted(draw(st.sets(st.integers(1, tokens - 1), max_size=2))) if tokens > 1 else []
    edges = [0, *cuts, tokens]
    version = draw(st.integers(0, 9))
    return tuple((version + i, b - a) for i, (a, b) in enumerate(pairwise(edges)))


@st.composite
def episodes(draw: st.DrawFn, kinds: tuple[str, ...] = ("text", "tokens", "sampled"), min_turns: int = 0) -> Episode:
    turns: list[Turn] = []
    row: list[int] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=min_turns, max_size=5)):
        common = {
            "observation": draw(messages),
            "message": {"role": "assistant", "content": draw(words)},
            "tool_calls": draw(calls),
            "reward": draw(st.floats(-1, 1)),
            "policy_seconds": draw(st.floats(0, 9)),
        }
        if kind == "text":
            turns.append(Turn(kind="text", **common))
            continue
        starts = not row or draw(st.booleans())
        prompt, tokens = draw(st.lists(ids, min_size=1, max_size=3)), draw(st.lists(ids, min_size=1, max_size=4))
        row = [*([] if starts else row), *prompt]
        common |= {"prompt_ids": tuple(prompt), "token_ids": tuple(tokens), "starts_row": starts}
        if kind == "sampled":
            common["context_digest"] = digest(row)
            common["logprobs"] = tuple(draw(st.floats(-99, 0)) for _ in tokens)
            common["versions"] = draw(spans(len(tokens)))
        turns.append(Turn(kind=kind, **common))
        row = row + tokens
    outcome = draw(st.sampled_from(Outcome))
    return Episode(
        task=Task(prompt=draw(messages), target=draw(plain), metadata=draw(st.dictionaries(words, plain, max_size=2))),
        turns=tuple(turns),
        outcome=outcome,
        reward=draw(st.floats(-9, 9)) if outcome.is_valid else None,
        id=draw(words),
        seed=draw(st.integers(0, 2**40)),
        rewards=draw(st.dictionaries(words, st.floats(-1, 1), max_size=2)),
        tail=draw(messages),
        error=draw(words),
        info=draw(st.dictionaries(words, plain, max_size=2)),
    )


def test_rows_of_two_turns_and_a_new_row_by_hand() -> None:
    first = sampled((1, 8), (9, 2), context=(1, 8), starts_row=True, logprobs=(-0.2, -0.1), versions=((3, 1), (4, 1)))
    second = sampled((5,), (6,), context=(1, 8, 9, 2, 5), versions=((4, 1),))
    third = sampled((7, 7), (3,), context=(7, 7), starts_row=True, versions=((5, 1),))
    result = episode(first, second, third)
    assert result.rows == (
        Row(
            token_ids=(1, 8, 9, 2, 5, 6),
            loss_mask=(False, False, True, True, False, True),
            generator_logprobs=(0.0, 0.0, -0.2, -0.1, 0.0, -0.5),
            versions=(-1, -1, 3, 4, -1, 4),
        ),
        Row(
            token_ids=(7, 7, 3),
            loss_mask=(False, False, True),
            generator_logprobs=(0.0, 0.0, -0.5),
            versions=(-1, -1, 5),
        ),
    )
    assert result.num_sampled == 4
    assert result.versions == (3, 4, 5)


def test_inserted_tokens_are_in_a_row_and_not_in_its_loss_mask() -> None:
    turn = sampled(
        (1, 8),
        (9, 6, 6, 7, 2),
        context=(1, 8),
        starts_row=True,
        logprobs=(-0.2, 0.0, 0.0, -0.3, -0.1),
        versions=((3, 1), (-1, 2), (3, 1), (4, 1)),
        context_digest=f"{digest((1, 8))} {digest((1, 8, 9, 6, 6))}",
    )
    second = sampled((5,), (4,), context=(1, 8, 9, 6, 6, 7, 2, 5), versions=((4, 1),))
    result = episode(turn, second)
    [row] = result.rows
    assert row == Row(
        token_ids=(1, 8, 9, 6, 6, 7, 2, 5, 4),
        loss_mask=(False, False, True, False, False, True, True, False, True),
        generator_logprobs=(0.0, 0.0, -0.2, 0.0, 0.0, -0.3, -0.1, 0.0, -0.5),
        versions=(-1, -1, 3, -1, -1, 3, 4, -1, 4),
    )
    assert (result.num_sampled, turn.num_written, result.versions) == (4, 3, (3, 4))
    assert Episode.from_json(result.to_json()) == result
    assert pickle.loads(pickle.dumps(result)).rows == result.rows


@pytest.mark.parametrize(
    "changed",
    [
        {"context_digest": digest((1, 8))},
        {"context_digest": f"{digest((1, 8))} {digest((1, 8, 9, 6))}"},
        {"context_digest": f"{digest((1, 8))} {digest((1, 8, 9, 6, 6))}", "versions": ((3, 5),)},
    ],
    ids=["a digest is missing", "another prompt", "all tokens sampled"],
)
def test_what_the_engine_saw_after_inserted_tokens_is_checked(changed: dict[str, Any]) -> None:
    turn = {"context": (1, 8), "starts_row": True, "versions": ((3, 1), (-1, 2), (3, 2)), **changed}
    with pytest.raises(InvariantError, match="what the engine saw"):
        episode(sampled((1, 8), (9, 6, 6, 7, 2), **turn))


@few
@given(episodes())
def test_rows_are_the_concatenation_of_the_turns(result: Episode) -> None:
    turns = [turn for turn in result.turns if turn.kind != "text"]
    numbers = list(accumulate(turn.starts_row for turn in turns))  # 1-based row of each turn
    assert len(result.rows) == (numbers[-1] if numbers else 0)
    for number, row in enumerate(result.rows, 1):
        mine = [turn for turn, n in zip(turns, numbers, strict=True) if n == number]
        assert list(row.token_ids) == [i for turn in mine for i in (*turn.prompt_ids, *turn.token_ids)]
        assert len(row.token_ids) == len(row.loss_mask) == len(row.generator_logprobs) == len(row.versions)
        written = [i for i, m in zip(row.token_ids, row.loss_mask, strict=True) if m]
        assert written == [i for turn in mine for i in turn.token_ids]
        logprobs = [p for p, m in zip(row.generator_logprobs, row.loss_mask, strict=True) if m]
        of_turns = [turn.logprobs.tolist() or [0.0] * len(turn.token_ids) for turn in mine]
        assert logprobs == [p for logprobs in of_turns for p in logprobs]
        assert all(
            p == 0 and v == -1
            for p, v, m in zip(row.generator_logprobs, row.versions, row.loss_mask, strict=True)
            if not m
        )


BREAK = {
    "a logprob is missing": lambda turn: {"logprobs": turn.logprobs[1:]},
    "a logprob too many": lambda turn: {"logprobs": (*turn.logprobs, -1.0)},
    "a span too long": lambda turn: {
        "versions": ((*turn.versions[0][:1], turn.versions[0][1] + 1), *turn.versions[1:])
    },
    "a span too many": lambda turn: {"versions": (*turn.versions, (9, 1))},
    "an empty span": lambda turn: {"versions": (*turn.versions, (9, 0))},
    "no spans": lambda turn: {"versions": ()},
    "no tokens": lambda turn: {"token_ids": (), "logprobs": (), "versions": ()},
    "another prompt token": lambda turn: {"prompt_ids": (turn.prompt_ids[0] + 1, *turn.prompt_ids[1:])},
    "a prompt token missing": lambda turn: {"prompt_ids": turn.prompt_ids[1:]},
    "a prompt token too many": lambda turn: {"prompt_ids": (*turn.prompt_ids, 0)},
    "another digest": lambda turn: {"context_digest": digest((1, 2, 3))},
    "another row": lambda turn: {"starts_row": not turn.starts_row},
    "tokens in a text turn": lambda turn: {"kind": "text"},
    "logprobs in a demonstration": lambda turn: {"kind": "tokens"},
}


@pytest.mark.parametrize("rule", BREAK)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_one_wrong_field_is_refused(rule: str, data: st.DataObject) -> None:
    good = data.draw(episodes(kinds=("tokens", "sampled", "sampled"), min_turns=1))
    places = [i for i, turn in enumerate(good.turns) if turn.kind == "sampled"]
    assume(places)
    place = data.draw(st.sampled_from(places))
    with pytest.raises(InvariantError):
        turns = list(good.turns)
        turns[place] = replace(turns[place], **BREAK[rule](turns[place]))
        replace(good, turns=tuple(turns))


def test_history_that_the_engine_did_not_see_is_refused() -> None:
    first = sampled((1, 8), (9, 2), context=(1, 8), starts_row=True)
    second = sampled((5,), (6,), context=(1, 8, 9, 2, 5))
    episode(first, second)
    with pytest.raises(InvariantError, match="what the engine saw"):
        episode(replace(first, token_ids=(9, 3)), second)
    with pytest.raises(InvariantError, match="what the engine saw"):
        episode(first, replace(first, starts_row=False), second)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.is_valid])
@pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf])
def test_a_valid_outcome_needs_a_finite_reward(outcome: Outcome, reward: float | None) -> None:
    with pytest.raises(InvariantError, match="finite reward"):
        episode(outcome=outcome, reward=reward)


@pytest.mark.parametrize("outcome", [o for o in Outcome if not o.is_valid])
def test_a_fault_of_ours_has_no_reward(outcome: Outcome) -> None:
    assert episode(outcome=outcome, reward=None).reward is None
    with pytest.raises(InvariantError, match="has no reward"):
        episode(outcome=outcome, reward=0.0)


def test_what_the_short_form_is_given_is_no_attribute() -> None:
    """As one, it read None whatever the episode holds."""
    short = Episode(prompt_ids=(1, 2), response_ids=(3,), logprobs=(-0.5,), reward=1.0)
    for name in ("prompt_ids", "response_ids", "logprobs"):
        assert not hasattr(Episode, name) and not hasattr(short, name)
    assert short.turns[0].prompt_ids.tolist() == [1, 2] and short.turns[0].token_ids.tolist() == [3]
    assert replace(short, reward=0.5).turns == short.turns


def test_only_a_valid_episode_of_sampled_turns_is_trainable() -> None:
    turn = sampled((1,), (2,), context=(1,), starts_row=True)
    expert = replace(turn, kind="tokens", logprobs=(), versions=(), context_digest="", starts_row=False)
    assert episode(turn).is_trainable
    assert episode(turn, outcome=Outcome.TRUNCATED).is_trainable
    assert not episode(turn, expert).is_trainable
    assert not episode(turn, outcome=Outcome.INFRA_FAULT, reward=None).is_trainable
    assert not episode().is_trainable
    assert [episode(*turns).num_sampled for turns in ((), (turn,), (turn, expert))] == [0, 1, 1]


def test_no_loss_is_over_an_auxiliary_turn_and_it_is_no_work() -> None:
    work = sampled((1,), (2,), context=(1,), starts_row=True)
    title = replace(work, auxiliary="a title")
    both = episode(title, work, lineage=(Lineage(turn=0, kind="auxiliary", parent=1), Lineage(turn=1)))
    assert [any(row.loss_mask) for row in both.rows] == [False, True]
    assert set(both.supervised_rows[0].versions) == {-1}
    assert (both.work, both.num_sampled, both.is_trainable) == ((work,), work.num_written, True)
    assert Episode.from_json(both.to_json()) == both == pickle.loads(pickle.dumps(both))
    for number in (-1, 1):
        with pytest.raises(InvariantError, match="names turns of the episode"):
            episode(work, lineage=(Lineage(turn=number),))


def test_the_conversation_is_that_of_all_turns_and_the_tail() -> None:
    turn, tail = sampled((1,), (2,), context=(1,), starts_row=True), {"role": "user", "content": "thanks"}
    assert episode(turn, turn, tail=(tail,)).messages == [*turn.observation, turn.message] * 2 + [tail]


@few
@given(episodes())
def test_json_and_pickle_are_lossless(result: Episode) -> None:
    """A line is what the json module makes of all fields; the rows stay at home."""
    assert "rows" in vars(result)  # cached at construction
    line = result.to_json()
    assert "\n" not in line and line == json.dumps(without_routes(result))
    assert Episode.from_json(line) == result
    copy = pickle.loads(pickle.dumps(result))
    assert "rows" not in vars(copy) and copy.line.decode() == line + "\n"
    assert copy == result and copy.rows == result.rows


def without_routes(episode: Episode) -> dict[str, Any]:
    """All fields; of routes, constraints, summaries and what is auxiliary a line names only what a turn has."""
    values = asdict(episode)
    for turn in values["turns"]:
        turn.update({name: turn[name].tolist() for name in Turn.ARRAYS})
    optional = ("routes", "auxiliary", "is_summary", "constraint", "constrained")
    assert not any([turn.pop(name) for name in optional] != [(), "", False, "", 0] for turn in values["turns"])
    return values


def test_a_line_of_many_numbers_is_made_in_parts() -> None:
    count = 2 * MOST_NUMBERS + 3
    long = Episode(
        prompt_ids=range(count), response_ids=range(count), logprobs=[-i / 3 for i in range(count)], reward=1
    )
    assert long.to_json() == json.dumps(without_routes(long))
    assert Episode.from_json(long.to_json()) == long


def test_the_line_travels_with_an_episode_and_is_forgotten_when_it_is_written(tmp_path: Path) -> None:
    made = episode(id="a")
    line = made.line
    there = pickle.loads(pickle.dumps(made))
    assert vars(there)["line"] == line
    write_jsonl(tmp_path / "episodes.jsonl", [there])
    assert (tmp_path / "episodes.jsonl").read_bytes() == line and "line" not in vars(there)
    assert "line" not in vars(pickle.loads(pickle.dumps(episode(id="b"))))
    assert replace(made, id="b").line != line


@few
@given(episodes(kinds=("sampled",), min_turns=1))
def test_a_file_with_another_prompt_token_is_refused(result: Episode) -> None:
    turn = result.turns[-1]
    old, new = (
        f'"prompt_ids": {turn.prompt_ids.tolist()}',
        f'"prompt_ids": {[int(turn.prompt_ids[0]) + 1, *turn.prompt_ids[1:].tolist()]}',
    )
    head, _, rest = result.to_json().rpartition(old)
    with pytest.raises(InvariantError, match="what the engine saw"):
        Episode.from_json(head + new + rest)


def test_files_are_appended_to_and_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write_jsonl(path, [episode(id="a", error="ü\n\u2028")])
    write_jsonl(path, [episode(id="b"), episode(id="c")])
    assert [e.id for e in read_jsonl(path)] == ["a", "b", "c"]


LINE_OF_0_2_0 = (
    '{"reward": 0.5, "task": {"prompt": [{"role": "user", "content": "2+2?"}], "target": "4", "metadata": {}, '
    '"id": "938222841a5750ed", "kind": ""}, "turns": [{"kind": "sampled", '
    '"observation": [{"role": "user", "content": "2+2?"}], "message": {"role": "assistant", "content": "4"}, '
    '"tool_calls": [], "prompt_ids": [1, 8, 3], "token_ids": [9, 2], '
    '"logprobs": [-0.1, -0.2], "versions": [[0, 2]], "starts_row": true, "context_digest": "568e2f18ef3dbf81", '
    '"finish_reason": "stop", "reward": 0.0, "policy_seconds": 0.0, "env_seconds": 0.0, "tool_uses": [], '
    '"usage": null}], "outcome": "truncated", "id": "g/0", "group_id": "g", "env": "math", "seed": 0, "rewards": {}, '
    '"tail": [], "error": "", "ended_by": "max_turns", "success": null, "info": {}, "schema_version": 2}'
)


def test_a_line_of_version_0_2_0_is_read() -> None:
    old = Episode.from_json(LINE_OF_0_2_0)
    assert (old.outcome, old.reward, old.ended_by, old.num_sampled) == (Outcome.TRUNCATED, 0.5, "max_turns", 2)
    assert Episode.from_json(old.to_json()) == old


FOREIGN = [
    *("no json", "", "3", '"text"', "null", "{}", '{"step": 1, "loss": 0.1}', "[1]"),
    *('{"schema_version": 99, "task": {}}', '{"schema_version": 2, "step": 3}', "not UTF-8: \udcff"),
    LINE_OF_0_2_0.replace('"reward": 0.5', '"reward": null', 1),
]


@pytest.mark.parametrize("line", FOREIGN)
def test_a_foreign_line_is_named_with_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    write_jsonl(path, [episode()])
    path.write_text(path.read_text() + line + "\n", errors="surrogateescape")
    with pytest.raises(UserError, match=r"episodes\.jsonl:2: "):
        list(read_jsonl(path))


@few
@given(data=st.data())
def test_a_truncated_line_is_a_users_mistake(data: st.DataObject) -> None:
    line = data.draw(episodes()).to_json()
    with pytest.raises(UserError):
        Episode.from_json(line[: data.draw(st.integers(0, len(line) - 1))])
    with pytest.raises(UserError):
        Episode.from_json(episode().to_json().replace('"turns"', '"turnz"'))


def test_a_lone_surrogate_in_a_tool_call_can_be_written(tmp_path: Path) -> None:
    """A model that writes the JSON text "\\ud800" leaves one in its arguments."""
    turn = Turn(
        kind="text",
        observation=(),
        message={"role": "assistant", "content": ""},
        tool_calls=(ToolCall(id="call_0", name="python", arguments={"code": "\ud800"}),),
    )
    write_jsonl(tmp_path / "episodes.jsonl", [episode(turn)])
    assert list(read_jsonl(tmp_path / "episodes.jsonl")) == [episode(turn)]


def test_a_groups_baseline_has_its_valid_members_only() -> None:
    members = (
        episode(id="g/0", reward=1.0, env="math"),
        episode(id="g/1", reward=None, outcome=Outcome.INFRA_FAULT),
        episode(id="g/2", reward=0.0, outcome=Outcome.TRUNCATED),
    )
    replaced = replace(members[1], id="g/3")
    group = Group(task=TASK, episodes=members, id="g", replaced=(replaced,))
    assert (group.env, group.rewards) == ("math", (1.0, 0.0))
    assert (group.valid, group.faults) == ((members[0], members[2]), (members[1], replaced))


def test_a_group_holds_distinct_episodes_of_one_task() -> None:
    other = Task(prompt=({"role": "user", "content": "3+3?"},))
    with pytest.raises(InvariantError, match="at least one"):
        Group(task=TASK, episodes=(), id="g")
    with pytest.raises(InvariantError, match="its task"):
        Group(task=other, episodes=(episode(),), id="g")
    with pytest.raises(InvariantError, match="counts once"):
        Group(task=TASK, episodes=(episode(), episode(reward=0.0)), id="g")


def test_a_tasks_id_is_its_content() -> None:
    same = Task(prompt=({"content": "2+2?", "role": "user"},), target="4")
    assert same.id == TASK.id
    assert len({TASK.id, replace(TASK, id="", target="5").id, replace(TASK, id="", metadata={"a": 1}).id}) == 3
    assert replace(TASK, id="mine").id == "mine"


def test_the_short_form_of_a_single_turn() -> None:
    short = Episode(prompt_ids=(5, 9), response_ids=(7, 2), logprobs=(-0.1, -0.7), reward=1.0)
    assert short.is_trainable and short.outcome is Outcome.SCORED
    (row,) = short.rows
    assert (row.token_ids.tolist(), row.loss_mask.tolist()) == ([5, 9, 7, 2], [False, False, True, True])
    assert row.generator_logprobs.tolist() == [0.0, 0.0, -0.1, -0.7]
    again = Episode.from_json(short.to_json())
    assert again == short and pickle.loads(pickle.dumps(short)) == short
    sibling = Episode(prompt_ids=(5, 9), response_ids=(3,), reward=0.0)
    assert sibling.task == short.task and sibling.id != short.id  # of one prompt: they can be a group


def test_without_logprobs_it_is_trained_on_once_it_has_some() -> None:
    bare = Episode(prompt_ids=[5], response_ids=[7, 2], reward=0.5)
    assert not bare.is_trainable
    ready = bare.with_logprobs([-0.3, -0.4], version=4)
    assert (
        ready.is_trainable and ready.versions == (4,) and ready.rows[0].generator_logprobs.tolist() == [0.0, -0.3, -0.4]
    )
    with pytest.raises(InvariantError, match="one logprob per sampled token"):
        bare.with_logprobs([-0.3])
    with pytest.raises(InvariantError, match="an episode has a task, or a prompt and a response"):
        Episode(reward=1.0)


def test_a_digest_is_of_32_bit_ids_and_the_same_for_ever() -> None:
    assert digest((1, 8, 3)) == hashlib.blake2b(struct.pack("<3i", 1, 8, 3), digest_size=8).hexdigest()
    assert digest([1, 8, 3]) == digest((1, 8, 3)) == "568e2f18ef3dbf81"
