"""Bad input in each dialect: its SDK raises the error that it has for that, with one sentence, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from contrib.external import gateway
from contrib.external.tests.external_playing import Play, Playing, plain, says
from forge_env.core.errors import TurnRefused
from forge_env.core.types import Outcome
from forge_env.rollout.factory import EnvFactory

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "holiday_picture", "data": "x"}


class Sdk(NamedTuple):
    """One SDK with one of its APIs."""

    errors: Any
    connect: Callable[[str, str], Any]
    """Makes a client of a base URL without /v1 and a token."""
    ask: Callable[..., Awaitable[Any]]
    content: str
    """The field of what is said."""
    kind: str
    """The type of an error that is the request's fault."""


def openai_client(url: str, token: str) -> Any:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, http_client=plain(openai))


def claude_client(url: str, token: str) -> Any:
    return AsyncAnthropic(base_url=url, api_key=token, max_retries=0, http_client=plain(anthropic))


async def ask_chat(client: Any, said: Any = HELLO, **options: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=said, **options)


async def ask_responses(client: Any, said: Any = HELLO, **options: Any) -> Any:
    return await client.responses.create(model="m", input=said, **options)


async def ask_claude(client: Any, said: Any = HELLO, **options: Any) -> Any:
    return await client.messages.create(model="m", max_tokens=50, messages=said, **options)


SDKS = {
    "chat": Sdk(openai, openai_client, ask_chat, "messages", "invalid_request_error"),
    "responses": Sdk(openai, openai_client, ask_responses, "input", "invalid_request_error"),
    "anthropic": Sdk(anthropic, claude_client, ask_claude, "messages", "invalid_request_error"),
}


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    return SDKS[request.param]


def connected(sdk: Sdk, program: Playing) -> Any:
    return sdk.connect(program.base_url.removesuffix("/v1"), program.token)


async def refused(error: type[Exception], asking: Awaitable[Any], sentence: str) -> Any:
    """Check that an SDK raises `error`, with the sentence of the gateway in its message."""
    with pytest.raises(error, match=sentence) as caught:
        await asking
    return caught.value


async def test_what_is_wrong_with_a_request_is_the_sdks_own_error_and_the_episode_goes_on(
    play: Play, factory: EnvFactory, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = sdk.errors
    async with play("fine") as program:
        monkeypatch.setattr(factory.shared["setup"].gateway, "max_request_bytes", 100_000)
        async with connected(sdk, program) as client:
            unknown = sdk.ask(client, extra_body={"max_tokes": 5})
            error = await refused(errors.BadRequestError, unknown, "'max_tokes' is no field .*Did you mean max_")
            body = error.body if "message" in error.body else error.body["error"]
            assert body["type"] == sdk.kind
            part = sdk.ask(client, [{"role": "user", "content": [IMAGE]}])
            await refused(errors.BadRequestError, part, "text only")
            long = sdk.ask(client, [{"role": "user", "content": "x" * 100_000}])
            error = await refused(errors.APIStatusError, long, "the body is larger than 100000 bytes")
            assert error.status_code == 413
            stranger = sdk.connect(program.base_url.removesuffix("/v1"), "another-episodes-token")
            await refused(errors.AuthenticationError, sdk.ask(stranger), "this is no such token")
            await stranger.close()
            elsewhere = sdk.connect(program.base_url.removesuffix("/v1") + "/v2", program.token)
            await refused(errors.NotFoundError, sdk.ask(elsewhere), "there is no /v2/")
            await elsewhere.close()
            await sdk.ask(client)
        episode = await program.end()
    assert (len(episode.turns), episode.reward) == (1, 1.0)
    assert episode.info["refused_requests"] == {"unknown_parameter": 1, sdk.content: 1, "HTTP 413": 1, "not_found": 1}


async def test_another_version_of_the_api_is_refused(play: Play) -> None:
    async with play("fine") as program:
        async with connected(SDKS["anthropic"], program) as client:
            old = ask_claude(client, extra_headers={"anthropic-version": "2023-01-01"})
            sentence = "anthropic-version is '2023-01-01', .* those of 2023-06-01 or 2026-10-21"
            await refused(anthropic.BadRequestError, old, sentence)
            await ask_claude(client)
        assert (await program.end()).info["refused_requests"] == {"unsupported_version": 1}


class Later:
    """The policy of an agent that answers, or fails, only when it may."""

    def __init__(self, agent: Any, error: Exception | None = None) -> None:
        self.arrival, self.may_answer = asyncio.Event(), asyncio.Event()
        self._generate, self._error = agent._policy.generate, error
        agent._policy = self

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        self.arrival.set()
        await self.may_answer.wait()
        if self._error is not None:
            raise self._error
        return await self._generate(*args, **kwargs)


async def begun_stream(sdk: Sdk, client: Any) -> Any:
    """A stream of which the client has read the head: the answer is still being sampled."""
    return await asyncio.wait_for(sdk.ask(client, stream=True), 30)


@pytest.mark.parametrize("comes_back", [True, False])
async def test_an_answer_that_a_client_has_left_is_given_to_its_second_try_or_is_a_fault(
    play: Play, tiny_model: Path, comes_back: bool
) -> None:
    """A time-out of the client: with its own second try it is one turn, not two."""
    agent = says(tiny_model, "late", "more")
    later = Later(agent)
    async with play(agent=agent) as program:
        asking = asyncio.create_task(program.chat("hi"))
        await later.arrival.wait()
        asking.cancel()
        await asyncio.wait({asking})
        again = asyncio.create_task(program.chat("hi" if comes_back else "something else"))
        later.may_answer.set()
        answer = (await again).choices[0].message.content
        episode = await program.end()
    if comes_back:
        assert (answer, len(episode.turns), episode.reward) == ("late", 1, 1.0)
    else:
        assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.ENV_FAULT, None, False)
        assert "the answer to request 1 did not reach the program" in episode.error


async def test_a_client_that_hangs_up_in_the_middle_of_a_stream_gets_the_same_answer_when_it_asks_again(
    play: Play, tiny_model: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 0.01)
    agent = says(tiny_model, "late")
    later = Later(agent)
    async with play(agent=agent) as program, connected(sdk, program) as client:
        stream = await begun_stream(sdk, client)
        await stream.close()
        again = await begun_stream(sdk, client)
        later.may_answer.set()
        assert "late" in "".join([event.model_dump_json() async for event in again])
        episode = await program.end()
    assert (str(episode.outcome), len(episode.turns), episode.reward) == ("scored", 1, 1.0)


async def test_a_refusal_in_a_stream_that_has_begun_is_the_sdks_error_and_not_the_answer_of_a_retry(
    play: Play, tiny_model: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception; of Responses the event that is called error, which its SDK passes on."""
    monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 0.01)
    agent = says(tiny_model)
    later = Later(agent, TurnRefused("the grammar cannot be compiled"))
    async with play(agent=agent) as program, connected(sdk, program) as client:
        stream = await begun_stream(sdk, client)
        later.may_answer.set()
        if sdk.content == "input":
            [event] = [event async for event in stream]
            assert (event.type, event.message) == ("error", "the grammar cannot be compiled")
        else:
            with pytest.raises(sdk.errors.APIError, match="the grammar cannot be compiled"):
                [event async for event in stream]
        monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 30.0)
        with pytest.raises(sdk.errors.APIStatusError, match="the grammar cannot be compiled"):
            await sdk.ask(client, stream=True, extra_headers={"x-stainless-retry-count": "1"})
        episode = await program.end()
    assert sum(episode.info["refused_requests"].values()) == 2
