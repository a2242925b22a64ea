"""What a start, an evaluation or a process of a run would refuse of a model's folder, the plan refuses in its words."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from agents.generator.local import open_vllm
from agents.renderer.rendering import Renderer
from agents.renderer.tokenizer import FastTokenizer
from agents.served_tokenizer import ServedTokenizer, _read_answer, plain_config
from forge_env.core.errors import UserError
from forge_env.registry.agent_spec import AgentSettings
from tests.helpers import plans
from tests.helpers.model_folders import change_json, change_weights, make_model_folder
from tests.helpers.plans import lines_of as lines
from trainers.families.table import read_config as read_model_config
from trainers.lora import Lora
from trainers.model.new_rows import make_folder, untrained_tokens
from trainers.setup.run_plan import RunPlan
from trainers.titan.trainer import TitanSettings, TitanTrainer

EMBEDDING = "model__embed_tokens__weight"


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    return make_model_folder(tmp_path / "model", tiny_model, tie_word_embeddings=True)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask transformers here: a process of its own takes two seconds to import it."""

    class Child:
        def __init__(self, command: list[str], **_: object) -> None:
            self.code = command[-1].replace('sys.modules["torch"] = None', "")

        def communicate(self, text: str = "", timeout: float = 0.0) -> tuple[str, str]:
            out = io.StringIO()
            if text:
                with monkeypatch.context() as patch:
                    patch.setattr("sys.stdin", io.StringIO(text))
                    patch.setattr("sys.stdout", out)
                    exec(self.code, {})
                logging.disable(logging.NOTSET)
            return out.getvalue(), ""

        def kill(self) -> None:
            pass

    monkeypatch.setattr("agents.served_tokenizer.Popen", Child)


def plan_of(folder: Path, *options: str) -> RunPlan:
    return plans.plan_of("--env=math", f"--model={folder}", *options)


def weight_of(folder: Path, name: str = "model.embed_tokens.weight") -> torch.Tensor:
    return load_file(folder / "model.safetensors")[name]


def rendered(folder: Path) -> None:
    Renderer(folder)


def trained(folder: Path) -> None:
    TitanTrainer(folder, TitanSettings()).close()


def another_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('this template is for others') }}")


def another_head(folder: Path) -> None:
    change_weights(folder, lm_head__weight=weight_of(folder) + 1e-3)


