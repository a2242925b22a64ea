"""The report of a run: every section that the folder has data for, and no markup from outside."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.main import main
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from forge_env.report.page import render_page, write_page
from forge_env.report.run_data import RunData, read_run
from forge_env.report.tables import faults
from tests.forge_env.report.folders import attempt, steps, write_run


class Reader(HTMLParser):
    """Elements, attributes and visible text, as a browser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "br", "line", "circle", "rect", "polyline", "polygon", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "


def read(folder: Path) -> Reader:
    reader = Reader(render_page(read_run(folder)))
    assert reader.open == [], "every element that is opened is closed"
    return reader


FACTS = {"algorithm": "grpo", "env": "code_exec", "seed": 3, "steps": 4, "model": "m", "started": "2026-01-31T12:00:00"}


def named(kind: str, rewards: list[float]) -> list[Episode]:
    """An attempt at each task of a kind."""
    made = (attempt(f"{kind} {i}", reward) for i, reward in enumerate(rewards))
    return [replace(episode, task=replace(episode.task, kind=kind)) for episode in made]


def write_kinds(folder: Path, left_out: int = 0) -> Path:
    """A run whose tasks are of four kinds; in training the hard ones are learned, step by step."""
    easy = {"success/easy": 1.0, "episodes/easy": 4.0}
    unchanged = [*named("easy", [1.0] * 6), *named("never", [0.0] * 4), *named("<b>", [0.0, 1.0])]
    return write_run(
        folder,
        metrics=[
            {"phase": "evaluation", "step": 0, "success": 0.5, "success/easy": 1.0, "success_low/easy": 0.6},
            *(step | easy | {"success/hard": step["success"], "episodes/hard": 8.0} for step in steps(10)),
            {"phase": "evaluation", "step": 10, "success": 0.7, "success/easy": 1.0, "success/hard": 0.75},
        ],
        episodes={
            "before": [*unchanged, *named("hard", [0.0] * 12)],
            "after": [*unchanged, *named("hard", [1.0] * 9 + [0.0] * 3)],
        },
        facts=FACTS | {"kinds": {"names": ["<b>", "easy", "hard", "never"], "left_out": left_out}},
        summary={},
    )


def test_success_by_kind_of_task(tmp_path: Path) -> None:
    folder = write_kinds(tmp_path / "run")
    page, reader = render_page(read_run(folder)), read(folder)
    text = " ".join(reader.text.split())
    assert "<h2>Success by kind of task" in page
    easy = "1 [0.610, 1] 1 [0.610, 1] +0.000 [-0.489, +0.489] (0 / 0) 1 to 1 1 to 1"
    assert f"easy solved before training 6 {easy} hard" in text
    rates = r"0 \[0, 0\.\d+\] 0\.750 \[0\.\d+, 0\.\d+\] \+0\.750 \[\+0\.\d+, \+0\.\d+\] \(9 / 0\)"
    assert re.search(rf"hard better 12 {rates} 0\.100 to 1 0 to 0\.750 never", text)
    assert "Solved before training, with a success of at least 0.95: easy (1 of 4 kinds)" in text
    assert "Never solved, neither before nor after training: never (1 of 4 kinds)" in text
    assert "No change shown: what there is on the same tasks may be chance: <b> (1 of 4 kinds)" in text
    assert "of the difference is without 0, both corrected for 4 kinds by Holm's method." in text
    assert "Better: hard (1 of 4 kinds)" in text
    assert page.index("<figcaption>Reward") < page.index("<figcaption>easy"), "the curve of the reward comes first"
    assert 'class="wide stacked"' in page and '<td class="number" data-label="in training">1 to 1</td>' in page
    assert "<figcaption>easy" in page and "<figcaption>hard" in page and "<figcaption>never" not in page
    assert "counted together" not in text


