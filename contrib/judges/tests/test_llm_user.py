"""LLMUser against a real server: what the model sees, how it ends, what is recorded, and which answers are faults."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.chat.agent import ChatAgent
from contrib.judges.judge import LLMJudge
from contrib.judges.users import ConversationEnv, LLMUser, transcript
from envs.messages import call
from forge_env.cli.main import main
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.tools import reward, tool
from forge_env.core.types import EpisodeLimits, Message, Outcome, Task
from forge_env.core.usage import Prices
from forge_env.evaluation.evaluate import Evaluation
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode

EXAMPLES = Path(__file__).parents[1] / "examples"
TASK = Task(
    prompt=({"role": "system", "content": "RULES"}, {"role": "user", "content": "I want a refund."}),
    metadata={"user": "You are Ada {braces}."},
)
OPENING = Task(prompt=({"role": "system", "content": "RULES"},), metadata={"user": "You are Ada."})
PRICES = Prices(prompt=1.0, completion=10.0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrib.chat.client._FIRST_PAUSE", 0.001)


def make(chat_server: Any, **options: Any) -> LLMUser:
    return LLMUser("customer", base_url=chat_server.url, **{"api_key_env": "", "timeout": 20.0, **options})


class Support(ConversationEnv):
    """The agent looks something up, then answers."""

    def __init__(self, *, user: Any = None, judge: Any = None) -> None:
        super().__init__()
        self.user, self._judge = user, judge

    @tool
    def look(self) -> str:
        """Look the order up."""
        return "TOOL RESULT"

    @reward
    async def good(self, messages: list[Message]) -> float:
        return 1.0 if self._judge is None else await self._judge("Kind?", transcript(messages), "kind")


def script(messages: list[Message]) -> Message:
    if messages[-1]["role"] == "user":
        return {**call("look"), "content": "SIDE TEXT"}
    return {"role": "assistant", "content": "<think>THOUGHT</think>Refunded. [END]", "reasoning_content": "HIDDEN"}


async def play(task: Task = TASK, *, limits: EpisodeLimits | None = None, seed: int = 5, **options: Any) -> Episode:
    async with EnvFactory(Support) as factory:
        agent = ScriptedAgent(script)
        return await run_episode(factory, agent, task, seed=seed, episode_id="e", limits=limits, env_options=options)


def sent(chat_server: Any) -> list[list[tuple[str, str]]]:
    return [[(m["role"], m["content"]) for m in asked.body["messages"]] for asked in chat_server.asked]


# ---- what the model sees ----


async def test_the_roles_are_swapped_and_nothing_hidden_is_shown(chat_server: Any) -> None:
    chat_server.will(chat_server.says("More!"), chat_server.says("Thanks. [END] and so on"))
    episode = await play(user=make(chat_server))
    assert episode.outcome is Outcome.SCORED
    first, second = sent(chat_server)
    role, system = first[0]
    assert role == "system" and "You are Ada {braces}." in system and "[END]" in system
    begin = ("user", "(The conversation begins. Write your first message.)")
    assert first[1:] == [begin, ("assistant", "I want a refund."), ("user", "Refunded.")]
    assert second[1:] == [*first[1:], ("assistant", "More!"), ("user", "Refunded.")]
    for hidden in ("RULES", "SIDE TEXT", "TOOL RESULT", "THOUGHT", "HIDDEN"):
        assert hidden not in str(first + second)
    assert [m["content"] for m in episode.tail] == ["Thanks."], "the mark and what follows it is no message"


async def test_the_user_begins_and_his_thoughts_stay_his(chat_server: Any) -> None:
    chat_server.will(chat_server.says("<think>I am to complain.</think>It is broken."), chat_server.says("[END]"))
    episode = await play(OPENING, user=make(chat_server))
    assert sent(chat_server)[0][1:] == [("user", "(The conversation begins. Write your first message.)")]
    assert episode.messages[1] == {"role": "user", "content": "It is broken."}
    assert episode.tail == ()


async def test_settings_and_seeds_are_sent(chat_server: Any) -> None:
    async def seeds(seed: int, **options: Any) -> list[Any]:
        chat_server.reset()
        chat_server.will(chat_server.says(""), chat_server.says("More!"), chat_server.says("Bye [END]"))
        await play(seed=seed, user=make(chat_server, temperature=0.3, max_tokens=99, **options))
        assert {(asked.body["temperature"], asked.body["max_tokens"]) for asked in chat_server.asked} == {(0.3, 99)}
        return [asked.body.get("seed") for asked in chat_server.asked]

    first = await seeds(5)
    assert len(set(first)) == 3 and all(0 <= seed < 2**31 for seed in first)
    assert await seeds(5) == first
    assert not set(await seeds(6)) & set(first)
    assert await seeds(5, seeds=False) == [None] * 3


async def test_the_persona_may_be_a_function_or_a_template(chat_server: Any) -> None:
    chat_server.will(chat_server.says("[END]"))
    await play(user=make(chat_server, persona=lambda task: f"Task {task.id}"))
    await play(user=make(chat_server, persona="The user: {user}", end="##"))
    systems = [messages[0][1] for messages in sent(chat_server)]
    assert f"Task {TASK.id}" in systems[0] and "The user: You are Ada {braces}." in systems[1] and "##" in systems[1]


async def test_the_user_stops_at_his_last_turn(chat_server: Any) -> None:
    chat_server.will(chat_server.says("More!"))
    episode = await play(user=make(chat_server, max_turns=3))
    assert (episode.outcome, len(chat_server.asked)) == (Outcome.SCORED, 2), "the task's message is his first"


# ---- what is recorded ----


async def test_tokens_and_cost_of_user_and_judge_are_recorded_and_summed(chat_server: Any) -> None:
    chat_server.will(
        chat_server.fails(500),
        chat_server.says("More!", used=(100, 10)),
        chat_server.says("[END]", used=(200, 1)),
        chat_server.says("Hm.", used=(50, 5)),
        chat_server.says("VERDICT: 8", used=(60, 6)),
    )
    async with LLMJudge("judge", base_url=chat_server.url, api_key_env="") as judge:
        episode = await play(user=make(chat_server, prices=PRICES), judge=judge)
    assert episode.reward == 0.8
    user = {"calls": 2, "requests": 3, "retries": 1, "prompt_tokens": 300, "completion_tokens": 11}
    judged = {"calls": 1, "requests": 2, "retries": 0, "prompt_tokens": 110, "completion_tokens": 11}
    recorded = episode.info["model_calls"]
    assert recorded["user"].pop("cost") == pytest.approx((300 + 110) / 1e6)
    assert recorded == {"user": user, "judge": judged}, "without prices there is no cost"
    metrics = Evaluation(episodes=(episode, episode)).metrics()
    assert (metrics["user/prompt_tokens"], metrics["judge/requests"]) == (600.0, 4.0)


async def test_a_known_verdict_is_counted_and_costs_nothing(chat_server: Any) -> None:
    chat_server.will(chat_server.says("[END]"), chat_server.says("VERDICT: 8"), chat_server.says("[END]"))
    async with LLMJudge("judge", base_url=chat_server.url, api_key_env="", prices=PRICES) as judge:
        first, second = [await play(user=make(chat_server), judge=judge) for _ in range(2)]
    assert first.info["model_calls"]["judge"]["cost"] == pytest.approx((7 + 30) / 1e6)
    nothing = dict.fromkeys(("calls", "requests", "retries", "prompt_tokens", "completion_tokens"), 0)
    assert second.info["model_calls"]["judge"] == {**nothing, "cached": 1}


async def test_episodes_at_once_record_their_own_calls(chat_server: Any) -> None:
    chat_server.will(chat_server.says("[END]"))
    user = make(chat_server)
    episodes = await asyncio.gather(*(play(user=user, seed=i) for i in range(6)))
    assert {episode.info["model_calls"]["user"]["calls"] for episode in episodes} == {1}


def test_an_evaluation_sums_what_a_customer_of_a_model_uses(
    chat_server: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The model knows what the persona says, and answers the expert's questions from it."""

    def customer(asked: Any) -> str:
        persona, last = (asked.body["messages"][i]["content"] for i in (0, -1))
        number, postcode = re.search(r"number is \d+", persona)[0], re.search(r"delivery is (\w+ \w+)", persona)[1]
        condition = re.search(r"The item is (\w+)", persona)[1]
        if "order number" in last:
            return f"The {number}, the postcode is {postcode}."
        if "sealed" in last:
            return f"It is {condition}."
        return "All right. [END]" if "DECISION" in last else "I want my money back."

    chat_server.will(chat_server.replies(customer))
    env = f"{EXAMPLES / 'customer_service.py'}:CustomerService"
    command = ["eval", "--env", env, "--agent", "scripted:expert", "--tasks", "6", "--out", str(tmp_path / "out")]
    command += ["--option", "user_model=m", "--option", f"user_url={chat_server.url}"]
    assert main([*command, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["successes"], result["faults"]) == (6, {})
    used = {"calls": 24, "requests": 24, "retries": 0, "prompt_tokens": 24 * 7, "completion_tokens": 24 * 3}
    assert result["model_calls"] == {"user": used}
    assert main(command) == 0
    assert main(["check", env, *command[-4:], "--only", "leaks", "--tasks", "2"]) == 0
    out = capfd.readouterr().out
    assert re.search(r"model of +calls +requests +prompt tokens", out) and re.search(r"user +24 +24 +168 +72", out)


# ---- faults ----

FAULTS = {
    "silent": ("says", ("",), "gave no message in 2 answers: the last one is empty"),
    "only thoughts": ("says", ("<think>Well, then",), "the last one is empty"),
    "failing": ("fails", (500, "down"), "the user model did not answer.*HTTP 500: down"),
    "too long": ("fails", (400, "maximum context length is 9"), "too long for the user model"),
    "hanging": ("waits", (), "did not answer within 0.2 s"),
}


@pytest.mark.parametrize(("case", "task"), [*((case, TASK) for case in FAULTS), ("failing", OPENING)])
async def test_a_user_model_that_fails_is_a_fault_and_no_zero(chat_server: Any, case: str, task: Task) -> None:
    behaviour, arguments, message = FAULTS[case]
    chat_server.will(getattr(chat_server, behaviour)(*arguments))
    timeout = 0.2 if case == "hanging" else 20.0
    episode = await play(task, user=make(chat_server, attempts=2, retries=1, timeout=timeout))
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    with pytest.raises(ServiceError, match=message):
        raise ServiceError(episode.error)
    assert episode.info["model_calls"]["user"]["requests"] == len(chat_server.asked), "a fault has its cost, too"


async def test_a_cut_off_message_is_asked_for_again(chat_server: Any) -> None:
    chat_server.will(chat_server.says("I want", finish="length"), chat_server.says("I want more. [END]"))
    episode = await play(user=make(chat_server))
    assert [m["content"] for m in episode.tail] == ["I want more."]
    assert episode.info["model_calls"]["user"] | {"calls": 1, "requests": 2} == episode.info["model_calls"]["user"]


async def test_the_clock_of_the_step_stands_still_while_the_model_answers(chat_server: Any) -> None:
    """The hanging model ends by its own limit, which is longer than that of the step."""
    chat_server.will(chat_server.waits())
    episode = await play(user=make(chat_server, timeout=0.3), limits=EpisodeLimits(step_seconds=0.1))
    assert "did not answer within 0.3 s" in episode.error


async def test_a_wrong_key_is_the_users(chat_server: Any) -> None:
    chat_server.will(chat_server.fails(401))
    with pytest.raises(UserError, match="refused the API key"):
        await play(user=make(chat_server))


# ---- connections ----


async def test_the_last_episode_closes_the_connections(chat_server: Any) -> None:
    user = make(chat_server)
    one, two = user.start(TASK), user.start(TASK)
    chat_server.will(chat_server.says("More!"))
    await one.reply(TASK.prompt)
    pools = user._endpoint.agent.client._pools
    await one.aclose()
    await one.aclose()
    assert len(pools) == 1, "closing twice takes no connection from the other episode"
    await two.aclose()
    assert len(pools) == 0
    assert (await user.start(TASK).reply(TASK.prompt)).text == "More!", "a later episode opens new ones"
    await user._endpoint.agent.aclose()


async def test_an_agent_that_was_lent_stays_open(chat_server: Any) -> None:
    chat_server.will(chat_server.says("[END]"))
    async with ChatAgent("m", chat_server.url, api_key_env="", temperature=0.7, prices=PRICES) as agent:
        episode = await play(user=LLMUser(agent))
        assert len(agent.client._pools) == 1
    assert chat_server.asked[0].body["temperature"] == 0.7
    assert episode.info["model_calls"]["user"]["cost"] == pytest.approx((7 + 30) / 1e6)


async def test_a_user_travels_between_processes(chat_server: Any) -> None:
    chat_server.will(chat_server.says("[END]"))
    user = make(chat_server)
    await play(user=user)
    assert (await play(user=pickle.loads(pickle.dumps(user)))).outcome is Outcome.SCORED


# ---- settings ----


async def test_a_persona_that_the_task_lacks_is_named(chat_server: Any) -> None:
    with pytest.raises(UserError, match=r"persona cannot be filled in .*KeyError: 'mood'.*metadata"):
        await play(user=make(chat_server, persona="{mood}"))


@pytest.mark.parametrize("setting", [{"max_turns": 0}, {"attempts": 0}, {"timeout": 0.0}, {"end": " "}])
def test_a_wrong_setting_is_named(setting: dict[str, Any]) -> None:
    [(name, value)] = setting.items()
    with pytest.raises(UserError, match=f"{name}={value!r}"):
        LLMUser("m", **setting)


async def test_a_missing_key_is_told_before_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UserError, match="set the environment variable NO_SUCH_KEY"):
        await play(user=LLMUser("m", base_url="https://example.invalid/v1", api_key_env="NO_SUCH_KEY"))


def test_prices_are_numbers_of_at_least_zero() -> None:
    with pytest.raises(UserError, match="the price of a million completion tokens is -1"):
        Prices(completion=-1)


async def test_without_start_it_has_no_task(chat_server: Any) -> None:
    with pytest.raises(UserError, match=r"call user\.start"):
        await make(chat_server).reply(TASK.prompt)
