"""The index: whatever happens to the files, it equals a new index of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrib.viewer import query, summaries
from contrib.viewer.index import EpisodeIndex
from contrib.viewer.index_row import COLUMNS, episode_row, scan_file
from contrib.viewer.stored_runs import StoredRun, find_runs
from contrib.viewer.tests.runs import make_episode, training_run, write
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import NOT_SAMPLED, Outcome
from forge_env.evaluation.evaluate import is_success


def contents(index: EpisodeIndex) -> list[tuple[Any, ...]]:
    """Everything in an index but the numbers of the files."""
    with index.reading() as db:
        columns = ", ".join(row[1] for row in db.execute("PRAGMA table_info(episodes)") if row[1] not in ("n", "file"))
        rows = [tuple(row) for row in db.execute(f"SELECT phase, {columns} FROM episodes JOIN files USING (file)")]
        rows += [tuple(row) for row in db.execute("SELECT * FROM trained")]
        rows += [tuple(row) for row in db.execute("SELECT phase, offset, reason FROM bad JOIN files USING (file)")]
    return sorted(rows, key=repr)


def open_index(run: Path, place: Path) -> EpisodeIndex:
    (stored,) = find_runs(run)
    return EpisodeIndex(stored, place)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """An episode, or what is none."""
    broken = ["", "{}", "not JSON", '{"turns": [], "task": {}}', "[" * 50, '{"a": "\\ud800"}']
    name, reward = f"train/{draw(st.integers(0, 3))}/{draw(st.integers(0, 3))}", draw(st.none() | st.floats(-1, 1))
    question = draw(st.text(st.characters(codec=None), max_size=30))
    made = make_episode(name, reward=reward, question=question, error="SandboxError: gone")
    return draw(st.just(made.to_json()) | st.sampled_from(broken))


LINES = lines()
FILES = st.sampled_from(["train", "after"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), FILES, st.lists(LINES, max_size=4)),
        st.tuples(st.just("half"), FILES, st.lists(LINES, min_size=1, max_size=1)),
        st.tuples(st.just("cut"), FILES, st.integers(0, 4)),
        st.tuples(st.just("delete"), FILES, st.none()),
        st.tuples(st.just("trained"), st.just("train"), st.lists(st.integers(0, 3), max_size=3)),
        st.tuples(st.just("read"), st.just("train"), st.none()),
    ),
    max_size=12,
)


def change(run: Path, what: str, phase: str, value: Any) -> None:
    path = run / "episodes" / f"{phase}.jsonl"
    if what == "append":
        with path.open("a") as file:
            file.writelines(line + "\n" for line in value)
    elif what == "half":
        with path.open("a") as file:
            file.write(value[0][: len(value[0]) // 2])
    elif what == "cut" and path.exists():
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:value]))
    elif what == "delete":
        path.unlink(missing_ok=True)
    elif what == "trained":
        with (run / "trained.jsonl").open("a") as file:
            trained = ({"step": i, "episode": f"train/{i}/0", "advantages": [1.0]} for i in value)
            file.writelines(json.dumps(line) + "\n" for line in trained)


@settings(deadline=None)
@given(steps=STEPS)
def test_an_index_that_follows_says_what_a_fresh_one_says(steps: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "run" / "episodes").mkdir(parents=True)
    (folder / "run" / "metrics.jsonl").touch()
    following = open_index(folder / "run", folder / "following.sqlite")
    for what, phase, value in steps:
        if what == "read":
            following.update()
        else:
            change(folder / "run", what, phase, value)
    following.update()
    fresh = open_index(folder / "run", folder / "fresh.sqlite")
    fresh.update()
    assert contents(following) == contents(fresh)
    assert not following.update(), "nothing has changed since"


def test_a_file_of_several_blocks_is_read_as_one_of_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "many.jsonl"
    lines = [make_episode(f"train/{i}/0").to_json() for i in range(50)]
    lines[7] = "not JSON"
    path.write_text("\n".join(lines) + "\n")
    size = path.stat().st_size
    monkeypatch.setattr("contrib.viewer.index_row.BLOCK_BYTES", 10_000)
    parts = list(scan_file(path, "episodes", 0, size))
    monkeypatch.setattr("contrib.viewer.index_row.BLOCK_BYTES", size + 1)
    [whole] = scan_file(path, "episodes", 0, size)
    assert len(parts) > 3
    assert [row for part in parts for row in part.rows] == whole.rows and len(whole.rows) == 49
    assert [bad for part in parts for bad in part.bad_lines] == whole.bad_lines and len(whole.bad_lines) == 1


def test_pages_filters_and_orders(tmp_path: Path) -> None:
    index = open_index(training_run(tmp_path / "run"), tmp_path / "index.sqlite")
    index.update()

    def ids(order: str = "written", offset: int = 0, limit: int = 50, **wanted: str) -> list[str]:
        with index.reading() as db:
            page = query.list_episodes(db, query.condition_of(wanted), order, offset, limit)
        return [row["id"] for row in page["rows"]]

    assert len(ids(phase="train")) == 13
    assert ids(phase="train", limit=2, offset=4) == ["train/1/0", "train/1/1"]
    assert ids(phase="train", order="newest")[0] == "train/9/0"
    assert ids(phase="train", reward_from="0.5") == ["train/1/0", "train/2/0", "train/2/1"]
    assert ids(phase="train", has="fault") == ["train/9/0"]
    assert ids(step="1") == [f"train/0/{i}" for i in range(4)], "those that the step trained on"
    assert ids(phase="train", has="tool_error") == ["train/0/3", "train/1/3", "train/2/3"]
    assert ids(phase="train", version="3") == [f"train/2/{i}" for i in range(4)]
    assert len(ids(phase="train", tool="python")) == 13 and ids(tool="pyth") == []
    assert ids(id="2/1") == ["train/2/1"]
    assert ids(kind="double") == [f"train/1/{i}" for i in range(4)]
    assert ids(kind="no_kind", phase="train") == ["train/9/0"] and ids(kind="doub") == []
    assert ids(phase="train", group="train/1", has="success") == ["train/1/0"]
    with index.reading() as db:
        assert summaries.filter_choices(db)["kinds"] == ["no_kind", "add", "double"]
        groups = query.list_groups(db, query.condition_of({"phase": "train"}), "spread", 0, 50)
    assert [row["group_id"] for row in groups["rows"]] == ["train/2", "train/1", "train/0", "train/9"]
    assert [row["reward"] for row in groups["rows"][0]["episodes"]] == [1, 1, 0, 0]
    assert groups["rows"][0]["spread"] == 0.5 and groups["rows"][-1]["spread"] is None


def test_the_newest_are_those_that_ended_last_whatever_their_files_are_called(tmp_path: Path) -> None:
    times = {"after": (300.0, 10.0), "before": (100.0, 1.0), "train": (200.0, 150.0)}
    for phase, (started, seconds) in times.items():
        info = {"started": started, "seconds": seconds}
        write(tmp_path / "run" / "episodes" / f"{phase}.jsonl", make_episode(f"{phase}/0/0", info=info))
    index = open_index(tmp_path / "run", tmp_path / "index.sqlite")
    index.update()
    with index.reading() as db:
        for rows in (
            query.list_episodes(db, query.condition_of({}), "newest", 0, 9)["rows"],
            query.list_groups(db, query.condition_of({}), "newest", 0, 9)["rows"],
        ):
            assert [row["phase"] for row in rows] == ["train", "after", "before"]  # the one of train took longer


OUTCOMES = [(outcome, outcome.is_valid) for outcome in Outcome]


@given(
    ending=st.sampled_from(OUTCOMES),
    reward=st.floats(-2, 2) | st.sampled_from([0.8, 1.0]),
    success=st.sampled_from([None, True, False]),
)
def test_a_success_is_what_an_evaluation_calls_one(ending: Any, reward: float, success: bool | None) -> None:
    outcome, is_valid = ending
    episode = make_episode(reward=reward if is_valid else None, outcome=outcome, success=success if is_valid else None)
    line = episode.to_json()
    row = dict(zip(COLUMNS, episode_row(line.encode(), 0), strict=True))
    assert bool(row["success"]) == is_success(Episode.from_json(line)) and row["outcome"] == outcome.value


def test_a_time_out_is_counted_apart_from_the_faults(tmp_path: Path) -> None:
    late = make_episode("after/0/1", reward=None, outcome=Outcome.TIMEOUT, error="the shop took 300 s")
    write(tmp_path / "run" / "episodes" / "after.jsonl", make_episode("after/0/0"), late)
    index = open_index(tmp_path / "run", tmp_path / "index.sqlite")
    index.update()
    with index.reading() as db:
        choices = summaries.filter_choices(db)
        assert (choices["timeouts"], choices["faults"]) == (1, 0)
        page = query.list_episodes(db, query.condition_of({"outcome": "timeout"}), "written", 0, 9)
        assert page["rows"][0]["fault"] == "timeout"


def test_the_neighbours_of_an_episode_are_those_of_its_list(tmp_path: Path) -> None:
    index = open_index(training_run(tmp_path / "run"), tmp_path / "index.sqlite")
    index.update()
    with index.reading() as db:
        for order in query.EPISODE_ORDERS:
            for wanted in ({}, {"phase": "train"}, {"has": "tool_error"}):
                condition = query.condition_of(wanted)
                keys = [row["key"] for row in query.list_episodes(db, condition, order, 0, 50)["rows"]]
                for place, key in enumerate(keys):
                    place_in_list = query.neighbours(db, condition, order, query.find_episode(db, key)["n"])
                    beside = [None, *keys, None][place : place + 3]
                    assert [place_in_list["previous"], key, place_in_list["next"]] == beside
                    assert (place_in_list["place"], place_in_list["listed"]) == (place + 1, len(keys))
        row = query.find_episode(db, "train/0")
        other = query.neighbours(db, query.condition_of({"phase": "after"}), "written", row["n"])
    assert other == {"previous": None, "next": None, "place": None, "listed": 1}


def test_a_filter_without_sense_is_one_sentence() -> None:
    for wanted in ({"reward_from": "many"}, {"step": "1.5"}, {"has": "luck"}, {"step": "9" * 40}):
        with pytest.raises(UserError, match="the filter"):
            query.condition_of(wanted)


SHAPES: list[dict[str, Any]] = [{"task": "x"}, {"reward": "high"}, {"outcome": {"a": [1]}}, {"info": [1]}]
TURNS = [None, [{"kind": "sampled"}], [{"versions": [[2**80, 1]]}], [{"versions": [[]]}], [3]]
TURNS += [[{"versions": [[NOT_SAMPLED, 2**80]]}]]


@pytest.mark.parametrize("change", [*SHAPES, *({"turns": turns} for turns in TURNS)])
def test_a_line_of_another_shape_is_counted_and_breaks_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    line = json.dumps({**json.loads(make_episode().to_json()), **change})
    try:
        episode_row(line.encode(), 0)
    except ValueError as error:
        assert str(error)
    run = StoredRun(path=tmp_path / "e.jsonl", name="e", kind="file")
    run.path.write_text(line + "\n" + make_episode("good/0/0").to_json() + "\n")
    index = EpisodeIndex(run, tmp_path / "index.sqlite")
    index.update()
    with index.reading() as db:
        rows = query.list_episodes(db, query.condition_of({}), "written", 0, 9)["rows"]
        assert "good/0/0" in [row["id"] for row in rows]


def test_runs_are_found_where_they_are(tmp_path: Path) -> None:
    training_run(tmp_path / "all" / "one")
    write(tmp_path / "all" / "deep" / "two" / "episodes.jsonl", make_episode())
    runs = [(run.name, run.kind) for run in find_runs(tmp_path / "all")]
    assert runs == [("deep/two", "evaluation"), ("one", "training")]
    assert find_runs(tmp_path / "all" / "one" / "episodes" / "train.jsonl")[0].kind == "file"
    (tmp_path / "nothing").mkdir()
    (tmp_path / "notes.txt").touch()
    for place in (tmp_path / "nothing", tmp_path / "not there", tmp_path / "notes.txt"):
        with pytest.raises(UserError, match="name the folder"):
            find_runs(place)
