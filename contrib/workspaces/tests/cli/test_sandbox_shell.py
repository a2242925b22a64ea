"""`forge-env sandbox shell`: a workspace by hand, from a terminal and from a pipe."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contrib.workspaces.tests.made_images import make_small_image
from forge_env.cli.main import main

if sys.platform != "linux":
    pytest.skip("workspaces need Linux", allow_module_level=True)

PROMPT = b"workspace$ "


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image") / "root"
    make_small_image(root)
    return root


def test_what_is_piped_in_runs_as_one_script_and_gives_its_exit_code(
    image: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("cd /bin\ncat <<END\nin $PWD\nEND\necho wrong >&2\n(exit 7)\n"))
    assert main(["sandbox", "shell", str(image)]) == 7
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("in /bin\n", "wrong\n")


def test_a_command_that_takes_too_long_is_named(
    image: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("sleep 100"))
    assert main(["sandbox", "shell", str(image), "--timeout", "0.3"]) == 137
    assert "note: the command was ended: timeout" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing:1"], "there is no image 'nothing:1' on this machine: pull it"),
        (["/nowhere"], "there is no folder /nowhere"),
        (["IMAGE", "--timeout", "0"], "--timeout is 0; it must be above 0"),
        (["IMAGE", "--disk", "lots"], "--disk is 'lots'; it must be a number with K, M or G"),
        (["IMAGE", "--allow", "http://a"], "allowed_hosts has 'http://a'"),
        (["IMAGE", "--user", "nobody-here"], "there is no user 'nobody-here'"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    message: str,
    image: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("true"))
    assert main(["sandbox", "shell", *(str(image) if word == "IMAGE" else word for word in arguments)]) == 2
    printed = capfd.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1


def test_a_terminal_has_one_shell_until_exit_and_ctrl_c_ends_only_the_command(image: Path) -> None:
    terminal, theirs = pty.openpty()
    entry = (
        "import signal, sys; from forge_env.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "sys.exit(main())"
    )
    program = [sys.executable, "-c", entry, "sandbox", "shell", str(image)]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *program], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    try:
        told(terminal, PROMPT)
        os.write(terminal, b"x=3; cd /bin\n")
        told(terminal, PROMPT)
        os.write(terminal, b"echo $x-$PWD-\n")
        assert b"3-/bin-" in told(terminal, PROMPT)
        os.write(terminal, b"echo run''ning; sleep 100\n")  # the echo of the line has the quotes in it
        told(terminal, b"running")  # output comes while the command runs
        os.write(terminal, b"\x03")
        assert b"a new shell begins" in told(terminal, PROMPT)
        os.write(terminal, b"exit 5\n")
        assert process.wait(30) == 5
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def told(terminal: int, wanted: bytes) -> bytes:
    """Return what the terminal shows up to `wanted`."""
    text, end = b"", time.monotonic() + 60
    while wanted not in text:
        assert select.select([terminal], [], [], max(end - time.monotonic(), 0))[0], text
        text += os.read(terminal, 4096)
    return text
