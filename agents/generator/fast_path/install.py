"""The patches of vLLM's engine. Its one thread walks over all requests in every step, and is slower than a small model.

Each patch is a file with subclasses of vLLM's classes. It names the version of vLLM that it was proven for: tokens,
logprobs, block tables and prefix hits are the same with it and without. With another version, or where a class of the
engine is another one, vLLM's own way stays.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def speed_up(engine: Any) -> None:
    """Patch vLLM's `LLMEngine`, which has no requests yet.

    Its objects become subclasses of their classes in place: which ones vLLM takes is settled as it starts. No object
    gets a reference to itself, which would keep the model's memory after the engine's end.
    """
    from agents.generator.fast_path import admission, logprobs, scheduler

    for patch in (logprobs, scheduler, admission):
        if is_proven(patch.VLLM):
            patch.install(engine)


def hand_over(engine: Any) -> None:
    """Let the engine's outputs have all tokens: the ones that follow have other weights."""
    scheduler = engine.engine_core.engine_core.scheduler
    if hasattr(scheduler, "hand_over"):
        engine.output_processor.process_outputs(scheduler.hand_over(), weight_version=engine.get_weight_version())


def is_proven(version: str) -> bool:
    """Whether the installed vLLM is the version that a patch was proven for."""
    import vllm

    found: str = vllm.__version__.partition("+")[0]
    if found != version:
        logger.warning("the engine runs slower than it could: its fast path is for vLLM %s, not %s", version, found)
    return found == version
