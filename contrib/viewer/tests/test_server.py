"""The viewer's server over real HTTP: who is answered, with what, and what is never sent."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from contrib.viewer.library import Library
from contrib.viewer.server import ViewServer
from contrib.viewer.tests.runs import make_episode, training_run, write, write_metrics, write_start
from forge_env.cli.main import main
from forge_env.core.errors import UserError
from forge_env.utils.exits import Terminated


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return training_run(tmp_path / "run")


@contextmanager
def serving(run: Path) -> Iterator[ViewServer]:
    with Library(run) as library, ViewServer(library) as server:
        library.runs[0].update_index()
        yield server


@pytest.fixture
def server(run: Path) -> Iterator[ViewServer]:
    with serving(run) as server:
        yield server


@pytest.fixture(scope="module")
def any_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    """One for all tests that only ask, and change nothing of the run."""
    with serving(training_run(tmp_path_factory.mktemp("served") / "run")) as server:
        yield server


def get(server: ViewServer, path: str, *, method: str = "GET", **headers: str) -> tuple[int, Any, str]:
    """Status, headers and body; with the cookie, unless the headers say otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    sent = {"Cookie": f"{server.cookie}={server.token}"}
    sent |= {key.replace("_", "-"): value for key, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in sent)
    for name, value in sent.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


def ask(server: ViewServer, path: str) -> Any:
    status, _, body = get(server, f"/api/{path}")
    assert status == 200, body
    return json.loads(body)


def test_the_printed_address_opens_the_page_and_leaves_a_cookie(any_server: ViewServer) -> None:
    status, headers, body = get(any_server, f"/?token={any_server.token}", Cookie="")
    assert status == 200 and body.startswith("<!doctype html>")
    assert re.fullmatch(rf"{any_server.cookie}=\S+; Path=/; HttpOnly; SameSite=Strict", headers["Set-Cookie"])
    assert any_server.token not in body
    assert get(any_server, "/")[0] == 200


@pytest.mark.parametrize("cookie", ["", "{name}=guess", "other={token}", "{name}=", '{name}="', "{name}=\u00e9"])
def test_nothing_is_told_to_who_does_not_have_the_key(any_server: ViewServer, cookie: str) -> None:
    cookie = cookie.format(name=any_server.cookie, token=any_server.token)
    for path in ("/", "/?token=guess", "/api/runs", "/api/0/episodes", "/index.html", "/?token="):
        status, _, body = get(any_server, path, Cookie=cookie)
        assert status == 403 and "<" not in body and any_server.token not in body


OTHERS = ("evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost.evil.example", "", "10.0.0.1:{port}")
ITS_OWN = ("127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}")


