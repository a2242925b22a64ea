"""Bad input in each dialect: its SDK raises the error that it has for that, with one sentence, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from contrib.external import gateway
from contrib.external.tests.external_playing import Playing, opened, playing, says
from forge_env.core.errors import TurnRefused
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
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, timeout=30)


def claude_client(url: str, token: str) -> Any:
    return AsyncAnthropic(base_url=url, api_key=token, max_retries=0, timeout=30)


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


@pytest.fixture
async def factory(tmp_path: Path) -> AsyncIterator[EnvFactory]:
    async with opened(folder=tmp_path) as opened_factory:
        yield opened_factory


def connected(sdk: Sdk, program: Playing) -> Any:
    return sdk.connect(program.base_url.removesuffix("/v1"), program.token)


async def refused(error: type[Exception], asking: Awaitable[Any], sentence: str) -> Any:
    """Check that an SDK raises `error`, with the sentence of the gateway in its message."""
    with pytest.raises(error, match=sentence) as caught:
        await asking
    return caught.value


async def test_what_is_wrong_with_a_request_is_the_sdks_own_error_and_the_episode_goes_on(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = sdk.errors
    async with playing(factory, says(tiny_model, "fine"), tmp_path) as program:
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


async def test_another_version_of_the_api_is_refused(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    async with playing(factory, says(tiny_model, "fine"), tmp_path) as program:
        async with connected(SDKS["anthropic"], program) as client:
            old = ask_claude(client, extra_headers={"anthropic-version": "2023-01-01"})
            await refused(
                anthropic.BadRequestError,
                old,
                "anthropic-version is '2023-01-01', .* those of 2023-06-01 or 2026-10-21",
            )
            await ask_claude(client)
        assert (await program.end()).info["refused_requests"] == {"unsupported_version": 1}


async def test_a_body_is_read_whatever_its_content_type_and_one_that_is_no_json_is_named(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    async with playing(factory, says(tiny_model, "fine"), tmp_path) as program:
        headers = {"authorization": f"Bearer {program.token}"}
        async with httpx.AsyncClient(base_url=program.base_url, headers=headers) as client:
            form = await client.post("/chat/completions", data={"model": "m"})
            assert (form.status_code, form.json()["error"]["code"]) == (400, "no_json")
            assert (
                "no JSON, and its content type is 'application/x-www-form-urlencoded'"
                in form.json()["error"]["message"]
            )
            body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
            plain = await client.post("/chat/completions", content=body, headers={"content-type": "text/plain"})
            assert plain.status_code == 200
        assert (await program.end()).reward == 1.0


def answers_when(agent: Any, event: asyncio.Event, error: Exception | None = None) -> Any:
    """Let an agent answer, or fail, only after an event."""
    generate = agent._policy.generate

    class Later:
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            await event.wait()
            if error is not None:
                raise error
            return await generate(*args, **kwargs)

    agent._policy = Later()
    return agent


async def begun_stream(sdk: Sdk, client: Any) -> Any:
    """A stream of which the client has read the head: the answer is still being sampled."""
    return await asyncio.wait_for(sdk.ask(client, stream=True), 30)


async def test_a_client_that_hangs_up_in_the_middle_of_a_stream_gets_the_same_answer_when_it_asks_again(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 0.01)
    may_answer = asyncio.Event()
    agent = answers_when(says(tiny_model, "late"), may_answer)
    async with playing(factory, agent, tmp_path) as program, connected(sdk, program) as client:
        stream = await begun_stream(sdk, client)
        await stream.close()
        again = await begun_stream(sdk, client)
        may_answer.set()
        assert "late" in "".join([event.model_dump_json() async for event in again])
        episode = await program.end()
    assert (str(episode.outcome), len(episode.turns), episode.reward) == ("scored", 1, 1.0)


async def test_a_client_that_hangs_up_in_the_middle_of_a_stream_for_good_is_a_fault_with_its_reason(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 0.01)
    may_answer = asyncio.Event()
    agent = answers_when(says(tiny_model, "late", "more"), may_answer)
    async with playing(factory, agent, tmp_path) as program, connected(sdk, program) as client:
        stream = await begun_stream(sdk, client)
        await stream.close()
        may_answer.set()
        await sdk.ask(client, [{"role": "user", "content": "something else"}])
        episode = await program.end()
    assert (str(episode.outcome), len(episode.turns), episode.reward) == ("env_fault", 2, None)
    assert "the answer to request 1 did not reach the program" in episode.error


async def test_a_refusal_in_a_stream_that_has_begun_is_the_sdks_error_and_not_the_answer_of_a_retry(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception; of Responses the event that is called error, which its SDK passes on."""
    monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 0.01)
    may_fail = asyncio.Event()
    agent = answers_when(says(tiny_model), may_fail, TurnRefused("the grammar cannot be compiled"))
    async with playing(factory, agent, tmp_path) as program, connected(sdk, program) as client:
        stream = await begun_stream(sdk, client)
        may_fail.set()
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
