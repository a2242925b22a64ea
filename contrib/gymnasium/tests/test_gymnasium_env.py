"""Forge environments under Gymnasium's own checks, vector environments and autoreset."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import forge_env
from contrib.gymnasium.env import SyncEnv
from contrib.gymnasium.message_space import MessageSpace
from contrib.gymnasium.registration import gymnasium_id, register_env
from forge_env import Action, Env, EpisodeLimits, Task, ToolEnv, UserError, reward, tool

ROOT = Path(forge_env.__file__).parents[1]
TASK = Task(prompt=({"role": "user", "content": "Say it."},), target="it")
CALL = '<tool_call>{"name": "echo", "arguments": {"text": "hé😀"}}</tool_call>'


class Echo(ToolEnv):
    """Returns what it is told, and wants to hear the target."""

    system_prompt = "Be brief."
    truncation_reward = -0.5

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, word: str = "w") -> list[Task]:
        words = [f"{split}-{word}-{seed}-{i}" for i in range(count)]
        return [Task(prompt=({"role": "user", "content": f"Say {w}."},), target=w) for w in words]

    @tool
    def echo(self, text: str) -> str:
        """Return a text."""
        return text

    @reward
    def correct(self, answer: str) -> float:
        """1 for the target."""
        return float(answer == self.task.target)


class Trouble(Env):
    """Breaks in the way that the task's target names."""

    closed: list[str] = []  # noqa: RUF012 - of the class on purpose

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.way = options["task"].target
        if self.way == "reset":
            raise ValueError("no start")
        return list(options["task"].prompt), {"way": self.way, "further": options.get("further")}

    async def step(self, action: Action) -> Any:
        if self.way == "hang":
            await asyncio.sleep(600)
        if self.way == "step":
            raise KeyError("lost")
        if self.way == "infra":
            raise forge_env.InfraError("the server is gone")
        info = {"outcome": self.way} if self.way in tuple(forge_env.Outcome) else {}
        reward = float("nan") if self.way == "nan" else 0.25
        return [{"role": "user", "content": "on"}], reward, False, self.way == "truncated", info

    def close(self) -> None:  # type: ignore[override]
        self.closed.append(self.way)


class Pooled(Echo):
    """Has something that all instances share."""

    shared = {"pool": f"{__name__}:pool"}  # noqa: RUF012
    opened: list[str] = []  # noqa: RUF012


@asynccontextmanager
async def pool(word: str = "w") -> Any:
    Pooled.opened.append(f"open {word}")
    task = asyncio.current_task()
    try:
        yield word
    finally:
        assert asyncio.current_task() is task, "what is entered in a task is left in it"
        Pooled.opened.append(f"close {word}")


def task(target: str) -> dict[str, Any]:
    return {"task": Task(prompt=TASK.prompt, target=target)}


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "forge_env loop"]


def script(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    Trouble.closed.clear()
    Pooled.opened.clear()
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)
    assert loops() == []


# ---- Gymnasium's checks ----


@pytest.mark.parametrize("env_id", ["forge_env/Math-v0", "echo"])
def test_gymnasiums_checker_has_nothing_to_say(env_id: str) -> None:
    if env_id == "echo":
        env_id = "forge_env/Echo-v0"
        gymnasium.register(env_id, entry_point="contrib.gymnasium.env:SyncEnv", kwargs={"env": Echo})
    with warnings.catch_warnings(), gymnasium.make(env_id, render_mode="ansi") as env:
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        env.reset(seed=0)  # through PassiveEnvChecker, which warns
        env.step("something")


def test_an_episode_by_hand() -> None:
    with SyncEnv(Echo, render_mode="ansi") as env:
        assert env.tools == ()
        text, info = env.reset(options={"task": TASK})
        assert text == "[system]\nBe brief.\n\n[user]\nSay it."
        assert info["task_id"] == TASK.id
        assert info["messages"][1] == TASK.prompt[0]
        assert env.tools[0]["function"]["name"] == "echo"
        text, score, terminated, truncated, info = env.step(f"Well. {CALL}")
        assert (text, score, terminated, truncated) == ("[tool echo]\nhé😀", 0.0, False, False)
        assert info["tools"][0].name == "echo"
        assert "outcome" not in info
        text, score, terminated, truncated, info = env.step("it")
        assert (text, score, terminated, truncated) == ("", 1.0, True, False)
        assert (info["outcome"], info["rewards"]) == ("scored", {"correct": 1.0})
        assert (env.render() or "").endswith(f"[assistant]\nWell. {CALL}\n\n[tool echo]\nhé😀\n\n[assistant]\nit")