def test_only_the_names_of_this_server_and_its_own_page_are_answered(any_server: ViewServer) -> None:
    for hosts, status in ((OTHERS, 403), (ITS_OWN, 200)):
        for host in hosts:
            assert get(any_server, "/api/runs", Host=host.format(port=any_server.port))[0] == status, host
    assert get(any_server, "/api/runs", Sec_Fetch_Site="cross-site")[0] == 403
    assert get(any_server, "/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


OUTSIDE = (
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/app.js",
    "/api/../../../etc/passwd",
    "/api/0/../../x",
    "/api/0/%2e%2e",
    "/api/0/nothing",
    "/api/1/episodes",
    "/api/-1/episodes",
    "/api/%D9%A0/episodes",
    "/api/0/episode?key=../../../etc/passwd/0",
    "/api/0/episode?key=/etc/passwd",
    "/api/0/episode?key=train/-1",
    "/api/0/episode?key=train/99999999999999999999",
)


def test_no_path_leads_out(any_server: ViewServer) -> None:
    for path in OUTSIDE:
        status, _, body = get(any_server, path)
        assert status == 404 and "root:" not in body, path


def test_a_parameter_without_sense_is_one_sentence(any_server: ViewServer) -> None:
    for query in ("order=up", "offset=-1", "limit=many", "reward_from=x", "has=luck"):
        status, _, body = get(any_server, f"/api/0/episodes?{query}")
        assert status == 400 and json.loads(body)["error"], query


def test_sql_in_a_filter_is_only_text(any_server: ViewServer) -> None:
    for name in ("phase", "tool", "group", "id", "fault", "error", "q"):
        answer = ask(any_server, f"0/episodes?{name}={quote(chr(39) + ' OR 1=1; DROP TABLE episodes; --')}")
        assert answer["rows"] == []
    assert ask(any_server, "0/episodes")["total"] == 15


def test_nothing_can_be_changed_and_nothing_in_an_answer_may_run(any_server: ViewServer) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert get(any_server, "/api/runs", method=method)[0] == 501
    for path in ("/", "/api/runs", "/nothing"):
        _, headers, _ = get(any_server, path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert get(any_server, "/api/runs")[1]["Content-Type"].startswith("application/json")


def test_an_episode_with_what_training_made_of_it(any_server: ViewServer) -> None:
    key = ask(any_server, "0/episodes?id=train/0/1")["rows"][0]["key"]
    record = ask(any_server, f"0/episode?key={key}")
    assert record["advantages"] == {"source": "training", "step": 1, "turns": [1.5, -0.5]}
    assert record["episode"]["turns"][0]["token_ids"] == [4, 5]
    assert [sibling["id"] for sibling in record["siblings"]] == [f"train/0/{i}" for i in range(4)]
    other = ask(any_server, f"0/episode?key={ask(any_server, '0/episodes?id=train/1/0')['rows'][0]['key']}")
    assert other["advantages"]["source"] == "group"
    assert other["advantages"]["turns"] == pytest.approx([3**0.5] * 2)  # one success in four: (1 - 1/4) / sqrt(3/16)


def test_text_is_found_in_tasks_calls_and_output_and_nowhere_else(any_server: ViewServer) -> None:
    def search(text: str) -> list[str]:
        while True:
            page = ask(any_server, f"0/episodes?q={quote(text)}&phase=train")
            if page["search"]["ended"]:
                return [row["id"] for row in page["rows"]]

    assert search("what is 1 + 1") == [f"train/1/{i}" for i in range(4)]
    assert search("DIVISION by zero") == ["train/0/3", "train/1/3", "train/2/3"]
    assert search("logprobs") == [] and search("no such thing") == []


def test_curves_faults_timeline_and_overview(any_server: ViewServer) -> None:
    curves = ask(any_server, "0/curves?names=reward,loss,nothing")
    assert curves["step"] == list(range(1, 11)) and set(curves["values"]) == {"reward", "loss"}
    faults = ask(any_server, "0/faults")["faults"]
    fault = ("SandboxError", "SandboxError: no memory", 1)
    assert [(found["fault"], found["error"], found["count"]) for found in faults] == [fault]
    timeline = ask(any_server, "0/timeline")
    assert timeline["lanes"] == ["train rollouts", "train rollouts 2", "trainer"] and len(timeline["spans"]) == 15
    assert len(ask(any_server, "0/timeline?from=2.1&to=2.2")["spans"]) == 3
    overview = ask(any_server, "0/overview")
    assert {result["phase"]: result["success"] for result in overview["evaluations"]} == {"before": 0.0, "after": 1.0}


def test_a_run_that_goes_on_is_followed(server: ViewServer, run: Path) -> None:
    before = ask(server, "0/state")
    write(run / "episodes" / "train.jsonl", make_episode("train/10/0"))
    write_metrics(run, 11)
    server.library.runs[0].update_index()
    after = ask(server, "0/state")
    assert after["stamp"] > before["stamp"] and (before["step"], after["step"]) == (10, 11)
    assert ask(server, "0/episodes?id=train/10/0")["total"] == 1
    (run / "episodes" / "train.jsonl").unlink()
    status, _, body = get(server, "/api/0/episode?key=train/0")
    assert status == 404 and "cannot be read any more" in json.loads(body)["error"]
    server.library.runs[0].update_index()
    assert ask(server, "0/episodes?phase=train")["total"] == 0


def test_a_folder_that_is_deleted_and_made_again_is_looked_at_anew(server: ViewServer, run: Path) -> None:
    before = ask(server, "0/state")
    shutil.rmtree(run)
    server.library.runs[0].update_index()
    assert ask(server, "0/episodes")["total"] == 0
    assert not run.exists(), "to look at a run does not make its folder"
    training_run(run, groups=5)
    server.library.runs[0].update_index()
    assert ask(server, "0/episodes?phase=train")["total"] == 21
    assert not ask(server, "0/state")["index_error"]
    assert not (run / ".view").exists(), "nothing is written into a run"
    assert ask(server, "0/state")["stamp"] > before["stamp"]


def test_a_run_that_has_only_begun_shows_its_settings_its_console_and_its_logs(tmp_path: Path) -> None:
    write_start(tmp_path / "young")
    (tmp_path / "secret.log").write_text("not of the run")
    with Library(tmp_path / "young") as library, ViewServer(library) as server:
        (run,) = ask(server, "runs")["runs"]
        assert (run["env"], run["algorithm"], run["complete"]) == ("tool_api", "gspo", False)
        documents = ask(server, "0/overview")["documents"]
        assert documents["config.yaml"] == "training:\n  steps: 300\n" and documents["run.json"]["steps"] == 300
        console = ask(server, "0/console?log=trainer.log")
        assert [(line["time"], line["kind"]) for line in console["lines"]] == [(3.5, "warning")]
        assert [log["name"] for log in console["logs"]] == ["trainer.log"] and "falling" in console["log"]
        before = ask(server, "0/state")["console_bytes"]
        with (tmp_path / "young" / "logs" / "trainer.log").open("a") as log:
            log.write("more\n")
        assert ask(server, "0/state")["console_bytes"] == before + 5
        for name in ("../config.yaml", "/etc/passwd", "../../secret.log", "."):
            assert ask(server, f"0/console?log={quote(name)}")["log"] == ""


def test_what_json_cannot_say_reaches_the_page_all_the_same(tmp_path: Path) -> None:
    data = json.loads(make_episode("odd/0/0", answer="\ud800 \x00 \x1b[31m").to_json())
    data["turns"][0]["logprobs"][0] = float("nan")
    (tmp_path / "odd.jsonl").write_text(json.dumps(data) + "\nnot JSON\n")
    with Library(tmp_path / "odd.jsonl") as library, ViewServer(library) as server:
        library.runs[0].update_index()
        record = ask(server, "0/episode?key=episodes/0")
        assert record["episode"]["turns"][0]["logprobs"][0] == "nan"
        assert record["episode"]["turns"][1]["message"]["content"] == "\ud800 \x00 \x1b[31m"
        assert ask(server, "0/overview")["bad"]["files"] == [{"phase": "episodes", "bad": 1}]


def test_tokens_have_their_text_where_the_model_is_at_hand(run: Path, tiny_model: Path) -> None:
    (run / "model").symlink_to(tiny_model)
    with Library(run) as library, ViewServer(library) as server:
        library.runs[0].update_index()
        texts = ask(server, "0/episode?key=train/0")["texts"]
    assert len(texts) == 2 and all(isinstance(text, str) for text in texts[0]["token_ids"])
    assert len(texts[0]["token_ids"]) == 2


def test_a_port_that_is_taken_is_one_sentence(run: Path) -> None:
    refused = pytest.raises(
        UserError, match="cannot listen at 127.0.0.1, port .*a port that no other process listens at"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken, Library(run) as library, refused:
        ViewServer(library, port=taken.getsockname()[1])


def test_a_signal_just_before_the_wait_of_the_command_is_not_lost(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main_thread, is_up, is_over, lost = threading.get_ident(), threading.Event(), threading.Event(), []

    def end() -> None:
        is_up.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # it ends no system call of the main thread
        if not is_over.wait(20):
            lost.append(True)
            signal.pthread_kill(main_thread, signal.SIGTERM)

    monkeypatch.setattr("contrib.viewer.cli.view.note", lambda _: is_up.set())
    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(Terminated):
        main(["view", str(run)])
    is_over.set()
    thread.join()
    assert not lost


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_the_command_serves_until_it_is_told_to_end(run: Path, number: int, code: int, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "forge_env", "view", str(run)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)},
        # Ctrl-C and its end reach a command in a terminal; in the background, as these tests may be, both are ignored.
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)],
    )  # fmt: skip
    assert process.stdout is not None
    match = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", process.stdout.readline())
    assert match
    connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=20)
    connection.request("GET", f"/?token={match[2]}")
    assert connection.getresponse().status == 200
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code and "Traceback" not in errors
    assert list(temporary.iterdir()) == []