def test_the_parts_of_the_reward_have_columns_and_curves(tmp_path: Path) -> None:
    """A column of each table, a chart each, and a word about the episodes that lack one."""

    def of_parts(right: float) -> list[Episode]:
        made = [*named("easy", [right] * 4), *named("hard", [0.0] * 4)]
        parts = [{"<i>form": 0.5, "right": right}] * 4 + [{"<i>form": 1.0}] * 4
        return [replace(episode, rewards=of) for episode, of in zip(made, parts, strict=True)]

    figures = {"reward/<i>form/mean": 0.5, "reward/<i>form/std": 0.1, "reward/right/mean": 0.25}
    counts = {"episodes": 8.0, "reward/<i>form/episodes": 8.0, "reward/right/episodes": 4.0}
    folder = write_run(
        tmp_path / "run",
        metrics=[step | figures | counts for step in steps(4)],
        episodes={"before": of_parts(0.0), "after": of_parts(1.0)},
        facts=FACTS | {"kinds": {"names": ["easy", "hard"], "left_out": 0}},
        summary={},
    )
    page, text = render_page(read_run(folder)), " ".join(read(folder).text.split())
    assert "<i>" not in page
    assert "evaluated <i>form right before training 0.750 0.000 (4 of 8 episodes) after training 0.750 1.000 (4" in text
    assert "before to after <i>form right easy 0.500 to 0.500 0 to 1 hard 1 to 1 – to –" in text
    assert "the mean reward by +0.500" in text
    assert "<h2>Parts of the reward" in page and "<figcaption>right" in page and "<figcaption>&lt;i&gt;form" in page
    assert page.count("Over the episodes that have the part: in 4 of 4 steps some lack it.") == 1
    alone = [step | {"reward/right/mean": step["reward"]} for step in steps(4)]
    folder = write_run(tmp_path / "alone", metrics=alone, facts=FACTS, summary={})
    assert "Parts of the reward" not in render_page(read_run(folder)), "the part is the reward"


def test_kinds_without_figures_are_named_as_a_number(tmp_path: Path) -> None:
    text = " ".join(read(write_kinds(tmp_path / "run", left_out=9)).text.split())
    assert "The tasks have 13 kinds: the 4 with the most tasks have figures of their own, the other 9 are" in text


def test_a_run_that_goes_on_has_the_kinds_of_its_training(tmp_path: Path) -> None:
    metrics = [step | {"success/easy": 0.5, "episodes/easy": 4.0} for step in steps(3)]
    facts = FACTS | {"kinds": {"names": ["easy", "unseen"], "left_out": 0}}
    text = " ".join(read(write_run(tmp_path / "run", metrics=metrics, facts=facts)).text.split())
    assert "easy 0 0.500 to 0.500" in text and "unseen" not in text


def test_tasks_without_kinds_leave_no_table(tmp_path: Path) -> None:
    for name, facts in (("a", FACTS), ("b", FACTS | {"kinds": {"names": ["unseen"], "left_out": 0}})):
        folder = write_run(tmp_path / name, metrics=steps(3), facts=facts)
        assert "kind of task" not in render_page(read_run(folder))


def test_what_may_keep_a_run_from_learning(tmp_path: Path) -> None:
    finding = {"step": 3, "last_step": 9, "measured": "<b>12 of 12</b>", "cause": "too hard", "settings": "--steps 9"}
    early = write_run(tmp_path / "early", metrics=steps(3), facts=FACTS | {"findings": [finding]})
    assert "step 3 to 9  &lt;b&gt;12" not in read(early).text and "step 3 to 9" in read(early).text
    assert "<b>12 of 12</b>. Likely cause: too hard." in " ".join(read(early).text.split())
    facts = FACTS | {"findings": [finding | {"cause": "of the beginning"}]}
    done = write_run(tmp_path / "done", metrics=steps(3), facts=facts, summary={"findings": []})
    assert "keep it from learning" not in render_page(read_run(done))
    broken = write_run(tmp_path / "broken", metrics=steps(3), facts=FACTS | {"findings": [None, 3]})
    assert "keep it from learning" not in render_page(read_run(broken))


