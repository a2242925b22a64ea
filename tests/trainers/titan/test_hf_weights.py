"""Weights as they come out of a model and go into it: tensor by tensor, in the wanted dtype, and read in slices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from forge_env.core.errors import InvariantError, UserError
from forge_env.runtime.weights import SharedMemoryStore, TensorLayout, WeightStream
from tests.helpers.disks import full_disk
from tests.helpers.forks import run_ranks
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.weight_ranks import be_a_rank
from tests.trainers.titan.weights import fused_projections, weights_of
from trainers.titan import weight_files
from trainers.titan.export import export_hf
from trainers.titan.trainer import TitanSettings, TitanTrainer
from trainers.titan.weight_files import WeightFiles, write_file, write_folder


@pytest.fixture(scope="module", params=["qwen3", "qwen3-tied", "llama-3.2", "qwen2.5-fused"])
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TitanTrainer]:
    """One with a projection of each kind: one to one, reordered, and, as on a GPU, fused."""
    family = request.param.removesuffix("-tied").removesuffix("-fused")
    folder = make_folder(tmp_path_factory.mktemp("model"), family, tied=request.param.endswith("-tied"))
    with fused_projections(request.param.endswith("-fused")):
        made = TitanTrainer(folder, TitanSettings(dtype="float32"))
    yield made
    made.close()


def saved(trainer: TitanTrainer) -> dict[str, torch.Tensor]:
    return load_file(trainer.model.folder / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layout_is_known_before_the_weights_come(trainer: TitanTrainer, dtype: torch.dtype) -> None:
    layout, streamed, expected = trainer.model.weights.layout(dtype), weights_of(trainer, dtype), saved(trainer)
    assert list(layout) == list(streamed) and set(layout) == set(expected)
    for name, tensor in streamed.items():
        assert layout[name].is_meta and (layout[name].shape, layout[name].dtype) == (tensor.shape, dtype)
        assert torch.equal(tensor, expected[name].to(dtype))


async def test_a_publish_to_an_engine_in_bfloat16_has_no_float32(trainer: TitanTrainer) -> None:
    store, weights = SharedMemoryStore(), trainer.model.weights
    await store.open()
    try:
        layout = TensorLayout.of(weights.layout(torch.bfloat16))
        with weights.stream(torch.bfloat16) as tensors:
            taken = store.take(0, WeightStream(layout, trainer.device, tensors))
        await store.commit(taken)
        async with store.fetch(0) as published:
            assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
            assert all(torch.equal(published[name], value.to(torch.bfloat16)) for name, value in saved(trainer).items())
        (segment,) = store.folder.glob("*.segment")
        numbers = sum(tensor.numel() for tensor in saved(trainer).values())
        assert 2 * numbers <= segment.stat().st_size < 2 * numbers + 64 * len(layout.entries)
    finally:
        await store.close()


def test_a_stream_gathers_all_tensors_even_if_it_is_read_in_part(trainer: TitanTrainer) -> None:
    """With several ranks the others wait in the collective, whatever goes wrong on the first one."""
    with pytest.raises(ZeroDivisionError), trainer.model.weights.stream(torch.float32) as tensors:
        next(tensors)
        raise ZeroDivisionError
    assert list(tensors) == []


def test_an_export_of_several_files_is_what_transformers_loads(trainer: TitanTrainer, tmp_path: Path) -> None:
    export_hf(trainer.model, tmp_path / "one")
    export_hf(trainer.model, tmp_path / "many", max_file_bytes=50_000)
    assert (tmp_path / "one" / "model.safetensors").is_file()
    assert not list((tmp_path / "one").glob("*.index.json"))
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 2 and all(file.stat().st_size < 60_000 for file in files)
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    assert [file.name for file in files] == names
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    expected = saved(trainer)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    assert index["weight_map"] == {name: file.name for file in files for name in load_file(file)}
    for folder in ("one", "many"):
        state = AutoModelForCausalLM.from_pretrained(tmp_path / folder).state_dict()
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    again = TitanTrainer(tmp_path / "many", TitanSettings(dtype="float32"))
    try:
        assert all(torch.equal(value, expected[name]) for name, value in weights_of(again).items())
    finally:
        again.close()


def test_an_export_that_fails_half_way_leaves_the_one_before_it(trainer: TitanTrainer, tmp_path: Path) -> None:
    export_hf(trainer.model, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    (tmp_path / "out" / "stale").touch()
    export_hf(trainer.model, tmp_path / "out")
    assert not (tmp_path / "out" / "stale").exists()
    with full_disk(60_000), pytest.raises(OSError, match="File too large"):
        export_hf(trainer.model, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# -- files -------------------------------------------------------------------------------------------------------


def test_a_file_that_is_written_tensor_by_tensor_is_read_slice_by_slice(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(5, 7), "half": torch.randn(3).bfloat16(), "none": torch.zeros(0, 2)}
    write_file(tmp_path / "w.safetensors", tensors, tensors.items())
    assert all(torch.equal(value, tensors[name]) for name, value in load_file(tmp_path / "w.safetensors").items())
    files = WeightFiles(tmp_path, [tmp_path / "w.safetensors"])
    assert files.shapes == {"matrix": (5, 7), "half": (3,), "none": (0, 2)}
    assert torch.equal(files.read("matrix", (slice(1, 3), slice(2, 7))), tensors["matrix"][1:3, 2:7])
    assert torch.equal(files.read("half"), tensors["half"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_weight_that_is_not_finite_is_refused_by_its_name(tmp_path: Path, dtype: torch.dtype, bad: float) -> None:
    tensors = {"bad": torch.zeros(5, 7, dtype=dtype), "large": torch.full((5, 7), 6e4, dtype=dtype)}
    tensors["bad"][3, 4] = bad
    write_file(tmp_path / "w.safetensors", tensors, tensors.items())
    files = WeightFiles(tmp_path, [tmp_path / "w.safetensors"])
    with pytest.raises(UserError, match="its weight bad has values that are not finite"):
        files.read("bad")
    assert torch.equal(files.read("bad", (slice(0, 3), slice(0, 7))), tensors["bad"][:3])
    assert torch.equal(files.read("large"), tensors["large"])


def test_a_checkpoint_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    trainer = TitanTrainer(make_folder(tmp_path / "model", "qwen3", tied=True), TitanSettings(dtype="float32"))
    try:
        with torch.no_grad():
            next(trainer.model.module.parameters()).view(-1)[0] = float("inf")
        trainer.save(tmp_path / "step", 1, {})
        with pytest.raises(UserError, match="step cannot be used: its weight tok_embeddings.weight has values"):
            trainer.load(tmp_path / "step")
    finally:
        trainer.close()


def test_the_names_in_a_file_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with experts has hundreds of tensors, and opening a file reads the names of all."""
    tensors = {f"{n}": torch.full((3, 2), float(n)) for n in range(8)} | {"bytes": torch.arange(5, dtype=torch.uint8)}
    save_file(tensors, tmp_path / "w.safetensors")
    files = WeightFiles(tmp_path, [tmp_path / "w.safetensors"])
    assert torch.equal(files.read("bytes"), tensors.pop("bytes")), "of a dtype that no weight has"
    monkeypatch.delattr(weight_files, "_places")
    for name, tensor in tensors.items():
        read = files.read(name)
        assert torch.equal(read, tensor) and torch.equal(files.read(name, (slice(1, 3), slice(0, 1))), tensor[1:, :1])
        read.zero_()
        assert torch.equal(files.read(name), tensor), "the file is as before"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"b": torch.zeros(4)}, "weight b came where b was due, or in another form"),
        ({"b": torch.zeros(3).half()}, "weight b came where b was due, or in another form"),
        ({"c": torch.zeros(3)}, "weight c came where b was due, or in another form"),
        ({}, "did not get all of its 2 weights"),
    ],
)
def test_tensors_outside_the_layout_are_refused(tmp_path: Path, changes: dict[str, torch.Tensor], match: str) -> None:
    layout = {"a": torch.empty(2, device="meta"), "b": torch.empty(3, device="meta")}
    with pytest.raises(InvariantError, match=match):
        write_folder(tmp_path, layout, iter(({"a": torch.zeros(2)} | changes).items()))


