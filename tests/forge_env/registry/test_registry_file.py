"""The registry's file: read back as written, never torn, never overwritten by accident, comments kept."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from forge_env.registry.registry_file import Entry, RegistryFile
from forge_env.utils import atomic
from tests.helpers.rows import rows

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def file(tmp_path: Path) -> RegistryFile:
    return RegistryFile(tmp_path / ".forge_env" / "registry.yaml")


def an_entry(name: str = "add", target: str = "", **fields: object) -> Entry:
    return Entry(name=name, target=target or f"pkg.{name}:f", **({"kind": "tools"} | fields))  # type: ignore[arg-type]


def test_what_is_written_is_read_back(file: RegistryFile) -> None:
    file.add(an_entry(options={"timeout": 5.0, "parallel": True}, description="Add: two # numbers"))
    file.add(an_entry("shop", kind="env"))
    read = file.read()
    assert list(read) == ["add", "shop"]
    assert read["add"].options == {"timeout": 5.0, "parallel": True}
    assert read["add"].description == "Add: two # numbers"
    assert (read["shop"].kind, read["shop"].target, read["shop"].file) == ("env", "pkg.shop:f", file.path)


@pytest.mark.parametrize("name", ["a.py", "environment.pkl"])
def test_paths_in_the_project_are_relative_and_others_absolute(file: RegistryFile, tmp_path: Path, name: str) -> None:
    file.add(an_entry("inside", target=f"{tmp_path}/tools/{name}:f"))
    file.add(an_entry("outside", target="/elsewhere/b.py:f"))
    written = yaml.safe_load(file.path.read_text())
    assert (written["inside"]["target"], written["outside"]["target"]) == (f"tools/{name}:f", "/elsewhere/b.py:f")
    moved = tmp_path / "moved" / ".forge_env" / "registry.yaml"
    moved.parent.mkdir(parents=True)
    moved.write_text(file.path.read_text())
    assert RegistryFile(moved).read()["inside"].target == f"{tmp_path}/moved/tools/{name}:f"


def test_a_name_is_taken_once_unless_it_is_replaced(file: RegistryFile) -> None:
    file.add(an_entry(target="pkg:first"))
    with pytest.raises(UserError, match="'add' is taken by pkg:first.*--replace"):
        file.add(an_entry(target="pkg:second"))
    file.add(an_entry(target="pkg:second"), replace=True)
    assert file.read()["add"].target == "pkg:second"


def test_a_name_that_is_not_there_cannot_be_removed(file: RegistryFile) -> None:
    with pytest.raises(UserError, match="no 'add' in"):
        file.remove("add")
    assert not file.path.parent.exists(), "nothing is made in vain"
    file.add(an_entry("subtract"))
    with pytest.raises(UserError, match="Did you mean subtract"):
        file.remove("substract")


HEAD = "# what we use most\n\n"
ADD = """\
add:   # sums
  kind: tools
  target: a.py:add   # relative
  # an indented remark belongs to add
  options: {timeout: 5}
"""
SHOP = """\

# the shop of the second floor
shop:
  kind: env
  target: "pkg.shop:Shop"
  description: >
    A shop.
# the last word"""


