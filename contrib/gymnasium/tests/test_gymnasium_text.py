"""Gymnasium environments over messages: what is shown, what is read, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from contrib.gymnasium.env import SyncEnv
from contrib.gymnasium.text import from_gymnasium, plain_text, resolve
from contrib.gymnasium.text.spaces import describe_actions, parse_action, write_observation
from forge_env import (
    Action,
    EnvFactory,
    Episode,
    EpisodeLimits,
    Message,
    Outcome,
    Task,
    ToolCall,
    UserError,
    env_class,
    run_episode,
)
from forge_env.core.env import Env

LAKE = ["left", "down", "right", "up"]
FrozenLake = from_gymnasium("FrozenLake-v1", action_names=LAKE, name="FrozenLake")


class Parrot(gymnasium.Env[str, str]):
    """Wants to hear its word again, in three steps at most."""

    observation_space = spaces.Text(20)
    action_space = spaces.Text(5, charset="abc")
    made: list[Parrot] = []  # noqa: RUF012 - of the class on purpose

    def __init__(self, letters: str = "abc") -> None:
        self.letters, self.closed = letters, 0
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word, self.steps = "".join(self.np_random.choice(list(self.letters), 4)), 0
        return self.word, {"length": 4}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return "again", float(action == self.word), action == self.word, self.steps == 3, {"said": action}

    def close(self) -> None:
        self.closed += 1


def say(text: str) -> Action:
    return Action(message={"role": "assistant", "content": text})


async def play(env: type[Env], *answers: str, task: Task | None = None, **options: Any) -> Episode:
    """Play the answers, the last one again and again."""

    def script(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        return {"role": "assistant", "content": answers[min(turn, len(answers) - 1)]}

    async with EnvFactory(env, **options) as factory:
        task = task or factory.tasks("train", count=1, seed=0)[0]
        limits = EpisodeLimits(max_turns=12)
        return await run_episode(factory, ScriptedAgent(script), task, seed=0, episode_id="e", limits=limits)


@pytest.fixture(autouse=True)
def parrots() -> None:
    Parrot.made.clear()


# ---- episodes ----


async def test_a_lake_is_crossed() -> None:
    dry = {"is_slippery": False}
    way = ["down", "I go down", "I went left\nnow right", "1", "2", "RIGHT"]
    episode = await play(FrozenLake, *way, make_options=dry)
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 6)
    system, first = episode.turns[0].observation
    assert system["role"] == "system"
    assert first["content"].endswith("[S]FFF\nFHFH\nFFFH\nHFFG\nObservation: 0")
    assert "0 (left), 1 (down), 2 (right), 3 (up)" in first["content"]
    assert "[F]HFH" in episode.turns[1].observation[0]["content"]


async def test_the_options_of_the_environment_come_as_text_too() -> None:
    options = {"make_options": '{"is_slippery": false}', "reward_scale": "2"}
    episode = await play(FrozenLake, "1", "1", "2", "1", "2", "2", **options)
    assert episode.reward == 2.0
    with pytest.raises(UserError, match="make_options is 'is_slippery=false'; write it as a JSON object"):
        EnvFactory(FrozenLake, make_options="is_slippery=false").make()
    with pytest.raises(UserError, match="does not take make_options.*is_sloppery"):
        await play(FrozenLake, "1", make_options={"is_sloppery": False})


async def test_gymnasiums_own_steps_and_threshold_are_those_of_an_episode() -> None:
    taxi = resolve("Taxi-v4")
    async with EnvFactory(taxi) as factory:
        [task] = factory.tasks("train", count=1)
        south = ScriptedAgent(lambda messages: {"role": "assistant", "content": "0"})
        episode = await run_episode(factory, south, task, seed=0, episode_id="e")
    assert (len(episode.turns), episode.outcome, episode.success) == (200, Outcome.TRUNCATED, False)
    assert from_gymnasium("Taxi-v4", max_steps=3).limits() == {"max_turns": 3}
    assert resolve("Blackjack-v1").limits() == {}
    way = ["nowhere", "nowhere", "1", "1", "2", "1", "2", "2"]
    crossed = await play(FrozenLake, *way, make_options={"is_slippery": False}, reward_scale=0.1)
    assert (round(crossed.reward or 0, 3), crossed.success) == (0.08, True)  # 0.7 is asked for, and 0.07 of the scaled


@pytest.mark.parametrize(("env_id", "answer"), [("Blackjack-v1", "0"), ("CartPole-v1", "1"), ("Pendulum-v1", "[0.5]")])
async def test_environments_that_come_with_gymnasium(env_id: str, answer: str) -> None:
    episode = await play(resolve(env_id), answer)
    assert episode.outcome in (Outcome.SCORED, Outcome.TRUNCATED), episode.error
    assert [m for turn in episode.turns for m in turn.observation if m["content"].startswith("Error")] == []
    again = await play(resolve(env_id), answer)
    assert [t.observation for t in again.turns] == [t.observation for t in episode.turns]
    assert again.reward == episode.reward


async def test_rewards_are_gymnasiums_own() -> None:
    class Game(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.array([0.1, -0.5], np.float32), np.float64(-3.5), np.bool_(False), np.bool_(True), {}

    episode = await play(from_gymnasium(Game), "1", reward_scale=0.1)
    assert (episode.outcome, episode.turns[0].reward) == (Outcome.TRUNCATED, pytest.approx(-0.35))
    assert episode.tail[0]["content"] == "[0.1, -0.5]"


async def test_text_goes_through_as_it_is() -> None:
    Talk = from_gymnasium(Parrot, describe="Repeat the word.", system_prompt="")
    env = Talk()
    task = Talk.tasks("train", count=1)[0]
    [message], info = env.reset(seed=3, options={"task": task})
    game, words, word = message["content"].split("\n\n")
    assert game == "This is Parrot."
    assert words == "Repeat the word. Your action is your whole answer, 1 to 5 characters out of abc."
    assert info == {"length": 4}
    observation, reward, terminated, truncated, info = env.step(say(f" {word}\n"))
    assert (observation[0]["content"], reward, info) == ("again", 1.0, {"said": word})
    assert (terminated, truncated) == (True, False)
    env.close()
    env.close()
    assert [parrot.closed for parrot in Parrot.made] == [1]


async def test_an_illegal_action_is_answered_and_costs_a_little() -> None:
    env = from_gymnasium(Parrot)(penalty=0.25)
    env.reset(seed=0, options={"task": Task(prompt=())})
    for text in ("xyz", "", "abcabcabc"):
        [message], reward, terminated, truncated, info = env.step(say(text))
        assert message["content"].startswith("Error: ")
        assert "Your action is your whole answer" in message["content"]
        assert (reward, terminated, truncated) == (-0.25, False, False)
        assert info["illegal_action"]
    assert Parrot.made[0].steps == 0
    env.close()


async def test_a_tool_call_is_answered_as_one() -> None:
    env = from_gymnasium(Parrot)()
    env.reset(seed=0, options={"task": Task(prompt=())})
    calls = tuple(ToolCall(id=f"c{i}", name="go", arguments={}) for i in range(2))
    called = Action(message={"role": "assistant", "content": "a"}, tool_calls=calls)
    messages, reward, terminated, _, _ = env.step(called)
    assert [(m["role"], m["tool_call_id"]) for m in messages] == [("tool", "c0"), ("tool", "c1")]
    assert (reward, terminated, Parrot.made[0].steps) == (-0.01, False, 0)
    env.close()


async def test_own_functions_describe_parse_and_render() -> None:
    def parse(text: str, space: spaces.Space[Any]) -> Any:
        if text not in LAKE:
            raise ValueError(f"{text!r} is no direction")
        return LAKE.index(text)

    env_type = from_gymnasium(
        "FrozenLake-v1",
        describe=lambda env: f"A lake of {env.observation_space.n} fields.",  # type: ignore[attr-defined]
        parse_action=parse,
        render=lambda env, observation: f"You stand on {observation}.",
    )
    episode = await play(env_type, "north", "down", make_options={"is_slippery": False})
    assert "A lake of 16 fields." in episode.turns[0].observation[-1]["content"]
    assert episode.turns[0].observation[-1]["content"].endswith("You stand on 0.")
    assert "'north' is no direction" in episode.turns[1].observation[0]["content"]
    assert episode.turns[2].observation[0]["content"] == "You stand on 4."


async def test_an_environment_that_breaks_is_a_fault() -> None:
    class Broken(Parrot):
        def step(self, action: str) -> Any:
            raise RuntimeError("out of order")

    episode = await play(from_gymnasium(Broken), "abc")
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "out of order" in episode.error
    assert [parrot.closed for parrot in Parrot.made] == [1]


async def test_there_and_back_again() -> None:
    """A forge environment, as a Gymnasium environment, as a forge environment."""
    episode = await play(from_gymnasium(lambda: SyncEnv("math"), name="MathAgain"), "The answer is 1.")
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0)
    assert "Your action is your whole answer" in episode.turns[0].observation[-1]["content"]


# ---- tasks and names ----


def test_tasks_are_seeds_and_the_splits_share_none() -> None:
    train, test = (FrozenLake.tasks(split, count=50, seed=1) for split in ("train", "test"))
    assert len({task.id for task in (*train, *test)}) == 100
    assert {task.metadata["seed"] % 2 for task in train} == {0}
    assert {task.metadata["seed"] % 2 for task in test} == {1}
    assert FrozenLake.tasks("train", count=50, seed=1) == train
    with pytest.raises(UserError, match="no split 'dev'"):
        FrozenLake.tasks("dev", count=1)


async def test_the_seed_of_the_task_is_the_environments() -> None:
    Talk = from_gymnasium(Parrot)
    one, other = Talk.tasks("train", count=2)
    words = [(await play(Talk, "a", task=task)).turns[0].observation[-1]["content"] for task in (one, one, other)]
    assert words[0] == words[1] != words[2]


def test_a_class_can_be_found_by_its_name() -> None:
    assert (FrozenLake.__module__, FrozenLake.__qualname__) == (__name__, "FrozenLake")
    assert resolve("FrozenLake-v1") is resolve("FrozenLake-v1")
    assert resolve("FrozenLake-v1").__name__ == "FrozenLake"
    assert env_class("gymnasium:FrozenLake-v1") is resolve("FrozenLake-v1")


@pytest.mark.parametrize(("env_id", "words"), [("FrozenLke-v1", "Did you mean FrozenLake-v1"), ("a b", "'a b'")])
def test_an_unknown_id_is_a_users_mistake(env_id: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolve(env_id)


@pytest.mark.parametrize(
    ("name", "space", "words"),
    [
        ("action_space", spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), "space Tuple.*pass parse_action"),
        ("action_space", None, "Odd has no action_space"),
        ("observation_space", None, "Odd has no observation_space"),
    ],
)
async def test_a_space_that_text_cannot_say_is_a_users_mistake(name: str, space: Any, words: str) -> None:
    class Odd(Parrot):
        def close(self) -> None:
            super().close()
            raise RuntimeError("the window is lost")

    setattr(Odd, name, space)
    with pytest.raises(UserError, match=words):
        await play(from_gymnasium(Odd), "a")
    assert [parrot.closed for parrot in Parrot.made] == [1]


# ---- actions ----

SPACES = {
    "discrete": spaces.Discrete(4, start=1),
    "grid": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,)),
    "below zero": spaces.Discrete(4, start=-2, dtype=np.int8),
    "real": spaces.Box(-1, 1, (1,), dtype=np.float64),
    "number": spaces.Box(0, 10, (1,), dtype=np.uint8),
    "byte": spaces.Box(0, 255, (1,), dtype=np.uint8),
    "text": spaces.Text(3, charset="ab"),
}


@pytest.mark.parametrize(
    ("space", "text", "action"),
    [
        ("discrete", "first 2\nthen 4", 4),
        ("discrete", "7 and 8 are none: 2", 2),
        *[("below zero", f"action: {sign}1", -1) for sign in "\u2212\u2010\u2011\u2013\ufe63\uff0d"],
        ("below zero", "\uff0d1 or rather -1", -1),
        ("discrete", "I take 1.0", 1),
        ("discrete", "I am at 1, so I go on. **Action**: 3", 3),
        ("discrete", "Final answer:\n\n`2`", 2),
        ("discrete", "Action: 2\nReason: 1 would fall.", 2),
        ("discrete", "Action: 1\nNo. Action: 2", 2),
        ("discrete", "From 1 I could fall. I take 2.", 2),
        ("grid", "I am at [0, 0]. My move: [1, 1]", [1, 1]),
        ("grid", "Action: [1,\n 1]\nThis beats [0, 0].", [1, 1]),
        ("real", "The speed is 0.3. Action: 0.5", [0.5]),
        ("grid", "from [7, 7] to [1, 1].", [1, 1]),
        ("box", "[\u22120.5, \u22121]", [-0.5, -1]),
        ("real", "\u22120.12345678901234567890123", [-0.12345678901234568]),
        ("real", "I take .5", [0.5]),
        ("real", "5e-1.", [0.5]),
        ("bits", "[1,0,1]", [1, 0, 1]),
        ("box", "so: [0.5, -1]", [0.5, -1]),
        ("box", "[[0.5], [1]]", [0.5, 1]),
        ("number", "[7]", [7]),
        ("byte", "[255]", [255]),
        ("text", " ab\n", "ab"),
    ],
)
def test_actions_are_read(space: str, text: str, action: Any) -> None:
    read = parse_action(text, SPACES[space])
    assert SPACES[space].contains(read)
    assert (read.tolist() if isinstance(read, np.ndarray) else read) == action


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ("discrete", "0"),
        ("discrete", "5"),
        ("discrete", "2.5"),
        ("discrete", "Action: 2,000"),
        ("real", "Action: 0,5"),
        ("number", "Action: 1,5 because"),
        ("discrete", "none"),
        ("discrete", "9" * 5000),
        ("grid", "[-1, 0]"),
        ("grid", "[1]"),
        ("grid", "[1.5, 0]"),
        ("grid", "1 0"),
        ("box", "[NaN, 0]"),
        ("box", "[1e999, 0]"),
        ("box", '["a", 0]'),
        ("box", "[" * 5000 + "]" * 5000),
        ("text", ""),
        ("text", "abab"),
    ],
)
def test_what_is_not_allowed_is_refused(space: str, text: str) -> None:
    with pytest.raises(ValueError):
        parse_action(text, SPACES[space])


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ("discrete", "1 or 2"),
        ("discrete", "think\n2-1"),
        ("discrete", "Action: 1 or 2"),
        ("discrete", "1. Go on 2. Turn"),
        ("discrete", "The best action is 1 because 2 would fall."),
        ("grid", "[0, 0] or [1, 1]"),
        ("grid", "[[0], [0]], [1, 1]"),
        ("real", "0.5 or 0.7"),
    ],
)
def test_a_sentence_that_names_two_actions_names_none(space: str, text: str) -> None:
    with pytest.raises(ValueError, match='a sentence of your answer names two actions, .* and .*; end with one line "'):
        parse_action(text, SPACES[space])
    with pytest.raises(ValueError, match="names two actions, 2 and 0; end"):
        parse_action("I go left, not right.", spaces.Discrete(4), LAKE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float64(100234.0), "100234.0"),
        (np.array([1 / 3, 1e300]), "[0.3333333333333333, 1e+300]"),
        (np.array([0.1, 1 / 3, 3.4028235e38], np.float32), "[0.1, 0.33333334, 3.4028235e+38]"),
        ({"a": (np.float32(0.1), 123456.789), "b": [np.array(2.5)]}, '{"a": [0.1, 123456.789], "b": [2.5]}'),
        (np.array([np.inf, -np.inf, np.nan], np.float32), "[Infinity, -Infinity, NaN]"),
        (np.array([[True]]), "[[true]]"),
        (np.array(["a", None], object), '["a", null]'),
    ],
)
def test_numbers_of_an_observation_read_back_to_the_same(value: Any, text: str) -> None:
    assert write_observation(value) == text


def test_a_long_list_is_read() -> None:
    zeros = np.zeros((100, 2), np.float32)
    assert np.array_equal(parse_action(write_observation(zeros), spaces.Box(-1, 1, (100, 2))), zeros)


def test_bounds_read_back_to_themselves() -> None:
    most = np.finfo(np.float32).max
    space = spaces.Box(-most, most, (2,))
    assert describe_actions(space).endswith("from -3.4028235e+38 to 3.4028235e+38.")
    assert parse_action("[3.4028235e+38, -3.4028235e+38]", space).tolist() == [most, -most]


@pytest.mark.parametrize(
    ("space", "text", "bounds"),
    [
        ("byte", "-1", "from 0 to 255"),
        ("byte", "[256]", "from 0 to 255"),
        ("grid", "[256, 0]", "from 0 to [2, 1]"),
        ("bits", "[256, 0, 0]", "from 0 to 1"),
        ("box", "[0, -1.5]", "from -1.0 to 1.0"),
    ],
)
def test_a_value_that_does_not_fit_is_not_wrapped_around(space: str, text: str, bounds: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_action(text, SPACES[space])
    assert str(caught.value) == f"a value is outside the bounds, {bounds}"


@given(st.sampled_from(sorted(SPACES)), st.text(alphabet=st.sampled_from(list('[]{},.-+0123456789eE \n"nab∞'))))
def test_no_text_gives_an_action_outside_of_the_space(name: str, text: str) -> None:
    space = SPACES[name]
    try:
        action = parse_action(text, space)
    except ValueError:
        return
    assert space.contains(action)


def test_names_count_as_numbers() -> None:
    space = spaces.Discrete(4)
    assert parse_action("left\nUP", space, LAKE) == 3
    assert parse_action("up, which is 3", space, LAKE) == 3
    assert parse_action("upright, down", space, LAKE) == 1
    assert parse_action("go 2", space, ["go 1", "go 2", "go 3", "go 4"]) == 1
    assert parse_action("far left", space, ["left", "far left", "right", "far right"]) == 1


def test_what_is_allowed_is_said() -> None:
    for space, text in {
        "discrete": "one integer from 1 to 4",
        "grid": "integers from [0, 0] to [2, 1]",
        "bits": "zeros and ones, of shape [3]",
        "box": "shape [2], from -1.0 to 1.0",
        "number": "from 0 to 10",
        "text": "1 to 3 characters out of ab.",
    }.items():
        assert text in describe_actions(SPACES[space])
    assert describe_actions(spaces.Text(9)).endswith("characters out of 0-9A-Za-z.")
    assert describe_actions(spaces.Text(9, charset="a b\n")).endswith("characters out of ab and '\\n' and the space.")


def test_observations_are_written_compactly() -> None:
    assert write_observation(np.array([[0.123456, 2]], np.float32)) == "[[0.123456, 2.0]]"
    assert write_observation({"hand": (np.int64(3), True), "é": None}) == '{"hand": [3, true], "é": null}'
    assert write_observation(np.int64(2), spaces.Discrete(3), ["a", "b", "c"]) == "c"
    assert write_observation("as it is") == "as it is"


def test_colours_become_words() -> None:
    text = "  (Right)\nS\x1b[41mF\x1b[0m\x1b[34;1mR\x1b[0m|\x1b[35mG\x1b[0m \x1b[1mbold\x1b[0m"
    assert plain_text(text) == "  (Right)\nS[F]R(blue)|G(magenta) bold"
    assert plain_text("\x1b[31mA\x1b[39mB \x1b[44mC\x1b[49mD") == "A(red)B [C]D"


# ---- names ----

OWN = """
import gymnasium, numpy
from gymnasium import spaces

