"""What `forge-env doctor` says of workspaces and images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from contrib.workspaces.doctor import parts
from forge_env.cli.main import main
from sandboxes.settings import AUTO, WORKSPACE_BACKENDS

PARTS = [
    *(f"sandbox, {name}" for name in AUTO),
    *(f"workspaces, {name}" for name in WORKSPACE_BACKENDS),
    *("cache of images", "images of registries", "layers in zstd", "Dockerfiles"),
]


def test_each_part_is_tried_and_what_is_missing_has_its_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")  # nobody waits for an engine
    monkeypatch.setenv("FORGE_ENV_IMAGES", "/proc/images")
    code = main(["doctor", "--json"])
    told = json.loads(capfd.readouterr().out)
    found = {part["part"]: part for part in told["parts"]}
    assert list(found) == PARTS and code == (not told["ok"])
    assert all(part["notes"] for part in found.values() if part["ready"] != "yes")
    assert found["cache of images"]["ready"] == "no"


async def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_ENV_IMAGES", "/proc/images")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "dxf", None)
    found = {name: (ready, note) for name, ready, note in await parts()}
    for name in ("images of registries", "layers in zstd"):
        ready, note = found[name]
        assert ready == "no" and "pip install 'forge-env[images]'" in note
