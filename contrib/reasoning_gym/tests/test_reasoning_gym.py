"""reasoning-gym's datasets: gold scores 1, splits are disjoint, and what a model writes is not run."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.reasoning_gym import env as reasoning_gym_env
from contrib.reasoning_gym.env import ReasoningGym, dataset_names, extract_answer, resolve, score_all
from contrib.reasoning_gym.process import Worker, worker
from contrib.reasoning_gym.worker import _is_one_number, _is_probability, _uses_numbers, literal
from forge_env import EnvError, EnvFactory, EpisodeLimits, Outcome, Task, UserError, env_class, run_episode
from tests.envs.processes.test_worker_confinement import are_all_denied, is_confined
from tests.helpers.packages import needs

pytestmark = needs("reasoning_gym")

SAMPLE = ["basic_arithmetic", "graph_color", "gsm_symbolic", "list_functions", "propositional_logic", "spiral_matrix"]
UNSOUND = ["game_of_life_halting"]
"""Datasets whose scorer takes anything, so that no entry becomes a task."""


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    worker.close()
    assert worker.pid is None


def test_the_registry_knows_the_prefix() -> None:
    assert env_class("reasoning_gym:leg_counting") is resolve("leg_counting")


def draw(name: str, split: str = "train", *, count: int = 3, seed: int = 3, **options: object) -> list[Task]:
    return list(EnvFactory(resolve(name), **options).tasks(split, count=count, seed=seed))


def score(task: Task, answer: str) -> float:
    return ReasoningGym.score(task, answer)


async def play(task: Task, text: str, **options: object) -> tuple[Outcome, float | None]:
    async with EnvFactory(resolve(task.metadata["dataset"]), **options) as factory:
        agent = ScriptedAgent(lambda messages: {"role": "assistant", "content": text})
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=EpisodeLimits())
    return episode.outcome, episode.reward


def check(name: str, count: int) -> None:
    """Gold scores 1 where there is gold, junk does not, and the tasks are plain data that can be made again."""
    tasks = draw(name, count=count)
    assert json.loads(json.dumps([dict(task.metadata) for task in tasks])) == [dict(task.metadata) for task in tasks]
    assert [task for task in tasks if task.target is not None and score(task, task.target) != 1.0] == []
    assert [task for task in tasks if task.target is not None and task.target.strip() != task.target] == []
    assert [task for task in tasks if score(task, "qwfp gjluy") == 1.0] == []
    assert len({task.id for task in tasks}) == count


@pytest.mark.parametrize("name", SAMPLE)
def test_a_dataset_is_an_environment(name: str) -> None:
    check(name, 3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_dataset_is_an_environment() -> None:
    wrong = {}
    for name in dataset_names():
        try:
            check(name, 3)
        except (AssertionError, EnvError, UserError) as error:
            wrong[name] = str(error)
    assert list(wrong) == UNSOUND, wrong
    assert "0 were found that are sound" in wrong["game_of_life_halting"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_dataset_gives_the_same_in_another_process_and_in_another_order() -> None:
    tasks = {name: draw(name, count=2) for name in dataset_names() if name not in UNSOUND}
    worker.close()
    for name, drawn in reversed(tasks.items()):
        assert [score(task, "?") < 1 for task in reversed(drawn)] == [True, True], name
        assert draw(name, count=2) == drawn


def test_the_same_seed_gives_the_same_tasks_in_the_process_that_follows_a_killed_one() -> None:
    names = ["isomorphic_strings", "list_functions", "polynomial_multiplication"]  # they depend on the order of sets
    first = [draw(name) for name in names]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert [draw(name) for name in names] == first
    assert draw("chain_sum", seed=4) != draw("chain_sum", seed=3)


def test_the_splits_are_disjoint_by_content_and_by_seed() -> None:
    train, test = (draw("coin_flip", split, count=30) for split in ("train", "test"))
    assert {t.prompt[0]["content"] for t in train} & {t.prompt[0]["content"] for t in test} == set()
    parity = [{(t.metadata["seed"] + t.metadata["index"]) % 2 for t in tasks} for tasks in (train, test)]
    assert parity == [{0}, {1}]


async def test_an_episode() -> None:
    [task] = draw("leg_counting", count=1)
    gold = ReasoningGym.expert(list(task.prompt))["content"]
    assert await play(task, f"Two and two, <answer>1</answer>, no: {gold}") == (Outcome.SCORED, 1.0)
    for text in ("", task.target, "<answer></answer>", "<answer>", f"{gold}<answer>1</answer>", "</answer><answer>"):
        assert await play(task, text) == (Outcome.SCORED, 0.0)


async def test_partial_credit_can_be_switched_off() -> None:
    [task] = draw("prime_factorization", count=1)
    assert await play(task, "<answer>0</answer>") == (Outcome.SCORED, 0.001)
    assert await play(task, "<answer>0</answer>", partial_credit=False) == (Outcome.SCORED, 0.0)
    assert await play(task, f"<answer>{task.target}</answer>", partial_credit=False) == (Outcome.SCORED, 1.0)


@pytest.mark.parametrize(
    ("name", "probes"),
    [
        ("complex_arithmetic", ["nan", "nan + nani", "inf", "1e400", "0"]),
        ("puzzle24", ["6*4*1*1", "8*3*1*1", "24"]),
        ("coin_flip", ["0", "1", "0.", "0/1"]),
        ("countdown", ["E/E", "+".join(["E/E"] * 24), "24"]),
        ("gsm_symbolic", [" ".join(map(str, range(100))), "6*4*1*1"]),
        ("quantum_lock", ["Press A, B or C.", "ABCABCABCABC"]),
        ("spell_backward", ["a", "e", "answer"]),
    ],
)
def test_scorers_pay_for_right_answers_only(name: str, probes: list[str]) -> None:
    """Their own would give full marks for some of these, and half of them for others."""
    for task in draw(name, count=2):
        texts = [task.target, *probes, task.prompt[0]["content"], f"{task.target} or {task.target}1"]
        scores = [result.get("score", 0.0) for result in score_all(task, texts)["results"]]
        assert scores[0] == 1.0
        assert [text for text, score in zip(texts[1:], scores[1:], strict=True) if score >= 0.1] == []


PLAIN = ["8/(3 - 8/3)", "8 / (3-8/3)", "8/(3 - 8/3).", "`8/(3 - 8/3)`", "8 ÷ (3 − 8 ÷ 3)", "$[8/(3 - 8/3)]$"]
QUOTIENTS = [*PLAIN, r"\frac{8}{3 - \frac{8}{3}}", r"8 \div \left(3 - 8 \div 3\right)"]
PRODUCTS = ["3 × 8", "3 · 8", "**3*8**", "3 x 8", r"3 \times 8", r"\(3 \cdot 8\)"]


@pytest.mark.parametrize(
    ("numbers", "target", "right", "wrong"),
    [
        ([3, 3, 8, 8], 24, QUOTIENTS, ["8*3", "24", "8*3*8/8 + 3 - 3", "(8//3)*8 + 8*3", "33 - 8 - 8"]),
        ([3, 8], 24, PRODUCTS, ["3 ** 8", "3^8", "38", "3 or 8"]),
        ([5, 1], 4, ["5 - 1", "-1 + 5", "(5-1)"], ["5 + -1 + 0", "5.0 - 1", "4", "5 - True", "lambda: 4", "5-1=4", ""]),
    ],
)
def test_arithmetic_with_given_numbers(numbers: list[int], target: int, right: list[str], wrong: list[str]) -> None:
    entry = {"metadata": {"numbers": numbers, "target": target}}
    assert [_uses_numbers(text, entry) for text in right] == [1.0] * len(right)
    assert [text for text in wrong if _uses_numbers(text, entry)] == []


CALCULATED = ["5^n", "x^5", "5*x", "1e5", "2*5", "x+5", "5²", "√5", "5 million", "negative 5", "5k", "5!", "> 5"]


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("5", ["5 km", "**5**", "+5", "5/day", "5-hour", "5 m²", "$5.", "`5`", "x = 5", "5 = 5", "5e0"], CALCULATED),
        ("-5", ["\u22125", "**-5**", "is -5.", "minus 5"], ["5", "x-5", "10-5"]),
        ("5", [], ["\u22125", "5 or 6", "6", ""]),
        ("1/2", ["½", "1/2", "0.5"], ["1:2"]),
    ],
)
def test_a_text_with_one_number_and_no_arithmetic(gold: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if _is_one_number(text, {"answer": gold}) != 1.0] == []
    assert [text for text in wrong if _is_one_number(text, {"answer": gold})] == []


def test_a_probability_in_every_form() -> None:
    right = ["0.5", "50%", r"50\%", "50 percent", "1/2", r"\frac12", "½", "0.50."]
    wrong = ["50", "5%", "0.5 or 0.6", "1:1", "0.5 dollars", "1/0", ""]
    assert [_is_probability(text, {"answer": "0.5"}) for text in right] == [1.0] * len(right)
    assert [text for text in wrong if _is_probability(text, {"answer": "0.5"})] == []


@pytest.mark.parametrize("name", ["sokoban", "quantum_lock"])
def test_moves_may_stand_in_a_sentence_in_quotes_and_in_a_fence(name: str) -> None:
    [task] = draw(name, count=1)
    moves = task.target
    forms = [f"{moves}.", f'"{moves}"', f"`{moves}`", f"**{moves}**", f"```\n{moves}\n```", f"```text\n{moves}\n```"]
    assert [text for text in forms if score(task, text) != 1.0] == []
    assert [text for text in (f"The moves are {moves}", f"{moves} is it", "...") if score(task, text) >= 0.1] == []


def test_a_sum_of_parts_above_1_is_no_full_mark() -> None:
    """spell_backward pays 0.2 less for a right beginning, unless the sum of its letters is rounded to more than 1."""
    [task] = draw("spell_backward", count=1, min_word_len=9, max_word_len=9)
    assert score(task, task.target) == 1.0
    assert score(task, f"{task.target}x") <= 0.1


def test_a_dataset_whose_scorer_takes_anything_says_so() -> None:
    with pytest.raises(UserError, match=r"game_of_life_halting gives full marks to .*which was not the answer"):
        draw("game_of_life_halting", count=1)


HOSTILE = ["9" * 5000, "(" * 3000, "[" * 3000, "\x00", "\ud800", "1/0", "[1, 'a', None]", "lambda: 0", "ⅷ"]


@pytest.mark.parametrize("name", ["bitwise_arithmetic", "countdown", "spiral_matrix", "simple_integration"])
def test_hostile_text_scores_nothing_and_ends(name: str) -> None:
    [task] = draw(name, count=1)
    assert [text for text in HOSTILE if score(task, text) > 0.1] == []
    assert score(task, task.target) == 1.0


def test_an_answer_that_takes_for_ever_to_score_is_stopped() -> None:
    [task] = draw("countdown", count=1)
    assert score(task, "99**9**9") == 0.0
    assert score(task, task.target) == 1.0


@pytest.mark.parametrize(
    "name", ["spiral_matrix", "n_queens", "string_insertion", "binary_matrix", "countdown", "puzzle24"]
)
def test_what_a_model_writes_is_not_run(name: str, tmp_path: Path) -> None:
    [task] = draw(name, count=1)
    mark = tmp_path / "mark"
    run = f"open({str(mark)!r}, 'w')"
    for text in (run, f"[{run}]", f"__import__('os').open({str(mark)!r}, 65)", f"1 + int({run} is None)"):
        assert score(task, text) < 1.0
    assert not mark.exists()


def test_an_integral_is_not_its_own_answer() -> None:
    [task] = draw("simple_integration", count=1)
    assert score(task, f'"{task.target}"') == 1.0
    integrand = task.prompt[0]["content"].split("∫ ")[-1].split(" dx")[0] if "∫" in task.prompt[0]["content"] else "x"
    assert score(task, f"Integral({integrand}, x)") == 0.0


async def test_a_very_long_answer_is_not_scored() -> None:
    [task] = draw("spell_backward", count=1)
    assert await play(task, f"<answer>{task.target * 10_000}</answer>") == (Outcome.SCORED, 0.0)


async def test_a_task_that_cannot_be_made_again_is_a_fault() -> None:
    [task] = draw("leg_counting", count=1)
    other = Task(prompt=({"role": "user", "content": "?"},), target="1", metadata=task.metadata)
    assert await play(other, "<answer>1</answer>") == (Outcome.ENV_FAULT, None)


def test_options_are_those_of_the_dataset() -> None:
    [task] = draw("chain_sum", count=1, min_terms="2", max_terms=2, min_digits=1, max_digits="1")
    assert task.prompt[0]["content"].count("+") + task.prompt[0]["content"].count("-") <= 3
    [task] = draw("caesar_cipher", count=1, min_words="3", max_words="3")
    for name, options, words in (
        ("chain_sum", {"min_term": 2}, "no option 'min_term'.*Did you mean min_terms"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "reasoning_gym:chain_sum are wrong: "),
        ("chain_sum", {"min_terms": "many"}, "reasoning_gym:chain_sum are wrong: .*min|valid integer"),
    ):
        with pytest.raises(UserError, match=f"(?s){words}"):
            draw(name, **options)


def test_mistakes_are_said() -> None:
    with pytest.raises(UserError, match="no dataset 'chain_sun'. Did you mean chain_sum"):
        resolve("chain_sun")
    with pytest.raises(UserError, match="no split 'dev'"):
        draw("chain_sum", "dev")
    with pytest.raises(UserError, match="200 distinct train tasks were asked for"):
        draw("count_bits", count=200, min_n=1, max_n=9)


def test_an_unknown_question_has_no_expert() -> None:
    with pytest.raises(EnvError, match="no solution of this task of reasoning_gym is known"):
        ReasoningGym.expert([{"role": "user", "content": "Why?"}])
    [task] = draw("graph_color", count=1)
    with pytest.raises(EnvError, match="no solution of this task of reasoning_gym is known"):
        ReasoningGym.expert(list(task.prompt))


def test_without_the_package_the_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reasoning_gym_env._datasets.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'forge-env\[reasoning-gym\]'"):
        dataset_names()


def test_extracting_the_answer() -> None:
    assert extract_answer("<answer>1</answer> no: <answer> 2 </answer> yes") == "2"
    assert extract_answer("<answer>\n 1\n2 </answer>") == "1\n2"
    assert [extract_answer(text) for text in ("", "x", "<answer>x", "x</answer>", "</answer>x<answer>")] == [""] * 5


def test_literals_are_all_that_is_evaluated() -> None:
    for text in ("__import__('os')", "[x for x in (1,)]", "().__class__", "f'{1}'", "print", "2 ** 9"):
        with pytest.raises((ValueError, SyntaxError)):
            literal(text)


def test_an_interruption_right_after_the_lock_was_taken_leaves_it_free() -> None:
    """The others would wait for it in vain."""

    def interrupt(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and getattr(called, "__name__", "") == "acquire":
            sys.setprofile(None)
            raise KeyboardInterrupt

    interrupted = Worker()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted.ask({"do": "datasets"})
    finally:
        sys.setprofile(None)
    with ThreadPoolExecutor(max_workers=1) as other:
        assert other.submit(interrupted._lock.acquire, timeout=0.0).result()


def test_the_reasoning_gym_process_is_confined_and_says_so() -> None:
    worker = Worker()
    try:
        before = worker.enforced()
        assert are_all_denied(before) and worker.pid is None
        request = {"do": "entries", "dataset": "leg_counting", "config": {}, "seed": 1, "indices": [0, 2]}
        assert len(worker.ask(request)["entries"]) == 2
        assert worker.pid is not None and is_confined(worker.pid) and worker.enforced() == before
    finally:
        worker.close()
