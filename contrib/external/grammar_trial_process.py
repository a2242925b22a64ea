"""Tries grammars, for `envs.processes.worker`: each in a fork with limits of its own.

The variable SETTINGS has the model and the size of its vocabulary, as JSON. A request is {"grammar", "cpu_seconds"}.
Its response is {"problem"}, a sentence, "" for a grammar that can be used; or {} if the fork needed too much.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from envs.processes.worker import Request, RunForked, Write

PACKAGES = ("xgrammar", "transformers")
SETTINGS: Final = "FORGE_ENV_GRAMMARS"
WAIT_SECONDS: Final = 300.0
"""Time of one trial on the clock, in case of another problem, such as a machine that swaps."""
_IN_NO_TEXT = b"\xff"  # no UTF-8 has it
_WALKS, _TOKENS = 3, 48
_MEMORY: Final = 4 << 30
"""Bytes in addition to the memory of the process when it is ready."""


def open_library(run_forked: RunForked) -> Callable[[Request], Request]:
    model, vocabulary = json.loads(os.environ[SETTINGS])
    trial = _Trial(model, vocabulary)
    memory = _address_space() + _MEMORY

    def answer(request: Request) -> Request:
        def work(write: Write) -> None:
            write(trial.problem(request["grammar"]))

        problems, _ = run_forked(
            work, cpu_seconds=request["cpu_seconds"], wall_seconds=WAIT_SECONDS, memory_bytes=memory
        )
        return {"problem": problems[0]} if problems else {}

    return answer


class _Trial:
    def __init__(self, model: str, vocabulary: int) -> None:
        import numpy as np
        import xgrammar
        from transformers import AutoTokenizer

        self._vocabulary = vocabulary
        info = grammar_tokens(AutoTokenizer.from_pretrained(model), vocabulary)
        self._words = np.array([text.isalnum() for text in info.decoded_vocab])
        # No cache: the engine has one, and the caller remembers the results.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def problem(self, grammar: str) -> str:
        """The reason why the engine cannot use a grammar, as a sentence; "" if it can."""
        try:
            automaton = self._compiler.compile_structural_tag(grammar)
            for seed in range(_WALKS):
                self._walk(automaton, seed)
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error).strip().rpartition(": ")[2][:200]
            return f"the engine cannot make a grammar of the schema: {reason}"
        return ""

    def _walk(self, automaton: Any, seed: int) -> None:
        """Compute the masks of an answer that the grammar allows.

        The first answer is random. The others are words that repeat as long as they may: nested repeats can read these
        in many ways.
        """
        import numpy as np
        import xgrammar

        matcher, mask = xgrammar.GrammarMatcher(automaton), xgrammar.allocate_token_bitmask(1, self._vocabulary)
        random, token = np.random.default_rng(seed), -1
        for _ in range(_TOKENS):
            matcher.fill_next_token_bitmask(mask)
            bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: self._vocabulary]
            choices = np.flatnonzero(bits)
            words = np.flatnonzero(bits & self._words)
            if seed and len(words):
                token = token if token in words else int(random.choice(words))
            elif len(choices):
                token = int(random.choice(choices))
            else:
                break
            if not matcher.accept_token(token) or matcher.is_terminated():
                break


def grammar_tokens(tokenizer: Any, vocabulary: int) -> Any:
    """XGrammar's `TokenizerInfo`.

    Marks of the chat template, which are added tokens of the vocabulary, match no text: a grammar names them by their
    ids. Otherwise a mark could stand in a JSON string, and end the answer before its JSON is complete.

    Args:
        tokenizer: of transformers.
        vocabulary: tokens of the model, which may have more than the tokenizer.
    """
    import xgrammar

    plain = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
    marks = set(tokenizer.added_tokens_decoder)
    return xgrammar.TokenizerInfo(
        [_IN_NO_TEXT + text if i in marks else text for i, text in enumerate(plain.decoded_vocab)],
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=vocabulary,
        stop_token_ids=plain.stop_token_ids,
        add_prefix_space=plain.add_prefix_space,
    )


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