def test_the_same_seed_gives_the_same_episodes() -> None:
    with SyncEnv(Echo) as one, SyncEnv(Echo) as other:
        first = [one.reset(seed=7)[0], one.reset()[0], one.reset()[0]]
        assert [other.reset(seed=7)[0], other.reset()[0], other.reset()[0]] == first
        assert len(set(first)) == 3
        assert other.reset(seed=8)[0] not in first


def test_tasks_are_of_the_split_and_of_a_fixed_set_where_asked() -> None:
    with SyncEnv(Echo, split="test", num_tasks=2, task_seed=5, word="x") as env:
        seen = {env.reset()[1]["messages"][1]["content"] for _ in range(20)}
    assert seen == {"Say test-x-5-0.", "Say test-x-5-1."}


def test_dialects() -> None:
    call = '{"name": "echo", "parameters": {"text": "hi"}}'
    with SyncEnv(Echo, dialect="llama") as env:
        env.reset()
        assert env.step(call)[0] == "[tool echo]\nhi"
    with SyncEnv(Echo, dialect="none") as env:
        env.reset()
        assert env.step(CALL)[2]
    with SyncEnv(Echo) as env:
        env.reset()
        _, _, ended, _, info = env.step(f"<think>maybe {CALL}</think>\nno")
        assert ended and not info.get("tools")  # as in a run: what is thought is not called
        env.reset()
        assert env.step(f"<think>so</think>{CALL}")[0].startswith("[tool echo]")
    with pytest.raises(UserError, match="no dialect 'hermse'.*hermes"):
        SyncEnv(Echo, dialect="hermse")


def test_an_episode_that_runs_out_of_turns_is_truncated() -> None:
    with SyncEnv(Echo, limits=EpisodeLimits(max_turns=2)) as env:
        env.reset()
        assert env.step(CALL)[3] is False
        _, score, terminated, truncated, info = env.step(CALL)
        assert (score, terminated, truncated, info["outcome"]) == (-0.5, False, True, "truncated")
        with pytest.raises(ResetNeeded):
            env.step(CALL)


def test_gymnasiums_own_limit_is_that_of_an_episode() -> None:
    turns = 40
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "1 + 1"}}</tool_call>'
    with gymnasium.make("forge_env/Math-v0", max_episode_steps=turns) as env:
        env.reset(seed=0)
        ends = [env.step(call)[3] for _ in range(turns)]
        assert ends == [False] * (turns - 1) + [True]
        assert env.spec is not None and env.spec.max_episode_steps == turns
    with gymnasium.make("forge_env/Math-v0", max_episode_steps=40, limits=EpisodeLimits(max_turns=2)) as env:
        env.reset(seed=0)
        env.step(call)
        *_, truncated, info = env.step(call)
        assert (truncated, info["ended_by"]) == (True, "max_turns")


def test_a_step_that_the_model_stalls_is_truncated() -> None:
    class Stalled(Trouble):
        time_spent_by = "model"
        truncation_reward = -0.5

    with SyncEnv(Stalled, limits=EpisodeLimits(step_seconds=0.5)) as env:
        env.reset(options=task("hang"))
        _, score, terminated, truncated, info = env.step("go on")
        assert (score, terminated, truncated, info["outcome"]) == (-0.5, False, True, "truncated")


@pytest.mark.parametrize("way", ["truncated", "scored", "model_fault", "timeout", "env_fault", "infra_fault"])
def test_what_the_environment_says_of_the_end(way: str) -> None:
    with SyncEnv(Trouble) as env, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env.reset(options=task(way))
        _, score, terminated, truncated, info = env.step("")
    is_fault = way in ("timeout", "env_fault", "infra_fault")
    assert info["outcome"] == way
    assert (score, truncated) == (0.0 if is_fault else 0.25, is_fault or way == "truncated")
    assert terminated is not truncated


@pytest.mark.parametrize(
    ("way", "outcome", "words"),
    [
        ("reset", "env_fault", r"reset \(.*test_gymnasium_env.py:\d+\): ValueError: no start"),
        ("step", "env_fault", r"step \(.*test_gymnasium_env.py:\d+\): KeyError: 'lost'"),
        ("infra", "infra_fault", "the server is gone"),
        ("nan", "env_fault", "a reward is a finite number"),
        ("hang", "env_fault", "step took longer than 0.5 s"),
    ],
)
def test_a_fault_ends_the_episode_without_a_reward(way: str, outcome: str, words: str) -> None:
    limits = EpisodeLimits(step_seconds=0.5 if way == "hang" else 60)
    with SyncEnv(Trouble, limits=limits) as env:
        text, info = env.reset(options=task(way))
        assert (text == "", info.get("outcome")) == ((True, outcome) if way == "reset" else (False, None))
        with pytest.warns(UserWarning, match="ended by"):
            text, score, terminated, truncated, info = env.step("go on")
        assert (text, score, terminated, truncated, info["outcome"]) == ("", 0.0, False, True, outcome)
        assert re.search(words, info["error"])
        assert env.reset(options=task("fine"))[0] == "[user]\nSay it."
        assert env.step("go on")[1] == 0.25