def test_a_complete_run(tmp_path: Path) -> None:
    before = [attempt(f"task {i}", float(i < 2), output="1", seconds=0.5) for i in range(10)]
    after = [attempt(f"task {i}", float(i >= 1), output="1") for i in range(10)]
    metrics = [
        {"phase": "evaluation", "step": 0, "time": 1.0, "success": 0.2, "success_low": 0.1, "success_high": 0.4},
        *steps(4, entropy=0.5, kl=1e-7, mean_abs_logprob_difference=1e-6),
        {"phase": "evaluation", "step": 2, "time": 5.0, "success": 0.5, "success_low": 0.3, "success_high": 0.7},
        {"phase": "system", "step": 5, "time": 5.0, "run/memory_bytes": 3 * 2**30, "memory_used_bytes": 5 * 2**30},
    ]
    folder = write_run(
        tmp_path / "run",
        metrics=metrics,
        episodes={
            "before": before,
            "evaluation_000002": after[:5],
            "after": after,
            "tool_off": [attempt("task 0", 0.0)],
            "train": [*before, attempt("task 1", None, number=5, error="the sandbox <died>")],
        },
        facts=FACTS,
        summary={"total_seconds": 3725.0, "tokens_generated": 12345},
        console=[{"time": 1.0, "kind": "warning", "text": "warning: the bound was passed"}],
        config="training:\n  steps: 4\n",
    )
    text = read(folder).text
    for phrase in (
        "grpo on code_exec", "complete", "seed 3", "2026-01-31 12:00", "1 h 2 min", "3 GiB",
        "before training", "after step 2", "after training", "before, tools switched off",
        "On the same 10 tasks, training changed success by +0.700", "8 better, 1 worse, 1 alike",
        "Entropy of the policy", "python", "500 ms", "infra_fault", "the sandbox <died>",
        "warning: the bound was passed",
        "solved since training", "no longer solved", "solved before and after", "tokens_generated", "12345", "steps: 4",
    ):  # fmt: skip
        assert phrase in text, phrase
    assert "incomplete" not in text


def test_time_outs_are_shown_with_the_success_without_them(tmp_path: Path) -> None:
    slow = attempt("b", None, error="services were slow", outcome=Outcome.TIMEOUT)
    text = read(write_run(tmp_path / "run", facts=FACTS, episodes={"after": [attempt("a", 1.0), slow]})).text
    assert "1 (without: 1)" in text and "services used up the time" in text and "services were slow" in text


def test_how_a_run_started(tmp_path: Path) -> None:
    startup = {
        "first_step": 80.0,
        "model": [2.0, 4.0],
        "engine: load": [20.0, 40.0],
        "engine: load: compile": [None, 9.0],
    }
    folder = write_run(tmp_path / "run", facts=FACTS | {"startup": startup})  # it may still be running
    page = render_page(read_run(folder))
    assert "The first optimizer step was done 1 min 20 s after the command." in read(folder).text
    assert page.count('class="fill"') == 2, "a part of another phase has no place of its own"
    assert 'class="fill" x="25.00%" width="50.00%"' in page and ">9.0 s<" in page
    for unknown in (None, {}, {"first_step": None, "model": [0.0, 1.0]}, "damaged"):
        (folder / "run.json").write_text(json.dumps(FACTS | {"startup": unknown}))
        assert "<h2>Start" not in render_page(read_run(folder))


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", facts=FACTS)
    text = read(folder).text
    assert "incomplete" in text and "it was killed, or is still running" in text and "Learning" not in text


@pytest.mark.parametrize("what", ["the trainer process died", "it was stopped"])
def test_a_run_that_ended_early_says_why(tmp_path: Path, what: str) -> None:
    console = [{"time": 1.0, "kind": "said", "text": "begun"}, {"time": 2.0, "kind": "error", "text": what}]
    text = read(write_run(tmp_path / "run", metrics=steps(2), facts=FACTS, console=console)).text
    assert f"This run is not complete: {what}" in text and "of 4" in text


