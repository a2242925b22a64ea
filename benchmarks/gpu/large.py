"""Runs of large models with random weights, by `python -m trainers.grpo`: seconds, memory, MFU, mismatch, publishing.

    python -m benchmarks.gpu.models /tmp/8B --shape 8B
    python -m benchmarks.gpu.large shared --model /tmp/8B [--steps 3] [--json FILE] [OPTIONS OF THE RUN]
    python -m benchmarks.gpu.large by_turns --model /tmp/8B --json by_turns.json
    python -m benchmarks.gpu.large ahead --model /tmp/8B --steps 8 --left-out 3 --against by_turns.json
    python -m benchmarks.gpu.large publish --model /tmp/8B
    python -m benchmarks.gpu.large mismatch --shape 0.6B
    python -m benchmarks.gpu.large live --shape 0.6B --tokens 4096 --steps 8 --left-out 3

- shared: the engine sleeps while the trainer, on all GPUs, steps. The step over the sum of its parts, MFU of training,
  and the memory that the driver counts for each process beside what `--dry-run` says.
- by_turns: the engine on one GPU and the trainer on the other, with AdamW's moments in bfloat16: the seconds of
  rollouts and of training.
- ahead: the same with `--training.staleness 1`: the mean step over the longer of both, and how many times as fast it is
  as that of the file --against. Its first steps find their episodes ready: leave three out.
- publish: the trainer alone takes and commits snapshots, and says in which dtypes the bytes went.
- live: engine and trainer share the card, and the engine samples while the trainer steps (staleness 1): how long the
  engine takes new weights, as a share of a step.
- mismatch: short runs with each setting that moves the engine's logprobs, and what they are off by.

Episodes are those of `benchmarks.gpu.fixed_length`: 64 of 8,192 tokens a step, a quarter of them sampled. The first
step of a run is left out, for it compiles. A run is ended after its steps, without a checkpoint; of one that ends or
takes too long before that, `trouble` says why, what it has measured is written, and the exit code is 1. Without --model
the shape is made first; --layers cuts it. Options that it does not know are those of the runs, and the last of two
counts.

--cpu runs a tiny shape on a CPU: the same course, without a GPU, and figures that say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import SHAPES, make_random_model, make_tokenizer
from benchmarks.gpu.runs import (
    end_on_sigterm,
    memory_of,
    mismatch_of,
    plan_of,
    play,
    records,
    seconds_of,
    startup_of,
    throughput,
)
from benchmarks.machine import describe
from trainers.families.table import read_shape
from trainers.setup.placement import gpus_available

GROUP = 8
FAST = ("--training.packing", "--training.compile", "--training.learning_rate=1e-6", "--trainer.threads=8")
SHARED = ("--launcher.share_gpus=yes", "--services.generator.sleep=yes")
APART = ("--launcher.share_gpus=no", "--services.generator.num_replicas=1")
BF16_STATE = "--training.optimizer_state=bfloat16"
QUICK = ("--generator.cuda_graphs=false", "--launcher.share_gpus=yes", "--training.learning_rate=1e-6")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
MISMATCHES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "quantization fp8_per_tensor": ("--generator.engine.quantization=fp8_per_tensor",),
    "kv_cache_dtype fp8": ("--generator.engine.kv_cache_dtype=fp8",),
    "speculative ngram": (f"--generator.engine.speculative_config={json.dumps(NGRAM)}",),
}


def episode_options(given: argparse.Namespace) -> list[str]:
    """Episodes of one length, as many of them in a step as are asked for."""
    return [
        "--env=benchmarks.gpu.fixed_length:FixedLength", f"--env.options.tokens={given.tokens}",
        f"--env.options.sampled={given.sampled}", f"--env.options.turns={given.turns}",
        f"--env.max_turns={4 * given.turns}", f"--env.max_tokens={given.tokens}",
        f"--env.max_turn_tokens={given.tokens}", "--dataset.held_out=4", "--dataset.tasks=512",
        f"--training.batch_size={given.groups}", f"--grpo.n_samples={GROUP}", "--training.steps=1000",
        f"--training.max_tokens_per_micro_batch={given.tokens}", "--metrics.system_seconds=0.5",
        "--metrics.tensorboard=false",
    ]  # fmt: skip


def run(
    name: str,
    folder: Path,
    model: Path,
    options: Sequence[str],
    given: argparse.Namespace,
    *,
    steps: int,
    left_out: int,
) -> dict[str, Any]:
    """One run of so many steps, and everything that is measured of it; medians leave the first steps out."""
    options = [f"--model={model}", *episode_options(given), *options, *given.options]
    plan = plan_of(options)
    plan.check()
    print(f"{name}: {plan.about_engine}", *map(str, plan.cards), sep="\n  ", flush=True)
    seconds, trouble = play(folder, options, steps=steps, seconds=60 * given.minutes)
    taken = records(folder, "train")[:steps]
    found: dict[str, Any] = {
        "trouble": trouble,
        "options": options,
        "about_engine": plan.about_engine,
        "about_store": plan.store_reason,
        "seconds_of_the_run": seconds,
        "memory": memory_of(folder, plan),
        "seconds_of_each_step": [step["seconds/step"] for step in taken],
        "startup": startup_of(folder),
        "mismatch": mismatch_of(taken),
    }
    if counted := taken[left_out:]:
        shape = read_shape(model)
        found |= {"seconds": seconds_of(counted), "training": throughput(folder, counted, shape, plan)}
    if trouble:
        print(f"{name}: {trouble} before {steps} steps were done, {len(taken)} were", flush=True)
    return found


def shared(model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    ranks = [f"--trainer.procs={max(1, gpus_available())}"] if not given.cpu else []
    placing = SHARED if not given.cpu else SHARED[1:]
    count = {"steps": given.steps, "left_out": given.left_out}
    return run("shared", temp / "shared", model, [*ranks, *placing, *_fast(given)], given, **count)


def by_turns(model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    return _apart("by_turns", 0, model, temp, given)


def ahead(model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    found = _apart("ahead", 1, model, temp, given)
    return found | (compared(found, json.loads(given.against.read_text())["by_turns"]) if given.against else {})


def compared(found: dict[str, Any], by_turns: dict[str, Any]) -> dict[str, float]:
    """How much faster the mean step with staleness 1 is than by turns; {} if one of the runs has no steps to count."""
    if "seconds" not in found or "seconds" not in by_turns:
        return {}
    step, before = found["seconds"]["mean_step"], by_turns["seconds"]
    longer = max(before["rollout"], before["trainer"])
    return {"step_over_longer": step / longer, "times_the_speed_of_by_turns": before["mean_step"] / step}


def _apart(name: str, staleness: int, model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    options = [*([] if given.cpu else (*APART, BF16_STATE)), *_fast(given), f"--training.staleness={staleness}"]
    count = {"steps": given.steps, "left_out": given.left_out}
    return run(name, temp / name, model, options, given, **count)


def live(model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    placing = ("--launcher.share_gpus=yes",) if not given.cpu else ()
    awake = ("--services.generator.sleep=no", "--training.staleness=1")
    found = run(
        "live",
        temp / "live",
        model,
        [*placing, *awake, *_fast(given)],
        given,
        steps=given.steps,
        left_out=given.left_out,
    )
    names = ("seconds/step", "seconds/sync_stall", "seconds/publish", "seconds/fetch", "seconds/swap")
    taken = records(temp / "live", "train")
    return found | {"weights": [{name: step.get(name) for name in names} for step in taken]}


def _fast(given: argparse.Namespace) -> Sequence[str]:
    return FAST[:1] if given.cpu else (*FAST, f"--training.activation_checkpoint={given.checkpointing}")


def mismatch(model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    settings = {"plain": ()} if given.cpu else {name: MISMATCHES[name] for name in given.settings or MISMATCHES}
    quick = QUICK if not given.cpu else QUICK[2:]
    found = {}
    for number, (name, options) in enumerate(settings.items()):
        count = {"steps": given.steps, "left_out": 0}
        measured = run(name, temp / str(number), model, [*quick, *options], given, **count)
        found[name] = {"trouble": measured["trouble"], **measured["mismatch"]}
        print(name, json.dumps(found[name]), flush=True)
    return found


def publish(model: Path, temp: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Bytes by dtype, peak memory beside the model and the snapshot, and seconds, of one process."""
    import torch

    from forge_env.runtime.weights import CudaIpcStore, SharedMemoryStore, TensorLayout, WeightStore, WeightStream
    from trainers.titan.trainer import TitanSettings, TitanTrainer

    on_gpu = not given.cpu and torch.cuda.is_available()
    dtype = torch.bfloat16
    trainer = TitanTrainer(model, TitanSettings())
    weights, sent = trainer.model.weights, Counter[str]()
    layout = TensorLayout.of(weights.layout(dtype))
    largest = max(tensor.nbytes for tensor in weights.layout(dtype).values())

    def counted(tensors: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors:
            sent[str(tensor.dtype)] += tensor.nbytes
            yield name, tensor

    async def rounds() -> list[dict[str, float]]:
        store: WeightStore = CudaIpcStore() if on_gpu else SharedMemoryStore()
        await store.open()
        found = []
        try:
            for version in range(given.steps):
                sent.clear()
                before = torch.cuda.memory_allocated() if on_gpu else 0
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats()
                started = time.perf_counter()
                with weights.stream(dtype) as tensors:
                    taken = store.take(version, WeightStream(layout, trainer.device, counted(tensors)))
                took = time.perf_counter()
                await store.commit(taken)
                committed = time.perf_counter()
                peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
                found.append({"take": took - started, "commit": committed - took, "grown_bytes": float(peak)})
        finally:
            await store.close()
        return found

    try:
        found = asyncio.run(rounds())
    finally:
        trainer.close()
    return {
        "bytes_by_dtype": dict(sent),
        "float32_bytes": sent["torch.float32"],
        "snapshot_bytes": layout.size,
        "largest_tensor_bytes": largest,
        "rounds": found,
    }


def troubles(found: Any) -> list[str]:
    """What came before the steps of any run were done."""
    if not isinstance(found, dict):
        return []
    return [found["trouble"]] if found.get("trouble") else [each for part in found.values() for each in troubles(part)]


CASES = {"shared": shared, "by_turns": by_turns, "ahead": ahead, "publish": publish, "mismatch": mismatch, "live": live}


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of this script; `options` are those of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--shape", default="8B", choices=list(SHAPES))
    parser.add_argument("--layers", type=int, default=0, help="of the model; 0 is all of the shape's")
    parser.add_argument("--model", type=Path, help="made before by benchmarks.gpu.models")
    parser.add_argument("--tokens", type=int, default=8192, help="of an episode")
    parser.add_argument("--sampled", type=float, default=0.25, help="share of them that the model samples")
    parser.add_argument("--turns", type=int, default=4, help="of an episode")
    parser.add_argument("--groups", type=int, default=8, help="of 8 episodes, in a step")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--left-out", type=int, default=1, help="of the steps, the first ones, from the medians")
    parser.add_argument("--checkpointing", default="selective", help="activation_checkpoint of the trainer")
    parser.add_argument("--settings", nargs="*", choices=list(MISMATCHES), help="of the case mismatch; all by default")
    parser.add_argument("--minutes", type=float, default=9.0, help="of one run at most")
    parser.add_argument("--against", type=Path, help="for the case ahead: file of the case by_turns")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    given, given_options = parser.parse_known_args(arguments)
    given.options = given_options
    if not 0 <= given.left_out < given.steps:
        parser.error(f"--left-out is {given.left_out} and --steps is {given.steps}: some step must count")
    if given.cpu:
        given.shape, given.tokens, given.turns, given.groups = "tiny", 256, 2, 1
    if given.against and (reason := _not_comparable(given)):
        parser.error(f"--against {given.against}: {reason}")
    return given


_OWN = ("case", "steps", "left_out", "minutes", "json", "against")
"""Settings in which a run ahead and the same by turns may differ."""


def _not_comparable(given: argparse.Namespace) -> str:
    """Why a run ahead cannot be compared with that of the file --against; "" if it can."""
    if given.case != "ahead":
        return f"it is for the case ahead, and this one is {given.case}"
    if not given.against.is_file():
        return "there is no such file; the case by_turns writes it, with --json"
    before = json.loads(given.against.read_text())
    if "by_turns" not in before:
        return f"it is of the case {before['settings']['case']}, and must be of by_turns"
    mine, its = settings_of(given), before["settings"]
    differing = [f"{name} {its.get(name)}" for name in mine if name not in _OWN and mine[name] != its.get(name)]
    return f"its run had {', '.join(differing)}: give the same" if differing else ""


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments as JSON."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}


def main(arguments: Sequence[str]) -> dict[str, Any]:
    given = read_arguments(arguments)
    with tempfile.TemporaryDirectory() as temp:
        model = given.model or Path(temp) / "model"
        if given.model is None:
            make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model, layers=given.layers)
        found = CASES[given.case](model, Path(temp), given)
    result = {"machine": describe(), "settings": settings_of(given), given.case: found}
    print(json.dumps(result, indent=2), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(1 if troubles(main(sys.argv[1:])) else 0)