def test_every_episode_has_an_instance_of_its_own_which_is_closed() -> None:
    env = SyncEnv(Trouble)
    with pytest.raises(ResetNeeded):
        env.step("")
    env.reset(options=task("first"))
    env.reset(options={**task("second"), "further": 3})
    assert Trouble.closed == ["first"]
    env.close()
    env.close()
    assert Trouble.closed == ["first", "second"]
    with pytest.raises(ResetNeeded):
        env.step("")
    assert env.reset(options={**task("third"), "further": 3})[1]["further"] == 3, "it can be used again"
    env.close()


def test_a_long_observation_is_cut_and_the_messages_are_whole() -> None:
    with SyncEnv(Trouble, max_length=100) as env:
        long = Task(prompt=({"role": "user", "content": "x" * 500},), target="fine")
        text, info = env.reset(options={"task": long})
    assert len(text) == 100
    assert text.endswith("[507 characters, cut to 100]")
    assert len(info["messages"][0]["content"]) == 500


def test_mistakes_are_said_at_once() -> None:
    for make, words in (
        (lambda: SyncEnv("mathh"), "Did you mean math"),
        (lambda: SyncEnv(Echo, wrod="x"), "no option 'wrod'.*word"),
        (lambda: SyncEnv(forge_env.EnvFactory(Echo), word="x"), "belong to the factory"),
    ):
        with pytest.raises(UserError, match=words):
            make()
    with SyncEnv(Echo) as env, pytest.raises(UserError, match="type int"):
        env.reset()
        env.step(3)  # type: ignore[arg-type]


# ---- what is shared ----


def test_instances_share_what_is_opened_and_the_last_one_closes_it() -> None:
    one, two, other = SyncEnv(Pooled), SyncEnv(Pooled), SyncEnv(Pooled, word="x")
    assert loops() == [], "nothing starts before the first reset"
    for env in (one, two, other):
        env.reset()
    assert len(loops()) == 1
    assert Pooled.opened == ["open w", "open x"]
    one.close()
    assert Pooled.opened == ["open w", "open x"]
    two.close()
    other.close()
    assert Pooled.opened == ["open w", "open x", "close w", "close x"]


def test_an_instance_that_is_dropped_is_closed_too() -> None:
    env = SyncEnv(Pooled)
    env.reset()
    [thread] = loops()
    del env
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert Pooled.opened == ["open w", "close w"]


def test_what_cannot_be_opened_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def broken(word: str = "w") -> Any:
        raise forge_env.InfraError("no pool today")
        yield

    monkeypatch.setattr(sys.modules[__name__], "pool", broken)
    with SyncEnv(Pooled) as env:
        with pytest.raises(forge_env.InfraError, match="no pool today"):
            env.reset()
        with pytest.raises(ResetNeeded):
            env.step("it")
    monkeypatch.undo()
    with SyncEnv(Pooled) as env:
        assert env.reset()[0]


def test_a_process_that_ends_with_an_open_instance_closes_it(tmp_path: Path) -> None:
    (tmp_path / "left_open.py").write_text(
        "import pathlib, sys\n"
        "from forge_env import Env, Task\n"
        "from contrib.gymnasium.env import SyncEnv\n"
        "class Open(Env):\n"
        "    def reset(self, *, seed=None, options=None): return [], {}\n"
        "    async def close(self): pathlib.Path(sys.argv[1]).write_text('closed')\n"
        "SyncEnv(Open).reset(options={'task': Task(prompt=())})\n"
        "env = SyncEnv(Open); env.reset(options={'task': Task(prompt=())})\n"
    )
    command = [sys.executable, str(tmp_path / "left_open.py"), str(tmp_path / "mark")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "mark").read_text() == "closed"


