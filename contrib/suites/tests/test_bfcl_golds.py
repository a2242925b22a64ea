"""Right calls out of BFCL's possible answers, on small ones written here."""

from __future__ import annotations

from typing import Any

import pytest

from contrib.suites.bfcl.env import script_of
from contrib.suites.bfcl.golds import java_literal, javascript_literal, single_turn_calls, tool_name, turn_calls
from forge_env import Task


def parameters(required: list[str] = [], **types: Any) -> dict[str, Any]:  # noqa: B006 (nobody changes it)
    return {"types": {n: k if isinstance(k, list) else [k, ""] for n, k in types.items()}, "required": required}


def calls(answer: list[Any], category: str = "simple_python", **functions: Any) -> Any:
    return single_turn_calls(answer, functions, category)


def test_a_value_is_chosen_for_each_parameter_and_what_may_be_left_out_is() -> None:
    answer = [{"f": {"a": [10, 11], "unit": ["", "m"], "tag": ["", "x"], "on": [False]}}]
    known = parameters(["a", "tag"], a="integer", unit="string", tag="string", on="boolean")
    assert calls(answer, f=known) == [{"name": "f", "arguments": {"a": 10, "tag": "x", "on": False}}]


def test_dots_in_names_become_underscores() -> None:
    assert tool_name("a.b.c") == "a_b_c"
    known = {"music.play": parameters(song="string")}
    [call] = single_turn_calls([{"music.play": {"song": ["x"]}}], known, "live_simple")
    assert call["name"] == "music_play"


def test_dicts_and_lists_of_dicts_have_choices_inside() -> None:
    known = parameters(o="dict", rows=["array", "dict"], plain=["array", "integer"])
    rows = [[{"k": ["v"]}, {"k": ["w", "u"]}]]
    answer = {"f": {"o": [{"x": [1, 2], "y": ["", 3]}], "rows": rows, "plain": [[1, 2]]}}
    chosen = {"o": {"x": 1}, "rows": [{"k": "v"}, {"k": "w"}], "plain": [1, 2]}
    assert calls([answer], f=known)[0]["arguments"] == chosen


def test_several_calls_keep_their_order() -> None:
    known = parameters(a="integer")
    assert calls([{"f": {"a": [1]}}, {"g": {"a": [2]}}], f=known, g=known) == [
        {"name": "f", "arguments": {"a": 1}},
        {"name": "g", "arguments": {"a": 2}},
    ]


@pytest.mark.parametrize(
    ("value", "kind", "items", "written"),
    [
        (5, "integer", "", "5"),
        (5, "long", "", "5L"),
        (2.5, "float", "", "2.5f"),
        (2.5, "double", "", "2.5"),
        (True, "boolean", "", "true"),
        ("name", "any", "", "name"),
        ([1, 2], "Array", "int", "new int[]{1, 2}"),
        (["a", "b"], "ArrayList", "String", 'new ArrayList<String>(Arrays.asList("a", "b"))'),
        ([], "ArrayList", "String", "new ArrayList<String>()"),
        ({"k": ["v"]}, "HashMap", "", 'new HashMap<String, Object>() {{ put("k", "v"); }}'),
    ],
)
def test_java(value: Any, kind: str, items: str, written: str) -> None:
    assert java_literal(value, kind, items) == written


@pytest.mark.parametrize(
    ("value", "kind", "written"),
    [
        (5, "integer", "5"),
        (5, "Bigint", "5n"),
        (False, "Boolean", "false"),
        ("x", "String", "x"),
        (["a", 1], "array", "['a', 1]"),
        ({"k": ["v"], "n": [1]}, "dict", "{'k': 'v', 'n': 1}"),
    ],
)
def test_javascript(value: Any, kind: str, written: str) -> None:
    assert javascript_literal(value, kind) == written


def test_calls_of_a_conversation_are_read_and_get_names_for_positions() -> None:
    known = {"cd": parameters(folder="string"), "mv": parameters(source="string", destination="string")}
    assert turn_calls(["cd('a')", "mv(source='b', destination='c')", "mv('d', destination='e')"], known) == [
        {"name": "cd", "arguments": {"folder": "a"}},
        {"name": "mv", "arguments": {"source": "b", "destination": "c"}},
        {"name": "mv", "arguments": {"source": "d", "destination": "e"}},
    ]
    with pytest.raises(ValueError, match="is no call of a function"):
        turn_calls(["a + b"], known)


def test_a_solution_of_a_conversation_answers_each_user_once() -> None:
    user: Any = {"role": "user", "content": "Go to a."}
    call = {"name": "cd", "arguments": {"folder": "a"}}
    script = script_of(Task(prompt=(user,), target=[[call], []], kind="multi_turn_base"))
    first = script([user])
    assert [c["function"] for c in first["tool_calls"]] == [call]
    conversation = [user, first, {"role": "tool", "content": "{}"}]
    assert script(conversation) == {"role": "assistant", "content": "Done."}
    assert "tool_calls" not in script([*conversation, {"role": "assistant", "content": "Done."}, user])
