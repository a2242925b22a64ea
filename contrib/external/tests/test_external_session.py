"""The requests of one program: each is answered once, however often a client comes back for it."""

from __future__ import annotations

import asyncio

import pytest

from contrib.common.http_server import RequestRefused
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from contrib.external.session import MAX_REQUESTS, ProgramSession, Refusals

QUESTION = ProgramRequest(model="m", messages=({"role": "user", "content": "hi"},))
REPLY = ProgramReply(id="r", message={"role": "assistant", "content": "a"}, finish_reason="stop", usage={})


async def test_a_client_that_comes_back_while_it_is_answered_is_no_second_turn() -> None:
    session = ProgramSession()
    pending = session.add(QUESTION, b"1", is_retry=False)
    assert await session.next() is pending
    pending.clients = 0
    assert session.add(QUESTION, b"1", is_retry=False) is pending
    other = session.add(QUESTION, b"2", is_retry=False)
    assert await session.next() is other, "the first one is not taken again"


async def test_a_client_that_says_so_need_not_have_been_missed() -> None:
    session = ProgramSession()
    pending = session.add(QUESTION, b"1", is_retry=False)
    assert session.add(QUESTION, b"1", is_retry=True) is pending
    assert pending.clients == 2
    assert session.add(QUESTION, b"1", is_retry=False) is not pending, "the same question of somebody else"


async def test_an_answer_that_was_not_seen_is_given_again() -> None:
    session = ProgramSession()
    pending = session.add(QUESTION, b"1", is_retry=False)
    await session.next()
    pending.reply.set_result(REPLY)
    session.delivered(pending)
    pending.clients = 0
    assert session.add(QUESTION, b"1", is_retry=True) is pending
    session.delivered(pending)
    assert session.missing() == ""
    assert session.add(QUESTION, b"1", is_retry=False).number == 2


async def test_a_retry_gets_the_newest_of_several_answers_to_one_body() -> None:
    session = ProgramSession()
    first, second = (session.add(QUESTION, b"1", is_retry=False) for _ in range(2))
    for pending in (first, second):
        pending.reply.set_result(REPLY)
        session.delivered(pending)
        pending.clients = 0
    assert session.add(QUESTION, b"1", is_retry=True) is second
    third = session.add(QUESTION, b"1", is_retry=False)
    assert session.add(QUESTION, b"1", is_retry=True) is third
    fourth = session.add(QUESTION, b"1", is_retry=False)
    third.clients = 0
    assert session.add(QUESTION, b"1", is_retry=True) is third, "the one that has lost its connection"
    assert fourth.clients == 1


async def test_nobody_is_answered_who_does_not_wait_until_he_comes_back() -> None:
    session = ProgramSession()
    left = session.add(QUESTION, b"1", is_retry=False)
    left.clients = 0
    stays = session.add(QUESTION, b"2", is_retry=False)
    assert await session.next() is stays
    assert "request 1 was still waiting" in session.missing()
    assert session.add(QUESTION, b"1", is_retry=False) is left
    assert await session.next() is left


async def test_what_is_missing_is_named_until_it_is_delivered() -> None:
    session = ProgramSession()
    pending = session.add(QUESTION, b"1", is_retry=False)
    assert "request 1 was still waiting" in session.missing()
    pending.reply.set_result(REPLY)
    assert "the answer to request 1 did not reach" in session.missing()
    session.delivered(pending)
    assert session.missing() == ""


async def test_a_session_takes_only_so_many_and_none_when_it_is_closed() -> None:
    session = ProgramSession()
    waiting = asyncio.create_task(session.next())
    await asyncio.sleep(0)
    pending = [session.add(QUESTION, bytes([i]), is_retry=False) for i in range(MAX_REQUESTS)]
    assert await waiting is pending[0]
    with pytest.raises(RequestRefused, match="all that may be at once"):
        session.add(QUESTION, b"more", is_retry=False)
    session.close()
    session.close()
    for request in pending:
        with pytest.raises(RequestRefused, match="the episode is over"):
            request.reply.result()
    with pytest.raises(RequestRefused, match="the episode is over"):
        session.add(QUESTION, b"late", is_retry=False)


def test_refusals_are_counted_by_a_few_reasons_and_said_in_a_few_words() -> None:
    refusals = Refusals()
    assert (str(refusals), refusals.sentences) == ("", [])
    for i in range(100):
        refusals.add(RequestRefused(400, f"messages[{i}] has no role" + "!" * 1000, param=f"messages[{i}]"))
    for reason in ("n", "stop", "tools", "logprobs", "echo"):
        refusals.add(RequestRefused(400, f"{reason} is not offered", param=reason))
    refusals.add(RequestRefused(429, "too many"))
    assert refusals.counts == {"messages": 100, "n": 1, "stop": 1, "tools": 1, "logprobs": 1, "echo": 1, "HTTP 429": 1}
    assert refusals.sentences[0].startswith("100 x HTTP 400: messages[0] has no role!")
    assert str(refusals).startswith("106 requests were refused (100 x HTTP 400")
    assert str(refusals).endswith("; and for 3 reasons more)") and len(str(refusals)) < 600
