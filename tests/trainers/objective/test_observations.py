"""Which tokens of an episode are the environment's answers, and when its samples have them."""

from __future__ import annotations

from dataclasses import replace

from tests.trainers.episodes import episode, group, turn
from trainers.config import SHORT_OPTIONS
from trainers.dapo import DAPO
from trainers.grpo import GRPO
from trainers.objective.observations import observed_tokens
from trainers.setup.describe import describe_plan
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan


def test_the_environment_writes_what_follows_the_first_turn_of_a_row() -> None:
    played = episode(
        turn(7, 7, prompt=3),
        turn(8, prompt=2),
        replace(turn(9, prompt=2), auxiliary="title"),
        turn(6, prompt=4, starts_row=True),  # the template has changed the history, which is no answer
        turn(5, prompt=1),
    )
    assert observed_tokens(played).tolist() == [
        *[False] * 5, True, True, False, *[False] * 3,
        *[False] * 5, True, False,
    ]  # fmt: skip
    assert len(observed_tokens(played)) == sum(len(row.token_ids) for row in played.rows)


def test_samples_have_them_where_they_are_learned() -> None:
    played = group(episode(turn(7, prompt=3), turn(8, prompt=2)), episode(turn(7, prompt=3)))
    for coef, counts in (("0", [0, 0]), ("0.05", [2, 0])):
        plan = make_plan(parse(GRPO.config, ["--training.observation_coef", coef], SHORT_OPTIONS), GRPO)
        assert plan.objective is not None
        samples = plan.objective.samples([played])
        assert [sample.num_observed for sample in samples] == counts
        assert [sample.is_idle for sample in samples] == [not counts[0], True]


def test_the_plan_says_that_dynamic_sampling_drops_what_could_be_learned() -> None:
    options = ["--training.observation_coef", "0.05", "--dapo.dynamic_sampling"]
    said = [
        describe_plan(make_plan(parse(DAPO.config, [*options, value], SHORT_OPTIONS), DAPO))
        for value in ("true", "false")
    ]
    sentence = "--training.observation_coef learns nothing from them"
    assert [any(sentence in text for _, text in lines) for lines in said] == [True, False]
