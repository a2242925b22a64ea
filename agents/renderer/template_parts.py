"""Template parts: the text and tokens that a chat template puts around a message, learnt once and reused.

Rendering every prompt with the template costs many small tokenizer calls for text that never changes. The parts are
learnt by rendering a probe: the tokens up to the last special token before the content, the text from there to the
content, the text from the content to the next special token, and the tokens from there on. Special tokens split the
text before it is tokenised. So the content, tokenised together with the text on both sides, gives the same tokens as
the full prompt.

The parts are checked against the template with further probes: spaces, line ends, digits and other scripts. If a probe
gives other tokens, there are no parts, and the template renders every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.renderer.tokenizer import FastTokenizer

MARK = "@probe@"
TRIAL = " \n  a  1234 <b> é漢字\t\n\n "

Render = Callable[[Sequence[str]], list[int] | None]
"""Renders a prompt, or its continuation, with the given contents; None if the template refuses."""


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """Tokens and text around one or several contents of the same role."""

    head: tuple[int, ...]
    before: str
    after: str
    between: tuple[int, ...]
    tail: tuple[int, ...]

    def fill(self, tokenizer: FastTokenizer, contents: Sequence[str]) -> list[int]:
        """The tokens of the prompt with these contents."""
        ids = list(self.head)
        for number, content in enumerate(contents):
            if number:
                ids += self.between
            ids += tokenizer.encode(f"{self.before}{content}{self.after}")
        ids += self.tail
        return ids


def learn_template_parts(tokenizer: FastTokenizer, render: Render, *, most: int = 1) -> TemplateParts | None:
    """Learn the parts of a template; None if no fixed parts reproduce it.

    Args:
        most: the largest number of contents; above 1, the tokens between two contents are learnt, too.
    """
    alone = render([MARK])
    special = {tokenizer.token_id(token) for token in tokenizer.special_tokens}
    split = None if alone is None else _split(tokenizer, alone, special)
    if split is None:
        return None
    head, before, after, tail = split
    between: tuple[int, ...] = ()
    if most > 1:
        both = render([MARK, MARK])
        inner = len(tokenizer.encode(f"{before}{MARK}{after}"))
        if both is None or len(both) < len(head) + len(tail) + 2 * inner:
            return None
        between = tuple(both[len(head) + inner : len(both) - len(tail) - inner])
    parts = TemplateParts(head, before, after, between, tail)
    trials = [[TRIAL], ["x"], [""]] + [[TRIAL, "", "y" * n] for n in (0, 1, 9)] * (most > 1)
    return parts if all(render(trial) == parts.fill(tokenizer, trial) for trial in trials) else None


def _split(
    tokenizer: FastTokenizer, ids: Sequence[int], special: set[int | None]
) -> tuple[tuple[int, ...], str, str, tuple[int, ...]] | None:
    """The tokens before, the text on both sides, and the tokens after the run of plain tokens with the mark."""
    starts = [i + 1 for i, token in enumerate(ids) if token in special]
    ends = [*(s - 1 for s in starts[1:]), len(ids)]
    for start, end in zip(starts, ends, strict=False):  # without a special token there are no starts
        text = tokenizer.decode(list(ids[start:end]))
        if text.count(MARK) == 1:
            before, _, after = text.partition(MARK)
            return tuple(ids[:start]), before, after, tuple(ids[end:])
    return None
