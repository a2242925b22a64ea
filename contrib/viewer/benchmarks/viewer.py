"""How fast `forge-env view` opens a run of 50,000 episodes, and compares 200,000 of two evaluations, in a real browser.

    python -m contrib.viewer.benchmarks.viewer [--episodes N] [--compared N] [--json FILE]

A run is made with a script: groups of 8 episodes of two to five turns with tool calls, tokens, logprobs and versions.
Then, from a new process:

    usable    from the start of the command until the list of episodes is drawn in Chromium
    index     from the start of the command until every episode is in the index

And of the comparison, in the same way, and in a page that is opened when everything is in the index:

    paint     from the address until the tasks are drawn, the worst regression first
    figures   from the address until the paired differences are drawn, too
    memory    of the viewer's process at most
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from forge_env.core.episode import Episode, Turn, digest, write_jsonl
from forge_env.core.types import Message, Outcome, Task, ToolCall, ToolUse

GROUP = 8
WORDS = ("take", "the", "sum", "of", "all", "primes", "below", "and", "print", "it", "as", "one", "number", "check")
SETTLE_SECONDS = 120.0


def make_episode(rng: random.Random, number: int) -> Episode:
    """An episode of two to five turns, of about 5 kB of JSON; one in a hundred ends by a fault."""
    group, member = divmod(number, GROUP)
    group_rng = random.Random(group)
    question = f"Task {group}: {' '.join(group_rng.choices(WORDS, k=40))} {group_rng.randrange(10**6)}."
    task = Task(prompt=({"role": "user", "content": question},), target=str(group_rng.randrange(10**6)))
    count = rng.randint(2, 5)
    context: list[int] = []
    turns = [_turn(rng, question, turn, turn == count - 1, context, group) for turn in range(count)]
    fault = rng.random() < 0.01
    reward = None if fault else float(rng.random() < group_rng.random())
    turns[-1].reward = reward or 0.0
    return Episode(
        task=task,
        turns=tuple(turns),
        reward=reward,
        outcome=Outcome.INFRA_FAULT if fault else Outcome.SCORED,
        error=f"SandboxError: the sandbox did not start: {rng.choice(('no memory', 'no place'))}" if fault else "",
        id=f"train/{group}/{member}",
        group_id=f"train/{group}",
        env="code_exec",
        seed=number,
        rewards={} if fault else {"tests": reward or 0.0},
        info={"seconds": rng.random() * 9, "started": 1.8e9 + number * 0.1},
    )


def _turn(rng: random.Random, question: str, number: int, last: bool, context: list[int], group: int) -> Turn:
    prompt, sampled = rng.choices(range(30000), k=24), rng.choices(range(30000), k=40)
    context += prompt
    seen = digest(context)
    context += sampled
    code = f"values = [i * {rng.randrange(999)} for i in range({rng.randrange(99)})]\nprint(sum(values))"
    call = ToolCall(id=f"call_{number}", name=rng.choice(("python", "shell")), arguments={"code": code})
    shown: Message = {"role": "user", "content": question}
    output = f"{rng.getrandbits(200)}\n" * 3
    if number:
        shown = {"role": "tool", "content": output, "tool_call_id": f"call_{number - 1}"}
    message: Message = {"role": "assistant", "content": " ".join(rng.choices(WORDS, k=30))}
    if not last:
        function = {"name": call.name, "arguments": call.arguments}
        message["tool_calls"] = [{"type": "function", "function": function}]
    return Turn(
        kind="sampled",
        observation=(shown,),
        message=message,
        tool_calls=() if last else (call,),
        prompt_ids=tuple(prompt),
        token_ids=tuple(sampled),
        logprobs=tuple(round(-rng.expovariate(3), 4) for _ in sampled),
        versions=((group // 8, len(sampled)),),
        starts_row=number == 0,
        context_digest=seen,
        policy_seconds=rng.random(),
        env_seconds=rng.random() / 10,
        tool_uses=()
        if last
        else (ToolUse(name=call.name, seconds=rng.random() / 10, error="raised" if rng.random() < 0.05 else ""),),
    )


def make_run(folder: Path, episodes: int) -> None:
    """A training run's folder with so many episodes, its metrics, and what was trained on."""
    (folder / "episodes").mkdir(parents=True)
    rng = random.Random(0)
    write_jsonl(folder / "episodes" / "train.jsonl", (make_episode(rng, number) for number in range(episodes)))
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "trained.jsonl").open("w") as trained:
        for step in range(1, episodes // 64 + 1):
            reward = 0.9 - 0.7 / step**0.5 + rng.gauss(0, 0.03)
            record = {"phase": "train", "step": step, "time": step * 4.0, "reward": reward, "success": reward}
            metrics.write(json.dumps({**record, "loss": rng.gauss(0, 0.1)}) + "\n")
            for number in range((step - 1) * 64, step * 64):
                group, member = divmod(number, GROUP)
                line = {"step": step, "episode": f"train/{group}/{member}", "advantages": [rng.gauss(0, 1)] * 2}
                trained.write(json.dumps(line) + "\n")


def make_evaluation(folder: Path, episodes: int, seed: int) -> Path:
    """The folder of a complete evaluation; two of them differ in what was sampled."""
    folder.mkdir()
    rng = random.Random(seed)
    write_jsonl(folder / "episodes.jsonl", (make_episode(rng, number) for number in range(episodes)))
    (folder / "plan.json").write_text(json.dumps({"env": "code_exec", "tasks": episodes // GROUP, "n": GROUP}))
    (folder / "eval.json").write_text(json.dumps({f"avg@{GROUP}": 0.5}))
    return folder


@contextmanager
def viewing(*runs: Path) -> Iterator[tuple[str, float, int]]:
    """The address of a viewer, when its command began, and its process."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "forge_env", "view", *map(str, runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield re.search(r"http\S+", process.stdout.readline())[0], started, process.pid  # type: ignore[index]
    finally:
        process.terminate()
        process.wait(30)


def measure(browser: Any, run: Path, name: str) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto("about:blank")
    with viewing(run) as (url, started, _):
        page.goto(f"{url}#/{name}/episodes")
        page.wait_for_selector(".tr.row", timeout=60000)
        usable = time.perf_counter() - started
        wait_for_index(context, url, 1)
        indexed = time.perf_counter() - started
    context.close()
    return {"usable_seconds": usable, "index_seconds": indexed}


def wait_for_index(context: Any, url: str, runs: int) -> None:
    origin = url.partition("/?")[0]
    deadline = time.monotonic() + SETTLE_SECONDS
    while not all(context.request.get(f"{origin}/api/{n}/state").json()["indexed"] for n in range(runs)):
        assert time.monotonic() < deadline, f"the index was not complete after {SETTLE_SECONDS:g} s"
        time.sleep(0.02)


def measure_comparison(browser: Any, first: Path, second: Path) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto("about:blank")
    with viewing(first, second) as (url, started, process):
        page.goto(url)
        page.wait_for_selector(".groups .group", timeout=60000)
        usable = time.perf_counter() - started
        wait_for_index(context, url, 2)
        indexed = time.perf_counter() - started
        page.close()
        page = context.new_page()
        opened = time.perf_counter()
        page.goto(url)
        page.wait_for_selector(".groups .group", timeout=60000)
        paint = time.perf_counter() - opened
        page.wait_for_selector("#main table", timeout=120000)
        figures = time.perf_counter() - opened
        status = Path(f"/proc/{process}/status").read_text()
    context.close()
    memory = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    return {
        "usable_seconds": usable,
        "index_seconds": indexed,
        "paint_seconds": paint,
        "figures_seconds": figures,
        "memory_mib": memory,
    }


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50_000)
    parser.add_argument("--compared", type=int, default=200_000, help="episodes of both evaluations together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        run = Path(temporary) / "large"
        make_run(run, options.episodes)
        size = sum(path.stat().st_size for path in run.rglob("*.jsonl"))
        arguments = ["--disable-gpu", *(["--no-sandbox"] if os.getuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        opened = median([measure(browser, run, "large") for _ in range(options.rounds)])
        sides = [make_evaluation(Path(temporary) / name, options.compared // 2, i) for i, name in enumerate("ab")]
        compared = median([measure_comparison(browser, *sides) for _ in range(options.rounds)])
        browser.close()
    load = round(os.getloadavg()[1], 1)  # of the last five minutes: above the number of cores, others were at work too
    result: dict[str, Any] = {"machine": describe(), "load": load}
    result["mib"] = round(size / 2**20, 1)
    result |= {"episodes": options.episodes, **opened}
    result["comparison"] = {"episodes": options.compared, **compared}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