def test_comments_and_the_rest_stay_as_they_were_written(file: RegistryFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text(HEAD + ADD + SHOP)
    file.add(an_entry("more"))
    assert file.path.read_text() == HEAD + ADD + SHOP + "\nmore:\n  kind: tools\n  target: pkg.more:f\n"
    file.remove("more")
    assert file.path.read_text() == HEAD + ADD + SHOP + "\n"
    file.add(an_entry("add", target="b:add"), replace=True)
    assert file.path.read_text() == HEAD + "add:\n  kind: tools\n  target: b:add\n" + SHOP + "\n"
    file.remove("shop")
    assert file.read().keys() == {"add"}
    assert "# the shop of the second floor" in file.path.read_text()


@pytest.mark.parametrize(
    "text", ["{add: {kind: env, target: 'a:b'}}", "add: &a {kind: env, target: 'a:b'}\nb: *a\n...\n"]
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(file: RegistryFile, text: str) -> None:
    file.path.parent.mkdir()
    file.path.write_text(text)
    assert file.read()["add"].target == "a:b"
    with pytest.raises(UserError, match="lines of its own"):
        file.add(an_entry("more"))
    assert file.path.read_text() == text


@pytest.mark.parametrize(
    ("text", "words"),
    [*rows(__file__, "broken_files.tsv"), ("a: \x07\n", "not YAML"), ("add:\n  kind: too\udcff\n", "not UTF-8")],
)
def test_a_broken_file_is_named_in_one_sentence_and_stays(file: RegistryFile, text: str, words: str) -> None:
    file.path.parent.mkdir()
    written = text.encode(errors="surrogateescape")
    file.path.write_bytes(written)
    for use in (file.read, lambda: file.add(an_entry("more")), lambda: file.remove("add")):
        with pytest.raises(UserError) as caught:
            use()
        assert str(caught.value).startswith(str(file.path)) and "\n" not in str(caught.value)
        assert words in str(caught.value)
    assert file.path.read_bytes() == written


NAMES = st.sampled_from(["a", "b", "yes", "null", "on", "x-1", "_", "N1e5"])
TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30).map(lambda text: " ".join(text.split()))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(NAMES, st.booleans(), TEXTS), max_size=12))
def test_any_sequence_of_changes_does_what_it_says(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, bool, str]]
) -> None:
    file = RegistryFile(tmp_path_factory.mktemp("any") / "names.yaml")
    wanted: dict[str, str] = {}
    for name, add, text in changes:
        if add:
            file.add(an_entry(name, description=text), replace=True)
            wanted[name] = text
        elif name in wanted:
            file.remove(name)
            del wanted[name]
        assert {n: entry.description for n, entry in file.read().items()} == wanted


def test_the_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("")
    real.chmod(0o600)
    link.symlink_to(real)
    RegistryFile(link).add(an_entry())
    assert link.is_symlink()
    assert "pkg.add:f" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def _add_many(file: RegistryFile, prefix: str, count: int) -> None:
    for i in range(count):
        file.add(an_entry(f"{prefix}{i}"))


def test_writers_at_once_lose_nothing(file: RegistryFile) -> None:
    writers = [FORK.Process(target=_add_many, args=(file, f"w{i}_", 5)) for i in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    assert [writer.exitcode for writer in writers] == [0] * 5
    assert file.read().keys() == {f"w{i}_{j}" for i in range(5) for j in range(5)}
    assert os.listdir(file.path.parent) == ["registry.yaml"], "no lock and no half-written file is left"


def test_a_writer_that_is_killed_corrupts_nothing(file: RegistryFile) -> None:
    for round_ in range(4):
        before = set(file.read())
        writer = FORK.Process(target=_add_many, args=(file, f"r{round_}_", 10**6))
        writer.start()
        while len(file.read()) < len(before) + 1 + round_:  # every read in between finds a whole file
            assert writer.is_alive()
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(timeout=60)
        after = file.read()
        assert before < set(after)
        assert [name for name in after if after[name].target != f"pkg.{name}:f"] == []
    file.add(an_entry("last"))
    assert os.listdir(file.path.parent) == ["registry.yaml"], "what killed writers left is taken over"


def _hold(file: RegistryFile, ready: multiprocessing.connection.Connection) -> None:
    with atomic.hold_lock(file.path):
        ready.send(True)
        signal.pause()


def test_a_lock_is_waited_for_up_to_a_deadline(file: RegistryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "LOCK_SECONDS", 0.05)
    file.path.parent.mkdir()
    here, there = FORK.Pipe()
    holder = FORK.Process(target=_hold, args=(file, there))
    holder.start()
    assert here.poll(60) and here.recv()
    with pytest.raises(UserError, match="another process has been writing .* try again later"):
        file.add(an_entry())
    holder.kill()
    holder.join(timeout=60)
    monkeypatch.undo()
    file.add(an_entry())
    assert file.read().keys() == {"add"}
