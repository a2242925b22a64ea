"""The frames between host and container: what is sent arrives, and rubbish is a BrokenFrame and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrib.docker import wire
from forge_env.core.sandbox import Call, Capabilities, ExecRequest, ExecResult, ExecStatus, Limits

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
results = st.builds(
    ExecResult,
    status=st.sampled_from(ExecStatus),
    backend=st.just("docker"),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    stdout=texts,
    stderr=texts,
    truncated_stdout=st.booleans(),
    truncated_stderr=st.booleans(),
    value=st.none() | texts,
    wall_s=st.floats(0, 1e6),
    cpu_s=st.floats(0, 1e6),
    peak_memory_bytes=st.integers(0, 2**62),
    state_lost=st.booleans(),
    error=texts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(results)
def test_a_result_arrives_as_it_was_sent(result: ExecResult) -> None:
    header, body = wire.result_message(result)
    assert wire.result_of(json.loads(json.dumps(header)), body) == result


@given(results, st.data())
def test_a_result_with_a_wrong_part_is_refused_or_stays_a_result(result: ExecResult, data: st.DataObject) -> None:
    header, body = wire.result_message(result)
    name = data.draw(st.sampled_from(sorted(header)))
    header = json.loads(json.dumps(header | {name: data.draw(json_values)}))
    try:
        found = wire.result_of(header, body)
    except wire.BrokenFrame:
        return
    assert isinstance(found.status, ExecStatus) and type(found.stdout) is str and type(found.stderr) is str
    assert type(found.exit_code) in (int, type(None)) and type(found.error) is str
    assert all(type(number) is float and 0 <= number < float("inf") for number in (found.wall_s, found.cpu_s))


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "superb"},
        {"status": 1},
        {"exit_code": True},
        {"exit_code": "0"},
        {"exit_code": 2**80},
        {"wall_s": float("nan")},
        {"wall_s": -1.0},
        {"cpu_s": None},
        {"error": "x" * 5000},
        {"truncated_stdout": 1},
        {"sizes": None},
        {"sizes": [1, 1]},
        {"sizes": [-1, 3, None]},
        {"sizes": [None, 2, None]},
        {"sizes": [5, 0, None]},
        {"sizes": [1, 0, None]},
        {"sizes": [True, True, None]},
    ],
)
def test_values_of_another_type_or_range_are_refused(wrong: dict[str, Any]) -> None:
    header, body = wire.result_message(ExecResult(status=ExecStatus.OK, backend="docker", stdout="ab"))
    with pytest.raises(wire.BrokenFrame):
        wire.result_of(header | wrong, body)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 60_000, b'{"a":' * 9000, b"9" * 60_000, b'{"a": 1} x']
)
def test_a_header_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(wire.BrokenFrame):
        wire.parse_header(data)


@pytest.mark.parametrize("call", [None, Call(function="f", args=[1, "ü", None, [2.5]])])
def test_a_request_arrives_as_it_was_sent(call: Call | None) -> None:
    files: dict[str, bytes | str] = {"a/b": b"\xff\0", "empty": "", "c": "ü"}
    request = ExecRequest(
        code="x = '\ud800'", setup="s", stdin="i\0", call=call, limits=Limits(wall_s=2.5), files=files
    )
    data = wire.frame(7, *wire.request_message(request))
    number, header_bytes, body_bytes = wire.PREFIX.unpack(data[: wire.PREFIX.size])
    assert (number, body_bytes, data[-4:]) == (7, 4, b"\xff\0\xc3\xbc")
    header = wire.parse_header(data[wire.PREFIX.size : wire.PREFIX.size + header_bytes])
    assert wire.request_of(header, data[-4:]) == request


def test_arguments_that_are_no_json_raise() -> None:
    with pytest.raises(TypeError):
        wire.frame(1, *wire.request_message(ExecRequest(code="", call=Call(function="f", args=[object()]))))


def test_the_largest_honest_result_fits() -> None:
    limits = Limits(output_bytes=1000)
    broken = b"\xff" * 1000
    text = broken.decode("utf-8", "replace")
    _, body = wire.result_message(
        ExecResult(status=ExecStatus.OK, backend="docker", stdout=text, stderr=text, value="x" * 64 * 2**10)
    )
    assert len(body) <= wire.max_result_bytes(limits)


def test_capabilities_arrive_and_are_checked() -> None:
    result = Capabilities(
        backend="namespace",
        pid_namespace=True,
        mount_namespace=True,
        network_namespace=True,
        ipc_namespace=True,
        seccomp=True,
        uid_drop=False,
        memory_limit="rlimit",
        capabilities_dropped=True,
        limits=("core", "stack"),
        missing=("one", "two"),
    )
    assert wire.capabilities_of(json.loads(json.dumps(asdict(result)))) == result
    for wrong in (None, [], {}, asdict(result) | {"seccomp": 1}, asdict(result) | {"missing": [1]}):
        with pytest.raises(wire.BrokenFrame):
            wire.capabilities_of(wrong)