def test_what_a_kill_left_half_written_is_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", metrics=steps(3), episodes={"after": [attempt("a", 1.0)]}, facts=FACTS)
    for name in ("metrics.jsonl", "console.jsonl", "episodes/after.jsonl", "run.json"):
        with (folder / name).open("a") as file:
            file.write('{"phase": "train", "st')
    text = read(folder).text
    assert "training on data" in text and "Reward of an episode" in text and "after training" in text


PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)><style>*{display:none}</style>",
    "</pre></div></section><iframe src=javascript:alert(1)></iframe>",
    "</title></style><meta http-equiv=refresh content=0>",
    "<!--",
    "&lt;b&gt; &amp;",
)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_that_others_wrote_becomes_markup(tmp_path: Path, payload: str) -> None:
    """In every field that a model, a task, a tool, a setting or an error controls."""

    def hostile(reward: float | None, number: int, outcome: Outcome | None = None) -> Episode:
        return attempt(
            payload, reward, number=number, answer=payload, call=json.dumps({payload: payload}), tool=payload,
            output=payload, error=payload, outcome=outcome,
        )  # fmt: skip

    episodes = [hostile(1.0, 0), hostile(None, 1)]
    names = {payload: 1.0, f"memory_bytes/{payload}": 1.0, f"gpu/0/{payload}": 2.0, "cpu_percent": 5.0}
    versions = {payload: payload}
    folder = write_run(
        tmp_path / "run",
        metrics=[*steps(3, **names), {"phase": "system", "step": 3, "time": 1.0, **names}],
        episodes={"before": [hostile(0.0, 0)], "after": [hostile(1.0, 0)], "train": episodes, "evaluation_x": episodes},
        facts={"algorithm": payload, "env": payload, "model": payload, "started": payload, "machine": versions},
        summary={"versions": versions},
        console=[{"time": 1.0, "kind": kind, "text": payload} for kind in ("said", "warning", "error")],
        config=payload,
    )
    plain = write_run(tmp_path / "plain", metrics=steps(3), episodes={"after": [attempt("a", 1.0)]})
    allowed = {"ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary", "dl", "dt", "dd"}
    allowed |= {"figure", "figcaption", "svg", "g", "line", "circle", "text", "title", "polyline", "path", "rect", "b"}
    allowed |= {"h1", "h2", "h3", "h4", "p", "div", "span", "pre", "section", "header", "main"}
    page, expected = read(folder), read(plain)
    assert page.tags <= expected.tags | allowed
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert page.text.count(payload) >= 8, "and it can all be read as it is"


def test_a_browser_may_run_and_fetch_nothing(tmp_path: Path) -> None:
    page = render_page(read_run(write_run(tmp_path / "run", metrics=steps(3))))
    assert re.search(r"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-[\w+/=]+';", page)
    assert "http:" not in page.replace("http://www.w3.org", "") and "https:" not in page and " style=" not in page


def test_half_of_a_character_is_written_all_the_same(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", metrics=steps(1), episodes={"after": [attempt("a", 1.0, answer="\ud800 \0 x")]}
    )
    assert "? \0 x" in write_page(folder).read_text(encoding="utf-8")


def test_the_page_is_bounded_and_says_what_is_left_out(tmp_path: Path) -> None:
    long = [attempt(f"t{i}", 1.0, answer="x" * 1_000_000, output="y" * 1_000_000, call="z" * 500_000) for i in range(4)]
    points = steps(20_000)
    folder = write_run(tmp_path / "run", metrics=points, episodes={"before": long, "after": long}, facts=FACTS)
    page = render_page(read_run(folder))
    assert len(page) < 400_000
    assert "998,000 characters more" in page