def test_threads_use_instances_at_once() -> None:
    results: list[float] = []

    def play(seed: int) -> None:
        with SyncEnv(Echo) as env:
            for i in range(5):
                _, info = env.reset(seed=seed + i)
                wanted = info["messages"][1]["content"].removeprefix("Say ").removesuffix(".")
                results.append(env.step(wanted)[1])

    threads = [threading.Thread(target=play, args=(10 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [1.0] * 40


def test_a_fork_starts_a_loop_of_its_own() -> None:
    with SyncEnv(Echo) as env:
        env.reset(seed=1)
        env.step("no")  # worker threads are idle now, and the fork has none of them
        readable, writable = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                text, _ = env.reset(seed=1)
                os.write(writable, f"{len(text)} {env.step('no')[4]['outcome']}".encode())
                env.close()
            finally:
                os._exit(0)
        os.close(writable)
        deadline = time.monotonic() + 60
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, 9)
                pytest.fail("the fork hangs")
            time.sleep(0.01)
        with os.fdopen(readable) as pipe:
            assert pipe.read() == f"{len(env.reset(seed=1)[0])} scored"


# ---- vector environments ----


def test_vector_environments_with_autoreset() -> None:
    seen = []
    for mode in ("sync", "async"):
        envs = gymnasium.make_vec("forge_env/Math-v0", num_envs=3, vectorization_mode=mode)
        try:
            first, _ = envs.reset(seed=5)
            assert len(set(first)) == 3
            assert first in envs.observation_space
            calculate = '<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>'
            texts, _, terminated, truncated, info = envs.step(("never", calculate, "never"))
            assert texts == ("", "[tool calculator]\n42", "")
            assert (terminated.tolist(), truncated.tolist()) == ([True, False, True], [False] * 3)
            assert info["outcome"].tolist() == ["scored", None, "scored"]
            again, _, terminated, _, _ = envs.step(("ignored", "never", "ignored"))
            assert again[0] not in ("", first[0])
            assert (again[1], terminated.tolist()) == ("", [False, True, False])
            seen.append((first, again))
        finally:
            envs.close()
        assert multiprocessing.active_children() == []
    assert seen[0] == seen[1]


def test_same_step_autoreset_keeps_the_last_observation() -> None:
    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("forge_env/Math-v0", num_envs=2, vectorization_mode="sync", vector_kwargs=kwargs)
    first, _ = envs.reset(seed=5)
    texts, _, terminated, _, info = envs.step(("1", "2"))
    envs.close()
    assert terminated.all()
    assert info["final_obs"].tolist() == ["", ""]
    assert all("[user]" in text for text in texts)
    assert texts != first


# ---- the space ----


def test_the_message_space() -> None:
    space = MessageSpace(10, seed=3)
    for text in ("", "x" * 10, "é😀\n", "\ud800"):
        assert text in space
    for other in ("x" * 11, b"x", 3, None):
        assert other not in space
    assert all(space.sample() in space for _ in range(200))
    assert space == MessageSpace(10)
    assert space != MessageSpace(11)
    assert space.sample(mask=(3, None)).__len__() == 3


# ---- ids ----


def test_names_become_ids() -> None:
    ids = {"code_exec": "CodeExec", "MyEnv": "MyEnv", "my-env2": "MyEnv2", "_a__b_": "AB"}
    for name, gym_id in ids.items():
        assert gymnasium_id(name) == f"forge_env/{gym_id}-v0"


def test_every_environment_has_an_id() -> None:
    ids = [register_env(name) for name in forge_env.env_names()]
    assert {"forge_env/Math-v0", "forge_env/CodeExec-v0"} <= set(ids)
    assert [register_env(name) for name in forge_env.env_names()] == ids
    assert gymnasium.spec("forge_env/Math-v0").to_json()


def test_an_environment_of_the_users_own_has_one() -> None:
    """Whichever of the two was imported first; test_a_registry_file has the other order."""
    out = script(
        "import gymnasium, forge_env\n"
        "print(gymnasium.spec('forge_env/Math-v0').id, type(gymnasium.__spec__.loader).__name__)\n"
        "forge_env.register('my_env', 'envs.math:Math')\n"
        "with gymnasium.make('forge_env/MyEnv-v0') as env: print(env.reset(seed=0)[0][:8])\n"
    )
    assert out == "forge_env/Math-v0 SourceFileLoader\n[system]\n"


def test_gymnasium_can_import_the_module_itself_and_nothing_heavy() -> None:
    out = script(
        "import gymnasium, sys\n"
        "spec = gymnasium.spec('forge_env/Math-v0') if 'contrib.gymnasium.env' in sys.modules else None\n"
        "env = gymnasium.make('contrib.gymnasium.env:forge_env/Math-v0')\n"
        "print(env.unwrapped.reset(seed=0)[0][:8].strip(), sorted(sys.modules.keys() & {'torch', 'vllm', 'docker'}))\n"
        "env.close()\n"
    )
    assert out == "[system] []\n"


def test_a_registry_file_that_is_broken_keeps_nobody_from_importing_gymnasium(tmp_path: Path) -> None:
    file = tmp_path / "registry.yaml"
    file.write_text("math: [")
    code = "import os; os.environ['FORGE_ENV_REGISTRY'] = " + repr(str(file))
    shown = "print('imported', type(gymnasium.__spec__.loader).__name__)"
    assert script(f"{code}\nimport forge_env, gymnasium\n{shown}\n") == "imported SourceFileLoader\n"


def test_two_names_with_one_id_are_a_users_mistake() -> None:
    register_env("my_tool")
    with pytest.raises(UserError, match="'MyTool' and 'my_tool' would both be forge_env/MyTool-v0"):
        register_env("MyTool")
