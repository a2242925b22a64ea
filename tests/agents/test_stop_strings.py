"""Stop texts: the tokens end with the one that completes the first of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agents.token_agent import truncate_at_stop
from forge_env.core.turn import Completion

PIECES = ["a", "b", "ab", "ba", "c ", "\n"]


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in ids)


tokens = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=12).map(tuple)


@given(ids=tokens, stop=st.lists(st.text("abc ", min_size=1, max_size=3), min_size=1, max_size=3), split=st.integers())
def test_the_completion_ends_at_the_first_stop(ids: tuple[int, ...], stop: list[str], split: int) -> None:
    first = split % len(ids)
    spans = tuple((version, count) for version, count in ((1, first), (2, len(ids) - first)) if count)
    logprobs = tuple(-float(i) for i in range(len(ids)))
    whole = Completion(prompt_ids=(7,), token_ids=ids, logprobs=logprobs, versions=spans, finish_reason="length")
    cut = truncate_at_stop(whole, stop, decode)
    count = len(cut.token_ids)
    if not any(text in decode(ids) for text in stop):
        assert cut == whole
        return
    assert any(text in decode(ids[:count]) for text in stop)
    assert not any(text in decode(ids[: count - 1]) for text in stop)
    assert (*cut.token_ids,) == ids[:count] and (*cut.logprobs,) == logprobs[:count] and cut.prompt_ids.tolist() == [7]
    assert cut.finish_reason == "stop"
    each_version = [version for version, length in spans for _ in range(length)]
    assert [version for version, length in cut.versions for _ in range(length)] == each_version[:count]
    assert all(length > 0 for _, length in cut.versions)
