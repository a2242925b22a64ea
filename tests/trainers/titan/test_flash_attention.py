"""FlashAttention of the varlen kernel: what is chosen, and the newer package behind the names that torch calls."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torchtitan")
from trainers.titan import flash_attention


@pytest.mark.parametrize(
    ("capability", "installed", "name"),
    [
        ((9, 0), {"flash_attn.cute", "flash_attn_interface"}, "FA4"),
        ((10, 3), {"flash_attn.cute"}, "FA4"),
        ((9, 0), {"flash_attn_interface"}, "FA3"),
        ((10, 0), {"flash_attn_interface"}, None),
        ((9, 0), set(), None),
        ((12, 0), {"flash_attn.cute", "flash_attn_interface"}, None),
        ((8, 0), {"flash_attn.cute", "flash_attn_interface"}, None),
    ],
)
def test_the_best_that_is_installed_for_a_gpu_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], installed: set[str], name: str | None
) -> None:
    monkeypatch.setattr(flash_attention, "find_spec", lambda module: module if module in installed else None)
    assert flash_attention.choose(capability) == name


def test_a_package_around_it_that_does_not_import_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('undefined symbol')")
    (package / "cute.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert flash_attention.choose((9, 0)) is None


def test_torch_gets_the_results_that_it_expects_of_a_newer_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package, cute, interface = (ModuleType(f"flash_attn{rest}") for rest in ("", ".cute", ".cute.interface"))
    interface._flash_attn_fwd = lambda *tensors, **options: ("out", "logsumexp", None, None, None)  # type: ignore[attr-defined]
    interface._flash_attn_bwd = lambda *tensors, **options: ("dq", "dk", "dv")  # type: ignore[attr-defined]
    for module in (package, cute, interface):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    cute.interface = interface  # type: ignore[attr-defined]
    for variable in ("ENABLED", "DIR"):
        monkeypatch.setenv(f"FLASH_ATTENTION_CUTE_DSL_CACHE_{variable}", "0")
    flash_attention._kernels.cache_clear()
    assert flash_attention._flash_attn_fwd() == ("out", "logsumexp")
    assert flash_attention._flash_attn_bwd() == ("dq", "dk", "dv")
    flash_attention._kernels.cache_clear()
