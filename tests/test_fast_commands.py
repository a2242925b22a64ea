"""What help, a list and a typo import: none of the packages that take seconds. The modules are looked at, and no clock.

Lines run one after another in one process, which has imported what any of them imports.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from forge_env.cli.main import COMMANDS
from forge_env.registry.contrib import rows

ROOT = Path(__file__).parents[1]
SLOW = {"torch", "vllm", "monarch", "transformers", "datasets", "torchtitan"}
OWN = "from dataclasses import replace\n\nfrom trainers.grpo import GRPO\n\nMINE = replace(GRPO, name='mine')\n"

TRAINERS: dict[str, tuple[int, str]] = {
    "trainers.grpo --help": (0, "--grpo.clip_high 0.28"),
    "trainers.sft --help": (0, "--sft.epochs"),
    "trainers OWN:MINE --help": (0, "--grpo.clip_high 0.28"),
    "trainers.grpo --lerning_rate 3": (2, "did you mean --training.learning_rate?"),
    "trainers.sft --sft.epoch 3": (2, "did you mean --sft.epochs?"),
    "trainers.dapo --dapo.clip_low low": (2, "it must be a finite number"),
    "trainers.grpo --env maht": (2, "Did you mean math?"),
    "trainers": (2, "name the algorithm"),
}


def loaded(*arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """A finished process, and the packages that it has imported."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done, {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


RUN = """
import contextlib, io, json, runpy, sys
from trainers import cispo, gspo, losses, reinforce, sapo
said = []
for module, *options in json.loads(sys.argv[1]):
    sys.argv = [module, *options]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(text):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code or 0
    said.append([code, text.getvalue()])
print(json.dumps(said))
"""


def test_a_trainer_says_help_and_refuses_a_typo_before_it_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    lines = [line.replace("OWN", str(tmp_path / "own.py")).split() for line in TRAINERS]
    done, packages = loaded("-c", RUN, json.dumps(lines), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    for (line, (code, words)), (found, text) in zip(TRAINERS.items(), json.loads(done.stdout), strict=True):
        assert found == code and words in text, (line, text)
    assert "trainers" in packages and packages.isdisjoint(SLOW)


def test_an_algorithm_that_is_not_there_is_named_before_torch_is_imported() -> None:
    sentence = r"^error: there is no algorithm 'ppo'. Did you mean grpo\?.*gspo.*sft.*trainers my_file\.py:MINE"
    for module, words in (("trainers.ppo", sentence), ("trainers.lora", "^error: there is no algorithm 'lora'")):
        done, packages = loaded("-m", module, cwd=ROOT)
        assert done.returncode == 2 and re.search(words, done.stderr, re.M), done.stderr
        assert "Traceback" not in done.stderr and packages.isdisjoint(SLOW)


LINES = """
    --help / lisst / list / list --json / list --knd / info maht / info math --json
    check maht / eval --env maht --agent scripted:null / eval --env math --agent opnai:m / eval --env math --agnt x
    serve --env maht / serve --env math --as htp / export nowhere / report nowhere / report nowhere --text
    replay nowhere / score maht / diff nowhere nowhere / suite --help / image --help / sandbox --help
    doctor --help / check --help / eval --help / serve --help / new --help / export --help / view --help / audit --help
"""


def test_the_commands_of_the_gym_import_nothing_slow_for_help_a_list_or_a_typo(tmp_path: Path) -> None:
    lines = [line.split() for line in LINES.replace("\n", " / ").split("/") if line.strip()]
    known = {path.split()[0] for path in (*COMMANDS, *rows("commands"))} | {"--help", "lisst"}
    lines = [line for line in lines if line[0] in known]  # a folder of contrib may have been taken away
    code = f"from forge_env.cli.main import main\nprint([main(line) for line in {lines}])"
    done, packages = loaded("-c", code, cwd=tmp_path)
    codes = dict(zip(map(" ".join, lines), eval(done.stdout.splitlines()[-1]), strict=True))
    is_help = {line: "help" in line or line.startswith(("list", "info math")) for line in codes}
    assert {line: code for line, code in codes.items() if (code == 0) != (is_help[line] and "knd" not in line)} == {}
    assert "typer" in packages and packages.isdisjoint(SLOW)
