"""HelperProcess with a small library: requests, errors, limits of a fork, and threads that give up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from envs.processes.helper import HelperProcess
from forge_env.core.errors import EnvError, ServiceError

if sys.platform != "linux":
    pytest.skip("helper processes are confined on Linux", allow_module_level=True)

LIBRARY = """
from fractions import Fraction

PACKAGES = ()

def open_library(run_forked):
    def work(write, request):
        write("begun")
        while request["do"] == "loop":
            pass
        if request["do"] == "fail":
            raise ValueError("in the fork")
        write({"prints": print("nothing that the owner reads")})

    def answer(request):
        if request["do"] == "raise":
            raise ValueError("in the library")
        if request["do"] == "object":
            return {"number": Fraction(1, 2) if request["control"] else object()}
        written, exit_code = run_forked(
            lambda write: work(write, request),
            cpu_seconds=0.2,
            wall_seconds=60.0,
            memory_bytes=1 << 30,
            control=(lambda write: work(write, {"do": request["control"]})) if "control" in request else None,
        )
        return {"do": request["do"], "written": written, "exit_code": exit_code}

    return answer
"""


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[HelperProcess]:
    (tmp_path / "library.py").write_text(LIBRARY)
    helper = HelperProcess(str(tmp_path / "library.py"), name="the small helper")
    yield helper
    helper.close()
    assert helper.pid is None


def test_work_that_fails_is_the_models_where_it_works_without_the_model(helper: HelperProcess) -> None:
    failed = helper.request({"do": "fail", "control": "x"}, seconds=60)
    assert failed == {"do": "fail", "written": ["begun"], "exit_code": 1}
    assert helper.request({"do": "loop", "control": "fail"}, seconds=60)["exit_code"] == -signal.SIGPROF
    broken = helper.request({"do": "fail", "control": "fail"}, seconds=60)
    assert broken == {"error": "RuntimeError: its fork ended with exit code 1"}


def test_responses_errors_and_limits(helper: HelperProcess) -> None:
    assert helper.request({"do": "x"}, seconds=60) == {
        "do": "x",
        "written": ["begun", {"prints": None}],
        "exit_code": 0,
    }
    first = helper.pid
    assert helper.request({"do": "raise"}, seconds=60) == {"error": "ValueError: in the library"}
    assert helper.request({"do": "object", "control": "x"}, seconds=60) == {"number": 0.5}
    assert "'object'" in helper.request({"do": "object", "control": ""}, seconds=60)["error"]
    with pytest.raises(EnvError, match="^the small helper raised ValueError: in the library$"):
        helper.ask({"do": "raise"})
    assert helper.request({"do": "fail"}, seconds=60) == {"do": "fail", "written": ["begun"], "exit_code": 1}
    stopped = helper.request({"do": "loop"}, seconds=60)
    assert stopped == {"do": "loop", "written": ["begun"], "exit_code": -signal.SIGPROF}
    assert helper.pid == first


def test_another_interpreter_runs_the_library(tmp_path: Path) -> None:
    python = tmp_path / "other-python"
    python.write_text(f'#!/bin/sh\nNAME=other exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "library.py").write_text(
        "import os\nPACKAGES = ()\n"
        "def open_library(run_forked):\n    return lambda request: {'name': os.environ['NAME']}\n"
    )
    helper = HelperProcess(str(tmp_path / "library.py"), name="the small helper", python=str(python))
    try:
        assert helper.enforced()["network_denied"] in (True, False), "it is tried with that interpreter, too"
        assert helper.request({}, seconds=60) == {"name": "other"}
    finally:
        helper.close()


def test_a_library_that_cannot_be_opened_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text("PACKAGES = ()\ndef open_library(run_forked):\n    import no_such_module\n")
    helper = HelperProcess(str(tmp_path / "library.py"), name="the small helper")
    with pytest.raises(ServiceError, match="the small helper did not start: ModuleNotFoundError: .*no_such_module"):
        helper.request({}, seconds=60)
    assert helper.pid is None


def test_a_request_that_is_interrupted_anywhere_costs_neither_the_next_one_nor_the_process(
    helper: HelperProcess,
) -> None:
    """Python interrupts a thread after a call, or as a function begins: once at each of these places."""
    helper.request({"do": "before"}, seconds=60)
    first = helper.pid
    places: list[str] = []
    while True:
        ahead = len(places)

        def interrupt(frame: FrameType, event: str, called: Any) -> None:
            nonlocal ahead
            if event in ("call", "c_return"):
                ahead -= 1
                if ahead < 0:
                    sys.setprofile(None)
                    places.append(f"{event} {getattr(called, '__name__', '')} in {frame.f_code.co_name}")
                    raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            helper.request({"do": "interrupted"}, seconds=60)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert helper.request({"do": "after"}, seconds=60)["do"] == "after", places[-1]
        assert helper.pid == first, places[-1]
    assert {"c_return extend in _keep", "c_return poll in _read"} <= {*places}
