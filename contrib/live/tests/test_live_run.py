"""A real run that is paused, evaluated, requeued and shortened while its environments are killed: nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from contrib.live.client import FILE, LiveClient
from forge_env.cli.main import main
from forge_env.core.errors import UserError
from forge_env.utils.yaml_text import read_yaml
from tests.helpers.runs import start  # noqa: F401
from tests.helpers.waiting import wait_until
from tests.system.test_faults import SMALL, check_books

OPTIONS = ("--env", "math", "--steps", "1000", "--training.staleness", "1", *SMALL, "--checkpoint.interval", "0")


def steps_done(state: dict[str, Any]) -> int:
    return int((state["queue"] or {"steps_done": 0})["steps_done"])


def has_settled(client: LiveClient) -> bool:
    """Whether nothing is under way in a paused run."""
    state = client.look()
    return not state["groups"] and not any(each["for"].startswith("trainer") for each in state["waits"])


def kill_environments(output: Path, number: signal.Signals = signal.SIGKILL) -> int:
    pid = int(json.loads((output / "logs" / "pids.json").read_text())["envs"][0])
    os.kill(pid, number)
    return pid


def evaluated(output: Path) -> list[int]:
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [record["step"] for record in records if record["phase"] == "evaluation"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_acted_on_and_its_books_are_right(start, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    run = start("trainers.grpo", *OPTIONS)
    wait_until(lambda: (run.output / FILE).is_file() or run.process.poll() is not None, "the run is up", 240)
    with LiveClient(run.output, "a test") as client:
        wait_until(lambda: steps_done(client.look()) >= 1, "a step", 240)
        state = client.look()
        assert {service["name"] for service in state["services"]} == {"environments", "engine"}

        client.act("pause")
        wait_until(lambda: has_settled(client), "the pause", 240)
        paused_at = steps_done(client.look())
        assert main(["live", str(run.output), "resume"]) == 2
        assert "a test, process" in (said := capsys.readouterr().err) and "acts on this run" in said
        kill_environments(run.output)
        wait_until(lambda: client.look()["services"][0]["replaced"] == 1, "the death", 240)
        wait_until(lambda: client.look()["services"][0]["up"] == 1, "the replacement", 240)
        client.act("evaluate")
        wait_until(lambda: paused_at in evaluated(run.output), "the evaluation", 240)
        assert steps_done(client.look()) == paused_at
        client.release()
    assert main(["live", str(run.output), "resume"]) == 0

    with LiveClient(run.output, "a test") as client:
        pid = kill_environments(run.output, signal.SIGSTOP)  # what begins now is stuck
        wait_until(lambda: client.look()["groups"] and client.look()["silent"], "a group that is stuck", 240)
        group = client.look()["groups"][0]["group"]
        assert client.act("requeue", f"{group}/0").startswith(f"{group} is played again")
        os.kill(pid, signal.SIGKILL)
        client.act("set", "env.max_turns=1")
        last = steps_done(client.look()) + 5
        client.act("set", f"training.steps={last}")
    said = run.end()
    assert run.process.returncode == 0, said
    run.assert_nothing_left()
    check_books(run.output)
    assert json.loads((run.output / "summary.json").read_text())["steps"] == last
    config = read_yaml((run.output / "config.yaml").read_text())
    assert (config["env"]["max_turns"], config["training"]["steps"]) == (1, last)
    episodes = [json.loads(line) for line in (run.output / "episodes" / "train.jsonl").read_text().splitlines()]
    assert all(len(episode["turns"]) == 1 for episode in episodes[-16:]), "groups that began later have the limit"
    actions = [json.loads(line)["action"] for line in (run.output / "actions.jsonl").read_text().splitlines()]
    assert actions == ["pause", "evaluate", "resume", "requeue", "set", "set"]
    assert not (run.output / FILE).exists()
    with pytest.raises(UserError, match="no training run goes on in"):
        LiveClient(run.output, "a test")