def test_a_tensor_that_is_larger_than_a_file_may_be_gets_one_of_its_own(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(size) for name, size in {"a": 1, "b": 9, "c": 1, "d": 1, "e": 2}.items()}
    write_folder(tmp_path, tensors, iter(tensors.items()), max_file_bytes=12)
    found = [set(load_file(file)) for file in sorted(tmp_path.glob("*.safetensors"))]
    assert found == [{"a"}, {"b"}, {"c", "d"}, {"e"}]


def test_weights_are_checked_before_any_is_read(trainer: TitanTrainer, tmp_path: Path) -> None:
    """The last weight has another shape: those before it are not replaced."""
    before = weights_of(trainer)
    state = {name: torch.zeros_like(value) for name, value in saved(trainer).items()}
    state["model.norm.weight"] = torch.zeros(1)
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(
        UserError, match=r"other\.safetensors does not fit .* weight model\.norm\.weight has shape \(1,\)"
    ):
        trainer.model.weights.load(WeightFiles(tmp_path / "other.safetensors", [tmp_path / "other.safetensors"]))
    assert all(torch.equal(value, before[name]) for name, value in weights_of(trainer).items())


# -- several ranks -----------------------------------------------------------------------------------------------


CASES: dict[str, dict[str, Any]] = {
    "llama-3.2": {"data_parallel_shard_degree": 2, "activation_checkpoint": "full"},
    "qwen2.5-tied": {"data_parallel_shard_degree": 2, "fused": True},
    "qwen3": {"tensor_parallel_degree": 2, "dtype": "bfloat16"},
}
FOUR_CASES: dict[str, dict[str, Any]] = {
    "qwen3": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2},  # a matrix may be cut twice along its rows
    "llama-3.2": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2, "dtype": "bfloat16"},
    "qwen2.5": {"data_parallel_shard_degree": 4, "fused": True},  # more ranks than heads of keys
}
LARGE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
}
"""Of a model of 108 MiB, whose largest tensor has 8."""


