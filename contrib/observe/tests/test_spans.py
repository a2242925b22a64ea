"""OpenTelemetry spans: what a collector receives, what it costs a run when it is slow or gone, what is never sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrib.observe.sender import SpanSender
from contrib.observe.spans import SCHEMA_URL, Source, episode_spans, source_of
from contrib.observe.tests.collector import Collector, collecting
from forge_env.cli.main import main
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task, ToolCall, ToolUse
from forge_env.records.sinks import load_sink
from tests.helpers.packages import needs
from tests.helpers.ports import free_ports

pytestmark = needs("opentelemetry")
TURN = Turn(kind="text", observation=(), message={"role": "assistant", "content": "hi"})
CONFIG = {"agent": "openai:m@http://localhost:1/v1"}
SOURCE = source_of(CONFIG)


@contextmanager
def sending(say: Callable[[str], None] = print, mode: str = "") -> Iterator[SpanSender]:
    sender = SpanSender(Path(), CONFIG, mode, say)
    try:
        yield sender
    finally:
        sender.close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server


def an_episode(number: int = 0, **changes: Any) -> Episode:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = (
        Turn(
            kind="text",
            observation=({"role": "user", "content": "secret question"},),
            message={"role": "assistant", "content": "", "tool_calls": [call]},
            tool_calls=(ToolCall(id="c1", name="add", arguments={"a": 1}),),
            policy_seconds=2.0,
            env_seconds=1.0,
            tool_uses=(ToolUse(name="add", seconds=0.5),),
            usage={"prompt_tokens": 7, "completion_tokens": 3},
            finish_reason="tool_calls",
        ),
        Turn(
            kind="text",
            observation=({"role": "tool", "tool_call_id": "c1", "content": "secret result"},),
            message={"role": "assistant", "content": "secret answer"},
            policy_seconds=1.5,
            reward=0.5,
        ),
    )
    episode = Episode(
        task=Task(prompt=(), id="t", kind="sum"),
        turns=turns,
        reward=0.5,
        rewards={"correct": 0.5},
        id=f"t/{number}",
        group_id="t",
        env="shop",
        success=False,
        ended_by="environment",
        info={"started": 1000.0, "seconds": 6.0},
    )
    return replace(episode, **changes)


def test_a_collector_receives_the_conventions_names(collector: Collector) -> None:
    said: list[str] = []
    with sending(said.append) as sender:
        sender.episode(an_episode(), "train")
    whole, chat, tool, last = collector.spans()
    assert said == [] and sender.deliveries == 1
    names = [s["name"] for s in (whole, chat, tool, last)]
    assert names == ["invoke_agent openai:m", "chat m", "execute_tool add", "chat m"]
    assert {s["schema"] for s in (whole, chat, tool)} == {SCHEMA_URL} and whole["service"] == "forge_env"
    assert {s["span"].parent_span_id for s in (chat, tool, last)} == {whole["span"].span_id}
    assert len({s["span"].trace_id for s in (whole, chat, tool, last)}) == 1 and whole["span"].parent_span_id == b""
    spans = [s["span"] for s in (whole, chat, tool, last)]
    times = [(span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9) for span in spans]
    assert times == [(1000.0, 1006.0), (1000.0, 1002.0), (1002.0, 1002.5), (1003.0, 1004.5)]
    assert chat["span"].kind == 3 and whole["span"].kind == tool["span"].kind == 1  # client, internal
    assert chat["attributes"] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.conversation.id": "t/0",
        "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "forge_env.turn": 0,
        "forge_env.reward": 0.0,
    }
    assert tool["attributes"]["gen_ai.tool.call.id"] == "c1" and tool["attributes"]["gen_ai.tool.type"] == "function"
    assert whole["attributes"]["forge_env.success"] is False and whole["attributes"]["forge_env.phase"] == "train"
    assert whole["events"] == [
        {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5},
        {"gen_ai.evaluation.name": "reward/correct", "gen_ai.evaluation.score.value": 0.5},
    ]


def test_texts_are_sent_only_when_asked_for(collector: Collector) -> None:
    with sending() as sender:
        sender.episode(an_episode(), "")
    assert b"secret" not in b"".join(request.SerializeToString() for request in collector.requests)
    collector.requests.clear()
    with sending(mode="messages") as sender:
        sender.episode(an_episode(), "")
    _, chat, tool, last = (span["attributes"] for span in collector.spans())
    asked = [{"role": "user", "parts": [{"type": "text", "content": "secret question"}]}]
    assert json.loads(chat["gen_ai.input.messages"]) == asked
    part = {"type": "tool_call", "id": "c1", "name": "add", "arguments": '{"a": 1}'}
    written = [{"role": "assistant", "parts": [part], "finish_reason": "tool_call"}]
    assert json.loads(chat["gen_ai.output.messages"]) == written
    assert tool["gen_ai.tool.call.arguments"] == '{"a": 1}' and tool["gen_ai.tool.call.result"] == "secret result"
    result = {"type": "tool_call_response", "id": "c1", "response": "secret result"}
    assert json.loads(last["gen_ai.input.messages"]) == [{"role": "tool", "parts": [result]}]


def test_a_fault_is_an_error_without_a_reward(collector: Collector) -> None:
    nothing = {"outcome": Outcome.INFRA_FAULT, "reward": None, "rewards": {}, "success": None}
    fault = an_episode(error="SandboxError: gone \ud800", **nothing)
    with sending() as sender:
        sender.episode(fault, "")
    whole = collector.spans()[0]
    assert whole["span"].status.code == 2 and whole["span"].status.message == "SandboxError: gone \ufffd"
    assert whole["attributes"]["error.type"] == "infra_fault" and not whole["events"]
    assert "forge_env.reward" not in whole["attributes"] and "forge_env.success" not in whole["attributes"]


def test_hostile_text_arrives(collector: Collector) -> None:
    text = "\ud800\x00" + "x" * 1_000_000
    turn = replace(TURN, observation=({"role": "user", "content": text},))
    said: list[str] = []
    with sending(said.append, "messages") as sender:
        sender.episode(an_episode(turns=(turn,), info={}), "")
    shown = json.loads(collector.spans()[1]["attributes"]["gen_ai.input.messages"])
    assert said == [] and shown[0]["parts"][0]["content"] == "\ufffd\x00" + "x" * 1_000_000


@pytest.mark.parametrize(
    "changes",
    [
        {"info": {"started": 1000.0, "seconds": 1e300}},
        {"info": {"started": 1000.0, "seconds": 1e11}},  # nanoseconds beyond 64 bits
        {"info": {"started": 1e-300, "seconds": 1e302}},
        {"turns": (replace(TURN, policy_seconds=1e308), replace(TURN, policy_seconds=1e308))},
        {"turns": (replace(TURN, tool_uses=(ToolUse(name="add", seconds=1e300),)),)},
        {"seed": 2**70},
        {"turns": (replace(TURN, message={"role": "assistant"}),)},  # type: ignore[typeddict-item]
        {"turns": (replace(TURN, usage={"prompt_tokens": 10**30, "completion_tokens": 1}),)},
    ],
)
def test_an_episode_that_makes_no_spans_is_left_out(collector: Collector, changes: dict[str, Any]) -> None:
    """The episodes before and after it are sent, and it is said once."""
    said: list[str] = []
    with sending(said.append, "messages") as sender:
        for number in range(6):
            sender.episode(an_episode(number, **(changes if number in (2, 4) else {})), "")
    roots = {span["attributes"]["gen_ai.conversation.id"] for span in collector.spans()}
    left_out = {"t/2", "t/4"} - roots
    assert roots >= {"t/0", "t/1", "t/3", "t/5"} and len(left_out) in (0, 2)
    assert sender.deliveries == 6 - len(left_out) and len(said) == len(left_out), said
    if left_out:
        assert said[0].startswith("warning: OpenTelemetry: an episode that cannot be sent as spans is left out: ")
        assert said[1] == "warning: OpenTelemetry: the spans of 2 of 6 episodes were not sent"


def test_a_slow_collector_delays_nothing(collector: Collector) -> None:
    collector.open.clear()
    said: list[str] = []
    sender = SpanSender(Path(), CONFIG, "messages", said.append, backlog=2, close_seconds=0.2)
    sender.episode(an_episode(0), "")
    assert collector.arrived.wait(30)
    for number in range(1, 5):  # it holds the first; two wait, two are dropped
        sender.episode(an_episode(number), "")
    sender.close()
    assert len(said) == 2
    assert said[0].endswith("2 episodes wait for it already, so that spans are dropped") and collector.url in said[0]
    assert said[1] == "warning: OpenTelemetry: the spans of 5 of 5 episodes were not sent"


@pytest.mark.parametrize("is_there", [True, False], ids=["refuses", "is not there"])
def test_a_collector_that_takes_nothing_is_said_once(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with collecting() as server:
        server.status = 400
        url = server.url if is_there else f"http://127.0.0.1:{free_ports(1)[0]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        with sending(said.append, "messages") as sender:
            for number in range(3):
                sender.episode(an_episode(number), "")
    assert said == [
        f"warning: OpenTelemetry: the collector at {url}/v1/traces: it did not take spans; "
        "the run goes on without them",
        "warning: OpenTelemetry: the spans of 3 of 3 episodes were not sent",
    ]


def test_only_a_collector_elsewhere_is_reached_through_a_proxy(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    with sending() as sender:
        sender.episode(an_episode(), "")
    assert collector.spans()
    monkeypatch.setenv("http_proxy", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://elsewhere.example")
    with sending() as sender:
        sender.episode(an_episode(), "")
    assert collector.paths == {"/v1/traces", "http://elsewhere.example/v1/traces"}


def test_an_evaluation_sends_what_it_runs_and_only_that(collector: Collector, tmp_path: Path) -> None:
    command = ["eval", "--env", "math", "--agent", "scripted:expert", "--tasks", "3", "--out", str(tmp_path / "run")]
    assert main([*command, "--json"]) == 0 and collector.requests == []
    assert main([*command[:-1], str(tmp_path / "other"), "--sink", "otel", "--json"]) == 0
    names = [span["name"] for span in collector.spans()]
    assert names.count("invoke_agent scripted:expert") == 3 and names.count("execute_tool calculator") == 3
    assert main([*command[:-1], str(tmp_path / "other"), "--sink", "otel", "--json"]) == 0
    assert len(collector.spans()) == len(names)  # nothing was run again


def test_bad_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--sink otel:all: the mode is all; it is messages, or none"):
        load_sink("otel:all", "--sink")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(UserError, match="--sink otel: OTEL_EXPORTER_OTLP_PROTOCOL is grpc"):
        load_sink("otel", "--sink")


def test_agents_are_named_as_on_the_command_line() -> None:
    endpoint = source_of({"agent": "openai:org/m@1@http://key@host/v1"})  # the URL may hold a password
    assert endpoint == Source(agent="openai:org/m@1", provider="openai", model="org/m@1")
    assert source_of({"agent": "vllm:Qwen/Q"}) == Source(agent="vllm:Qwen/Q", provider="vllm", model="Qwen/Q")
    assert source_of({"agent": "scripted:expert"}) == Source(agent="scripted:expert", provider="forge_env")


def test_a_call_that_could_not_be_read_has_a_name() -> None:
    use = ToolUse(name="", error="bad_arguments")
    turn = replace(TURN, tool_uses=(use,))
    span = episode_spans(an_episode(turns=(turn,)), SOURCE, record_time=9.0)[2]
    assert (span.name, span.attributes["gen_ai.tool.name"]) == ("execute_tool unknown", "unknown")
    assert span.error == span.attributes["error.type"] == "bad_arguments"


def test_times_that_are_no_times_are_zero() -> None:
    turn = replace(TURN, policy_seconds=float("nan"))
    spans = episode_spans(an_episode(turns=(turn,), info={"started": -5.0, "seconds": "x"}), SOURCE, record_time=9.0)
    assert [(span.start, span.seconds) for span in spans] == [(9.0, 0.0), (9.0, 0.0)]
