"""The exported file, the page, the curves, and the messages where nothing can be shown."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from contrib.viewer.episode_detail import token_texts
from contrib.viewer.index import EpisodeIndex
from contrib.viewer.library import Library
from contrib.viewer.metrics_file import MAX_POINTS, MetricsFile
from contrib.viewer.page import MODULES, render_page, security_policy
from contrib.viewer.tests.runs import data_of, make_episode, training_run, write, write_metrics
from forge_env.cli.main import main
from forge_env.core.types import Outcome


def test_the_file_holds_all_of_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = training_run(tmp_path / "run")
    assert main(["view", str(run), "--export", str(tmp_path / "run.html")]) == 0
    assert "15 episodes" in capsys.readouterr().out
    data = data_of(tmp_path / "run.html")
    view = data["views"]["0"]
    assert len(view["rows"]) == len(view["details"]) == 15 and data["note"] == "15 of 15 episodes"
    assert view["curves"]["train"]["values"]["reward"][0] == 0.1 and len(view["timeline"]["spans"]) == 15
    assert str(tmp_path) not in json.dumps(view["details"]), "no path of this machine in it"
    assert not (tmp_path / "run.html.new").exists()


def test_of_a_large_run_it_holds_faults_and_the_groups_that_differ(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run", groups=4)
    assert main(["view", str(run), "--export", str(tmp_path / "run.html"), "--episodes", "8"]) == 0
    rows = data_of(tmp_path / "run.html")["views"]["0"]["rows"]
    names = [row["id"] for row in rows]
    assert len(names) == 8 and "train/9/0" in names
    assert {f"train/2/{i}" for i in range(4)} <= set(names), "half of this group succeeded: its rewards differ most"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--export", "{run}/no/folder/x.html"], "cannot be written"),
        (["{run}", "--export", "{run}/x.html", "--episodes", "0"], "1 or more"),
        (["{run}/nothing"], "name the folder"),
        (["{run}", "--port", "70000"], "is no port"),
        (["{run}", "--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid"),
        (["{run}", "--model", "{run}"], "holds no tokenizer.json"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = training_run(tmp_path / "run")
    assert main(["view", *(argument.format(run=run) for argument in arguments)]) == 2
    message = capsys.readouterr().err
    assert words in message and message.startswith("error: ") and message.count("\n") == 1


def test_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = training_run(tmp_path / "run"), str(tmp_path / "page.html")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("contrib.viewer.export.replace_file", full)
        assert main(["report", str(run)]) == 2
    assert "report.html cannot be written: No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(EpisodeIndex, "_follow", full_index)
    assert main(["view", str(run), "--export", page]) == 2
    assert "the index could not be updated: OperationalError: disk is full" in capsys.readouterr().err
    monkeypatch.setattr(EpisodeIndex, "_connect", full_index)
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert main(["view", str(run), "--export", page]) == 2
    assert "disk is full; free some room there, or set TMPDIR to a folder of another disk" in capsys.readouterr().err
    assert list(temporary.iterdir()) == []


def full_index(*_: object) -> None:
    raise sqlite3.OperationalError("disk is full")


def test_lines_that_are_no_episodes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "notes.jsonl").write_text("1\nnot JSON\n")
    assert main(["view", str(file), "--export", str(tmp_path / "page.html")]) == 0
    assert "lines that cannot be read as episodes: 2; the page lists them" in capsys.readouterr().err


def test_the_page_names_its_script_and_style_and_nothing_else() -> None:
    assert "unsafe" not in security_policy() and "*" not in security_policy() and "http" not in security_policy()
    document = render_page({"place": "</script><script>alert(1)</script>"})
    assert "</script><script>" not in document
    script = re.search(r'<script type="module">(.*?)</script>', document, re.DOTALL)
    assert script and "import {" not in script[1] and not re.search(r"^export ", script[1], re.MULTILINE)
    folder = Path(inspect.getfile(render_page)).parent / "static"
    assert {path.name for path in folder.glob("*.js")} == set(MODULES)
    sources = "".join(path.read_text() for path in folder.glob("*.js"))
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "srcdoc")
    for way in (*markup, "eval(", "new Function"):
        assert way not in sources, f"{way} makes markup or code of text"


def test_a_long_curve_is_thinned_out_and_says_so(tmp_path: Path) -> None:
    write_metrics(tmp_path, *range(1, 2501))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "train", "step": 2501, "time": 1, "reward": NaN, "new": 3}\nnot JSON\n{"half": ')
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.update() and not metrics.update()
    curves = metrics.read_curves("train", ["reward", "new"])
    assert curves["per_point"] == 3 and len(curves["step"]) <= MAX_POINTS
    assert curves["values"]["reward"][0] == pytest.approx(0.2) and curves["values"]["new"][-1] == 3
    (tmp_path / "metrics.jsonl").write_text("")
    write_metrics(tmp_path, 1)
    assert metrics.update() and metrics.read_curves("train", ["reward"])["step"] == [1]


def test_tokens_that_share_a_character_are_shown_together(tiny_model: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    ids = tokenizer.encode("a 漢 b", add_special_tokens=False).ids
    texts = token_texts(tiny_model, ids)
    assert texts is not None and len(texts) == len(ids) and "".join(texts) == "a 漢 b"
    assert token_texts(tiny_model, [-5, 10**12, "x"]) is not None  # type: ignore[list-item]
    assert token_texts(None, ids) is None


def test_an_evaluation_has_its_faults_beside_its_episodes(tmp_path: Path) -> None:
    write(tmp_path / "run" / "episodes.jsonl", make_episode("a/0"), make_episode("a/1", reward=0.0))
    fault = make_episode("a/2", reward=None, error="PolicyError: no answer")
    line = {"class": "PolicyError", "error": fault.error, "episode": json.loads(fault.to_json())}
    (tmp_path / "run" / "faults.jsonl").write_text(json.dumps(line) + "\n")
    plan = {"env": "math", "agent": "scripted:expert; rm -rf /", "tasks": 2, "n": 3, "seed": 0, "split": "test"}
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    with Library(tmp_path / "run") as library:
        library.runs[0].update_index()
        answer = library.answer("0/faults", {})
        assert [fault["fault"] for fault in answer["faults"]] == ["PolicyError"]
        record = library.answer("0/episode", {"key": answer["faults"][0]["episode"]})
        assert record["episode"]["id"] == "a/2"
        again = record["commands"]["the same evaluation again"]
        assert "--env math --agent 'scripted:expert; rm -rf /' --tasks 2" in again, "a name is one word of the shell"


def test_a_half_read_evaluation_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    write(run / "episodes.jsonl", *(make_episode(f"a/{i}", reward=float(i < 150)) for i in range(200)))
    plan = {"env": "math", "agent": "scripted:expert", "tasks": 200, "n": 2}
    (run / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setattr("contrib.viewer.index_row.BLOCK_BYTES", 5_000)
    with Library(run) as library:
        [viewed] = library.runs
        viewed.close()  # an update, also of the library's thread, ends at its next block: there are many
        viewed.update_index()
        [measured] = library.answer("0/overview", {})["evaluations"]
        assert measured["reading"] and measured["success"] is measured["interval"] is measured["reward"] is None
    with Library(run) as library:
        [viewed] = library.runs
        while not viewed.index.is_complete:  # the library reads, too: whoever is outrun has not read to the end
            viewed.update_index()
        [measured] = library.answer("0/overview", {})["evaluations"]
        assert not measured["reading"] and measured["success"] == 0.75
        assert (measured["finished"], measured["episodes"], measured["planned"]) == (False, 200, 400)
        (run / "eval.json").write_text(json.dumps({"env": "math", "avg@2": 0.75}))
        [measured] = library.answer("0/overview", {})["evaluations"]
        assert measured["finished"] and measured["planned"] is None


@pytest.mark.parametrize(
    ("phase", "recorded", "finished"),
    [
        ("before", (), True),  # metrics without any evaluation cannot say it
        ("before", (0,), True),
        ("evaluation_000020", (0,), False),
        ("evaluation_000020", (0, 20), True),
        ("after", (0, 20), False),
        ("after", (0, 40), True),
        ("tool_off", (0,), True),
    ],
)
def test_an_evaluation_of_a_run_that_goes_on_is_a_result_once_it_is_recorded(
    tmp_path: Path, phase: str, recorded: tuple[int, ...], finished: bool
) -> None:
    run = tmp_path / "run"
    write(run / "episodes" / f"{phase}.jsonl", make_episode())
    (run / "run.json").write_text('{"steps": 40}')
    lines = [json.dumps({"phase": "evaluation", "step": step, "time": 1.0, "success": 1.0}) for step in recorded]
    (run / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    with Library(run) as library:
        library.runs[0].open()
        library.runs[0].update_index()
        [measured] = library.answer("0/overview", {})["evaluations"]
        assert measured["finished"] == finished and not measured["reading"]


def test_time_outs_stand_among_the_faults_and_count_in_an_evaluation(tmp_path: Path) -> None:
    slow = replace(make_episode("a/2", reward=None), outcome=Outcome.TIMEOUT, error="services were slow")
    write(tmp_path / "run" / "episodes.jsonl", make_episode("a/0"), make_episode("a/1"), slow)
    (tmp_path / "run" / "plan.json").write_text(json.dumps({"env": "math", "agent": "scripted:expert"}))
    with Library(tmp_path / "run") as library:
        library.runs[0].update_index()
        [fault] = library.answer("0/faults", {})["faults"]
        assert (fault["fault"], fault["error"], fault["count"]) == ("timeout", "services were slow", 1)
        [measured] = library.answer("0/overview", {})["evaluations"]
        assert measured["success"] == pytest.approx(2 / 3) and measured["without_timeouts"] == 1.0
        assert (measured["episodes"], measured["timeouts"], measured["reward"]) == (3, 1, 1.0)
