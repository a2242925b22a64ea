"""Prompt pieces: what a chat template puts around a message, learnt once and reused.

Rendering a prompt through a template's own code costs many small calls of the tokenizer for text that never changes. A
piece is found by rendering a probe: the tokens up to the last special token before the content, the text from there to
the content, the text from the content to the next special token, and the tokens from there on. Special tokens split
the text before it is tokenised, so the content tokenised between its two texts gives the same tokens as the whole.

Every piece is checked against the template with further probes, of spaces, line ends, digits and other scripts; where
one does not come out the same, there is no piece, and the template itself renders each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.renderer.tokenizer import FastTokenizer

MARK = "@probe@"
TRIAL = " \n  a  1234 <b> é漢字\t\n\n "

Render = Callable[[Sequence[str]], list[int] | None]
"""Renders a prompt, or its continuation, with the given contents; None where the template refuses."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Tokens and text around one or several contents of the same kind."""

    head: tuple[int, ...]
    before: str
    after: str
    between: tuple[int, ...]
    tail: tuple[int, ...]

    def fill(self, tokenizer: FastTokenizer, contents: Sequence[str]) -> list[int]:
        """Return the tokens of the prompt with these contents."""
        ids = list(self.head)
        for number, content in enumerate(contents):
            if number:
                ids += self.between
            ids += tokenizer.encode(f"{self.before}{content}{self.after}")
        ids += self.tail
        return ids


def find_pieces(tokenizer: FastTokenizer, render: Render, *, most: int = 1) -> Pieces | None:
    """Learn the pieces of a template, or None where it has none that always hold.

    Args:
        tokenizer: of the template.
        render: the template with a number of contents filled in.
        most: contents that there may be; with more than one, what lies between two of them is learnt as well.
    """
    alone = render([MARK])
    special = {tokenizer.convert_tokens_to_ids(token) for token in tokenizer.special_tokens}
    found = None if alone is None else _split(tokenizer, alone, special)
    if found is None:
        return None
    head, before, after, tail = found
    between: tuple[int, ...] = ()
    if most > 1:
        both = render([MARK, MARK])
        inner = len(tokenizer.encode(f"{before}{MARK}{after}"))
        if both is None or len(both) < len(head) + len(tail) + 2 * inner:
            return None
        between = tuple(both[len(head) + inner : len(both) - len(tail) - inner])
    pieces = Pieces(head, before, after, between, tail)
    trials = [[TRIAL], ["x"], [""]] + [[TRIAL, "", "y" * n] for n in (0, 1, 9)] * (most > 1)
    return pieces if all(render(trial) == pieces.fill(tokenizer, trial) for trial in trials) else None


def _split(
    tokenizer: FastTokenizer, ids: Sequence[int], special: set[int]
) -> tuple[tuple[int, ...], str, str, tuple[int, ...]] | None:
    """Find the run of plain tokens that holds the mark, and what lies before and after it."""
    starts = [i + 1 for i, token in enumerate(ids) if token in special]
    for start, end in zip(starts, [*(s - 1 for s in starts[1:]), len(ids)], strict=True):
        text = tokenizer.decode(list(ids[start:end]))
        if text.count(MARK) == 1:
            before, _, after = text.partition(MARK)
            return tuple(ids[:start]), before, after, tuple(ids[end:])
    return None
