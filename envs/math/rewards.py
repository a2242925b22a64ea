"""Rewards for mathematics as plain callables: `MathReward()(prompt, response, target)` gives a float in [0, 1].

They need no environment, and work in any training script::

    reward = MathReward(format="boxed", partial_credit=0.2)
    reward("What is 6 * 7?", "It is \\\\boxed{42}.", 42)  # 1.0
    reward("What is 6 * 7?", "It is 42.", 42)  # 0.2
"""

from __future__ import annotations

import functools
import math
import re
from numbers import Real

from envs.math.answers import FORMATS, extract_answer, same_answer
from envs.math.numerals import parse_number
from envs.math.verifier import require_math_verify
from forge_env.core.errors import UserError, nearest


class MathReward:
    """1 for a right final answer, 0 for a wrong one, `partial_credit` for one that is nearly right."""

    def __init__(
        self,
        *,
        tolerance: float = 0.0,
        partial_credit: float = 0.0,
        close: float = 0.0,
        format: str = "any",
        unevaluated: bool = False,
    ) -> None:
        """Set what counts as right.

        Args:
            tolerance: relative error that a right value may have. 0 is exact: 0.333 is not 1/3.
            partial_credit: reward of a right value in another format, or of a value within `close`.
            close: relative error up to which a value earns the partial credit.
            format: the required mark: answer, boxed, gsm8k, or any.
            unevaluated: whether arithmetic is right for its value: 2^3 for 8. It would pay for a copied question.
        """
        for name, value in {"tolerance": tolerance, "partial_credit": partial_credit, "close": close}.items():
            if not 0 <= value < float("inf"):
                raise UserError(f"MathReward's {name} is {value}; it must be 0 or more")
        if partial_credit > 1:
            raise UserError(f"MathReward's partial_credit is {partial_credit}; a full reward is 1, so it is at most 1")
        if format not in ("any", *FORMATS):
            raise UserError(f"MathReward has no format {format!r}. {nearest(format, ('any', *FORMATS))}")
        if unevaluated:
            require_math_verify()
        self.tolerance, self.partial_credit, self.close, self.format = tolerance, partial_credit, close, format
        self.unevaluated = unevaluated

    def __call__(self, prompt: str, response: str, target: str | float) -> float:
        """Score a response; the prompt is ignored."""
        expected = target_text(target)
        formats = [f for f in FORMATS if f != ("text" if parse_number(expected) else "number")]
        formats.sort(key=lambda f: f != self.format)  # the required one first, the others in their order
        answer = extract_answer(response, formats)
        if answer is None or not expected:
            return 0.0
        same = functools.partial(same_answer, answer.text, expected, unevaluated=self.unevaluated)
        if same(tolerance=self.tolerance):
            return 1.0 if self.format in ("any", answer.format) else self.partial_credit
        if self.partial_credit and self.close > self.tolerance:
            return self.partial_credit * same(tolerance=self.close)
        return 0.0


class ThinkingReward:
    """Rewards one well-formed, non-empty `<think>..</think>` before the answer."""

    def __init__(self, *, tag: str = "think", full_reward: float = 1.0, partial_reward: float = 0.2) -> None:
        """Set the tags and the rewards.

        Args:
            full_reward: of non-empty thinking between both tags that an answer follows.
            partial_reward: of a response with any other use of a tag.
        """
        if not re.fullmatch(r"[A-Za-z_][\w-]*", tag):
            raise UserError(f"ThinkingReward's tag is {tag!r}; it must be a name without brackets, for example think")
        self.tag, self.full_reward, self.partial_reward = tag, full_reward, partial_reward

    def __call__(self, prompt: str, response: str, target: object = None) -> float:
        """Score a response; the target is ignored.

        A chat template may end the prompt with the opening tag, which then counts as a part of the response.
        """
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        if prompt.rstrip().endswith(opening):
            response = opening + response
        if opening not in response and closing not in response:
            return 0.0
        before, _, rest = response.partition(opening)
        thought, _, answer = rest.partition(closing)
        once = response.count(opening) == response.count(closing) == 1
        well_formed = once and not before.strip() and thought.strip() and answer.strip()
        return self.full_reward if well_formed else self.partial_reward


def target_text(target: object) -> str:
    if isinstance(target, str):
        return target.strip()
    if isinstance(target, Real) and not isinstance(target, bool) and math.isfinite(target):
        return str(target)
    raise UserError(f"a target of a math task is text or a finite number, not {type(target).__name__} {target!r:.80}")
