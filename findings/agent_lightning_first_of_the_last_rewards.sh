#!/bin/sh
# Agent Lightning's final reward of an episode in which a reward is emitted before the agent's function returns the final one.
# Packages: agentlightning 0.3.0, verl 0.9.1, torch 2.13.0; only the daemon of its verl integration is needed. Guess: the last
# reward is the final one, as find_final_reward says ("the last reward value").
# Seen: rewards are handed to calls of the model backwards: the first reward behind a call is its own, a second one goes to the
# call before it, and so on; what is left over is dropped. The daemon takes the reward of the last call. So an agent that emits 0.1
# for the format and returns 1.0 is trained with 0.1; the 1.0 goes to an earlier turn, or nowhere if there was one call. The
# algorithm APO takes find_final_reward, which says 1.0. Both adapters of traces do so.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agentlightning==0.3.0 torch==2.13.0 tensordict==0.15.3 \
        ray==2.55.1 transformers==5.19.0 omegaconf==2.3.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps verl==0.9.1
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import asyncio
import importlib.util
import sys
from importlib.metadata import distribution, version
from types import ModuleType

from agentlightning import InMemoryLightningStore, LlmProxyTraceToTriplet, TracerTraceToTriplet, emit_reward
from agentlightning.emitter.reward import find_final_reward
from agentlightning.types import Span

assert version("agentlightning") == "0.3.0" and version("verl") == "0.9.1"
NAME = "agentlightning.verl.daemon"
sys.modules["agentlightning.verl"] = ModuleType("agentlightning.verl")  # the rest of it needs vLLM
FILE = distribution("agentlightning").locate_file("agentlightning/verl/daemon.py")
spec = importlib.util.spec_from_file_location(NAME, FILE)
module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


async def episode(calls, rewards, adapter, name):
    """An episode of model calls, then rewards; the last of them is what the agent's function returned."""
    store = InMemoryLightningStore()
    rollout = await store.start_rollout(input={})
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    root = Span.from_attributes(name="session", attributes={}, sequence_id=1, start_time=0.0, end_time=40.0, **ids)
    spans = [root]
    for number in range(calls):
        attributes = {"gen_ai.response.id": f"r{number}", "prompt_token_ids": [1, 2], "response_token_ids": [3 + number]}
        spans.append(
            Span.from_attributes(
                name=name, attributes=attributes, sequence_id=len(spans) + 1, trace_id=root.trace_id, parent_id=root.span_id,
                start_time=1.0 + number, end_time=1.5 + number, **ids,
            )
        )  # fmt: skip
    for reward in rewards:
        core = emit_reward(reward, propagate=False)
        core.start_time = core.end_time = 50.0 + len(spans)
        spans.append(Span.from_core_fields(core, sequence_id=len(spans) + 1, **ids))
    for span in spans:
        await store.add_span(span)
    daemon = module.AgentModeDaemon(
        None, 1, {}, tokenizer=None, mini_batch_size=1, pad_token_id=0, store=store, llm_proxy=object(), adapter=adapter
    )
    trained = await daemon._validate_data_v1(rollout)
    return trained.final_reward, [triplet.reward for triplet in trained.triplets], find_final_reward(spans)


for adapter, name in ((TracerTraceToTriplet(), "openai.chat.completion"), (LlmProxyTraceToTriplet(), "litellm_request")):
    for calls, rewards, seen in (
        (3, [1.0], (1.0, [None, None, 1.0])),
        (3, [0.1, 1.0], (0.1, [None, 1.0, 0.1])),
        (1, [0.1, 1.0], (0.1, [0.1])),
    ):
        final, per_call, last = asyncio.run(episode(calls, rewards, adapter, name))
        print(f"{type(adapter).__name__}, {calls} calls, rewards {rewards}: trained with {final}, per call {per_call}")
        assert (final, per_call) == seen and last == rewards[-1]
EOP
