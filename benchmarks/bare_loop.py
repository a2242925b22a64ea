"""The bare loop: the same GRPO step in one process, without engine, actors, store or sandbox.

    python -m benchmarks.bare_loop --run outputs/RUN
    python -m benchmarks.bare_loop --compare-latest

It samples as many two-turn episodes as a step of the run has, with transformers' own model and cache, looks the tool's
answer up in Python, and takes one AdamW step. That is the least that the algorithm costs on this machine; the run's own
step is given as a multiple of it. What it leaves out is the point: isolation, scheduling, weight transport, token-exact
records.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from agents.renderer.rendering import Renderer
from envs.code_exec import CodeExec
from envs.math import calculate
from forge_env.core.protocols import Conversation
from forge_env.core.types import Message, Task
from forge_env.registry.registry import env_class
from forge_env.utils.yaml_text import read_yaml
from trainers.objective.advantages import group_relative

STEPS = 12
FIRST_TURN_TOKENS = 32
SECOND_TURN_TOKENS = 32


class BareLoop:
    """One model, one optimizer, one process.

    Args:
        model: a Hugging Face folder.
        env_name: code_exec or math.
        group: episodes of a prompt.
    """

    def __init__(self, model: Path, env_name: str, group: int) -> None:
        self.group = group
        self.env = env_class(env_name)
        self.renderer = Renderer(model)
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)
        self.end = self.renderer.stop_token_ids[0]

    @torch.no_grad()
    def sample(self, prompts: list[list[int]], most: int) -> tuple[list[list[int]], list[list[float]]]:
        """Sample one answer for each prompt, all at once, left-padded."""
        count, length = len(prompts), max(map(len, prompts))
        ids = torch.zeros(count, length, dtype=torch.long)
        mask = torch.zeros(count, length, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            ids[i, length - len(prompt) :] = torch.tensor(prompt)
            mask[i, length - len(prompt) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache, done = None, torch.zeros(count, dtype=torch.bool)
        answers: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        for _ in range(most):
            output = self.model(
                ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            distribution = log_softmax(output.logits[:, -1], -1)
            chosen = torch.multinomial(distribution.exp(), 1)
            picked = distribution.gather(1, chosen)[:, 0].tolist()
            for i, token in enumerate(chosen[:, 0].tolist()):
                if not done[i]:
                    answers[i].append(token)
                    logprobs[i].append(picked[i])
            done |= chosen[:, 0] == self.end
            if done.all():
                break
            ids, positions = chosen, positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones(count, 1, dtype=torch.long)], 1)
        return answers, logprobs

    def rollouts(self, tasks: list[Task]) -> list[dict[str, Any]]:
        """Two turns: a call, and an answer to what came back. A reward of 1 is for the expert's own answer."""
        episodes: list[dict[str, Any]] = []
        for task in tasks:
            system: Message = {"role": "system", "content": self.env.system_prompt}  # type: ignore[attr-defined]
            conversation = Conversation(request_id="", observation=(system, *task.prompt))
            _, prompt = self.renderer.next_prompt(conversation, self.env().tools)
            episodes.append({"task": task, "ids": prompt, "mask": [0] * len(prompt), "logprobs": [0.0] * len(prompt)})
        for most in (FIRST_TURN_TOKENS, SECOND_TURN_TOKENS):
            answers, logprobs = self.sample([e["ids"] for e in episodes], most)
            for episode, answer, values in zip(episodes, answers, logprobs, strict=True):
                self._take(episode, answer, values)
        return episodes

    def _take(self, episode: dict[str, Any], answer: list[int], logprobs: list[float]) -> None:
        action = self.renderer.read(answer, "stop")
        episode["ids"] = episode["ids"] + answer
        episode["mask"] += [1] * len(answer)
        episode["logprobs"] += logprobs
        if "result" not in episode:
            call = action.tool_calls[0].arguments if action.tool_calls else None
            episode["result"] = self._tool(episode["task"], call or {})
            more = self._tool_turn(episode["result"])
            episode["ids"] = episode["ids"] + more
            episode["mask"] += [0] * len(more)
            episode["logprobs"] += [0.0] * len(more)
        else:
            episode["reward"] = float(action.text == self._expected(episode))

    def _tool(self, task: Task, arguments: dict[str, Any]) -> str:
        if "expression" in arguments:
            return calculate(str(arguments["expression"]))
        index = re.fullmatch(r"print\(t\[(\d{1,2})\]\)", str(arguments.get("code", "")))
        return str(task.metadata["table"][int(index[1])]) if index else "error"

    def _tool_turn(self, result: str) -> list[int]:
        # In the pieces in which the renderer writes them: a merge across two of them would be a new token to the model.
        response = f"<tool_response>\n{result}\n</tool_response><|im_end|>"
        pieces = (
            "\n",
            "<|im_start|>",
            "user\n",
            response,
            "\n",
            "<|im_start|>",
            "assistant\n",
            "<think>\n\n</think>\n\n",
        )
        return [token for piece in pieces for token in self.renderer.encode(piece)]

    def _expected(self, episode: dict[str, Any]) -> str:
        task: Task = episode["task"]
        if self.env is not CodeExec:
            return str(task.target)
        index = re.search(r"t\[(\d+)\]", task.prompt[0]["content"])
        assert index is not None
        value = str(task.metadata["table"][int(index[1])])
        return self.env.expert([*task.prompt, {"role": "tool", "content": value}])["content"]

    def update(self, episodes: list[dict[str, Any]]) -> None:
        """One clipped policy-gradient step, token mean."""
        length = max(len(e["ids"]) for e in episodes)

        def padded(name: str, kind: torch.dtype) -> torch.Tensor:
            return torch.stack([torch.tensor(e[name] + [0] * (length - len(e[name])), dtype=kind) for e in episodes])

        ids = padded("ids", torch.long)
        mask, old = padded("mask", torch.float32)[:, 1:], padded("logprobs", torch.float32)[:, 1:]
        rewards = [e["reward"] for e in episodes]
        groups = [group_relative(rewards[i : i + self.group]) for i in range(0, len(rewards), self.group)]
        advantages = torch.tensor([a for group in groups for a in group])[:, None]
        new = log_softmax(self.model(ids).logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
        ratio = ((new - old) * mask).exp()
        objective = torch.min(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        (-(objective * mask).sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(model: Path, env_name: str, prompts: int, group: int) -> dict[str, Any]:
    """Time STEPS steps of `prompts` groups; returns the medians in seconds."""
    torch.manual_seed(0)
    loop = BareLoop(model, env_name, group)
    tasks = loop.env.tasks("train", count=prompts * STEPS, seed=0)
    sampling, training, tokens, rewards = [], [], [], []
    for step in range(STEPS):
        batch = [task for task in tasks[step * prompts : (step + 1) * prompts] for _ in range(group)]
        started = time.perf_counter()
        episodes = loop.rollouts(batch)
        sampled = time.perf_counter()
        loop.update(episodes)
        sampling.append(sampled - started)
        training.append(time.perf_counter() - sampled)
        tokens.append(sum(len(e["ids"]) for e in episodes) / len(episodes))
        rewards.append(statistics.fmean(e["reward"] for e in episodes))
    steps = [a + b for a, b in zip(sampling, training, strict=True)]
    return {
        "episodes": prompts * group,
        "bare_step_seconds": statistics.median(steps),
        "bare_sampling_seconds": statistics.median(sampling),
        "bare_training_seconds": statistics.median(training),
        "tokens_per_episode": statistics.fmean(tokens),
        "bare_reward": statistics.fmean(rewards),
        "threads": torch.get_num_threads(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", type=Path, help="folder of a finished run")
    which.add_argument("--compare-latest", action="store_true", help="take the newest finished run under outputs/")
    options = parser.parse_args()
    finished = sorted(Path("outputs").glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
    if options.run is None and not finished:
        print("error: there is no finished run under outputs/: run `make demo` first", file=sys.stderr)
        return 2
    run = options.run or finished[-1].parent
    if not (run / "summary.json").is_file():
        print(f"error: {run} holds no summary.json: it is no finished run", file=sys.stderr)
        return 2
    summary = json.loads((run / "summary.json").read_text())
    disable_progress_bar()
    config = read_yaml((run / "config.yaml").read_text())
    training, group = config["training"], config[summary["algorithm"]]["n_samples"]
    prompts = training["batch_size"] * training["gradient_accumulation_steps"]
    result = measure(run / "model", summary["env"], prompts, group)
    result["run_step_seconds"] = summary["median_step_seconds"]
    result["ratio"] = result["run_step_seconds"] / result["bare_step_seconds"]
    (run / "bare_loop.json").write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"one step of {prompts * group} two-turn episodes: {result['run_step_seconds']:.2f} s in the run "
        f"(engine, actors, sandbox, store), {result['bare_step_seconds']:.2f} s in the bare single-process loop "
        f"({result['bare_sampling_seconds']:.2f} s sampling + {result['bare_training_seconds']:.2f} s training): "
        f"{result['ratio']:.2f}x"
    )
    if options.compare_latest:  # the end of `make demo`
        print(
            f"\nWhat to do next, in the environment (. {Path(sys.prefix).name}/bin/activate):\n"
            f"    forge-env view {run}    # curves, episodes and tokens of this run in a browser\n"
            "    forge-env new my_env    # an environment of your own: docs/environments.md\n"
            "    python -m trainers.grpo --env math --dry-run    # what another run would need: docs/training.md"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
