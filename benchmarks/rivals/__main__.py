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
SECONDS = 3600
HELD_OUT = (
    "--env", "math", "--option", "level=0", "--option", "calculator=false", "--tasks", "256", "--max-turns", "1",
    "--max-turn-tokens", "128", "--concurrency", "256",
)  # fmt: skip


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
        variables = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PATH": f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [str(python), "-m", "benchmarks.rivals.play", name, what]
        with tempfile.TemporaryDirectory() as cwd:
            done = subprocess.run(
                command, cwd=cwd, env=variables, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True
            )
    except (OSError, subprocess.SubprocessError) as error:
        return {"version": "", "failed": str(error)}
    return json.loads(done.stdout.splitlines()[-1])


ROLLOUTS = {
    "episodes": ("episodes at once", "{:,}"),
    "batch_seconds": ("five turns of 50 ms, s", "{:.2f}"),
    "steps_per_second": ("steps/s, model at once", "{:,.0f}"),
    "cpu_us_per_step": ("CPU of a step, us", "{:,.0f}"),
}
CODE = {
    "p50_ms": ("p50, ms", "{:.1f}"),
    "runs_per_second": ("runs/s, 8 clients", "{:.0f}"),
    "reads_files": ("reads your files", "{}"),
    "reaches_network": ("reaches your ports", "{}"),
    "leaves_processes": ("leaves processes", "{}"),
}


def table(results: dict[str, Any], columns: dict[str, tuple[str, str]]) -> str:
    """A table of results/rivals.md."""
    lines = [["", *(title for title, _ in columns.values())], ["---"] * (1 + len(columns))]
    for name, result in results.items():
        for way, one in result.get("ways", {"not run": {}}).items():
            cells = [form.format(one[key]) if key in one else "-" for key, (_, form) in columns.items()]
            lines.append([f"{name} {result['version']}".strip() + f", {way}", *cells])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text.replace(" True |", " yes |").replace(" False |", " no |")


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
            if code := subprocess.run(command, cwd=REPOSITORY).returncode:
                return code
            judge = ["--agent", f"vllm:{options.output / 'model'}", "--out", str(options.output / "evaluation")]
            return subprocess.run(
                [sys.executable, "-m", "forge_env", "eval", *HELD_OUT, *judge], cwd=REPOSITORY
            ).returncode
        results = json.loads(options.json.read_text()) if options.json.exists() else {}
        if options.what != "table":
            for name in options.names or RIVALS:
                figures = results.setdefault(options.what, {})
                figures[name] = play(name, options.what, folder)
                results["machine"] = describe()
                options.json.write_text(json.dumps(results, indent=2) + "\n")
    for what, columns in (("rollouts", ROLLOUTS), ("code", CODE)):
        if what in results:
            print(f"\n{table(results[what], columns)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
