"""Finds the model of a run, and its sizes, without loading or downloading anything; enough for a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agents.model_folder import check_hub_id, find_model
from forge_env.core.errors import UserError
from forge_env.records.run_weights import run_of
from trainers.families.shape import ModelShape
from trainers.families.table import families, family_of, known_shapes, read_config
from trainers.model.sizes import MODEL_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """Where a model is, as far as this is known without a network."""

    shape: ModelShape | None
    """None if there is no config.json here, and no family knows the name."""
    where: str
    """For a person: "a tiny Qwen3, made at the start", "the folder ...", "the hub's cache, ..."."""
    missing: str = ""
    """What the start will have to download, if anything."""
    path: str = ""
    """The folder or the hub id that the user names; "" for a model made on the spot."""
    size: str = "tiny"
    """The size of a model made on the spot."""
    quantization: str = ""
    """What it has in another form than floats, such as "experts in MXFP4": the run writes a copy in bfloat16."""
    unread: int = 0
    """Tensors of the folder that no one reads, such as those that guess further tokens."""
    untrained_tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tokens of the template with rows that were never trained, by matrix; see `trainers.model.new_rows`."""
    template: Sequence[str] = ()
    """What the run does otherwise than the model's chat template, and when a row begins; see `Renderer.notes`."""
    tools_problem: str = ""
    """Why the chat template cannot be used with tools; "" if it can, or if the folder is not here yet."""
    tokenizer: str = ""
    """How programs that serve the model tokenise otherwise; "" if they do not, or if the folder is not here yet."""

    @property
    def folder(self) -> Path | None:
        """The folder that the user names; None for a hub id, or for a model made on the spot."""
        folder = Path(self.path).expanduser()
        return folder if self.path and folder.exists() else None


def find_shape(path: str, size: str = "tiny", *, option: str = "--model") -> FoundModel:
    """Find the sizes of the model at `path`, in a local folder, a training run, the hub's cache or the known names;
    without a path those of `size`. Nothing is downloaded, and a local folder is complete. `option` named it, for error
    messages.
    """
    if not path:
        return FoundModel(shape=made_shape(size), where=f"{made_model(size)}, made at the start", size=size)
    if size != "tiny":
        raise UserError(
            f"--model.size is {size}, which is for a model made on the spot, and --model is {path}: leave one of them "
            "out"
        )
    is_of_run = run_of(path) is not None
    if is_of_run or Path(path).expanduser().exists():
        folder = find_model(path, option=option)
        name = str(folder) if is_of_run else path
        return _model_of(folder, f"the folder {name}", name)
    check_hub_id(path)
    cached = _cached_config(path)
    if cached is not None:
        return _model_of(cached, f"the hub's cache on this machine, {path}", path)
    return FoundModel(
        shape=known_shapes().get(path),
        where=f"the hub, {path}",
        missing=f"the model {path} is neither a folder nor in the hub's cache here: the start downloads it",
        path=path,
    )


def _model_of(folder: Path, where: str, path: str) -> FoundModel:
    config = read_config(folder)
    family = family_of(config)
    if quantization := family.quantization(config):
        where += f"; it has {quantization}, and the run writes a copy in bfloat16"
    return FoundModel(shape=family.shape(config), where=where, path=path, quantization=quantization)


def made_model(size: str) -> str:
    """The name of a model made on the spot, for a person."""
    return {"tiny": "a tiny Qwen3", "tiny-moe": "a tiny Qwen3 with experts"}.get(size, f"a Qwen3 of size {size}")


def made_shape(size: str) -> ModelShape:
    """The sizes of a model that is made on the spot; its vocabulary may turn out smaller."""
    size_settings = MODEL_SIZES[size]
    return families()[size_settings.model_type].shape(asdict(size_settings))


def _cached_config(hub_id: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:
        raise UserError(f"{hub_id!r} is neither a folder nor a hub id, which looks like Qwen/Qwen3-1.7B") from None
    return Path(cached).parent if isinstance(cached, str) else None
