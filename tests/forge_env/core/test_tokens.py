"""Arrays of tokens: made of any sequence of numbers, never changed, equal by number, and bytes in a message."""

from __future__ import annotations

import array
import copy
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode, Row, Turn, digest
from forge_env.core.errors import InvariantError, UserError
from forge_env.core.tokens import FLOATS, IDS, MASK, SINGLES, array_of
from forge_env.core.turn import Completion


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


def sent(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@given(st.lists(st.one_of(st.floats(), st.sampled_from([math.nan, -math.inf, -0.0, 5e-324]))))
def test_floats_stay_the_same_numbers(values: list[float]) -> None:
    assert [x.hex() for x in array_of(values, FLOATS).tolist()] == [x.hex() for x in values]


@given(st.lists(st.floats(width=32)))
def test_a_trainers_logprobs_are_of_single_precision(values: list[float]) -> None:
    for given_values in (values, np.array(values)):
        assert [x.hex() for x in array_of(given_values, SINGLES).tolist()] == [x.hex() for x in values]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.booleans()))
def test_ids_and_masks_stay_what_they_were(ids: list[int], mask: list[bool]) -> None:
    assert array_of(ids, IDS).tolist() == ids
    assert array_of(mask, MASK).tolist() == mask


@pytest.mark.parametrize(
    "given", [(1, 8, 3), [1, 8, 3], range(1, 4), array.array("i", (1, 8, 3)), np.array((1, 8, 3)), np.arange(9)[1::3]]
)
def test_a_record_takes_any_sequence_of_numbers(given: Any) -> None:
    turn = make_turn(prompt_ids=given, context_digest="")
    assert turn.prompt_ids.dtype == IDS and turn.prompt_ids.tolist() == list(given)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("prompt_ids", (2**31,)),
        ("prompt_ids", np.array([2**31])),
        ("prompt_ids", np.array([1.0, 2.0])),
        ("prompt_ids", np.ones((2, 2), dtype=np.int32)),
        ("token_ids", "42"),
        ("token_ids", 7),
        ("token_ids", ((1, 2), (3, 4))),
        ("logprobs", (-0.5, None)),
        ("logprobs", ("a", "b")),
        ("logprobs", (x for x in (-0.5, -0.1))),
    ],
)
def test_what_is_no_sequence_of_numbers_is_one_sentence_with_the_fields_name(name: str, wrong: Any) -> None:
    with pytest.raises(UserError, match=rf"^{name}=.* is no sequence of (integers|numbers)"):
        make_turn(**{name: wrong})
    with pytest.raises(UserError, match=f"^{name}="):
        replace(make_turn(), **{name: wrong})


def test_nobody_can_write_to_tokens_nor_change_them_by_what_they_were_made_of() -> None:
    ids = np.array((1, 8, 3), dtype=np.int32)
    turn = make_turn(prompt_ids=ids)
    ids[0] = 7
    row = Episode(prompt_ids=(1, 8), response_ids=(9,), logprobs=(-0.5,), reward=1.0).rows[0]
    for values in (turn.prompt_ids, turn.logprobs, row.loss_mask, sent(turn).token_ids, sent(turn, 2).token_ids):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            values.flags.writeable = True
    assert turn.prompt_ids.tolist() == [1, 8, 3]


def test_a_part_of_an_array_keeps_nothing_else_alive_and_a_whole_one_is_shared() -> None:
    prompt = array_of(range(10_000), IDS)
    turn = make_turn(prompt_ids=prompt[-3:], context_digest="")
    assert len(turn.prompt_ids.base) == 12
    completion = Completion(prompt_ids=prompt, token_ids=(9,), logprobs=(-0.5,), versions=((0, 1),))
    assert completion.prompt_ids is prompt and replace(turn, reward=1.0).prompt_ids is turn.prompt_ids
    assert copy.deepcopy(turn).prompt_ids.base is turn.prompt_ids.base


