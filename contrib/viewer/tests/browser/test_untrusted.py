"""Nothing that a model, a tool, a task or a name says can run in the page, be loaded by it, or deceive its reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from contrib.viewer.server import ViewServer
from contrib.viewer.tests.browser.conftest import Watch, Watched, serving
from contrib.viewer.tests.runs import make_episode
from forge_env.cli.main import main

FOREIGN = "http://127.0.0.1:9"
"""Nobody listens there; a request for it would be seen all the same."""
PAYLOADS = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<IMG SRC=x ONERROR=window.pwned=1>",
    f"<img src={FOREIGN}/leak>",
    "<svg onload=window.pwned=1></svg>",
    "<svg><script>window.pwned=1</script></svg>",
    "<svg><animate onbegin=window.pwned=1 attributeName=x dur=1s></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    f"<iframe src={FOREIGN}/frame></iframe>",
    "<body onload=window.pwned=1>",
    "<details open ontoggle=window.pwned=1>",
    "<input autofocus onfocus=window.pwned=1>",
    "<video><source onerror=window.pwned=1></video>",
    "<object data=data:text/html,<script>parent.pwned=1</script>></object>",
    f"<link rel=stylesheet href={FOREIGN}/style>",
    f"<style>@import '{FOREIGN}/import';</style>",
    f"<meta http-equiv=refresh content='0;url={FOREIGN}/refresh'>",
    f"<base href={FOREIGN}/>",
    f"<form action={FOREIGN}/form><button>send</button></form>",
    "<math><mtext></form><form><mglyph><style></math><img src=x onerror=window.pwned=1>",
    "<a href='javascript:window.pwned=1'>click</a>",
    "[click](javascript:window.pwned=1)",
    f"![image]({FOREIGN}/markdown)",
    "[x]: javascript:window.pwned=1",
    "{{constructor.constructor('window.pwned=1')()}}",
    "${window.pwned=1}",
    "&lt;img src=x onerror=window.pwned=1&gt;",
    "&#60;script&#62;window.pwned=1&#60;/script&#62;",
    '" onmouseover="window.pwned=1" x="\' onfocus=\'window.pwned=1',
    "*/window.pwned=1;/*",
    "--><script>window.pwned=1</script><!--",
    "]]><script>window.pwned=1</script>",
    "@DATA@ @SCRIPT@",
    "__proto__",
    "\x1b]8;;javascript:window.pwned=1\x07click\x1b]8;;\x07",
    "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07\x9b31m",
    "\u202eevil\u202c \u2066x\u2069 \u200bzero\ufeff \x00 \ud800 \udfff",
)
ALL = "\n".join(PAYLOADS)
NAME = "<img src=x onerror=window.pwned=1>"
"""What a file or folder can be called."""
SEEN = """() => {
  const made = "img, iframe, object, embed, base, form[action], video, math, style ~ style, svg script, svg animate, " +
    "body script:not([id]):not([type=module]), link:not([rel=icon]), meta[http-equiv=refresh]";
  const all = [...document.querySelectorAll("*")];
  return {
    pwned: window.pwned ?? null,
    made: [...document.querySelectorAll(made)].map((element) => element.outerHTML.slice(0, 80)),
    handlers: all.filter((element) => [...element.attributes].some((one) => one.name.startsWith("on"))).length,
    links: [...document.querySelectorAll("a[href]:not([href^='#'])")].length,
  };
}"""
PLACES = ("", "/overview", "/groups", "/episodes", "/faults", "/timeline", "/console", "/overview?m=" + "train:" + NAME)


def hostile_episode(name: str, *, fault: bool) -> dict[str, Any]:
    """An episode that says all payloads in every place where somebody else chooses the text."""
    episode = make_episode(
        f"{name} {ALL}", question=ALL, answer=ALL, output=ALL, tool=ALL, reasoning=ALL, group=ALL,
        reward=None if fault else 1.0, error=ALL, info={ALL: ALL, "nested": [{ALL: [ALL]}]},
    )  # fmt: skip
    data: dict[str, Any] = json.loads(episode.to_json())
    data["env"] = ALL
    data["rewards"] = {} if fault else {ALL: 1.0}
    data["seed"] = ALL
    data["task"] |= {"target": ALL, "metadata": {ALL: ALL}, "id": ALL}
    first, second = data["turns"]
    first["tool_calls"][0] |= {"arguments": {ALL: ALL, "list": [ALL]}}
    first["tool_calls"].append({"id": ALL, "name": ALL, "arguments": None, "raw": ALL, "error": ALL})
    first["tool_uses"][0] |= {"error": ALL}
    first["observation"].append({"role": ALL, "content": ALL, "name": ALL})
    second["observation"].append({"role": "user", "content": [{"type": "text", "text": ALL}]})
    second["finish_reason"] = ALL
    data["tail"] = [{"role": "user", "content": ALL}]
    row = dict.fromkeys(("kind", "why", "agent", "known_by"), ALL)
    data["lineage"], second["auxiliary"] = [{"turn": 0, **row}, {"turn": 1, "parent": 0, **row}], ALL
    return data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every name, and every text, is hostile."""
    run = tmp_path_factory.mktemp("runs") / NAME
    (run / "episodes").mkdir(parents=True)
    lines = "".join(json.dumps(hostile_episode(str(i), fault=i == 2)) + "\n" for i in range(3))
    for phase in ("train", "before", NAME):
        (run / "episodes" / f"{phase}.jsonl").write_text(lines + f"not JSON {ALL!r}\n")
    metrics = [
        {"phase": phase, "step": 1 + i, "time": i, "reward": i, ALL: i, NAME: i}
        for phase in ("train", ALL)
        for i in range(3)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    spans = [{"pid": 1, "tid": 1, "ph": "M", "name": "thread_name", "args": {"name": ALL}}]
    spans += [
        {"pid": 1, "tid": 1, "ph": "X", "name": ALL, "ts": i * 1e6, "dur": 5e5, "args": {ALL: ALL}} for i in range(3)
    ]  # type: ignore[dict-item]
    (run / "trace.json").write_text("[\n" + "\n,".join(map(json.dumps, spans)) + "\n]")
    finding = dict.fromkeys(("step", "last_step", "measured", "cause", "settings"), ALL)
    summary = {"env": ALL, "agent": ALL, ALL: [ALL], "findings": [None, ALL, finding]}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "run.json").write_text(
        json.dumps({"algorithm": ALL, "kinds": {"names": [ALL]}, "startup": {"first_step": 2.0, ALL: [None, 1.0]}})
    )
    (run / "config.yaml").write_text(ALL, errors="surrogatepass")
    (run / "console.jsonl").write_text(json.dumps({"time": 1, "kind": ALL, "text": ALL}) + "\n")
    (run / "logs").mkdir()
    (run / "logs" / NAME).write_text(ALL, errors="surrogatepass")
    return run


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[ViewServer]:
    with serving(run) as server:
        yield server


