#!/bin/sh
# XGrammar's cache of masks, which all grammars of one compiler share, and formats of type "token".
# Packages: xgrammar 0.2.8 (vLLM 0.32.0 pins it), torch 2.13.0. Guess: a compiler gives a grammar the same masks, whatever it has
# compiled before. Seen: two grammars that differ in the ids of their tokens alone have the masks of the first. The mask allows
# a token that the matcher refuses, and forbids the right one: vLLM ends such a request with "Failed to advance FSM". Right
# without the cache, with cache_limit_bytes=0 (VLLM_XGRAMMAR_CACHE_MB=0), and in 0.2.9.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q xgrammar==0.2.8 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import json
from importlib.metadata import version

import xgrammar

assert version("xgrammar") == "0.2.8", version("xgrammar")
TOKENS = [b"x", b"</s>", b"<call>", b"<json>"]
INFO = xgrammar.TokenizerInfo(TOKENS, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[1])


def first_tokens(compiler, mark):
    """What the mask of "<mark>x" allows first, and what its matcher accepts."""
    elements = [{"type": "token", "token": mark}, {"type": "const_string", "value": "x"}]
    form = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    grammar, mask = compiler.compile_structural_tag(json.dumps(form)), xgrammar.allocate_token_bitmask(1, len(TOKENS))
    matcher = xgrammar.GrammarMatcher(grammar)
    matcher.fill_next_token_bitmask(mask)
    allowed = [token for token in range(len(TOKENS)) if int(mask[0, 0]) >> token & 1]
    return allowed, [token for token in range(len(TOKENS)) if xgrammar.GrammarMatcher(grammar).accept_token(token)]


for settings, masks in (({}, [[2], [2]]), ({"cache_limit_bytes": 0}, [[2], [3]]), ({"cache_enabled": False}, [[2], [3]])):
    compiler = xgrammar.GrammarCompiler(INFO, **settings)
    seen = [first_tokens(compiler, mark) for mark in (2, 3)]
    print(f"{settings}: masks and matchers of <call>x, then <json>x: {seen}")
    assert seen == [(mask, [mark]) for mask, mark in zip(masks, (2, 3), strict=True)]
EOP
