"""The patches of vLLM's engine. Its one thread walks over all requests in every step, and is slower than a small model.

Each patch is a file with subclasses of vLLM's classes, for one version of vLLM: tokens, logprobs, block tables and
prefix hits are the same with it and without. With another version, or if a class of the engine is another one, vLLM's
own way stays.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

logger = logging.getLogger(__name__)
PATCHES = {"logprobs": "0.32.0", "scheduler": "0.32.0", "admission": "0.32.0"}
"""The files, in their order, and the version that each was proven for. With another one they may not even import."""


def speed_up(engine: Any) -> None:
    """Patch vLLM's `LLMEngine`, which has no requests yet.

    Its objects become subclasses of their classes in place: which ones vLLM takes is settled as it starts. No object
    gets a reference to itself, which would keep the model's memory after the engine's end.
    """
    import vllm

    version_here = vllm.__version__.partition("+")[0]
    for name, version in PATCHES.items():
        if version == version_here:
            importlib.import_module(f"agents.generator.fast_path.{name}").install(engine)
    if others := {*PATCHES.values()} - {version_here}:
        logger.warning(
            "the engine is slower than it could be: its fast path is for vLLM %s, not %s",
            ", ".join(others),
            version_here,
        )


def hand_over(engine: Any) -> None:
    """Let the engine's outputs have all tokens: the ones that follow have other weights."""
    scheduler = engine.engine_core.engine_core.scheduler
    if hasattr(scheduler, "hand_over"):
        engine.output_processor.process_outputs(scheduler.hand_over(), weight_version=engine.get_weight_version())
