"""Commands of forge-env, for the tests of records."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from forge_env.cli.main import main

Command = Callable[..., dict[str, Any]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run forge-env with --json; returns the JSON object, with stderr as "said"."""

    def run(*words: str, code: int = 0) -> dict[str, Any]:
        capfd.readouterr()
        result = main([*words, "--json"])
        output, said = capfd.readouterr()
        assert result == code, said
        return {**json.loads(output), "said": said}

    return run