class Own(gymnasium.Env):
    observation_space = spaces.Dict(
        {"at": spaces.Box(0, 1, (2,)), "has": spaces.Tuple((spaces.Text(3), spaces.Discrete(2)))}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"at": numpy.array([0.25, 0.5]), "has": ("key", numpy.int64(1))}, {}

    def step(self, action):
        return self.reset()[0], float(action), True, False, {}

def make_own():
    return Own()

gymnasium.register("Own-v0", entry_point=f"{__name__}:Own", max_episode_steps=7)
gymnasium.register("own/Other-v2", entry_point=Own)
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    yield name
    for id_ in ("Own-v0", "own/Other-v2"):
        gymnasium.registry.pop(id_, None)


OWN_NAMES = ("gymnasium:{own}:Own-v0", "gymnasium:{own}.py:Own-v0", "gymnasium:{own}:own/Other-v2")


@pytest.mark.parametrize("name", [*OWN_NAMES, "gymnasium:{own}:make_own", "{own}.py:Own", "{own}:Own"])
async def test_environments_of_ones_own_have_gymnasiums_names_and_targets(own_module: str, name: str) -> None:
    own = env_class(name.format(own=own_module))
    assert own is env_class(name.format(own=own_module))
    episode = await play(own, "1")
    prompt = episode.turns[0].observation[-1]["content"]
    assert json.loads(prompt.splitlines()[-1]) == {"at": [0.25, 0.5], "has": ["key", 1]}
    assert not re.search(r"\d{4}", prompt), "the seed tells the model nothing"
    assert episode.reward == 1.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gymnasium:{own}:Own-v1", "registers no environment 'Own-v1' with Gymnasium. Did you mean Own-v0?"),
        ("gymnasium:{own}:Nothing", "has no attribute 'Nothing'"),
        ("gymnasium:{own}:numpy", "neither a gymnasium.Env nor a function"),
        ("gymnasium:no_such_module:Own-v0", "there is no module 'no_such_module'"),
        ("{own}.py:make_own", "a function that makes a gymnasium.Env has the prefix gymnasium:"),
    ],
)
def test_a_wrong_name_of_ones_own_is_one_sentence(own_module: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        env_class(name.format(own=own_module))
