"""Tokens in a message: exact, packed until somebody reads them, and the same whoever packs them."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode, Row, Turn, digest
from forge_env.core.packed import pack, unpack

TOKEN_FIELDS = ("prompt_ids", "token_ids", "logprobs")
ROW_FIELDS = ("token_ids", "loss_mask", "generator_logprobs", "versions")


def make_turn(**changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "kind": "sampled",
        "observation": ({"role": "user", "content": "2+2?"},),
        "message": {"role": "assistant", "content": "4"},
        "prompt_ids": (1, 8, 3),
        "token_ids": (9, 2**31 - 1),
        "logprobs": (-1 / 3, -float(np.float32(0.1))),
        "versions": ((3, 1), (4, 1)),
        "starts_row": True,
        "context_digest": digest((1, 8, 3)),
    }
    return Turn(**{**fields, **changes})


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def is_made(holder: Any, name: str) -> bool:
    """Whether a field has been made a tuple; asking makes none."""
    try:
        type(holder).__dict__[name].__get__(holder)
    except AttributeError:
        return False
    return True


@given(st.lists(st.one_of(st.floats(), st.sampled_from([math.nan, -math.inf, -0.0, 5e-324]))))
def test_floats_come_back_as_the_same_numbers(values: list[float]) -> None:
    assert [x.hex() for x in unpack(pack(values, "d"), "d")] == [x.hex() for x in values]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.booleans()))
def test_ids_and_masks_come_back_as_what_they_were(ids: list[int], mask: list[bool]) -> None:
    assert unpack(pack(ids, "i"), "i") == tuple(ids)
    assert unpack(pack(mask, "?"), "?") == tuple(mask) and all(type(m) is bool for m in unpack(pack(mask, "?"), "?"))


def test_counting_the_tokens_of_a_turn_unpacks_nothing() -> None:
    turn = sent(make_turn())
    assert (turn.num_prompt, turn.num_tokens) == (3, 2) == (make_turn().num_prompt, make_turn().num_tokens)
    assert turn.reward == 0.0 and turn.versions == ((3, 1), (4, 1))
    assert not any(is_made(turn, name) for name in TOKEN_FIELDS)
    assert turn == make_turn() and all(is_made(turn, name) for name in TOKEN_FIELDS)


def test_an_episode_that_is_passed_on_stays_packed() -> None:
    made = Episode(task=None, prompt_ids=(1, 8), response_ids=(9, 2), logprobs=(-0.5, -0.25), reward=1.0)  # type: ignore[arg-type]
    there = sent(sent(made))
    assert there.is_trainable and there.num_sampled == 2 and there.versions == (0,)
    row = sent(there.rows[0])
    assert row.arrays.token_ids.tolist() == [1, 8, 9, 2] and row.arrays.loss_mask.tolist() == [False, False, True, True]
    assert not any(is_made(there.turns[0], name) for name in TOKEN_FIELDS)
    assert not any(is_made(row, name) for name in ROW_FIELDS)
    assert there == made and row == made.rows[0]


def test_what_was_unpacked_is_forgotten_and_made_again() -> None:
    made = Episode(task=None, prompt_ids=(1, 8), response_ids=(9, 2), logprobs=(-0.5, -0.25), reward=1.0)  # type: ignore[arg-type]
    there = sent(made)
    row, turn = there.rows[0], there.turns[0]
    for _ in range(2):
        assert there == made and row == made.rows[0]
        assert all(is_made(turn, name) for name in TOKEN_FIELDS) and all(is_made(row, name) for name in ROW_FIELDS)
        there.forget_unpacked()
        assert not any(is_made(turn, name) for name in TOKEN_FIELDS)
        assert not any(is_made(row, name) for name in ROW_FIELDS)
    made.forget_unpacked()  # its turns hold tuples alone; its rows were joined of packed turns
    assert made == there and made.rows == there.rows


def test_a_turn_without_tokens_arrives_as_one() -> None:
    text = Turn(kind="text", observation=(), message={"role": "assistant", "content": "4"})
    assert sent(text) == text and sent(text).num_tokens == 0
    shown = make_turn(kind="tokens", logprobs=(), versions=(), context_digest="")
    assert sent(shown) == shown and sent(shown).logprobs == ()


def test_a_turn_that_arrived_can_be_changed_and_sent_again() -> None:
    turn = sent(make_turn())
    turn.reward = 0.5
    assert sent(turn) == make_turn(reward=0.5)
    shorter = replace(turn, token_ids=(7,), logprobs=(-1.0,), versions=((3, 1),))
    assert sent(shorter).token_ids == (7,) and sent(shorter).prompt_ids == (1, 8, 3)


def test_a_row_of_the_users_own_is_sent_as_it_is() -> None:
    row = Row(token_ids=(5, 9), loss_mask=(True, False), generator_logprobs=(-0.5, math.inf), versions=(3, -1))
    there = sent(row)
    assert there == row and hash(there) == hash(row) and repr(there) == repr(row)
    assert there.generator_logprobs == (-0.5, math.inf) and there.loss_mask == (True, False)
    uneven = Row(token_ids=(5, 9), loss_mask=(True,), generator_logprobs=(), versions=())
    assert sent(uneven) == uneven  # who reads it says what is wrong


def test_what_a_packed_turn_does_not_have_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        sent(make_turn()).nothing  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        sent(Row(token_ids=(), loss_mask=(), generator_logprobs=(), versions=())).nothing  # noqa: B018


def test_tokens_take_as_many_bytes_as_their_numbers() -> None:
    count = 10_000
    ids = tuple(range(count))
    turn = make_turn(
        prompt_ids=(), token_ids=ids, logprobs=(-1 / 3,) * count, versions=((0, count),), context_digest=""
    )
    assert len(pickle.dumps(turn)) < 12 * count + 1000
