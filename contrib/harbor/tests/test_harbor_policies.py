"""What a Harbor task asks for beside its files: networks, times, health, what is excluded, fields of older versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrib.harbor.config import read_task
from contrib.harbor.policies import network_facts, read_consent
from contrib.harbor.tests.playing import play, write_task
from envs.messages import call, say
from forge_env import Outcome
from tests.helpers.scripts import tool_results

_IMAGE = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\n'
_PAID = "#!/bin/sh\n[ -e /tmp/done ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n"


async def test_what_is_excluded_is_not_copied_whatever_it_is(tmp_path: Path) -> None:
    toml = 'artifacts = [{ source = "out", exclude = ["*.log", "cache"] }]\n[verifier]\nenvironment_mode = "separate"\n'
    toml += f'{_IMAGE}network_mode = "no-network"\n'
    test = """#!/bin/sh
find /tmp/out | sort > /tmp/listed
[ "$(cat /tmp/listed | tr '\\n' ' ')" = "/tmp/out /tmp/out/a.txt " ]
echo $((1 - $?)) > /logs/verifier/reward.txt; cat /tmp/listed
"""
    task = write_task(tmp_path / "excluded", toml, **{"tests/test.sh": test})
    script = "mkdir -p out/cache && cd out && touch a.txt b.log cache/x && ln -s /etc/passwd cache/link"
    episode = await play(task, call("shell", command=script), say("done"))
    assert episode.reward == 1.0, episode.info
    assert episode.info["verdict"]["forgeable"] is False and "network" not in episode.info
    refused = await play(task, call("shell", command=f"{script}; ln -s / link"), say("done"))
    assert refused.reward == 0.0 and "the artefact /tmp/out cannot be copied" in refused.info["verdict"]["reason"]


_OFF = 'network_mode = "no-network"\n'
_LISTED = 'network_mode = "allowlist"\nallowed_hosts = ["a.org"]'
_ITS_OWN = "for its verifier; its workspace has only its own loopback"


@pytest.mark.parametrize(
    ("toml", "agent", "verifier", "note"),
    [
        ("", ["public"], ["public"], "for its agent and its verifier; both have only their own loopback"),
        (_OFF, None, None, ""),
        ("allow_internet = false", None, None, ""),
        (_LISTED, ["a.org"], ["a.org"], "and its verifier; both"),
        (f'{_OFF}[agent]\nnetwork_mode = "public"', ["public"], None, "for its agent; its"),
        (f"{_OFF}[verifier]\n{_LISTED}", None, ["a.org"], "for its verifier; its"),
        (f'{_OFF}[verifier.environment]\ndocker_image = "host"', None, ["public"], _ITS_OWN),
    ],
)
def test_networks_are_named_as_they_are(tmp_path: Path, toml: str, agent: Any, verifier: Any, note: str) -> None:
    task = read_task(write_task(tmp_path / "task", f"[environment]\n{toml}\n"))
    granted = network_facts(task, read_consent("declared", ""))
    assert (granted.get("agent"), granted.get("verifier")) == (agent, verifier)
    refused = network_facts(task, read_consent("off", ""))
    assert note in refused.get("note", "") and bool(refused) is bool(note)
    assert set(refused.values()) <= {"loopback", refused.get("note")}


async def test_an_agent_out_of_time_is_ended_and_its_work_is_verified(tmp_path: Path) -> None:
    task = write_task(tmp_path / "slow", f"{_IMAGE}[agent]\ntimeout_sec = 3\n", **{"tests/test.sh": _PAID})
    begun = call("shell", command="touch done; sleep 600 && rm done")
    episode = await play(task, begun, call("shell", command="rm done"), say("done"))
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 1), episode.error
    assert "which is all that the task allows" in episode.info["agent_timeout"]
    assert "killed: it ran longer than" in episode.tail[-1]["content"]


async def test_a_step_out_of_time_is_followed_by_the_next(tmp_path: Path) -> None:
    steps = '[[steps]]\nname = "one"\nagent = { timeout_sec = 0.3 }\n[[steps]]\nname = "two"\n'
    files = {}
    for name in ("one", "two"):
        files[f"steps/{name}/instruction.md"] = f"Step {name}."
        files[f"steps/{name}/tests/test.sh"] = _PAID.replace("done", name)
    task = write_task(tmp_path / "steps", _IMAGE + steps, **files)
    episode = await play(task, call("shell", command="sleep 60"), call("shell", command="touch two"), say("done"))
    assert episode.info["verdict"]["steps"] == [{"reward": 0.0}, {"reward": 1.0}] and episode.reward == 0.5
    assert [m["content"] for m in episode.messages if m["role"] == "user"] == ["Step one.", "Step two."]


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        ("retries = 2\ninterval_sec = 0.01", Outcome.ENV_FAULT),
        ("retries = 4\ninterval_sec = 0.01", Outcome.SCORED),
        ("retries = 1\nstart_period_sec = 60\nstart_interval_sec = 0.01", Outcome.SCORED),
    ],
)
async def test_a_workspace_is_healthy_before_its_agent_begins(tmp_path: Path, check: str, outcome: Outcome) -> None:
    """The third attempt succeeds; failures count after the start period only."""
    command = "echo x >> /tried; [ $(wc -l < /tried) -ge 3 ] || { echo not yet >&2; exit 1; }"
    toml = f"{_IMAGE}[environment.healthcheck]\ncommand = '{command}'\n{check}\n"
    task = write_task(tmp_path / "health", toml, **{"tests/test.sh": _PAID})
    episode = await play(task, call("shell", command="wc -l < /tried; touch done"), say("done"))
    assert episode.outcome is outcome, episode.error
    if outcome is Outcome.ENV_FAULT:
        assert "the healthcheck of health fails" in episode.error and "not yet" in episode.error
    else:
        assert tool_results(episode) == ["3"]


async def test_a_separate_verifier_has_its_own_resources(tmp_path: Path) -> None:
    toml = f'{_IMAGE}memory_mb = 64\nstorage_mb = 64\n[verifier.environment]\ndocker_image = "host"\nmemory_mb = 512\n'
    test = "#!/bin/sh\npython3 -c 'x = b\"x\" * (300 * 2**20)'\necho $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = write_task(tmp_path / "memory", toml, **{"tests/test.sh": test})
    episode = await play(task, call("shell", command="python3 -c 'x = b\"x\" * (300 * 2**20)'"), say("done"))
    assert episode.reward == 1.0, episode.info
    [answer] = tool_results(episode)
    assert "memory" in answer


def test_fields_of_older_versions_are_read(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\nos = "Linux"\n'
    environment = read_task(write_task(tmp_path / "old", toml)).config.environment
    assert (environment.memory_mb, environment.storage_mb, environment.network_mode) == (2048, 512, "no-network")