def touch_everything(page: Any) -> None:
    """Fold everything out, and move over what answers to the pointer."""
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    for _ in range(20):
        if not page.evaluate("[...document.querySelectorAll('button.more')].map((button) => button.click()).length"):
            break
    for selector in (".tok", ".chart svg", ".board .span"):
        if page.locator(selector).count():
            page.locator(selector).first.hover()


def check(watched: Watched, place: str) -> None:
    touch_everything(watched.page)
    seen = watched.page.evaluate(SEEN)
    assert (seen["pwned"], seen["made"], seen["handlers"], seen["links"]) == (None, [], 0, 0), place
    assert watched.wrong == [], place


def look_everywhere(watched: Watched) -> None:
    page = watched.page
    name = page.evaluate("encodeURIComponent", NAME)
    for place in PLACES:
        watched.go(f"#/{name}{place}")
        check(watched, place)
    if page.locator("#data").inner_text() == "":  # an exported page has no logs
        watched.go(f"#/{name}/console?log={name}", "pre.code")
        check(watched, "a log")
    watched.go(f"#/{name}/episodes")
    links = page.locator(".tr.row").evaluate_all("(rows) => rows.map((row) => row.getAttribute('href'))")
    assert len(links) == 9
    parts = [f"{links[0]}&tab={tab}&shade=off" for tab in ("talk", "tokens", "info", "raw")]
    parts += [f"{links[0]}&tab={tab}&shade=logprob" for tab in ("talk", "tokens")]
    parts += [
        f"{link}&tab={tab}&shade=off" for link in (links[2], links[3]) for tab in ("talk", "info")
    ]  # a fault, a hostile file
    for place in parts:
        watched.go(place, ".tabs")
        check(watched, place)
    watched.go(f"{links[0]}&shade=off", ".conversation")
    touch_everything(page)
    shown = page.locator(".message.tool pre").first.text_content()
    for payload in PAYLOADS[:-3]:
        assert payload in shown, "the text is shown as it was written"


