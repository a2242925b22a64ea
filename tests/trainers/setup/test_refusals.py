"""Every refusal of the options of a run: the whole sentence, which says how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.registry import contrib
from forge_env.runtime.weights.one_host import shared_memory
from trainers import dapo, reinforce, sapo, sft
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

CABINET = f"{Path(__file__).parents[3]}/examples/filing_cabinet.py:FilingCabinet"
REFUSED = {
    "--parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 2 --trainer.procs 2": (
        "parallelism needs 4 trainer processes, services.trainer.procs is 2: --trainer.procs 4"
    ),
    "--parallelism.tensor_parallel_degree 2": (
        "parallelism needs 2 trainer processes, services.trainer.procs is 1: --trainer.procs 2"
    ),
    "--parallelism.tensor_parallel_degree 2 --trainer.procs 3": (
        "parallelism needs 4 trainer processes, services.trainer.procs is 3: --trainer.procs 4"
    ),
    "--parallelism.data_parallel_shard_degree 1 --trainer.procs 4": (
        "parallelism needs 1 trainer process, services.trainer.procs is 4: --trainer.procs 1"
    ),
    "--parallelism.context_parallel_degree 4 --parallelism.tensor_parallel_degree 2 --trainer.procs 4": (
        "parallelism needs 8 trainer processes, services.trainer.procs is 4: --trainer.procs 8"
    ),
    "--parallelism.context_parallel_degree 4 --trainer.procs 4 --env.max_tokens 6": (
        "--parallelism.context_parallel_degree is 4, which cuts rows into parts of at least 2 tokens, and "
        "--env.max_tokens, the longest row, is 6: set the degree to 3 or less"
    ),
    "--training.seq_len 2048": (
        "--training.seq_len is 2048, and the model made on the spot reads 1024 tokens at most: set it to that or less"
    ),
    "--parallelism.pipeline_parallel_degree 2": (
        "--parallelism.pipeline_parallel_degree is 2, and the loss needs the logprobs of a whole row on every rank: "
        "set it to 1"
    ),
    "--parallelism.expert_parallel_degree 2": (
        "--parallelism.expert_parallel_degree is 2, and the model is dense, and has no experts to spread: set it to 1"
    ),
    "--model.size tiny-moe --parallelism.expert_parallel_degree=3 --trainer.procs=3": (
        "--parallelism.expert_parallel_degree is 3, which does not divide the model's experts, 8: choose 1, 2, 4 or 8"
    ),
    "--model.size tiny-moe --parallelism.expert_parallel_degree=4 --trainer.procs=6": (
        "--parallelism.expert_parallel_degree is 4, which does not divide the number of trainer processes that hold "
        "the weights together, 6: choose 1, 2, 3 or 6"
    ),
    "--model.size tiny-moe --parallelism.expert_parallel_degree=2 --trainer.procs=2 --training.fp32_head": (
        "--parallelism.expert_parallel_degree is 2, which does not work with --training.fp32_head true: leave one of "
        "them out"
    ),
    "--model=Qwen/Qwen3-30B-A3B --lora.rank=8": (
        "--lora.targets is all-linear, and the model has experts, whose matrices gate_proj, up_proj, down_proj get no "
        "adapter: set it to q_proj,k_proj,v_proj,o_proj, or to some of these"
    ),
    "--model=Qwen/Qwen3-30B-A3B --lora.rank=8 --lora.targets=q_proj --lora.publish=adapter": (
        "--lora.publish is adapter, which sends the adapter alone, and the model has experts, whose kernels differ in "
        "an engine that holds adapters: set it to merged"
    ),
    "--model.size tiny-moe --moe.compare_interval=-1": "--moe.compare_interval is -1; it must be at least 0",
    "--model.size tiny-moe --generator.engine.quantization=fp8_per_tensor": (
        "--services.generator.engine.quantization is fp8_per_tensor, and the model has experts, whose quantized "
        "kernels do not take new weights over in place: leave it out"
    ),
    "--model=Qwen/Qwen3-30B-A3B --lora.rank=8 --lora.targets=q_proj,up_proj": (
        "--lora.targets is q_proj,up_proj, and the model has experts, whose matrices gate_proj, up_proj, down_proj "
        "get no adapter: set it to q_proj,k_proj,v_proj,o_proj, or to some of these"
    ),
    "--lora.rank=8": (
        "--lora.rank is 8, and there is no --model: adapters beside the random weights of a model made on the spot "
        "learn nothing; name a --model that has learned, or set --lora.rank to 0"
    ),
    "--steps 0": "--training.steps is 0; it must be at least 1",
    "--parallelism.data_parallel_replicate_degree 2": (
        "parallelism needs 2 trainer processes, services.trainer.procs is 1: --trainer.procs 2"
    ),
    "--parallelism.data_parallel_replicate_degree=2 --trainer.procs=4 --parallelism.data_parallel_shard_degree=4": (
        "parallelism needs 8 trainer processes, services.trainer.procs is 4: --trainer.procs 8"
    ),
    "--training.cpu_offload": (
        "--training.cpu_offload is true, which is for a trainer on GPU, and this one is on the CPU, whose memory has "
        "the weights already: leave it out, or use --trainer.with_gpus true"
    ),
    "--training.offload_sums": (
        "--training.offload_sums is true, which is for offloaded gradients: leave it out, or set "
        "--training.cpu_offload true"
    ),
    "--checkpoint.step=5": (
        "--checkpoint.step is 5, and needs --resume: it is the checkpoint that a run goes on from; give both, or "
        "leave it out"
    ),
    "--grpo.n_samples=2 --env.min_valid=3": (
        "--env.min_valid is 3, and a group has --grpo.n_samples, 2, episodes, so that none would be trained on: set "
        "it to 2 or less"
    ),
    "--env.max_thinking_tokens=8": (
        "--env.max_thinking_tokens is 8, and --env.thinking is off, so that there is no thought to limit: set "
        "--env.thinking to on or template, or --env.max_thinking_tokens to 0"
    ),
    "--generator.kv_cache_gib=0.0001": (
        "--services.generator.kv_cache_gib is 0.0001, and one request of --env.max_tokens, 512, takes 0.00049 GiB: "
        "set it to that or more, or to 0"
    ),
    "--generator.engine.max_num_batched_tokens=500": (
        "--services.generator.engine.max_num_batched_tokens is 500, and a step of the engine has room for "
        "--env.max_tokens, 512, at least: set it to that or more"
    ),
    "--training.optimizer_state=bfloat16": (
        "--training.optimizer_state is bfloat16, which is for a trainer on GPU, and this one is on the CPU: set it to "
        "float32 or 8bit"
    ),
    "--training.optimizer_state=bfloat16 --trainer.with_gpus --training.cpu_offload": (
        "--training.optimizer_state is bfloat16 and --training.cpu_offload is true, by which the optimizer runs on "
        "the CPU, where there is none with such a state: set it to float32 or 8bit, or leave cpu_offload out"
    ),
    "--training.attention=flash": (
        "the command line: --training.attention is 'flash'; it must be one of: \"\", varlen, flex, sdpa"
    ),
    "--training.attention=flex": (
        "--training.attention is flex, which is for a trainer on GPU, and this one is on the CPU: set it to sdpa, or "
        "leave it out"
    ),
    (
        "--training.attention=varlen --trainer.with_gpus --generator.with_gpus "
        "--parallelism.context_parallel_degree=2 --trainer.procs=2"
    ): (
        "--training.attention is varlen, which cannot share a row between processes, and "
        "--parallelism.context_parallel_degree is 2: set it to flex, or leave it out"
    ),
    "--training.attention=varlen --trainer.with_gpus --generator.with_gpus --training.dtype=float32": (
        "--training.attention is varlen, which computes in bfloat16, and --training.dtype is float32: set "
        "--training.attention to flex, or leave it out"
    ),
    "--training.attention=sdpa --trainer.with_gpus --generator.with_gpus --training.packing": (
        "--training.attention is sdpa and --training.packing is true: for rows that share a sequence, or are shared, "
        "sdpa builds a mask of tokens x tokens, which the plan of the GPU's memory has no room for: set it to flex, "
        "or leave it out"
    ),
    (
        "--training.attention=sdpa --trainer.with_gpus --generator.with_gpus --parallelism.context_parallel_degree=2 "
        "--trainer.procs=2"
    ): (
        "--training.attention is sdpa and --parallelism.context_parallel_degree is 2: for rows that share a sequence, "
        "or are shared, sdpa builds a mask of tokens x tokens, which the plan of the GPU's memory has no room for: "
        "set it to flex, or leave it out"
    ),
    "--parallelism.data_parallel_shard_degree 0": (
        "--parallelism.data_parallel_shard_degree is 0; it must be at least 1, or -1 for all processes that the other "
        "degrees leave"
    ),
    "--trainer.num_replicas 2": (
        "--services.trainer.num_replicas is 2, and there is one trainer, whose processes share the work: set it to 1, "
        "and --services.trainer.procs to the number of processes"
    ),
    "--services.envs.ping_seconds 0": "--services.envs.ping_seconds is 0.0; it must be above 0",
    "--generator.procs 2": (
        "--services.generator.procs is 2 and it has no GPUs: an engine on CPU is one process; set it to 1, or "
        "--generator.with_gpus true"
    ),
    "--ref_model.with_gpus": (
        "--services.ref_model.with_gpus is true and --services.ref_model.procs is 0, which is no reference model: "
        "--ref_model.procs 1"
    ),
    "--training.deterministic --training.staleness 1": (
        "--training.deterministic needs --training.staleness 0, and it is 1: which weights sample a group must not "
        "depend on the clock"
    ),
    "--training.deterministic --services.envs.num_replicas 2": (
        "--training.deterministic needs one replica of each service, and --services.envs.num_replicas is 2: set it to 1"
    ),
    "--training.deterministic --generator.with_gpus": (
        "--training.deterministic is for CPU, and --services.generator.with_gpus is true: a GPU's sums do not repeat "
        "bit by bit"
    ),
    "--training.sync_interval 4 --training.staleness 0": (
        "--training.sync_interval is 4 and --training.staleness is 0: the engine's weights are up to 3 steps old "
        "between two updates, so leave it out, or allow that: --training.staleness 3"
    ),
    "--training.deterministic --training.sync_interval 4": (
        "--training.deterministic needs --training.sync_interval 1 or --training.old_logprobs trainer, and it is 4: "
        "which groups a step takes must not depend on the clock"
    ),
    "--training.deterministic --training.sync_interval 4 --training.old_logprobs trainer --training.staleness 4": (
        "--training.deterministic needs --training.staleness 3, and it is 4: which weights sample a group must not "
        "depend on the clock"
    ),
    "--weights.store cuda_ipc --trainer.with_gpus": (
        "--weights.store is cuda_ipc, and not every service that holds the weights has GPUs: take shared_memory, or "
        "give trainer, generator and ref_model with_gpus"
    ),
    "--resume": "--resume needs --output FOLDER: the run to go on with",
    "--training.lr_schedule cosine --training.warmup_steps 5 --steps 5": (
        "--training.lr_schedule is cosine, and --training.warmup_steps, 5, leaves none of the 5 steps to decay in: "
        "make it shorter"
    ),
    "--env.thinking on --env.max_turn_tokens 64 --env.max_thinking_tokens 64": (
        "--env.max_thinking_tokens is 64, and a turn has --env.max_turn_tokens, 64, at most, which the thought and "
        "the answer share: raise --env.max_turn_tokens, or set --env.max_thinking_tokens to 0"
    ),
    "--env.thinking maybe": "the command line: --env.thinking is 'maybe'; it must be one of: off, on, template",
    "--model /no/such": "there is no model folder /no/such, and a hub id looks like Qwen/Qwen3-1.7B",
    "--model a/b/c": "there is no model folder a/b/c, and a hub id looks like Qwen/Qwen3-1.7B",
    "--dataset.streaming": "--dataset.streaming is true and --dataset.path is empty: name the data that is to stream",
    "--model=Qwen/Qwen3-0.6B --lora.rank=4 --lora.targets=": (
        "--lora.targets is empty, so that nothing would be trained: set it to all-linear, or to names"
    ),
    "--evaluation.sets.hard.tasks=0": "--evaluation.sets.hard.tasks is '0'; it must be a whole number, at least 1",
    "--grpo.kl_straight_through --grpo.kl_in=reward --grpo.beta=0.1": (
        "--grpo.kl_straight_through has no meaning with --grpo.kl_in reward, through which no gradient goes: leave it "
        "out, or use --grpo.kl_in loss"
    ),
    "--training.staleness=-2": "--training.staleness is -2; it must be at least 0, or -1 for the default",
    "--env.max_tokens=1": "--env.max_tokens is 1; it must be at least 2, or -1 for the default",
    "--env.step_seconds=0": "--env.step_seconds is 0.0; it must be above 0, or -1 for the default",
    "--warmup.learning_rate=2": "--warmup.learning_rate is 2.0; it must be from 0 to 1, or -1 for the default",
    "--generator.procs=0": "--services.generator.procs is 0; it must be from 1 to 4096",
    "--ref_model.procs=-1": "--services.ref_model.procs is -1; it must be from 0 to 4096",
    "--training.learning_rate=1.5": "--training.learning_rate is 1.5; it must be from 0 to 1, or -1 for the default",
    "--services.trainer.ping_seconds=0": "--services.trainer.ping_seconds is 0.0; it must be above 0",
    "--grpo.n_samples=0": "--grpo.n_samples is 0; it must be at least 1",
    "--grpo.temperature=0": "--grpo.temperature is 0.0; it must be from 0.01 to 2",
    "--grpo.temperature=3": "--grpo.temperature is 3.0; it must be from 0.01 to 2",
    "--evaluation.temperature=2.5": "--evaluation.temperature is 2.5; it must be from 0 to 2",
    "--env math --env code_exec": (
        "the command line: --env is 'math' and --env is 'code_exec', two values of one setting: give one"
    ),
    "--model a --model.path b": (
        "the command line: --model is 'a' and --model.path is 'b', two values of one setting: give one"
    ),
    "--env.options.x.a 1 --env.options.x 2": (
        "the command line: --env.options.x.a is '1' and --env.options.x is '2', two values of one setting: give one"
    ),
    "--metrics.sinks a:B --metrics.sinks c:D": (
        "the command line: --metrics.sinks is 'a:B' and --metrics.sinks is 'c:D', two values of one setting: give one"
    ),
    "--grpo.clip_low=1.5": "--grpo.clip_low is 1.5; it must be from 0 to 1",
    "--grpo.clip_high=-1": "--grpo.clip_high is -1.0; it must be at least 0",
    "--grpo.correction_high=0.5": "--grpo.correction_high is 0.5; it must be at least 1",
    "--grpo.std_ddof=2": "--grpo.std_ddof is 2; it must be from 0 to 1",
    "--generator.gpu_memory_utilization=2": (
        "--services.generator.gpu_memory_utilization is 2.0; it must be above 0 and at most 1"
    ),
    "--model=Qwen/Qwen3-0.6B --lora.rank=4 --lora.targets=q_prj": (
        "--lora.targets names 'q_prj', which is no target: did you mean q_proj? it is all-linear alone, or any of "
        "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
    ),
    "--model=Qwen/Qwen3-0.6B --lora.rank=4 --lora.targets=all-linear,q_proj": (
        "--lora.targets names 'all-linear', which is no target: it is all-linear alone, or any of q_proj, k_proj, "
        "v_proj, o_proj, gate_proj, up_proj, down_proj"
    ),
    "--model=Qwen/Qwen3-0.6B --lora.rank=600 --lora.publish=adapter": (
        "--lora.publish is adapter and --lora.rank is 600: the engine takes adapters of rank 1 to 512: set the rank "
        "to that, or --lora.publish to merged"
    ),
    "--model=Qwen/Qwen3-0.6B --lora.rank=-1": "--lora.rank is -1; it must be from 0 to 1024",
    "--model=Qwen/Qwen3-0.6B --lora.rank=4 --lora.alpha=0": "--lora.alpha is 0.0; it must be above 0",
    "--model=Qwen/Qwen3-0.6B --lora.rank=4 --ref_model.procs=1": (
        "--services.ref_model.procs is 1 and --lora.rank is 4: a trainer of adapters is its own reference model, "
        "without them: set --services.ref_model.procs to 0"
    ),
    "--model=Qwen/Qwen3-0.6B --lora.rank=4 --training.cpu_offload --trainer.with_gpus": (
        "--training.cpu_offload is true and --lora.rank is 4, which trains adapters, and the frozen weights stay on "
        "the GPU: leave it out, or set --lora.rank to 0"
    ),
    "--launcher.hosts=2": (
        "--launcher.hosts is 2 and --launcher.kind is local, which is this machine alone: set the kind to workers, "
        "slurm or processes"
    ),
    "--launcher.workers=one": "--launcher.workers names hosts and --launcher.kind is local: --launcher.kind workers",
    "--launcher.kind=workers --launcher.workers=a,a": "launcher.workers names a:22222 twice: name every host once",
    "--launcher.kind=workers --launcher.workers=a:99999": (
        "launcher.workers has 'a:99999', and a port is from 1 to 65535: write NAME or NAME:PORT"
    ),
    "--launcher.kind=workers": "launcher.workers is empty: name every host, as in --launcher.workers one,two:22223",
    "--launcher.kind=workers --launcher.workers=a:b": (
        "launcher.workers has 'a:b', which is not a host: write NAME or NAME:PORT"
    ),
    "--launcher.kind=workers --launcher.workers=a,b --launcher.hosts=3": (
        "--launcher.hosts is 3, and there are 2: set it to 2, or to 0"
    ),
    f"--env {CABINET} --dataset.path a": (
        f"--dataset.path is 'a', and the environment {CABINET} makes its own tasks: leave it "
        "out, or choose one that reads tasks from data, as math, code_exec and tool_api do"
    ),
    "--dataset.path a --env.options.data b": "--dataset.path is 'a' and --env.options.data is 'b': give one",
    "--dataset.split test": "--dataset.split is 'test', which is held out for the evaluation: train on another split",
    "--loss no_such:Loss": "--loss 'no_such:Loss': there is no module 'no_such'",
    "--advantages no_such:function": "--advantages 'no_such:function': there is no module 'no_such'",
    "--reward no_such:function": "--reward 'no_such:function': there is no module 'no_such'",
    "--metrics.sinks no_such:Sink": "--metrics.sinks 'no_such:Sink': there is no module 'no_such'",
    "--evaluation.temperature 0 --evaluation.n 2": (
        "--evaluation.temperature is 0 and --evaluation.n is 2: greedy attempts at a task are all the same, so set "
        "--evaluation.n to 1"
    ),
    "--evaluation.interval 3 --training.sync_interval 2": (
        "--evaluation.interval is 3 and --training.sync_interval is 2: the engines have new weights every 2 steps "
        "only, so evaluate at a multiple of 2"
    ),
    "--generator.engine.model=x": "--services.generator.engine.model is set by the run: it is --model",
    "--generator.engine.speculative_config.method=ngram": (
        "--services.generator.engine.speculative_config is refused on a CPU: vLLM's logprobs are then not those of "
        "the sampled tokens; leave it out, or use --generator.with_gpus true"
    ),
    "--training.seq_len 100 --env.max_tokens 99": (
        "--training.seq_len is 100 and --env.max_tokens is 99: both are the most tokens of an episode; give one of them"
    ),
    "--generator.sleep=yes --training.staleness=1": (
        "--services.generator.sleep is yes, and episodes are in flight while the trainer steps, for "
        "--training.staleness is 1: leave it out"
    ),
    "--model.size 100m --model Qwen/Qwen3-0.6B": (
        "--model.size is 100m, which is for a model made on the spot, and --model is Qwen/Qwen3-0.6B: leave one of "
        "them out"
    ),
    "--grpo.n_samples 1 --env.min_valid 1": (
        "--grpo.n_samples is 1; an advantage needs at least 2 episodes of each task"
    ),
    "--grpo.kl_in=reward --grpo.beta=0.1": (
        "a KL penalty in the reward needs a reference model, for against the generator's own logprobs it is always 0: "
        "--services.ref_model.procs 1"
    ),
    "--training.old_logprobs trainer --loss trainers.losses:SFTLoss": (
        "--training.old_logprobs is trainer, but the loss does not name old_logprobs and would not look at them: give "
        "it that argument, or leave the option out"
    ),
    "--evaluation.sets.greedy.split=x": (
        "--evaluation.sets.greedy: 'greedy' is no name of a set; take letters, digits and _"
    ),
    "--evaluation.sets.hard.splt=x": (
        "--evaluation.sets.hard.splt: a set has split, tasks and options.NAME, and not 'splt'. Did you mean split? "
        "Available: options, split, tasks."
    ),
    "--no_such 1": "the command line: there is no option --no_such; --help lists them all",
    "steps 5": "'steps' is not an option: write --name value, for example --steps 50",
    "--steps": "--steps needs a value",
    "--steps five": "the command line: --steps is 'five'; it must be a whole number",
    "--training 5": "the command line: there is no option --training: it is a section, write --training.NAME VALUE",
}
"""Options of GRPO and their refusal."""
OF_OTHERS = [
    (
        sft.SFT,
        "--sft.data=chats.jsonl --evaluation.sets.other.split=test",
        "--evaluation.sets.other needs an environment: name it with --env",
    ),
    (
        sft.SFT,
        "--sft.data=chats.jsonl --dataset.path=/no/tasks.jsonl",
        "--dataset.path is '/no/tasks.jsonl', and there is no environment: supervised training has --sft.data",
    ),
    (
        sft.SFT,
        "--sft.data=who/knows --sft.streaming",
        "with --sft.streaming the length of the data is not known: say with --steps when to end",
    ),
    (
        sft.SFT,
        "--sft.data=chats.jsonl --training.batch_size=1",
        "--training.batch_size is 1, and with --sft.data a step is measured in tokens: set --sft.tokens_per_step "
        "instead",
    ),
    (
        sft.SFT,
        "--env=math --training.entropy_coef=0.1",
        "--loss, --advantages, --reward and --training.entropy_coef are for policy gradients: supervised training has "
        "its own loss",
    ),
    (sft.SFT, "--training.steps=0", "--training.steps is 0; it must be at least 1, or -1 for the default"),
    (sft.SFT, "--sft.held_out_share=1", "--sft.held_out_share is 1.0; it must be from 0 to 0.5"),
    (dapo.DAPO, "--training.signal_error=-1", "--training.signal_error is -1; it must be at least 0"),
    (
        dapo.DAPO,
        "--dapo.normalization=mean",
        "--dapo.normalization is 'mean', which needs rewards of 0 or more, and --dapo.overlong_penalty is 1, which "
        "makes some negative: set --dapo.overlong_penalty 0",
    ),
    (dapo.DAPO, "--dapo.overlong_buffer=2", "--dapo.overlong_buffer is 2.0; it must be from 0 to 1"),
    (sapo.SAPO, "--sapo.tau_neg=0", "--sapo.tau_neg is 0.0; it must be above 0"),
    (reinforce.REINFORCE, "--reinforce.clip_ratio=-1", "--reinforce.clip_ratio is -1.0; it must be at least 0"),
    (
        reinforce.REINFORCE,
        "--reinforce.n_samples=1 --reinforce.baseline=none --reinforce.normalization=group",
        "--reinforce.n_samples is 1 and --reinforce.normalization is group, which divides by the deviation of a group, "
        "and one episode has none: set it to none or batch",
    ),
    (sft.SFT, "--warmup.batch_size=0", "--warmup.batch_size is 0; it must be at least 1"),
]


def refusal(options: str, algorithm: Algorithm = GRPO) -> str:
    with pytest.raises(UserError) as caught:
        make_plan(read_config(algorithm.config, options.split()), algorithm).check()
    return str(caught.value)


@pytest.mark.parametrize(("algorithm", "options", "sentence"), [*((GRPO, *row) for row in REFUSED.items()), *OF_OTHERS])
def test_a_refusal_is_one_sentence(algorithm: Algorithm, options: str, sentence: str) -> None:
    assert refusal(options, algorithm) == sentence


def test_hosts_need_a_part_of_contrib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    sentence = "--launcher.kind is processes, and no part for several hosts is installed: set it to local"
    assert refusal("--launcher.kind=processes") == sentence


def test_what_observes_a_run_is_a_part_of_contrib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    assert refusal("--metrics.tensorboard=true") == (
        "--metrics.tensorboard is true, and no part for TensorBoard's files is installed: set it to false"
    )
    assert refusal("--metrics.system_seconds=5") == (
        "--metrics.system_seconds is 5, and no part that measures the machine is installed: set it to 0"
    )
    metrics = make_plan(read_config(GRPO.config, ["--env=math", "--metrics.tensorboard=false"]), GRPO).metrics
    assert (metrics.tensorboard, metrics.system_seconds) == (False, 0.0)


def test_a_run_for_whose_weights_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrib, "folders", dict)
    monkeypatch.setattr(shared_memory, "room", lambda: 1000)
    plan = make_plan(read_config(GRPO.config, ["--env=math"]), GRPO)
    sentence = "--weights.store is auto, which leaves shared memory, and /dev/shm has "
    (problem,) = [problem for problem in plan.problems if problem.startswith(sentence)]
    assert problem.endswith("that 3 snapshots take: make it larger (docker run --shm-size)")


def test_data_is_shown_as_the_user_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = refusal("--env=math --dataset.path=tasks.jsonl")
    assert found == f"--dataset.path is 'tasks.jsonl', and there is no file {tmp_path / 'tasks.jsonl'}"
    (tmp_path / "tasks.jsonl").write_text("[1,\n")
    assert refusal("--env=math --dataset.path=tasks.jsonl").startswith("no row of tasks.jsonl can be used: ")
