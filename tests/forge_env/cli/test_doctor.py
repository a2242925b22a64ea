"""`forge-env doctor`: what can run here, and what to do about the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli import doctor
from forge_env.cli.main import main

if sys.platform != "linux":
    pytest.skip("sandboxes need Linux", allow_module_level=True)

PARTS = [
    *("sandbox, namespace", "sandbox, docker", "workspaces, namespace", "workspaces, docker"),
    *("cache of images", "images of registries", "layers in zstd", "Dockerfiles"),
]


def test_each_part_is_tried_and_what_is_missing_has_its_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setenv("FORGE_ENV_IMAGES", "/proc/images")
    code = main(["doctor", "--json"])
    told = json.loads(capfd.readouterr().out)
    parts = {part["part"]: part for part in told["parts"]}
    assert list(parts) == PARTS and code == (not told["ok"])
    assert all(part["notes"] for part in parts.values() if part["ready"] != "yes")
    assert "start one, or name it with DOCKER_HOST" in parts["workspaces, docker"]["notes"][0]
    assert parts["cache of images"]["ready"] == "no"


def test_a_machine_without_an_isolating_backend_exits_with_1(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"namespace": {"unavailable": "the kernel refuses; set kernel.unprivileged_userns_clone=1"}}

    async def measured() -> dict[str, Any]:
        return {"sandbox": {"namespace": {"missing": []}}, "workspaces": refused}

    monkeypatch.setattr(doctor, "measure", measured)
    assert main(["doctor"]) == 1
    assert "the kernel refuses" in " ".join(capfd.readouterr().out.split())


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "dxf", None)
    parts = {part["part"]: part for part in doctor._images()}
    for name in ("images of registries", "layers in zstd"):
        assert parts[name]["ready"] == "no" and "pip install 'forge-env[images]'" in parts[name]["notes"][0]
