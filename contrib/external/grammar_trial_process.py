"""The process that tries grammars: `python -m contrib.external.grammar_trial_process PARENT MODEL VOCABULARY SECONDS`.

It reads grammars, one JSON string a line, and writes {"problem": "..."} for each. If a grammar takes more than its CPU
time or memory, the process ends.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any, Final

from forge_env.runtime.process.lifetime import die_with

_WALKS, _TOKENS = 3, 48
_MEMORY: Final = 4 << 30
"""Bytes in addition to the memory of the process when it is ready."""


def main(parent: int, model: str, vocabulary: int, seconds: int) -> None:
    """Try grammars until standard input ends."""
    die_with(parent)
    answers, sys.stdout = sys.stdout, sys.stderr  # prints of libraries are no answers
    trial = _Trial(model, vocabulary)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = _address_space() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # ends the process, also within a call of XGrammar
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        _limit_cpu(seconds)
        print(json.dumps({"problem": trial.problem(json.loads(line))}), file=answers, flush=True)


class _Trial:
    def __init__(self, model: str, vocabulary: int) -> None:
        import numpy as np
        import xgrammar
        from transformers import AutoTokenizer

        from contrib.external.engine_grammars import grammar_tokens

        self._vocabulary = vocabulary
        info = grammar_tokens(AutoTokenizer.from_pretrained(model), vocabulary)
        self._words = np.array([text.isalnum() for text in info.decoded_vocab])
        # No cache: the engine has one, and the caller remembers the results.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def problem(self, grammar: str) -> str:
        """The reason why the engine cannot use a grammar, as a sentence; "" if it can."""
        try:
            compiled = self._compiler.compile_structural_tag(grammar)
            for seed in range(_WALKS):
                self._walk(compiled, seed)
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error).strip().rpartition(": ")[2][:200]
            return f"the engine cannot make a grammar of the schema: {reason}"
        return ""

    def _walk(self, compiled: Any, seed: int) -> None:
        """Compute the masks of an answer that the grammar allows.

        The first answer is random. The others are words that repeat as long as they may: nested repeats can read these
        in many ways.
        """
        import numpy as np
        import xgrammar

        matcher, mask = xgrammar.GrammarMatcher(compiled), xgrammar.allocate_token_bitmask(1, self._vocabulary)
        random, token = np.random.default_rng(seed), -1
        for _ in range(_TOKENS):
            matcher.fill_next_token_bitmask(mask)
            bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: self._vocabulary]
            allowed = np.flatnonzero(bits)
            words = np.flatnonzero(bits & self._words)
            if seed and len(words):
                token = token if token in words else int(random.choice(words))
            elif len(allowed):
                token = int(random.choice(allowed))
            else:
                break
            if not matcher.accept_token(token) or matcher.is_terminated():
                break


def _limit_cpu(seconds: int) -> None:
    """Give this process `seconds` more of CPU time, over all its threads."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(use.ru_utime + use.ru_stime) + 1 + seconds, hard))


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
