"""GPUs are counted as torch counts them."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainers.metrics import gpus
from trainers.metrics.gpus import count_gpus


class NoGpuError(Exception):
    """As NVML's."""


def _handle(number: int) -> int:
    if number >= 4:
        raise NoGpuError
    return number


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with four GPUs; returns the library of a torch that could use them."""
    nvml = SimpleNamespace(
        NVMLError=NoGpuError, nvmlInit=int, nvmlShutdown=int, nvmlDeviceGetHandleByIndex=_handle, nvmlMemory_v2=2
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (library := tmp_path / "lib" / "libtorch_cuda.so").parent.mkdir()
    library.touch()
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(gpus, "find_spec", lambda name: spec)
    return library


@pytest.mark.parametrize(
    "visible, found",
    [(None, 4), ("2", 1), ("3,1", 2), ("0,9,1", 1), ("", None), ("9", None), ("1,1", None), ("GPU-7d", None)],
    ids=str,
)
def test_gpus_are_counted_as_torch_counts_them(
    four_gpus: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, found: int | None
) -> None:
    """None leaves the count to torch."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == found


def test_a_torch_without_cuda_is_asked_itself(four_gpus: Path) -> None:
    four_gpus.unlink()
    assert count_gpus() is None
