"""Ctrl-C before a command of ours has begun, and while it exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BEGIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[:], sys.orig_argv = {}; "
)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ((["-m"], ["python", "-m", "trainers.grpo"]), 130),
        ((["-m"], ["python", "-m", "forge_env.trainers.sft", "--env", "math"]), 130),
        ((["-m"], ["python", "-m", "forge_env"]), 130),
        ((["bin/forge-env", "eval"], ["python", "bin/forge-env", "eval"]), 130),
        ((["-m"], ["python", "-m", "mine"]), -2),
        ((["mine.py"], ["python", "mine.py", "-m", "trainers.grpo"]), -2),
    ],
)
def test_ctrl_c_during_imports_is_one_sentence_of_our_commands_only(
    command: tuple[list[str], list[str]], code: int
) -> None:
    program = f"{BEGIN.format(command)}import forge_env; signal.raise_signal(signal.SIGINT)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert (ended.stderr == "interrupted: nothing is running\n") == (code == 130)


@pytest.mark.parametrize(("program", "frees"), [("bin/forge-env", False), ("mine.py", True)])
@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["missing"], 2)])
def test_a_command_ends_after_its_atexit_functions(program: str, frees: bool, arguments: list[str], code: int) -> None:
    """Nothing is freed, and no Ctrl-C meets Python's end; a program that calls `main` ends in its own way."""
    script = (
        f"{BEGIN.format(([program], []))}import atexit, forge_env, os\n"
        "from forge_env.cli.main import main\n"
        "class Late:\n"
        "    def __del__(self, write=os.write): write(1, b'freed\\n')\n"
        "sys.late = Late()\n"  # freed when the interpreter ends
        "atexit.register(print, 'atexit')\n"
        f"sys.exit(main({arguments}))"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert ended.stdout.splitlines()[-1 - frees :] == ["atexit", *(["freed"] if frees else [])]
