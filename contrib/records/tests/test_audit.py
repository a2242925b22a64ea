"""`forge-env audit`: whatever is changed in a file of episodes, one number at a time, is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import scripted_agent
from agents.token_agent import TokenAgent
from contrib.records.audit import audit, model_of, open_decoder
from envs.math import Math
from forge_env.cli.main import main
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.forge_env.records.test_run_weights import make_run
from tests.helpers.scripted_policy import ScriptedPolicy

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def decoder(tiny_model: Path) -> Any:
    return open_decoder(tiny_model)


@pytest.fixture(scope="module")
def line(tiny_model: Path) -> str:
    """An episode of two sampled turns, by a policy that knows the expert's words."""

    async def play() -> Episode:
        factory = make("math")
        (task,) = factory.tasks("test", count=1)
        renderer = TokenAgent(str(tiny_model), ScriptedPolicy(lambda prompt: [0])).renderer
        words = iter([Math.expert(list(task.prompt)), {"role": "assistant", "content": "no <idea>"}])
        policy = ScriptedPolicy(lambda prompt: renderer.write(next(words)))
        agent = TokenAgent(str(tiny_model), policy)
        return await run_episode(factory, agent, task, seed=0, episode_id="e/0", limits=EpisodeLimits())

    episode = asyncio.run(play())
    assert len(episode.turns) == 2 and episode.is_trainable
    return episode.to_json()


@pytest.fixture(scope="module")
def demonstration(tiny_model: Path) -> str:
    """An episode of the expert, as a run records it: a call without an id, its arguments an object, and an answer."""
    factory = make("math")
    (task,) = factory.tasks("train", count=1)
    agent = scripted_agent("math", model=str(tiny_model))
    limits = EpisodeLimits(max_tokens=10_000)
    played = run_episode(factory, agent, task, seed=0, episode_id="demonstrations/0/0", limits=limits)
    episode = asyncio.run(played)
    (call,) = episode.turns[0].message["tool_calls"]
    assert "id" not in call and isinstance(call["function"]["arguments"], dict)
    assert episode.reward == 1.0 and [turn.kind for turn in episode.turns] == ["tokens", "tokens"]
    return episode.to_json()


def function_of(episode: dict[str, Any]) -> dict[str, Any]:
    """The first call of the first message."""
    function: dict[str, Any] = episode["turns"][0]["message"]["tool_calls"][0]["function"]
    return function


def test_what_was_sampled_passes(line: str, decoder: Any, tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text(line + "\n")
    found = audit(tmp_path / "e.jsonl", decoder)
    assert (found.problems, found.episodes, found.turns, found.decoded_turns) == ([], 1, 2, 2)
    assert found.sampled_tokens > 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e["turns"][0]["prompt_ids"].__setitem__(0, 5), "what the engine saw is the concatenation"),
        (lambda e: e["turns"][0]["token_ids"].__setitem__(0, 5), "what the engine saw is the concatenation"),
        (lambda e: e["turns"][1]["token_ids"].__setitem__(0, 5), "turn 1: its tokens decode to"),
        (lambda e: e["turns"][1]["message"].update(content="42"), "turn 1: its tokens decode to"),
        (lambda e: e["turns"][1]["token_ids"].__setitem__(0, -1), "a token id is no whole number"),
        (lambda e: e["turns"][1].update(context_digest=""), "there is no digest"),
        (lambda e: e["turns"][1]["logprobs"].__setitem__(0, 0.5), "a logprob is no finite number up to 0"),
        (lambda e: e["turns"][1]["logprobs"].__setitem__(0, float("nan")), "a logprob is no finite number up to 0"),
        (lambda e: e["turns"][1]["logprobs"].pop(), "one logprob per sampled token"),
        (lambda e: e["turns"][1]["versions"][0].__setitem__(0, -1), "they never fall, and start at 0"),
        (lambda e: e["turns"][1]["versions"][0].__setitem__(1, 1), "version spans cover the sampled tokens"),
        (lambda e: e["turns"][0].update(starts_row=False), "the first turn with tokens starts a row"),
        (lambda e: e["turns"][0]["message"]["tool_calls"][0].pop("id"), "turn 0: a call in its message has no id"),
        (lambda e: e["turns"][0]["message"]["tool_calls"][0].update(id="other"), "turn 0: its tokens decode to"),
        (lambda e: e["turns"][0]["tool_calls"][0].update(id=""), "turn 0: a call has no id"),
        (lambda e: function_of(e).update(arguments="[" * 10**5), "turn 0: its tokens decode to"),
        (lambda e: e.update(reward=1.0), "rewards add up to 0, and its reward is 1.0"),
        (lambda e: e.update(reward=None), "needs a finite reward"),
        (lambda e: e.update(outcome="infra_fault"), "has no reward"),
        (lambda e: e.update(schema_version=99), "schema version 99"),
        (lambda e: e.pop("task"), "not an Episode"),
    ],
)
def test_every_change_is_found(line: str, decoder: Any, tmp_path: Path, change: Change, words: str) -> None:
    data = json.loads(line)
    change(data)
    (tmp_path / "e.jsonl").write_text(line + "\n" + json.dumps({**data, "id": "e/1"}) + "\n")
    found = audit(tmp_path / "e.jsonl", decoder)
    assert found.problems and all(p.startswith(f"{tmp_path}/e.jsonl:2: ") for p in found.problems)
    assert words in " ".join(found.problems)


