"""What the server of `tests.helpers.forks` imports for its forks: it takes each of them seconds."""

import importlib
from contextlib import suppress

from forge_env.utils.quick_imports import quick_imports

NAMES = """
tests.helpers.forks trainers.titan.trainer trainers.losses hypothesis.strategies
transformers.models.auto.modeling_auto transformers.models.qwen3.modeling_qwen3
"""
with quick_imports():  # the forks' own collections leave it out, too
    for name in NAMES.split():
        with suppress(ImportError):  # a test that needs it is skipped
            importlib.import_module(name)
