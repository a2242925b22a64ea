"""Tasks of an environment of another name, for programs: they are drawn as in a run."""

from __future__ import annotations

import pytest

from contrib.external.tasks import make_tasks
from forge_env.cli.describe_target import describe
from forge_env.core.errors import UserError
from forge_env.evaluation.digests import environment_digests
from forge_env.registry.registry import resolve
from forge_env.rollout.factory import make
from tests.forge_env.rollout.test_task_list import SENTENCES, project  # noqa: F401 (a fixture)


@pytest.mark.parametrize("name", SENTENCES)
def test_bad_tasks_are_the_same_sentence(name: str) -> None:
    with pytest.raises(UserError) as raised:
        make_tasks("test", count=1, seed=0, tasks=f"bad.py:{name}", data="")
    assert str(raised.value) == SENTENCES[name]


def test_the_program_is_what_the_environment_is_made_of() -> None:
    assert "bad.py" in environment_digests(make("external", command="python 'bad.py' --fast"))


def test_the_command_is_needed_though_tasks_could_be_drawn_without() -> None:
    options = describe(resolve("external"))["options"]
    assert [option["name"] for option in options if option["required"]] == ["command"]
