"""What a run of an agent program is refused for, before it starts."""

from __future__ import annotations

import pytest

from tests.trainers.setup.test_refusals import refusal

REFUSED = {
    "--env external": "the environment external needs the option command, which has no default",
    "--env external --command true": (
        "the environment external has no expert, whose demonstrations the warm-up and the tiny model are made from, "
        "and there is no --model: train a --model that can do some of it already, with --warmup.steps 0, or name a "
        "--warmup.expert"
    ),
    "--env external --command true --model who/knows --warmup.steps 5": (
        "the environment external has no expert, whose demonstrations the warm-up and the tiny model are made from, "
        "and --warmup.steps is 5: train a --model that can do some of it already, with --warmup.steps 0, or name a "
        "--warmup.expert"
    ),
    "--env external --command true --model who/knows --warmup.steps 5 --warmup.expert none:expert": (
        "--warmup.expert 'none:expert': there is no module 'none'"
    ),
}


@pytest.mark.parametrize("options", REFUSED)
def test_a_refusal_is_one_sentence(options: str) -> None:
    assert refusal(options) == REFUSED[options]