def test_records_are_equal_if_their_numbers_are() -> None:
    turn = make_turn()
    assert turn == make_turn(prompt_ids=np.array((1, 8, 3))) == sent(turn) and turn != make_turn(prompt_ids=(1, 8, 4))
    assert turn != replace(turn, reward=0.5) and turn != make_turn(prompt_ids=(1, 8, 3, 3)) and turn != "turn"
    nan = make_turn(logprobs=(math.nan, -0.1))
    assert nan == make_turn(logprobs=(math.nan, -0.1)) == sent(nan) and nan != make_turn(logprobs=(-0.1, math.nan))
    with pytest.raises(TypeError, match="unhashable"):
        hash(turn)


def test_what_is_sent_arrives_as_it_was_and_can_be_changed_and_sent_again() -> None:
    done = Completion(prompt_ids=(1, 8), token_ids=(9, 2), logprobs=(-0.5, -0.25), versions=((0, 2),))
    made = Episode(prompt_ids=done.prompt_ids, response_ids=done.token_ids, logprobs=done.logprobs, reward=1.0)
    assert made.rows[0].token_ids.tolist() == [1, 8, 9, 2] and made.turns[0].logprobs is done.logprobs
    assert made.with_logprobs(done.logprobs, version=2).versions == (2,)
    there = sent(sent(made))
    assert there == made and there.rows == made.rows == sent(made.rows)
    assert there.is_trainable and there.num_sampled == 2 and there.versions == (0,)
    text = Turn(kind="text", observation=(), message={"role": "assistant", "content": "4"})
    assert sent(text) == text and len(sent(text).token_ids) == 0
    shown = make_turn(kind="tokens", logprobs=(), versions=(), context_digest="")
    assert sent(shown) == shown and len(sent(shown).logprobs) == 0
    turn = sent(make_turn())
    turn.reward = 0.5
    assert sent(turn) == make_turn(reward=0.5)
    shorter = replace(turn, token_ids=(7,), logprobs=(-1.0,), versions=((3, 1),))
    assert sent(shorter).token_ids.tolist() == [7] and sent(shorter).prompt_ids.tolist() == [1, 8, 3]


def test_a_row_of_the_users_own_is_sent_as_it_is() -> None:
    row = Row(token_ids=(5, 9), loss_mask=(True, False), generator_logprobs=(-0.5, math.inf), versions=(3, -1))
    assert sent(row) == row and repr(sent(row)) == repr(row)
    uneven = Row(token_ids=(5, 9), loss_mask=(True,), generator_logprobs=(), versions=())
    assert sent(uneven) == uneven  # who reads it says what is wrong


def test_tokens_take_as_many_bytes_as_their_numbers() -> None:
    count = 10_000
    ids = tuple(range(count))
    turn = make_turn(
        prompt_ids=(), token_ids=ids, logprobs=(-1 / 3,) * count, versions=((0, count),), context_digest=""
    )
    assert len(pickle.dumps(turn)) < 12 * count + 1000


def test_the_first_tokens_of_a_completion_and_what_goes_on_after_inserted_ones() -> None:
    first = Completion(
        prompt_ids=(1, 8), token_ids=(9, 6, 7), logprobs=(-0.2, -0.3, -0.4), versions=((3, 2), (4, 1)), constrained=2
    )
    cut = first.first(1)
    assert (cut.token_ids.tolist(), cut.logprobs.tolist(), cut.versions) == ([9], [-0.2], ((3, 1),))
    assert (cut.constrained, first.first(2).constrained, cut.prompt_ids.tolist()) == (0, 1, [1, 8])
    rest = Completion(prompt_ids=(1, 8, 9, 5), token_ids=(2,), logprobs=(-0.1,), versions=((4, 1),))
    both = cut.then((5,), rest)
    assert (both.token_ids.tolist(), both.logprobs.tolist()) == ([9, 5, 2], [-0.2, 0.0, -0.1])
    assert (both.prompt_ids.tolist(), both.versions) == ([1, 8], ((3, 1), (-1, 1), (4, 1)))
    with pytest.raises(InvariantError, match="second request"):
        first.then((5,), rest)