def cut(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def another_file(name: str) -> Callable[[Path], None]:
    """A copy of the weights under another name, which vLLM reads too: it takes every file of a folder without index."""

    def copy(folder: Path) -> None:
        shutil.copy(folder / "model.safetensors", folder / name)

    return copy


def two_parts(folder: Path, *more: str) -> None:
    """The weights in two files with an index; those of the names `more` are in both."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    half = sorted(tensors)[: len(tensors) // 2]
    parts: dict[str, set[str]] = {"1": {*half, *more}, "2": {*tensors.keys() - half}}
    for number, names in parts.items():
        save_file({name: tensors[name] for name in names}, folder / f"model-{number}.safetensors")
    index = {name: f"model-{number}.safetensors" for number, names in parts.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def one_beside_parts(folder: Path) -> None:
    """transformers reads it in place of the files of the index."""
    another_file("all.safetensors")(folder)
    two_parts(folder)
    (folder / "all.safetensors").rename(folder / "model.safetensors")


def in_both_parts(folder: Path) -> None:
    two_parts(folder, "model.norm.weight")


REFUSED: list[tuple[Callable[[Path], object], Callable[[Path], object], str]] = [
    (another_template, rendered, "chat template"),
    (another_head, trained, "holds a lm_head.weight that differs from its model.embed_tokens.weight"),
    (another_file("old.safetensors"), trained, "old.safetensors beside its weights in model.safetensors, and vLLM"),
    (another_file("consolidated.safetensors"), trained, "holds consolidated.safetensors beside"),
    (one_beside_parts, trained, "beside its weights in model-1.safetensors, and transformers would read it"),
    (in_both_parts, trained, "the weight model.norm.weight is in"),
    (lambda folder: change_weights(folder, model__norm__weight=None), trained, "lacks weight model.norm.weight"),
    (
        lambda folder: change_weights(folder, model__extra__weight=weight_of(folder, "model.norm.weight")),
        trained,
        "has a superfluous weight model.extra.weight",
    ),
    (
        lambda folder: change_json(folder / "config.json", intermediate_size=400),
        trained,
        "where (128, 400) is expected",
    ),
    (cut, trained, "model.safetensors is damaged"),
    (
        lambda folder: change_json(folder / "config.json", layer_types=["sliding_attention"] * 2),
        read_model_config,
        "windows other than one of all layers",
    ),
]
"""A change of a good folder, what refuses it in a process of the run, and a part of its sentence."""


@pytest.mark.parametrize(("change", "start", "words"), REFUSED)
def test_the_plan_refuses_a_folder_as_the_start_does(
    folder: Path, change: Callable[[Path], object], start: Callable[[Path], object], words: str
) -> None:
    change(folder)
    with pytest.raises(UserError) as of_start:
        start(folder)
    assert words in str(of_start.value)
    with pytest.raises(UserError) as of_plan:
        plan_of(folder)
    assert str(of_plan.value) == str(of_start.value)
    assert plans.refusal("--env=math", f"--model={folder}", algorithm="sft") == str(of_start.value)


@pytest.mark.parametrize(
    "change", [another_template, another_head, another_file("old.safetensors"), in_both_parts, cut]
)
async def test_an_evaluation_refuses_a_folder_before_it_starts_an_engine(
    folder: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(folder)
    with pytest.raises(UserError) as of_plan:
        plan_of(folder)
    monkeypatch.delattr("agents.generator.local.LocalPolicy")
    with pytest.raises(UserError) as caught:
        async with open_vllm(str(folder), AgentSettings(env="math")):
            pass
    assert str(caught.value) == str(of_plan.value)


def test_an_equal_copy_of_the_embedding_is_fine(folder: Path) -> None:
    change_weights(folder, lm_head__weight=weight_of(folder).clone())
    plan_of(folder).check()


# ---- the tokenizer that others make of the folder ----


def test_a_tokenizer_with_two_meanings_is_named_and_the_export_has_one(folder: Path) -> None:
    assert plan_of(folder).model.tokenizer == ""
    change_json(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    (warning,) = [text for text in lines(plan_of(folder), "warning") if "tokenizer" in text]
    assert (
        "two meanings: for 'In 1945 it was" in warning
        and "GPT2Tokenizer" in warning
        and "PreTrainedTokenizerFast" in warning
    )
    ours, text = FastTokenizer(folder), "In 1945 it was 12,345.67"
    assert AutoTokenizer.from_pretrained(folder).encode(text) != ours.encode(text)
    (folder / "tokenizer_config.json").write_text(plain_config(folder))
    assert AutoTokenizer.from_pretrained(folder).encode(text) == ours.encode(text)
    assert plan_of(folder).model.tokenizer == ""


@pytest.mark.usefixtures("in_this_process")
def test_a_tokenizer_that_no_class_reads_as_it_is_written_is_refused(folder: Path) -> None:
    """transformers takes its Qwen2Tokenizer for each qwen2, whatever tokenizer_config.json names."""
    change_json(folder / "config.json", architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    with ServedTokenizer(folder) as served, pytest.raises(UserError, match=r"Qwen2Tokenizer.*save the tokenizer anew"):
        served.check()


def test_an_answer_is_kept_for_copies_until_a_file_changes_or_it_cannot_be_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a process that tells GPT2Tokenizer from other classes in no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("agents.served_tokenizer.MOST_KEPT", 1)
    child = """import json, sys
folder, texts, config, ids = json.load(sys.stdin)
is_other = "GPT2" in open(folder + "/tokenizer_config.json").read()
json.dump({"given": {"name": "X", "ids": [[0]] * len(ids) if is_other else ids}, "plain": {"ids": ids}}, sys.stdout)"""
    monkeypatch.setattr("agents.served_tokenizer._CHILD", child)

    def ask(folder: Path, *, is_asked: bool) -> str:
        with ServedTokenizer(folder) as served:
            assert (served._process is not None) == is_asked
            return served.check()

    answers = tmp_path / "cache" / "forge_env" / "tokenizers"
    answers.mkdir(parents=True)
    (answers / "old").write_text("{}")
    change_json(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    assert "two meanings" in ask(folder, is_asked=True)
    assert "two meanings" in ask(Path(shutil.copytree(folder, tmp_path / "copy")), is_asked=False)
    (folder / "tokenizer_config.json").write_text(plain_config(folder))
    assert ask(folder, is_asked=True) == ""
    (kept,) = answers.iterdir()
    whole = kept.read_bytes()
    for part in (b"", b"[]", b"\xff", whole[:-1]):
        kept.write_bytes(part)
        assert _read_answer(kept) is None
    assert ask(folder, is_asked=True) == "" and kept.read_bytes() == whole
    kept.unlink()
    assert _read_answer(kept) is None


@pytest.mark.usefixtures("in_this_process")
def test_a_folder_of_which_transformers_makes_no_tokenizer_is_refused(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", added_tokens_decoder={"3": {"content": 5}})
    with pytest.raises(UserError, match="transformers cannot make the tokenizer"):
        plan_of(folder)


@pytest.mark.usefixtures("in_this_process")
def test_tokens_of_the_settings_alone_are_compared_too(folder: Path) -> None:
    sides = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    added = {"content": "<|new|>", "special": True, **sides}
    change_json(folder / "tokenizer_config.json", added_tokens_decoder={"700": added})
    with pytest.raises(UserError, match=r"for 'a <\|new\|>b' tokenizer.json gives"):
        plan_of(folder)


# ---- an adapter to start from ----


def test_an_adapter_that_does_not_fit_its_model_is_refused(folder: Path, tmp_path: Path) -> None:
    trainer = TitanTrainer(folder, TitanSettings(lora=Lora(rank=4, alpha=8.0, targets=("q_proj",))))
    trainer.export_adapter(str(tmp_path / "adapter"))
    trainer.close()
    options = (f"--lora.adapter={tmp_path / 'adapter'}", "--lora.rank=4", "--lora.alpha=8")
    plan_of(folder, *options, "--lora.targets=q_proj").check()
    with pytest.raises(
        UserError, match=r"lacks .*k_proj.lora_A.weight, which does not fit lora.targets, q_proj,k_proj"
    ):
        plan_of(folder, *options, "--lora.targets=q_proj,k_proj")


# ---- tokens that were never trained ----


def equal_rows(folder: Path, matrix: str = EMBEDDING) -> None:
    """Give the two marks of calls one row, as in a model to whose tokenizer they were added."""
    weights = load_file(folder / "model.safetensors")[matrix.replace("__", ".")]
    first, second = map(FastTokenizer(folder).token_id, ["<tool_call>", "</tool_call>"])
    weights[second] = weights[first] * 1.5
    change_weights(folder, **{matrix: weights})


def test_marks_that_were_never_trained_are_named(folder: Path) -> None:
    assert not any("never trained" in text for text in lines(plan_of(folder), "warning"))
    equal_rows(folder)
    (warning,) = [text for text in lines(plan_of(folder), "warning") if "never trained" in text]
    assert warning.startswith("<tool_call>, </tool_call> of the chat template were never trained")
    assert "--model.new_rows on" in warning
    plan = plan_of(folder, "--model.new_rows=on")
    assert not any("never trained" in text for text in lines(plan, "warning"))
    (line,) = lines(plan, "new rows")
    assert line.startswith("<tool_call>, </tool_call> get rows of their own")


def test_an_output_layer_of_its_own_counts_for_what_the_model_writes(tmp_path: Path, tiny_model: Path) -> None:
    folder = make_model_folder(tmp_path / "model", tiny_model, tie_word_embeddings=False)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    for mark in ("<tool_response>", "</tool_call>"):
        head[FastTokenizer(folder).token_id(mark)] = 0
    change_weights(folder, lm_head__weight=head)
    assert untrained_tokens(folder, Renderer(folder)) == {"lm_head.weight": ("</tool_call>",)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_new_rows_are_the_mean_of_the_pieces_and_nothing_else_changes(
    folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    equal_rows(folder)
    before = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    change_weights(folder, **{name.replace(".", "__"): tensor for name, tensor in before.items()})
    change_weights(folder, lm_head__weight=before["model.embed_tokens.weight"].clone())  # a copy gets the same rows
    marks = untrained_tokens(folder, Renderer(folder))
    make_folder(folder, marks, tmp_path / "new", seed=3)
    make_folder(folder, marks, tmp_path / "again", seed=3)
    after = load_file(tmp_path / "new" / "model.safetensors")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "new/model.safetensors").read_bytes()
    assert torch.equal(after["lm_head.weight"], after["model.embed_tokens.weight"])
    tokenizer = FastTokenizer(folder)
    ids = [tokenizer.token_id(mark) for mark in ("<tool_call>", "</tool_call>")]
    old, new = before.pop("model.embed_tokens.weight"), after["model.embed_tokens.weight"]
    others = [token for token in range(len(old)) if token not in ids]
    assert torch.equal(old[others], new[others]) and all(torch.equal(after[name], before[name]) for name in before)
    rows = new[ids].float()
    assert rows.norm(dim=1).tolist() == pytest.approx([old.float().norm(dim=1).median().item()] * 2, rel=0.05)
    assert torch.cosine_similarity(*rows, dim=0) < 0.99
    pieces = [token for part in ("<", "tool", "_call", ">") for token in tokenizer.encode(part)]
    assert torch.cosine_similarity(rows[0], old[pieces].float().mean(dim=0), dim=0) > 0.5
    assert untrained_tokens(tmp_path / "new", Renderer(folder)) == {}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in folder.iterdir()}


def test_files_of_weights_without_new_rows_are_links(folder: Path, tmp_path: Path) -> None:
    equal_rows(folder)
    weights = load_file(folder / "model.safetensors")
    parts = {"one.safetensors": {}, "two.safetensors": {}}
    for name, tensor in weights.items():
        parts["one.safetensors" if "embed" in name else "two.safetensors"][name] = tensor
    for file, tensors in parts.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, tensors in parts.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    make_folder(folder, untrained_tokens(folder, Renderer(folder)), tmp_path / "new", seed=0)
    assert (tmp_path / "new" / "two.safetensors").is_symlink() and not (tmp_path / "new/one.safetensors").is_symlink()
    TitanTrainer(tmp_path / "new", TitanSettings()).close()
