"""The sink `otel`: a run sends the episodes that it records, and never waits for a collector at its end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from contrib.observe.tests.collector import collecting
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.utils.settings import with_values
from tests.helpers.packages import needs
from trainers.grpo import GRPO, Config
from trainers.metrics.report import Report
from trainers.setup.plan import make_plan

pytestmark = needs("opentelemetry")


def settings(*sinks: str) -> Config:
    return with_values(
        Config(), {"metrics.tensorboard": False, "metrics.sinks": list(sinks), "model.path": "org/model"}
    )


def test_a_run_sends_what_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = Episode(prompt_ids=(1, 2), response_ids=(3,), logprobs=(-0.5,), reward=1.0)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        for sinks in ((), ("otel",)):
            with Report(tmp_path / str(len(sinks)), asdict(settings(*sinks))) as report:
                report.episodes("train", [episode])
        found = collector.spans()
    assert [span["name"] for span in found] == ["invoke_agent policy", "chat org/model"]
    whole, chat = (span["attributes"] for span in found)
    assert whole["forge_env.phase"] == "train" and whole["forge_env.reward"] == 1.0
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (2, 1)
    assert chat["forge_env.weight_version"] == 0


def test_a_wrong_protocol_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    make_plan(settings(), GRPO)
    with pytest.raises(UserError, match="--metrics.sinks otel: OTEL_EXPORTER_OTLP_PROTOCOL is grpc"):
        make_plan(settings("otel"), GRPO)
