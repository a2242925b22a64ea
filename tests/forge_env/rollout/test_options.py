"""Options of an environment that hold data: nested in a file, JSON and dotted names on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from forge_env.cli.evaluate import parse_options
from forge_env.core.errors import UserError
from forge_env.rollout.factory import EnvFactory
from forge_env.tool_env.tool_env import ToolEnv


class Holds(ToolEnv):
    def __init__(
        self,
        plain: dict = {},  # type: ignore[type-arg]  # noqa: B006
        counts: dict[str, int] | None = None,
        deep: Mapping[str, Mapping[str, float]] = {},
        servers: list[dict[str, Any]] | None = None,
        names: list[str] | None = None,
        lists: dict[str, list[int]] | None = None,
    ) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("plain", {"a": {"b": [1]}}, {"a": {"b": [1]}}),
        ("plain", '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ("counts", '{"a": 1}', {"a": 1}),
        ("counts", {"a": "1"}, {"a": 1}),
        ("deep", '{"a": {"b": 1}}', {"a": {"b": 1.0}}),
        ("deep", {"a": {"b": "1.5"}}, {"a": {"b": 1.5}}),
        ("servers", '[{"a": 1}]', [{"a": 1}]),
        ("servers", [{"a": 1}], [{"a": 1}]),
        ("names", '["a", "b,c"]', ["a", "b,c"]),
        ("names", "a,b", ["a", "b"]),
        ("lists", {"a": "1,2"}, {"a": [1, 2]}),
    ],
)
def test_a_dictionary_or_a_list_is_converted(name: str, given: Any, value: Any) -> None:
    assert EnvFactory(Holds, **{name: given}).options == {name: value}


@pytest.mark.parametrize("given", ["a", '{"a": "b"}', "[1]"])
def test_what_is_no_dictionary_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="the option counts of the environment Holds is .* a dictionary, in JSON"):
        EnvFactory(Holds, counts=given)


def test_a_command_line_gives_entries_and_each_option_once() -> None:
    assert parse_options(["counts.a=1", "counts.b=2", "names=x"]) == {"counts": {"a": "1", "b": "2"}, "names": "x"}
    assert parse_options(["level=1", "level=1"], tools=("shop",)) == {"level": "1", "tools": "shop"}
    for options, words in (
        (["level=1", "level=2"], "option level is given twice, '1' and '2'"),
        (["api_key=LEAK", "api_key=LEAK2"], r"twice, '\[secret-not-written\]' and"),
        (["counts={}", "counts.a=1"], r"counts is '\{\}', and counts\.a is given as an entry of it"),
        (["counts.a=1", "counts={}"], r"counts is '\{\}', and counts\.a is given as an entry of it"),
        (["=1"], "not of the form name=value"),
    ):
        with pytest.raises(UserError, match=words):
            parse_options(options)
    with pytest.raises(UserError, match="option tools is given twice, 'x' and 'shop'"):
        parse_options(["tools=x"], tools=("shop",))
