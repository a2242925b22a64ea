"""The tokens of a model as a grammar sees them."""

from __future__ import annotations

from typing import Any

_IN_NO_TEXT = b"\xff"  # no UTF-8 has it


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
