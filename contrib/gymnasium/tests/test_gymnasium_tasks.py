"""Tasks that are none are the same sentence by Gymnasium's interface."""

from __future__ import annotations

import pytest

from contrib.gymnasium.env import SyncEnv
from forge_env.core.errors import UserError
from tests.forge_env.rollout.test_task_list import SENTENCES, project  # noqa: F401 (a fixture)


@pytest.mark.parametrize("name", ["Raises", "Later", "NumberAsKind"])
def test_bad_tasks_are_the_same_sentence(name: str) -> None:
    env = SyncEnv(f"bad.py:{name}", split="test")
    try:
        with pytest.raises(UserError) as raised:
            env.reset(seed=0)
    finally:
        env.close()
    assert str(raised.value) == SENTENCES[name]