def training_run(folder: Path, **phases: str) -> Path:
    """The folder of a training run with one episode for each phase."""
    (folder / "episodes").mkdir()
    for phase, line in phases.items():
        (folder / "episodes" / f"{phase}.jsonl").write_text(line + "\n")
    return folder


def test_an_experts_call_needs_no_id_in_its_message(
    line: str, demonstration: str, decoder: Any, tmp_path: Path
) -> None:
    run = training_run(tmp_path, demonstrations=demonstration, train=line)
    found = audit(run, decoder)
    assert (found.problems, found.episodes, found.decoded_turns) == ([], 2, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e["turns"][0]["tool_calls"][0].update(id=""), "turn 0: a call has no id"),
        (lambda e: e["turns"][0]["tool_calls"][0].update(name="python"), "turn 0: its tokens decode to"),
        (lambda e: e["turns"][0]["tool_calls"][0]["arguments"].update(expression="0"), "turn 0: its tokens decode to"),
        (lambda e: e["turns"][0].update(tool_calls=[]), "turn 0: its tokens decode to"),
        (lambda e: e["turns"][1]["token_ids"].__setitem__(0, 5), "turn 1: its tokens decode to"),
        (lambda e: e["turns"][1]["token_ids"].clear(), "at least one token that the model wrote"),
        (lambda e: e["turns"][1]["prompt_ids"].__setitem__(0, -1), "turn 1: a token id is no whole number"),
    ],
)
def test_what_a_demonstration_has_lost_is_found(
    demonstration: str, decoder: Any, tmp_path: Path, change: Change, words: str
) -> None:
    data = json.loads(demonstration)
    change(data)
    found = audit(training_run(tmp_path, demonstrations=json.dumps(data)), decoder)
    assert words in " ".join(found.problems)


@pytest.mark.parametrize("lost", [["logprobs", "versions"], ["logprobs", "versions", "prompt_ids", "token_ids"]])
def test_what_an_engine_sampled_is_no_demonstration(line: str, tmp_path: Path, lost: list[str]) -> None:
    """A turn that lost its logprobs, or all its tokens, is none of an expert's: the name of the file says so."""
    data = json.loads(line)
    for turn in data["turns"]:
        kind = "text" if "token_ids" in lost else "tokens"
        turn.update({name: [] for name in lost}, kind=kind, context_digest="")
    found = audit(training_run(tmp_path, demonstrations=json.dumps(data), train=json.dumps(data))).problems
    where, what = f"{tmp_path}/episodes/train.jsonl:1: turn", "of the engine that sampled it are lost"
    assert [problem.startswith(f"{where} {number}: ") for number, problem in enumerate(found)] == [True, True]
    assert all(problem.endswith(what) for problem in found)


def test_the_command_finds_the_model_of_a_run(
    line: str, tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes/after.jsonl").write_text(line + "\n")
    assert model_of(tmp_path) is None
    (tmp_path / "model").symlink_to(tiny_model)
    assert model_of(tmp_path) == tmp_path / "model"
    assert main(["audit", str(tmp_path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["decoded_turns"] == 2
    (tmp_path / "episodes/after.jsonl").write_text(line + "\n" + line + "\nhalf\n" + "[" * 10**5)
    assert main(["audit", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert "after.jsonl:2: the episode 'e/0' is there twice" in out
    assert "after.jsonl:3: not an Episode" in out
    (tmp_path / "episodes/after.jsonl").write_text("")
    assert main(["audit", str(tmp_path)]) == 2
    assert "holds no episode yet: there is nothing to audit" in capfd.readouterr().err
    assert "after.jsonl:4: not an Episode" in out
    assert "3 problems" in out


def test_an_evaluation_knows_its_model_too(tiny_model: Path, tmp_path: Path) -> None:
    for agent, model in ((f"vllm:{tiny_model}", tiny_model), ("scripted:expert", None), ("vllm:Org/Hub", None)):
        (tmp_path / "plan.json").write_text(json.dumps({"agent": agent}))
        assert model_of(tmp_path) == model


def test_episodes_that_faulted_are_checked_too(line: str, tmp_path: Path) -> None:
    episode = json.loads(line) | {"outcome": "infra_fault", "reward": None, "error": "PolicyError: gone"}
    fault = {"class": "PolicyError", "error": episode["error"], "episode": episode}
    (tmp_path / "episodes.jsonl").write_text(line + "\n")
    (tmp_path / "faults.jsonl").write_text(f"{json.dumps(fault)}\n{json.dumps(fault)}\n")
    assert (audit(tmp_path).problems, audit(tmp_path).episodes) == ([], 3)
    episode["turns"][0]["token_ids"][0] = 5
    (tmp_path / "faults.jsonl").write_text(json.dumps(fault) + "\n")
    (problem,) = audit(tmp_path).problems
    assert problem.startswith(f"{tmp_path}/faults.jsonl:1: ") and "concatenation of the row" in problem


def test_an_audit_finds_the_tokenizer_of_a_checkpoint(tmp_path: Path) -> None:
    run, evaluation = make_run(tmp_path / "run", (40,)), tmp_path / "evaluation"
    model = run / "checkpoints" / "step_000040" / "model"
    for folder in (model, evaluation):
        folder.mkdir()
    (evaluation / "plan.json").write_text(json.dumps({"agent": f"checkpoint:{run}@20"}))
    assert model_of(evaluation) is model_of(run) is None
    (model / "tokenizer.json").touch()
    assert model_of(evaluation) == model_of(run) == model