def test_nothing_runs_in_the_page(server: ViewServer, watch: Watch) -> None:
    look_everywhere(watch(server.url))


def test_nothing_runs_in_the_exported_file(run: Path, tmp_path: Path, watch: Watch) -> None:
    assert main(["view", str(run), "--export", str(tmp_path / "export.html")]) == 0
    look_everywhere(watch((tmp_path / "export.html").as_uri()))


def test_what_cannot_be_seen_is_made_visible(server: ViewServer, watch: Watch) -> None:
    watched = watch(server.url)
    name = watched.page.evaluate("encodeURIComponent", NAME)
    page = watched.go(f"#/{name}/episode?key=train%2F0&shade=off", ".conversation")
    touch_everything(page)
    marks = page.locator(".message.tool").first.locator(".ctl").all_inner_texts()
    shown = "␛[31m ␛[0m ␛[2J ␛ ␇ RLO PDF LRI PDI ZWSP BOM ␀ U+D800 U+009B"
    assert set(shown.split()) <= set(marks)
    raw = page.evaluate("[document.body.textContent, document.title].join('')")
    assert not any(character in raw for character in "\x1b\x07\x9b\u202e\u2066\u200b\x00")


VISIT = """async (addresses) => {
  const main = document.getElementById("main");
  const empty = [];
  for (const address of addresses) {
    location.hash = address;
    while (main.dataset.place !== location.hash) await new Promise((go) => setTimeout(go, 1));
    empty.push(document.querySelectorAll("#main .empty").length);
  }
  return empty;
}"""


def test_an_address_from_elsewhere_cannot_run_either(server: ViewServer, watch: Watch) -> None:
    watched = watch(server.url)
    texts = [payload for payload in PAYLOADS[:-1] if payload != NAME]  # no address can carry the last one
    several = [quote("\n".join(texts[start::6]), safe="") for start in range(6)]
    assert watched.page.evaluate(VISIT, [f"#/{text}/{text}" for text in several]) == [1] * 6, "each is one sentence"
    check(watched, "hostile addresses")
    text = "\n".join(PAYLOADS[:-1])
    query = urlencode(dict.fromkeys(("q", "phase", "order", "has", "key"), text))
    addresses = [f"#/{quote(NAME, safe='')}/{place}?{query}" for place in ("episodes", "groups", "episode")]
    assert watched.page.evaluate(VISIT, addresses) == [1, 1, 1]
    watched.wrong = [action for action in watched.wrong if "400" not in action]  # the server refuses such values
    check(watched, "hostile parameters")


def test_the_same_texts_do_run_where_they_are_taken_for_markup(browser: Any) -> None:
    """What the tests above look for can happen, and is seen."""
    with browser.new_context() as context:
        for payload in (PAYLOADS[n] for n in (0, 2, 5, 8, 11)):
            page = context.new_page()
            page.set_content(f"<p>{payload}</p>")
            page.wait_for_function("window.pwned === 1")


def test_what_would_make_markup_is_refused_and_seen(server: ViewServer, watch: Watch) -> None:
    """Should a line of the page ever make markup of text, the browser refuses it, and these tests would fail."""
    watched = watch(server.url)
    page = watched.page
    tried = "(text) => { try { document.body.innerHTML = text; return 'done'; } catch (error) { return error.name; } }"
    with page.expect_console_message(lambda message: "Trusted" in message.text):
        assert page.evaluate(tried, NAME) == "TypeError"
    image = "(url) => { const made = new Image(); made.src = url; document.body.append(made); }"
    with page.expect_console_message(lambda message: "Content Security" in message.text):
        page.evaluate(image, f"{FOREIGN}/leak")
    assert page.evaluate(SEEN)["pwned"] is None and page.evaluate(SEEN)["made"]
    assert any("Trusted" in action for action in watched.wrong)
    assert any("Content Security" in action for action in watched.wrong)
    watched.wrong.clear()
