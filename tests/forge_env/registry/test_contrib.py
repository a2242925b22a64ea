"""The names.toml of a folder of contrib: a wrong one is left out with one sentence, and the others stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.registry.contrib import read_folders

GOOD = 'about = "A wall."\n[envs]\nwall = "walls:Wall"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about = ", "Invalid value (at end of document)"),
        ("\udcff", "can't decode byte 0xff"),
        ("", "about is None, and has to be a text"),
        ('about = "A"\nneeds = "walls"', "needs is 'walls', and has to be a list"),
        ('about = "A"\nextra = 3', "extra is 3, and has to be a text"),
        ('about = "A"\nenvs = 3', "envs is 3, and has to be a table"),
        ('about = "A"\n[env]\n', "there is no table 'env'; the tables are envs, families"),
        ('about = "A"\n[envs]\nroom = 3', "envs.room is 3, and has to be a target, or a table"),
        ('about = "A"\n[envs.room]\nabout = "A"', "envs.room is {'about': 'A'}, and has to be a target"),
        ('about = "A"\n[envs.room]\ntarget = "a:b"\nabotu = "A"', "a table of target, about and after"),
    ],
)
def test_a_wrong_file_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    for name, content in (("rooms", text), ("walls", GOOD)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "names.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    read = read_folders(tmp_path)
    assert [*read] == ["walls"] and read["walls"].tables["envs"]["wall"].target == "walls:Wall"
    err = capsys.readouterr().err
    assert err.startswith(f"note: the outbuilding rooms is left out: {tmp_path}/rooms/names.toml: ")
    assert words in err and err.count("\n") == 1