def test_of_a_long_training_the_last_episodes_are_read(tmp_path: Path) -> None:
    episodes = [attempt(f"t{i}", 1.0, output="1") for i in range(200)]
    folder = write_run(tmp_path / "run", metrics=steps(2), episodes={"train": episodes})
    assert read_run(folder).has_all_trained and len(read_run(folder).trained) == 200
    line = len(episodes[-1].to_json()) + 1
    run = read_run(folder, max_bytes=10 * line + line // 2)
    assert [episode.task.id for episode in run.trained] == [f"t{i}" for i in range(190, 200)]
    assert not run.has_all_trained and "Of the last 10 episodes of the training." in render_page(run)


def test_the_command_writes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", metrics=steps(2), facts=FACTS)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'report.html'}\n"
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(folder / "report.html")}
    assert {path.name for path in folder.iterdir()} >= {"report.html"} and not list(folder.glob("*.new"))
    assert main(["report", str(tmp_path)]) == 2
    assert "is not the folder of a training run: it has no metrics.jsonl" in capsys.readouterr().err
    with pytest.raises(UserError):
        write_page(tmp_path / "nowhere")


def test_the_state_of_a_run_is_printed_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(folder: Path) -> list[str]:
        assert main(["report", str(folder), "--text"]) == 0
        return capsys.readouterr().out.splitlines()

    finding = {"step": 3, "last_step": 9, "measured": "12 of 12", "cause": "too hard", "settings": "--env x"}
    held_out = {
        name: [attempt(f"{i}", float(i < solved)) for i in range(4)]
        for name, solved in {"before": 1, "evaluation_4": 3, "after": 2, "after.greedy": 4}.items()
    }
    facts, metrics = FACTS | {"findings": [finding]}, steps(10, kl=0.5)
    metrics[9] |= {"kl": None, "loss": "odd"}
    begun = told(write_run(tmp_path / "begun", facts=FACTS))
    assert begun == ["grpo on code_exec, seed 3: not complete: it was killed, or is still running"]
    done = told(write_run(tmp_path / "done", metrics=metrics, episodes=held_out, facts=facts, summary=facts))
    rows = {line.split("  ")[0]: line.split()[-2:] for line in done}
    assert done[0] == "grpo on code_exec, seed 3: complete" and "Reward, last step: 1" in done
    assert done[done.index("Steps:") + 1].split()[-6:] == ["1", "to", "2", "9", "to", "10"]
    assert (rows["reward"], rows["kl"], rows["loss"]) == (["0.150", "0.950"], ["0.500", "0.500"], ["0.750", "0.111"])
    assert "entropy" not in rows
    names = ("first (before training): 0.250 [", "best (after step 4): 0.750 [", "last (after training): 0.500 [")
    assert [line for line, name in zip(done[done.index("Held-out success:") + 1 :], names, strict=False)] == [
        line for line in done if line.startswith(names)
    ]
    assert "step 3 to 9: 12 of 12. Likely cause: too hard. Try: --env x." in done
    console = [{"time": 2.0, "kind": "error", "text": "the trainer process died"}]
    assert (
        "not complete: the trainer process died" in told(write_run(tmp_path / "end", facts=FACTS, console=console))[0]
    )
    assert main(["report", str(tmp_path), "--text"]) == 2
    assert "is not the folder of a training run" in capsys.readouterr().err


def test_a_skipped_step_is_counted_by_its_reason(tmp_path: Path) -> None:
    """A step whose prompts leave no token to sample has no gradient that could be infinite."""
    records = [{"step": 1.0, "skipped": 1.0, "tokens": 0.0}, {"step": 2.0, "skipped": 1.0, "tokens": 9.0}]
    records += [{"step": 3.0, "skipped": 1.0, "tokens": 0.0}, {"step": 4.0, "skipped": 0.0, "tokens": 9.0}]
    parts: dict[str, Any] = {"facts": {}, "summary": None, "config": "", "console": (), "evaluations": {}}
    run = RunData(folder=tmp_path, phases={"train": records}, trained=(), has_all_trained=True, **parts)
    table = faults(run)
    assert re.search(r"was not finite, skipped</td><td[^>]*>1<", table)
    assert re.search(r"without a token to learn from, skipped</td><td[^>]*>2<", table)
