"""Files of a request: what is written where, and what is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from forge_env.core.sandbox import MAX_FILES, Call, ExecRequest, ExecStatus, Limits, RequestFileError, Sandbox
from sandboxes.settings import BACKENDS
from tests.helpers.sandboxes import opened

if sys.platform != "linux":
    pytest.skip("it needs Linux", allow_module_level=True)

shared_loop = pytest.mark.asyncio(loop_scope="module")
TREE = """
import os
for folder, _, names in sorted(os.walk('.')):
    for name in sorted(names):
        path = os.path.join(folder, name)
        print(os.path.relpath(path), open(path, 'rb').read())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(BACKENDS))
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    settings: dict[str, Any] = {"allow_insecure": True} if request.param == "subprocess" else {}
    if request.param == "docker" and os.environ.get("FORGE_ENV_NO_DOCKER"):
        pytest.skip(os.environ["FORGE_ENV_NO_DOCKER"])
    async with opened(request.param, slots=1, **settings) as sandbox:
        yield sandbox


@shared_loop
async def test_files_are_there_before_the_set_up_and_gone_afterwards(sandbox: Sandbox) -> None:
    files: dict[str, bytes | str] = {"./a.txt": "ü\r\n", "deep/er/b.bin": b"\xff\0" * 2000, "deep/empty": b""}
    setup = "text = open('a.txt', newline='').read()"
    request = ExecRequest(code=f"{TREE}print(repr(text))", setup=setup, files=files, stdin="as before")
    result = await sandbox.run(request)
    assert result.status is ExecStatus.OK, result
    lines = result.stdout.splitlines()
    assert lines[0] == "a.txt b'\\xc3\\xbc\\r\\n'" and lines[1] == "deep/empty b''" and lines[3] == "'ü\\r\\n'"
    assert lines[2].startswith("deep/er/b.bin b'\\xff\\x00\\xff")
    again = await sandbox.run(TREE)
    assert (again.status, again.stdout) == (ExecStatus.OK, "")


@shared_loop
async def test_files_go_with_a_call_and_can_be_changed_by_the_code(sandbox: Sandbox) -> None:
    code = """
def f(name):
    with open(name, 'a') as file:
        file.write('!')
    return open(name).read()
"""
    for _ in range(2):
        result = await sandbox.run(ExecRequest(code=code, call=Call(function="f", args=["x"]), files={"x": "text"}))
        assert result.value == '"text!"', result


@shared_loop
async def test_as_much_as_the_limits_allow_fits(sandbox: Sandbox) -> None:
    limits = Limits(tmp_bytes=4 * 2**20, file_bytes=3 * 2**20)
    files: dict[str, bytes | str] = {"big": b"x" * 3 * 2**20, "rest": b"y" * 2**20}
    result = await sandbox.run(ExecRequest(code="import os; print(os.path.getsize('big'))", files=files, limits=limits))
    assert (result.status, result.stdout) == (ExecStatus.OK, f"{3 * 2**20}\n"), result
    many = {f"folder_{n}/file": "x" for n in range(MAX_FILES // 2)}
    result = await sandbox.run(ExecRequest(code="import os; print(len(os.listdir()))", files=many))
    assert (result.status, result.stdout) == (ExecStatus.OK, f"{MAX_FILES // 2}\n"), result


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        *(({path: "x"}, "no relative path") for path in ("", "/etc/x", "..", "a/../../b", "a/..", ".", "a/", "a\0b")),
        ({"a": 1}, "'a' is of type int; it must be bytes or str"),
        ({1: "a"}, "the path 1 of a file is of type int"),
        ({"a": "1", "./a": "2"}, "'a' twice, the second time as './a'"),
        ({"a": "1", "a/b": "2"}, "'a' is a file and, in the path of another one, a folder"),
        ({"x" * 256: ""}, "a name in it 255"),
        ({"/".join("abcdefgh" * 65): ""}, "a path may have 1024 bytes"),
        ({"\ud800": ""}, "no text that can be written as UTF-8"),
        ({"a": b"x" * 1001}, "'a' has 1001 bytes; file_bytes is 1000"),
        ({str(n): b"x" for n in range(6)}, "need 24576 bytes in pages of 4096; tmp_bytes is 20480"),
        ({str(n): b"" for n in range(MAX_FILES + 1)}, f"there are {MAX_FILES + 1} files and 0 folders"),
        ({f"{n}/{n}": b"" for n in range(MAX_FILES // 2 + 1)}, f"and {MAX_FILES // 2 + 1} folders"),
    ],
)
def test_what_is_refused_is_refused_in_one_sentence(files: Mapping[Any, Any], sentence: str) -> None:
    with pytest.raises(RequestFileError) as caught:
        ExecRequest(code="", files=files, limits=Limits(file_bytes=1000, tmp_bytes=20_480))
    assert sentence in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_a_path_that_was_changed_afterwards_still_leads_nowhere() -> None:
    files = {"a": "1"}
    request = ExecRequest(code="", files=files)
    files["../b"] = "2"
    assert request.contents() == {"a": b"1"}
