"""The comparison with other libraries: its own part, without them."""

from __future__ import annotations

import asyncio
import re
from contextlib import AbstractAsyncContextManager

import pytest

from benchmarks.rivals import ours, play
from benchmarks.rivals.__main__ import CODE, HERE, RIVALS, ROLLOUTS, table


@pytest.mark.parametrize("name", RIVALS[1:])
def test_every_library_has_an_adapter_and_its_packages_by_name_and_version(name: str) -> None:
    assert (HERE / f"{name}.py").is_file()
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert lines and all(re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line) for line in lines), lines


HAS_CHAT = (HERE.parents[1] / "contrib" / "chat").is_dir()


@pytest.mark.parametrize(
    "way",
    [
        ours.messages,
        pytest.param(ours.from_endpoint, marks=pytest.mark.skipif(not HAS_CHAT, reason="contrib/chat was taken away")),
    ],
)
def test_our_episodes_are_played_and_written_into_the_table(way: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "PLAYS", 1)
    figures = asyncio.run(play.rollouts({"way": (way, 4)}))
    row = table({"ours": {"version": "", "ways": figures}, "other": {"version": "1", "failed": "it"}}, ROLLOUTS)
    assert re.search(r"\| ours, way \| 4 \| [\d.]+ \| [\d,]+ \| [\d,]+ \|\n\| other 1, not run \| - ", row), row


def test_what_code_reaches_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "RUNS", 8)

    def reached(way: str) -> list[bool]:
        open_way: AbstractAsyncContextManager[play.Run] = ours.CODE[way]
        one = asyncio.run(play.code({way: open_way}))[way]
        assert "| ours, " in table({"ours": {"version": "", "ways": {way: one}}}, CODE)
        return [one[what] for what in ("reads_files", "reaches_network", "leaves_processes")]

    assert reached("bare python -c") == [True] * 3
    assert reached("sandbox namespace") == [False] * 3