def run_cases(root: Path, world: int, cases: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rank says of the cases."""
    for name in cases:
        if not (root / name).is_dir():
            make_folder(root / name, name.removesuffix("-tied"), tied=name.endswith("-tied"))
    run_ranks(be_a_rank, root, cases, world=world, seconds=240)
    return [json.loads((root / f"{rank}.json").read_text()) for rank in range(world)]


def test_two_ranks_read_their_slices_and_stream_full_tensors(tmp_path: Path) -> None:
    make_folder(tmp_path / "large", "qwen3", tied=False, **LARGE)
    first, second = run_cases(tmp_path, 2, CASES)
    assert first["same"] == dict.fromkeys(CASES, True) and second["same"] == dict.fromkeys(CASES, False)
    check_checkpoints(tmp_path, CASES, [first, second])
    whole = sum(tensor.nbytes for tensor in load_file(tmp_path / "large" / "model.safetensors").values())
    largest, slack = 4 * 4096 * 512, 20 * 2**20
    assert whole > 100 * 2**20
    for rank in (first, second):
        # Its half of the parameters, and the pages of one tensor's slice.
        assert rank["load"] < whole / 2 + largest + slack
        # A tensor whole, the pieces that it came in, and what gloo needs to send them.
        assert rank["export"] < 4 * largest + slack


def check_checkpoints(root: Path, cases: dict[str, dict[str, Any]], ranks: list[dict[str, Any]]) -> None:
    """Every rank has had its part of the weights alone, and one process reads what all have written."""
    for name, case in cases.items():
        whole = load_checkpoint(root / name, fused=case.get("fused", False))
        for rank in ranks:
            parts = len(ranks) if "data_parallel_shard_degree" in case else 1  # tensor parallelism leaves norms whole
            assert rank["state"][name] <= 1.1 * whole / parts, name


def load_checkpoint(folder: Path, *, fused: bool) -> int:
    """Read it into one process; returns the bytes of all weights."""
    expected = load_file(folder / "model.safetensors")
    with fused_projections(fused):
        trainer = TitanTrainer(folder, TitanSettings(dtype="float32"))
    try:
        with torch.no_grad():
            for parameter in trainer.model.module.parameters():
                parameter.zero_()
        trainer.load(folder / "checkpoint")
        assert all(torch.equal(value, expected[name]) for name, value in weights_of(trainer).items())
        return sum(value.nbytes for value in trainer.model.module.state_dict().values())
    finally:
        trainer.close()


@pytest.mark.slow
def test_four_ranks_read_their_slices_and_stream_full_tensors(tmp_path: Path) -> None:
    first, *others = run_cases(tmp_path, 4, FOUR_CASES)
    assert first["same"] == dict.fromkeys(FOUR_CASES, True)
    assert all(rank["same"] == dict.fromkeys(FOUR_CASES, False) for rank in others)
    check_checkpoints(tmp_path, {"qwen3": FOUR_CASES["qwen3"]}, [first, *others])
    load_checkpoint(tmp_path / "qwen2.5", fused=True)
