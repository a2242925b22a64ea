"""Grammars in the engine: XGrammar masks the tokens that may not come, before vLLM samples.

vLLM computes the logprobs after the mask, over the allowed tokens. See `Completion.constrained`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final

from contrib.external.grammar_trial import GrammarTrials
from contrib.external.grammar_trial_process import grammar_tokens
from forge_env.core.errors import TurnRefused

_MOST_KEPT: Final = 50
"""Grammars; one of a schema with 1,000 properties has 10 MiB."""


class EngineGrammars(GrammarTrials):
    """Lets an engine take requests with a grammar. Its event loop calls `check` and `close`, its thread `admit`."""

    _is_prepared = False

    def admit(self, engine: Any, grammar: str) -> None:
        """Prepare vLLM's engine for a request with a grammar that `check` has tried.

        Raises:
            TurnRefused: XGrammar would ignore a part of its schemas.
        """
        if not self._is_prepared:
            _prepare(engine, self._model)
            self._is_prepared = True
        _check_features(grammar)


def _prepare(engine: Any, model: str) -> None:
    """Let a running `LLMEngine` take requests with a grammar, although it has started without a tokenizer."""
    from vllm.tokenizers import get_tokenizer
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    config = engine.vllm_config
    # vLLM has one backend for all requests, and by default chooses it with the first one.
    config.structured_outputs_config.backend = "xgrammar"
    tokenizer: Any = get_tokenizer(model)
    size = config.model_config.get_vocab_size()
    backend = XgrammarBackend(config, tokenizer=tokenizer, vocab_size=size)
    backend.compiler = grammar_compiler(grammar_tokens(tokenizer, size))
    manager = engine.engine_core.engine_core.structured_output_manager
    manager.tokenizer = tokenizer
    manager.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
    manager.backend = backend
    # vLLM refuses grammars if its own renderer of prompts has no tokenizer.
    engine.renderer.tokenizer = tokenizer


def grammar_compiler(info: Any) -> Any:
    """XGrammar's compiler with a cache of whole grammars.

    XGrammar's own cache has masks of rules, too. In 0.2.8 they are those of another grammar if only the ids of tokens
    differ: 0.2.9 has mended it, and vLLM 0.32 asks for 0.2.8.
    """
    import xgrammar

    compiler: Any = xgrammar.GrammarCompiler(info, max_threads=8, cache_enabled=False)
    compiler.compile_structural_tag = lru_cache(_MOST_KEPT)(compiler.compile_structural_tag)
    return compiler


def _check_features(grammar: str) -> None:
    """Check that XGrammar ignores no part of the schemas of a structural tag, as JSON."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    for schema in _schemas(json.loads(grammar)["format"]):
        if isinstance(schema, dict) and has_xgrammar_unsupported_json_features(schema):
            raise TurnRefused(
                "the schema has a feature that the engine's grammar cannot enforce, such as multipleOf, uniqueItems, "
                "several allOf, or a length beside a pattern: leave it out"
            )


def _schemas(format_: dict[str, Any]) -> Iterator[Any]:
    if format_["type"] == "json_schema":
        yield format_["json_schema"]
    for element in format_.get("elements", ()):
        yield from _schemas(element)
