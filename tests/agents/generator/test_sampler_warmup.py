"""What vLLM's warm-up samples with: its real class, and the version that the change was made for."""

from __future__ import annotations

import pytest

from agents.generator.sampler_warmup import VERSION, warm_up_what_is_asked


@pytest.mark.parametrize(("version", "is_ours"), [(VERSION, True), (f"{VERSION}+cpu", True), ("0.33.0", False)])
def test_the_warm_up_is_ours_in_one_version(version: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setattr(vllm.SamplingParams, "for_sampler_warmup", staticmethod(lambda: "theirs"))
    warm_up_what_is_asked()
    sampling = vllm.SamplingParams.for_sampler_warmup()
    assert is_ours == (sampling != "theirs")
    if is_ours:
        assert (sampling.top_p, sampling.repetition_penalty, sampling.logprobs) == (1.0, 1.0, 0)


def test_the_version_is_the_one_that_is_installed() -> None:
    import vllm

    assert vllm.__version__.partition("+")[0] == VERSION
