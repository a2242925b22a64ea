"""The viewer in a real browser: every view, the keys, themes, a phone, a run that goes on, links, filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from contrib.viewer.export import write_page
from contrib.viewer.library import Library
from contrib.viewer.server import ViewServer
from contrib.viewer.tests.browser.conftest import Watch, Watched, drawn, index, serving, until, watching
from contrib.viewer.tests.report.test_tables import write_kinds
from contrib.viewer.tests.runs import make_episode, training_run, write, write_metrics, write_start
from contrib.viewer.tests.test_comparison import FIRST, SECOND, evaluation
from forge_env.cli.main import main
from forge_env.core.types import Outcome

EPISODE = "#/run/episode?key=train%2F0"
PHONE = {"width": 390, "height": 780}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    """Serves a folder of runs; a test may add some. The training run `run` stays as it is."""
    folder = tmp_path_factory.mktemp("runs")
    training_run(folder / "run")
    with serving(folder) as server:
        yield server


@pytest.fixture(scope="module")
def page_of_all(browser: Any, server: ViewServer) -> Iterator[Watched]:
    with watching(browser, server.url) as watched:
        yield watched


@pytest.fixture
def shown(page_of_all: Watched) -> Iterator[Watched]:
    """The page of `server`, which most tests share; forbidden actions fail the test that has done them."""
    yield page_of_all
    wrong, page_of_all.wrong = page_of_all.wrong, []
    assert wrong == []


@pytest.fixture
def runs(server: ViewServer) -> Path:
    """The folder that `server` serves."""
    return server.library.paths[0]


def texts(page: Any, selector: str) -> list[str]:
    lines: list[str] = page.locator(selector).all_inner_texts()
    return lines


def test_the_address_keeps_no_key_and_the_overview_shows_curves(shown: Watched) -> None:
    page = shown.go("#/run/overview", ".chart")
    assert "token" not in page.url
    assert page.locator("h1").inner_text().startswith("run")
    assert texts(page, ".chart-title") == ["reward", "success", "loss"]
    page.select_option("select[aria-label='Along']", "time")
    until(page, "location.hash.includes('axis=time')")
    drawn(page)
    page.hover(".chart svg")
    assert "reward" in page.locator(".readout").first.inner_text()
    page.select_option("select[aria-label='Along']", "step")
    until(page, "document.querySelector('.readout').textContent.includes('step')")  # drawn anew beneath the pointer


def test_the_first_visit_of_a_small_run_shows_it(tmp_path: Path, watch: Watch) -> None:
    """Its index ends before the page looks at it for the first time: nothing changes afterwards."""
    for name in ("first", "second"):
        training_run(tmp_path / "runs" / name)
    library = Library(tmp_path / "runs")  # nobody follows its files but this test
    with ViewServer(library) as server:
        page = watch(server.url).page
        page.get_by_role("link", name="first").click()
        until(page, "document.title.startsWith('Overview') || document.title.startsWith('first')")
        drawn(page)
        assert page.locator(".cards a").count() == 0, "it has been drawn before any of it was read"
        library.runs[0].update_index()
        page.clock.run_for(10_000)
        page.wait_for_selector(".cards a")
        assert "13" in page.locator(".cards").inner_text()


def settle(run: Path, learning_rate: float, after: float) -> None:
    """Give a training run its settings and its result."""
    (run / "config.yaml").write_text(f"env:\n  name: math\ntraining:\n  learning_rate: {learning_rate}\n")
    (run / "run.json").write_text(json.dumps({"algorithm": "gspo", "env": "math", "model": "/home/models/tiny"}))
    result = {"success_before": 0.25, "success_after": after, "success_after_ci95": [0.5, 1.0]}
    (run / "summary.json").write_text(json.dumps(result))


def test_runs_have_their_agents_their_results_and_the_settings_that_differ(tmp_path: Path, view: Watch) -> None:
    for name, rate, after in (("one", 1e-5, 0.75), ("two", 5e-4, 1.0)):
        settle(training_run(tmp_path / name), rate, after)
    write(tmp_path / "three" / "episodes.jsonl", make_episode("t/0"))
    plan = {"env": "math", "agent": "scripted:expert", "options": {}, "task_digest": "x", "depends_on": {"agent": {}}}
    (tmp_path / "three" / "plan.json").write_text(json.dumps(plan))
    shown = view(tmp_path)
    page = shown.go("#/?runs=0,1,2", ".list")
    assert texts(page, "td.agent") == ["gspo on models/tiny", "scripted:expert", "gspo on models/tiny"]
    settings = "section:last-child"
    assert page.locator(f"{settings} h2").inner_text() == "Settings that differ"
    assert texts(page, f"{settings} td") == ["training.learning_rate", "1e-05", "0.0005"]
    page = shown.go("#/two/overview", ".cards")
    card = page.locator(".cards a").first.inner_text().split("\n")
    assert card == ["0.25 → 1", "success before and after [0.5, 1]"]


def test_two_evaluations_are_compared_and_their_episodes_stand_side_by_side(tmp_path: Path, browser: Any) -> None:
    runs = evaluation(tmp_path / "a", FIRST), evaluation(tmp_path / "b", SECOND, options={"level": 2})
    with Library(*runs) as library, ViewServer(library) as server:
        index(library)
        with watching(browser, server.url + library.comparison_address) as shown:
            page = shown.page
            page.wait_for_selector("#main table")
            assert texts(page, "tbody tr:first-child td")[:4] == ["all tasks", "4", "0.5", "0.375"]
            assert "options.level" in page.locator("details").text_content()
            assert [text.split(" · ")[1] for text in texts(page, ".group .meta")] == ["t2", "t0", "t3", "t1"]
            page.get_by_role("link", name="odd", exact=True).click()
            until(page, "document.querySelectorAll('.group').length === 2")
            page = shown.go("#/a/compare?other=b&change=worse&order=written", ".group")
            page.locator(".pair").nth(1).click()
            until(page, "document.querySelector('.aligned') !== null")
            assert "key=" in page.url and "2" in page.locator(".pager .dim").inner_text()
            assert texts(page, ".aligned .sides:first-child p") == ["a, episodes ✓ 1", "b, episodes 0"]
            assert page.locator(".aligned > .sides").count() == 3, "a head and two turns"
            page.keyboard.press("n")
            until(page, "location.hash.includes('at=1')")


def test_a_comparison_without_a_common_task_says_so_and_can_be_changed(
    server: ViewServer, runs: Path, shown: Watched
) -> None:
    evaluation(runs / "a", {0: [1.0]})
    evaluation(runs / "b", {1: [1.0]})
    index(server.library)
    page = shown.go("#/a/compare?other=b")
    assert (
        "have no attempt at a task in common: compare runs of the same tasks" in page.locator(".warning").inner_text()
    )
    page.select_option("select[aria-label='B']", "a")
    until(page, "document.querySelector('.group') !== null")


def test_parts_of_the_reward_are_drawn_and_an_evaluation_that_goes_on_is_marked(
    server: ViewServer, runs: Path, shown: Watched
) -> None:
    parts = {"reward/form/mean": 0.5, "reward/form/std": 0.1, "reward/right/mean": 0.2, "reward/right/mean/a": 0.2}
    write_metrics(runs / "parts", 1, 2, **parts)
    with (runs / "parts" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"phase": "evaluation", "step": 0, "time": 1.0, "success": 0.5} | parts) + "\n")
    write(runs / "unfinished" / "episodes.jsonl", *(make_episode(f"t/{i}") for i in range(3)))
    plan = {"env": "math", "agent": "scripted:expert", "tasks": 4, "n": 2}
    (runs / "unfinished" / "plan.json").write_text(json.dumps(plan))
    index(server.library)
    page = shown.go("#/parts/overview", ".chart")
    assert texts(page, ".chart-title") == ["reward", "reward/form/mean", "reward/right/mean", "success", "loss"]
    assert page.locator("main").inner_text().count("held-out") == 2, "a point of each part"
    page = shown.go("#/unfinished/overview", "section table")
    row = page.locator("section table tbody tr").inner_text()
    assert "not finished" in row and "3 of 8 planned" in row
    assert page.locator(".cards .result").count() == 0, "it is no result yet"


def test_groups_are_sorted_by_spread_and_lead_to_their_episodes(shown: Watched) -> None:
    page = shown.go("#/run/groups?phase=train")
    groups = [text.split(" · ")[-1] for text in texts(page, ".group .meta")]
    assert groups == ["train/2", "train/1", "train/0", "train/9"]
    page.locator(".group a.row").first.click()
    page.wait_for_selector(".tr.row")
    assert [text.splitlines()[0] for text in texts(page, "a.tr .col-reward")] == ["✓ 1", "✓ 1", "0", "0"]


def test_an_episode_is_a_conversation_with_calls_and_output(shown: Watched) -> None:
    page = shown.go(EPISODE + "&shade=off", ".conversation")
    senders = [text.split()[0] for text in texts(page, ".message .message-head b")]
    assert senders == ["System", "User", "Model", "Tool", "Model"]
    assert "print('What is 0 + 0?')" in page.locator(".call").inner_text()
    assert page.locator(".message.tool pre.output").inner_text() == "0"
    assert "200 ms" in page.locator(".message.tool .message-head").inner_text()
    page.get_by_role("tab", name="JSON").click()
    page.wait_for_selector("pre.code")
    drawn(page)
    assert '"schema_version": 2' in page.locator("#main").inner_text()


@pytest.mark.parametrize(
    ("shade", "first", "last", "words"),
    [
        ("logprob", "lp1", "lp8", "logprob -7"),
        ("advantage", "up4", "down2", "advantage -0.5"),
        ("mask", "mask1", "mask1", "token 9"),
        ("version", "ver0", "ver1", "weight version 1"),
    ],
)
def test_tokens_are_shaded(shown: Watched, shade: str, first: str, last: str, words: str) -> None:
    page = shown.go(f"{EPISODE}&shade={shade}", ".conversation .tok")
    marks = page.locator(".conversation .tok")
    assert marks.count() == 5
    assert first in marks.first.get_attribute("class") and last in marks.last.get_attribute("class")
    if shade == "logprob":
        backgrounds = "(tokens) => tokens.map((token) => getComputedStyle(token).backgroundColor)"
        assert len(set(marks.evaluate_all(backgrounds))) == 5, "one for each class of logprob"
    marks.last.hover()
    assert words in page.locator(".token-line").inner_text()
    assert page.locator(".shade-bar .legend").is_visible()
    page.get_by_role("tab", name="Tokens").click()
    page.wait_for_selector(".token-row")
    assert page.locator(".token-row .tok").count() == 9


def write_data(run: Path, data: Any) -> None:
    """Write an episode that no program of ours would have written."""
    run.mkdir()
    (run / "episodes.jsonl").write_text(json.dumps(data) + "\n")


def test_rows_of_a_broken_prefix_are_apart(server: ViewServer, runs: Path, shown: Watched) -> None:
    data = json.loads(make_episode().to_json())
    data["turns"][1]["starts_row"] = True
    write_data(runs / "rows", data)
    index(server.library)
    page = shown.go("#/rows/episode?key=episodes%2F0", ".conversation")
    assert page.locator(".break").count() == 1
    page = shown.go("#/rows/episode?key=episodes%2F0&tab=tokens", ".token-row")
    assert page.locator(".token-row").count() == 2


def test_the_rows_of_an_episode_are_a_tree_that_leads_to_them(server: ViewServer, runs: Path, shown: Watched) -> None:
    """Each row is under the one that it comes from, wherever that stands; a circle is no hindrance."""
    data = json.loads(make_episode().to_json())
    data["turns"] = [json.loads(json.dumps(data["turns"][i % 2])) for i in range(5)]
    data["turns"][0]["auxiliary"] = "a title"
    rows = [(0, None, "auxiliary"), (1, 2, "sub_agent"), (2, None, ""), (3, 4, "tools"), (4, 3, "tools")]
    data["lineage"] = [{"turn": turn, "parent": parent, "kind": kind, "why": "w"} for turn, parent, kind in rows]
    write_data(runs / "tree", data)
    index(server.library)
    page = shown.go("#/tree/episode?key=episodes%2F0", ".conversation")
    tree = page.get_by_role("navigation", name="Rows of the episode")
    assert tree.get_by_role("button").all_inner_texts() == ["Row 1", "Row 3", "Row 2", "Row 4", "Row 5"]
    assert tree.locator("ul ul button").all_inner_texts() == ["Row 2", "Row 5"]
    assert tree.locator("li.auxiliary button").all_inner_texts() == ["Row 1"]
    assert page.locator(".rows summary").inner_text() == "5 rows, 1 of them auxiliary: not trained on"
    tree.get_by_role("button", name="Row 3").click()
    assert page.evaluate("document.activeElement.id") == "row-2"
    assert page.locator(".message.auxiliary").count() > 0 and page.locator(".break").count() == 5


def test_faults_by_class_and_message(shown: Watched) -> None:
    page = shown.go("#/run/faults", "table")
    assert "SandboxError: no memory" in page.locator("table").inner_text()
    page.locator("table a.row").click()
    page.wait_for_selector(".tr.row")
    assert texts(page, ".tr.row .mark") == ["fault"]


def test_the_timeline_can_be_zoomed(shown: Watched) -> None:
    page = shown.go("#/run/timeline", ".board")
    assert page.locator(".board .span").count() == 15
    page.keyboard.press("+")
    until(page, "location.hash.includes('from=')")
    until(page, "document.querySelectorAll('.board .span').length < 15")
    drawn(page)
    box = page.locator(".board").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    page.mouse.up()
    until(page, "document.querySelectorAll('.board .span').length < 6")


def test_the_ticks_of_time_are_round_and_as_far_apart_as_they_read(
    server: ViewServer, runs: Path, shown: Watched
) -> None:
    run = training_run(runs / "ticks")
    span = {"pid": 1, "tid": 1, "name": "a", "ph": "X"}
    events = [span | {"ts": 0, "dur": 1_000_000}, span | {"ts": 339_000_000, "dur": 1_000_000}]
    (run / "trace.json").write_text("[\n" + "\n,".join(map(json.dumps, events)) + "\n]")
    index(server.library)
    places = "(all) => all.map((tick) => [parseFloat(getComputedStyle(tick).left), tick.textContent])"
    page = shown.go("#/ticks/timeline", ".scale span")
    assert texts(page, ".scale span") == [f"{minute} min" for minute in range(6)]
    for window in ("", "?from=30&to=121", "?from=0&to=0.003", "?from=100.2&to=100.21"):
        page = shown.go(f"#/ticks/timeline{window}", ".scale span")
        ticks = page.locator(".scale span").evaluate_all(places)
        values = [float(text.split()[0]) for _, text in ticks]
        assert len(ticks) >= 3 and len({text.split()[1] for _, text in ticks}) == 1, ticks
        for pairs in (values, [place for place, _ in ticks]):
            gaps = [b - a for a, b in pairwise(pairs)]
            assert max(gaps) - min(gaps) <= 0.02 * max(gaps) and min(gaps) > 0, ticks


OUTSIDE = """() => [...document.querySelectorAll(".chart svg")].flatMap((drawing) => {
  const { left, right } = drawing.getBoundingClientRect();
  return [...drawing.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < left || box.right > right;
  }).map((text) => text.textContent);
})"""


def test_the_numbers_of_an_axis_can_be_read(server: ViewServer, runs: Path, shown: Watched) -> None:
    sizes = (9e-13, 3.3e-5, 0.7, 123.0, 4.5e7, 2.5e300)
    for step in range(1, 6):
        around = {f"around{i}": size * (step - 3) for i, size in enumerate(sizes)}
        above = {f"above{i}": size * (9 + step) for i, size in enumerate(sizes)}
        write_metrics(runs / "numbers", step, **around, **above)
    index(server.library)
    chosen = ",".join(f"train:{name}{i}" for name in ("around", "above") for i in range(len(sizes)))
    page = shown.go(f"#/numbers/overview?m={chosen}", ".chart")
    assert page.evaluate(OUTSIDE) == []
    labels_of = "(chart) => [...chart.querySelectorAll('text[text-anchor=end]')].map((text) => text.textContent)"
    charts = page.locator(".chart").evaluate_all(f"(charts) => charts.map({labels_of})")
    assert len(charts) == 2 * len(sizes)
    for labels in charts:
        values = [float(text.replace(",", "")) for text in labels[:-1]]  # the last one says what the axis is
        assert len(values) >= 2 and len(set(values)) == len(values) and 0.001 < max(map(abs, values)) < 10_000


def test_a_run_that_has_only_begun_shows_its_settings_and_its_console(
    server: ViewServer, runs: Path, shown: Watched
) -> None:
    write_start(runs / "young")
    index(server.library)
    page = shown.go("#/young/overview", ".document")
    assert "gspo · tool_api" in page.locator("#main").inner_text()
    said = "Step 3 to 9: 39 of 40 groups. Likely cause: too hard. Try: easier tasks."
    assert texts(page, "section.warning li") == [said]
    assert {"run.json", "config.yaml"} <= set(texts(page, ".document summary"))
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_selector(".console .problem")
    page.get_by_role("link", name="trainer.log").click()
    page.wait_for_selector("pre.code")
    drawn(page)
    with (runs / "young" / "console.jsonl").open("a") as file:
        file.write("ne\n" + json.dumps({"time": 9, "kind": "said", "text": "the first step"}) + "\n")
    shown.poll()
    until(page, "document.querySelector('.console').textContent.includes('the first step')")


def test_a_time_out_is_shown_as_one_and_a_success_as_the_environment_says(
    server: ViewServer, runs: Path, shown: Watched
) -> None:
    late = make_episode("e/0/0", reward=None, outcome=Outcome.TIMEOUT, error="the shop took 300 s")
    write(runs / "late" / "episodes.jsonl", late, make_episode("e/0/1", reward=0.5))
    index(server.library)
    page = shown.go("#/late/episodes", ".tr.row")
    assert texts(page, ".col-reward .mark") == ["time-out", "0.5"]
    assert "Time-out: the shop took 300 s" in page.locator(".tr.row").first.inner_text()
    assert "Time-out" in (page.locator("select[aria-label='Outcome']").text_content() or "")
    page = shown.go("#/late/overview", ".cards")
    assert "time-outs" in page.locator(".cards").inner_text()


def test_what_a_program_left_behind_can_be_read(server: ViewServer, runs: Path, shown: Watched) -> None:
    program: dict[str, Any] = {
        "stdout": "some <b>output</b>\n",
        "stderr": "some trouble\n",
        "note": "the episode was ended by max_turns (5)",
        "refused": ["2 x HTTP 400: n is 2, which is not offered: leave it out"],
    }
    info = {"program": program, "refused_requests": {"n": 2, "stop": 1}}
    write(runs / "program" / "episodes.jsonl", make_episode(info=info))
    index(server.library)
    page = shown.go("#/program/episode?key=episodes%2F0&tab=info")
    assert "3 requests refused" in page.locator(".episode-head").inner_text()
    parts = dict(zip(texts(page, "section h3"), texts(page, "section pre"), strict=True))
    shown = ("Standard output", "Standard error", "How the program was ended", "Refused requests")
    assert [parts[title].strip() for title in shown] == [
        *(program[name].strip() for name in ("stdout", "stderr", "note")),
        program["refused"][0],
    ]


def test_filters_are_in_the_address_and_the_back_button_takes_them_back(shown: Watched) -> None:
    page = shown.go("#/run/episodes", ".tr.row")
    page.select_option("select[aria-label='Only']", "fault")
    until(page, "document.querySelectorAll('.tr.row').length === 1")
    assert "has=fault" in page.url
    page.go_back()
    until(page, "document.querySelectorAll('.tr.row').length === 15")
    page.fill("#search", "what is 1 + 1")
    until(page, "document.querySelectorAll('.tr.row').length === 4")
    assert page.evaluate("document.activeElement.id") == "search", "the field keeps the focus while one types"
    page.fill("#search", "nothing of the kind")
    page.wait_for_selector(".empty")
    page.go_back()
    until(page, "document.querySelectorAll('.tr.row').length === 4")
    page.clock.run_for(1000)
    assert page.input_value("#search") == "what is 1 + 1", "the text that was taken back stays so"
    assert page.locator(".tr.row").count() == 4


def test_the_kind_of_task_is_a_filter(shown: Watched) -> None:
    page = shown.go("#/run/episodes?kind=double", ".tr.row")
    assert page.locator(".tr.row").count() == 4
    assert texts(page, "select[aria-label='Kind of task'] option") == ["any", "no_kind", "add", "double"]
    page.select_option("select[aria-label='Kind of task']", "no_kind")
    until(page, "document.querySelectorAll('.tr.row').length === 3")
    assert "kind=no_kind" in page.url
    assert walk(shown) == ["evaluation/0/0", "evaluation/0/0", "train/9/0"], "the next of the list, too"


def walk(watched: Watched) -> list[str]:
    """Press n from the first row of the list to the last; returns the ids of the episodes."""
    page = watched.page
    page.locator(".tr.row").first.click()
    page.wait_for_selector(".conversation")
    drawn(page)
    ids = [page.locator("h1 .id").inner_text()]
    while page.locator("a[aria-label='Next episode']").count():
        before = page.url
        page.keyboard.press("n")
        until(page, "(before) => location.href !== before", before)
        drawn(page)
        ids.append(page.locator("h1 .id").inner_text())
    return ids


WALK = "episodes?phase=train&has=tool_error&order=newest"


def test_the_next_episode_is_the_next_of_the_list(shown: Watched) -> None:
    page = shown.go(f"#/run/{WALK}", ".tr.row")
    assert walk(shown) == ["train/2/3", "train/1/3", "train/0/3"]
    assert "3 of 3" in page.locator(".pager").inner_text()
    page.keyboard.press("p")
    until(page, "document.querySelector('h1 .id').textContent === 'train/1/3'")
    page.get_by_role("link", name="The list").click()
    page.wait_for_selector(".tr.row")
    assert page.locator(".tr.row").count() == 3


def test_the_keys_lead_everywhere(shown: Watched) -> None:
    page = shown.go("#/run/overview")
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_selector(".tr.row")
    page.select_option("select[aria-label='Phase']", "train")
    until(page, "document.querySelectorAll('.tr.row').length === 13")
    drawn(page)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".conversation")
    assert "key=" in page.url
    first = page.url
    page.keyboard.press("n")
    until(page, "(before) => location.href !== before", first)
    drawn(page)
    for shade in ("advantage", "mask", "version", "off"):
        page.keyboard.press("s")
        until(page, "(name) => location.hash.includes('shade=' + name)", shade)
    page.keyboard.press("t")
    page.wait_for_selector(".token-row")
    drawn(page)
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".token-line").inner_text().startswith("token 1")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector(".board")
    page.keyboard.press("/")
    page.wait_for_selector("#search")
    drawn(page)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "search"


def test_what_has_the_focus_can_be_seen(shown: Watched) -> None:
    page = shown.go("#/run/episodes", ".tr.row")
    page.keyboard.press("j")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); };
  const over = (colour, back) => {
    paint(`rgb(${back})`);
    paint(colour);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const backOf = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.push(getComputedStyle(e).backgroundColor);
    return chain.reverse().reduce((back, colour) => over(colour, back), [255, 255, 255]);
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || element.closest("svg, .page.off, .hidden-text, .skip")) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const back = backOf(element);
    const pair = [light(back), light(over(getComputedStyle(element).color, back))].sort((x, y) => y - x);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) poor.push(`${element.className}: ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read(shown: Watched, theme: str) -> None:
    page = shown.page
    page.emulate_media(color_scheme=theme)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert (page.evaluate(ground) == "rgb(18, 19, 22)") == (theme == "dark")
    places = ["overview", "groups", "episodes", "faults", "timeline"]
    places += [f"episode?key=train%2F0&shade={shade}" for shade in ("logprob", "advantage", "version", "mask")]
    for place in places:
        shown.go(f"#/run/{place}")
        assert page.evaluate(CONTRAST) == [], place
    grounds = []
    for _ in range(3):  # light, dark, and the system's again
        page.keyboard.press("d")
        grounds.append(page.evaluate(ground))
    system = "rgb(18, 19, 22)" if theme == "dark" else "rgb(247, 247, 245)"
    assert grounds == ["rgb(247, 247, 245)", "rgb(18, 19, 22)", system]


def test_a_phone_shows_every_column(tmp_path: Path, view: Watch) -> None:
    settle(training_run(tmp_path / "run"), 1e-5, 0.75)
    write_metrics(tmp_path / "other", 1)
    watched = view(tmp_path)
    watched.page.set_viewport_size(PHONE)
    page = watched.go("#/?runs=none", ".list")
    assert page.locator(".list td").count() == 2 * 9
    assert page.locator(".list td:visible").count() == 17, "one has no environment"
    report = page.context.new_page()
    report.set_viewport_size(PHONE)
    report.goto(write_page(write_kinds(tmp_path / "kinds")).as_uri())
    report.wait_for_selector(".sides")
    inside = "(cells) => cells.filter((cell) => cell.getBoundingClientRect().right > innerWidth).length"
    assert report.locator(".stacked td").evaluate_all(inside) == 0
    report.close()


def test_nothing_is_wider_than_a_phone(tmp_path: Path, view: Watch) -> None:
    run = training_run(tmp_path / "run")
    file = run / "episodes" / "train.jsonl"
    episode = f"episode?key=train%2F{file.stat().st_size}"
    write(file, make_episode("w" * 300, question="q" * 500, answer="a" * 900, tool="t" * 80))
    watched = view(run, viewport={"width": 360, "height": 740}, has_touch=True)
    for width in (360, 768):
        watched.page.set_viewport_size({"width": width, "height": 740})
        for view_ in ("overview", "groups", "episodes", "faults", "timeline"):
            watched.go(f"#/run/{view_}")
            assert watched.page.evaluate("document.documentElement.scrollWidth") <= width, view_
        for tab in ("talk", "info", "tokens"):
            watched.go(f"#/run/{episode}&tab={tab}")
            assert watched.page.evaluate("document.documentElement.scrollWidth") <= width, tab


def test_every_control_has_a_name(shown: Watched) -> None:
    for place in ("overview", "groups", "episodes", "faults", "timeline", "episode?key=train%2F0"):
        shown.go(f"#/run/{place}")
        unnamed = shown.page.evaluate(
            "[...document.querySelectorAll('a, button, input, select, summary')].filter((e) => e.checkVisibility() && "
            "!(e.getAttribute('aria-label') || e.textContent || (e.labels && e.labels.length))).map((e) => e.outerHTML)"
        )
        assert unnamed == []


def test_a_run_that_goes_on_is_followed(server: ViewServer, runs: Path, shown: Watched) -> None:
    run = training_run(runs / "followed")
    index(server.library)
    page = shown.go("#/followed/episodes?order=newest", ".tr.row")
    page.keyboard.press("j")
    write(run / "episodes" / "train.jsonl", make_episode("train/77/0", question="Something new?"))
    until(page, "document.body.textContent.includes('Something new?')")
    assert page.evaluate("document.activeElement.matches('.row')"), "the row that had the focus has it still"
    page.wait_for_selector(".mark.live")
    (run / "episodes" / "train.jsonl").unlink()
    index(server.library)
    shown.poll()
    until(page, "!document.body.textContent.includes('Something new?')")


def test_nothing_is_drawn_anew_under_a_drag_and_all_of_it_afterwards(
    server: ViewServer, runs: Path, shown: Watched
) -> None:
    run = training_run(runs / "dragged")
    index(server.library)
    page = shown.go("#/dragged/episodes?order=newest", ".tr.row")
    page.mouse.move(600, 20)
    page.mouse.down()
    write(run / "episodes" / "train.jsonl", make_episode("train/77/0", question="Something new?"))
    index(server.library)
    for _ in range(3):  # the page has read an answer when it asks again
        shown.poll()
    assert "Something new?" not in page.locator("#main").inner_text()
    page.mouse.up()
    shown.poll()
    until(page, "document.body.textContent.includes('Something new?')")


def test_several_runs_are_compared(tmp_path: Path, view: Watch) -> None:
    for name in ("first", "second"):
        training_run(tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "summary.json").write_text('{"success_before": 0.1, "success_after": 0.9}')
    page = view(tmp_path / "runs").page
    page.wait_for_selector(".chart .line")
    assert texts(page, ".chart-title") == ["reward", "success", "loss"]
    marks = page.locator(".chart").evaluate_all(
        "(all) => all.map((chart) => [chart.querySelectorAll('.line').length, chart.querySelectorAll('.dot').length])"
    )
    assert marks == [[2, 0], [2, 4], [2, 0]], "success before and after is in the chart of success alone"
    page.get_by_label("Show the curves of second").uncheck()
    until(page, "document.querySelector('.chart').querySelectorAll('.line').length === 1")
    page.get_by_role("link", name="first").click()
    page.wait_for_selector(".cards")


def test_a_long_output_is_folded(server: ViewServer, runs: Path, shown: Watched) -> None:
    write(runs / "long" / "episodes.jsonl", make_episode(output="0123456789" * 20_000))
    index(server.library)
    page = shown.go("#/long/episode?key=episodes%2F0", ".conversation")
    length = "document.querySelector('.message.tool pre').textContent.length"
    assert page.evaluate(length) == 6000
    page.get_by_role("button", name="more of 200 k characters").click()
    assert page.evaluate(length) == 200_000


def test_lines_that_hold_no_episode_are_shown(server: ViewServer, runs: Path, shown: Watched) -> None:
    (runs / "bad").mkdir()
    (runs / "bad" / "episodes.jsonl").write_text("not JSON\n{}\n")
    index(server.library)
    page = shown.go("#/bad/overview", ".warning")
    assert "2 lines hold no episode" in page.locator(".warning").inner_text()


def test_a_request_that_the_browser_ends_is_sent_again(shown: Watched) -> None:
    shown.page.route("**/api/*/episodes?*", lambda route: route.abort("connectionreset"), times=1)
    shown.go("#/run/episodes?kind=double", ".tr.row")
    shown.wrong.clear()


def test_a_view_that_the_server_did_not_answer_is_drawn_when_it_answers(shown: Watched) -> None:
    shown.page.route("**/api/*/episodes?*", lambda route: route.abort("connectionreset"))
    page = shown.go("#/run/episodes?kind=double", ".empty")
    assert page.locator(".empty").inner_text() == "The server does not answer: forge-env view has ended."
    page.unroute_all()
    shown.poll()
    until(page, "document.querySelectorAll('.tr.row').length === 4")
    shown.wrong.clear()


def test_an_empty_run_says_so(server: ViewServer, runs: Path, shown: Watched) -> None:
    (runs / "empty").mkdir()
    (runs / "empty" / "metrics.jsonl").touch()
    index(server.library)
    for place in ("groups", "episodes", "faults", "timeline"):
        assert shown.go(f"#/empty/{place}", ".empty").locator(".empty").inner_text()


def test_a_place_that_does_not_exist_is_one_sentence(shown: Watched) -> None:
    page = shown.go("#/run/episode?key=train%2F3", ".empty")
    assert "not there" in page.locator(".empty").inner_text()
    page = shown.go("#/nothing/episodes", ".empty")
    assert "There is no run nothing" in page.locator(".empty").inner_text()
    shown.go("#/%E0%A4%A/episodes", ".empty")


@pytest.mark.slow
def test_fifty_thousand_episodes_are_paged(tmp_path: Path, view: Watch) -> None:
    line = make_episode("train/GROUP/MEMBER", question="Question GROUP?" + " and so on" * 200).to_json() + "\n"
    path = tmp_path / "large" / "episodes" / "train.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        file.writelines(line.replace("GROUP", str(n // 8)).replace("MEMBER", str(n % 8)) for n in range(50_000))
    watched = view(tmp_path / "large", is_indexed=False)
    page = watched.go("#/large/episodes?order=newest")
    page.wait_for_selector(".tr.row", timeout=60_000)
    page.wait_for_selector(".tools .mark.some", state="detached", timeout=240_000)  # all of it has been read
    page = watched.go("#/large/episodes?page=999", ".tr.row")
    assert page.locator(".tr.row").count() == 50 and "50,000 episodes" in page.locator("#main").inner_text()
    assert "train/6249/7" in page.locator(".tr.row").last.inner_text()


def test_the_exported_file_works_by_itself(tmp_path: Path, watch: Watch) -> None:
    assert main(["view", str(training_run(tmp_path / "run")), "--export", str(tmp_path / "run.html")]) == 0
    watched = watch((tmp_path / "run.html").as_uri())
    page = watched.page
    page.wait_for_selector(".chart .line")
    page = watched.go("#/run/groups?phase=train", ".group")
    assert texts(page, ".group .meta")[0].endswith("train/2")
    page = watched.go("#/run/episodes?has=tool_error", ".tr.row")
    assert page.locator(".tr.row").count() == 3
    for kind, count in (("double", 4), ("no_kind", 3)):
        page = watched.go(f"#/run/episodes?kind={kind}", ".tr.row")
        assert page.locator(".tr.row").count() == count
    page = watched.go("#/run/episodes?has=tool_error", ".tr.row")
    page.fill("#search", "what is 1 + 1")
    until(page, "document.querySelectorAll('.tr.row').length === 1")
    page.locator(".tr.row").first.click()
    page.wait_for_selector(".conversation .tok")
    watched.go("#/run/timeline", ".board .span")
    watched.go("#/run/faults", "table")
    watched.go("#/run/console")
    watched.go(f"#/run/{WALK}", ".tr.row")
    assert walk(watched) == ["train/2/3", "train/1/3", "train/0/3"]
