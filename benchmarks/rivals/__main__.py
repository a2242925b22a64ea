"""Other libraries beside ours, each in an environment of its own: rollouts, runs of code, and a small model's training.

    python -m benchmarks.rivals rollouts [NAME ...] [--json FILE] [--keep FOLDER]
    python -m benchmarks.rivals code [NAME ...]
    python -m benchmarks.rivals small-model --output outputs/trl [--here]      # TRL on one GPU
    python -m benchmarks.rivals table                                          # of results/rivals.json

An environment is made from `NAME.txt`, name and version of every package, and removed at the end; --keep FOLDER keeps
it for the next time. trl and titanrl need torch and transformers, and see ours behind their own packages.

rollouts plays 1,024 episodes of five turns at once: four calls of a calculator, and an answer. The model answers
after 50 ms, so that a batch takes 0.25 s at best; and at once, for steps/s. Medians of five plays, or of as many as
begin within 60 s, on the clock. code runs `print(6 * 7)` one after another and from eight clients, and tries three
things that a sandbox prevents. The library is one process here; a model behind HTTP is another.

small-model trains SmolLM2-135M on the word problems of `python -m benchmarks.real_model words`, 32 prompts x 16
answers of at most 128 tokens a step, with the fastest settings of TRL that were tried. --here takes packages that this
interpreter finds already.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY, describe
from benchmarks.real_model import installer, model

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "rivals.json"
RIVALS = ("ours", "titanrl", "trl", "verifiers", "skyrl_gym", "gem")
BESIDE_OURS = ("titanrl", "trl")
PACKAGE = {"titanrl": "torchtitan", "skyrl_gym": "skyrl-gym", "gem": "gem-llm"}
SECONDS = 3600


def environment(name: str, folder: Path) -> Path:
    """The interpreter of a library, made where it is not there yet."""
    if name == "ours":
        return Path(sys.executable)
    python, done = folder / name / "bin" / "python", folder / name / "installed"
    if not done.exists():
        print(f"installing the packages of {name}.txt", file=sys.stderr, flush=True)
        venv.create(folder / name, clear=True, with_pip=True)
        beside = name in BESIDE_OURS
        if beside:
            site = next((folder / name / "lib").glob("python*/site-packages"))
            (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        command = [*installer(str(python)), "--quiet", "-r", str(HERE / f"{name}.txt"), "--no-deps"]
        subprocess.run(command, check=True, timeout=SECONDS)
        done.touch()
    return python


def play(name: str, what: str, folder: Path) -> dict[str, Any]:
    """What `play.py` measures of a library, in a folder of its own; or why it did not."""
    try:
        python = environment(name, folder)
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{python.parent}:{os.environ['PATH']}"}
        command = [str(python), "-m", "benchmarks.rivals.play", name, what]
        with tempfile.TemporaryDirectory() as cwd:
            done = subprocess.run(
                command, cwd=cwd, env=variables, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True
            )
    except (OSError, subprocess.SubprocessError) as error:
        return {"version": version(name), "failed": str(error)}
    return {"version": version(name), **json.loads(done.stdout.splitlines()[-1])}


def version(name: str) -> str:
    """The pinned version of a library."""
    if name == "ours":
        return ""
    package = PACKAGE.get(name, name)
    found = re.search(rf"^{package}==(\S+)", (HERE / f"{name}.txt").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


def table(results: dict[str, Any]) -> str:
    """The tables of results/rivals.md."""
    lines = [
        "| | episodes | 1,024 x 5 turns of 50 ms, s | steps/s, model at once | CPU of a step, us |",
        "|---|---|---|---|---|",
    ]
    for name, result in results.get("rollouts", {}).items():
        for way, one in result.get("ways", {"not run": None}).items():
            cells = [f"{name} {result['version']}, {way}"]
            cells += (
                [
                    f"{one['episodes']:,}",
                    f"{one['batch_seconds']:.2f}",
                    f"{one['steps_per_second']:,.0f}",
                    f"{one['cpu_us_per_step']:,.0f}",
                ]
                if one
                else 4 * ["-"]
            )
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| | p50, ms | runs/s, 8 clients | reads files | reaches the network | leaves processes |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in results.get("code", {}).items():
        for way, one in result.get("ways", {}).items():
            cells = [f"{name} {result['version']}, {way}", f"{one['p50_ms']:.1f}", f"{one['runs_per_second']:.0f}"]
            cells += ["yes" if one[what] else "no" for what in ("reads_files", "reaches_network", "leaves_processes")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rollouts", "code", "small-model", "table"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RIVALS)}; else all")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file of the results, which keeps what is not run")
    parser.add_argument("--keep", type=Path, help="folder of the environments, which stay")
    parser.add_argument("--output", type=Path, default=Path("outputs/trl"), help="folder of small-model")
    parser.add_argument("--here", action="store_true", help="small-model: take this interpreter's packages")
    options, further = parser.parse_known_args()
    if unknown := set(options.names) - set(RIVALS):
        parser.error(f"there is no library {sorted(unknown)[0]!r}: they are {', '.join(RIVALS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep.absolute() if options.keep else Path(temporary)
        if options.what == "small-model":
            python = sys.executable if options.here else environment("trl", folder)
            command = [str(python), "-m", "benchmarks.rivals.trl_words", str(model()), str(options.output), *further]
            return subprocess.run(command, cwd=REPOSITORY).returncode
        results = json.loads(options.json.read_text()) if options.json.exists() else {}
        if options.what != "table":
            for name in options.names or RIVALS:
                figures = results.setdefault(options.what, {})
                figures[name] = play(name, options.what, folder)
                results["machine"] = describe()
                options.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
