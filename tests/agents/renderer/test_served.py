"""What is trained is what is served: Transformers renders recorded episodes with the template of an export as they were
recorded, for every family, with tokenizers made here and real ones that packages ship."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from agents.renderer.call_form import trial_calls
from agents.renderer.chat_template import QWEN3_TEMPLATE, TEMPLATE, flag_line
from agents.renderer.conversation_format import Thinking
from agents.renderer.rendering import Renderer
from agents.renderer.served import GENERATION, difference, texts_of_export, with_template
from agents.renderer.trial import prompts, trial
from forge_env.core.types import Message, ToolSpec
from tests.helpers.tokenizer_folders import (
    LLAMA_SPECIAL,
    LLAMA_TEMPLATE,
    QWEN25_MARKS,
    QWEN25_SPECIAL,
    QWEN25_TEMPLATE,
)

QWEN3, QWEN25, LLAMA = "Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"
OWN = {
    # Qwen3's own template drops the empty thought of an answer that is history.
    QWEN3: QWEN3_TEMPLATE.read_text().replace(" or not (thinks or reasoning)", ""),
    QWEN25: QWEN25_TEMPLATE,
    LLAMA: LLAMA_TEMPLATE,
}
QWEN_TOKENS = [*QWEN25_SPECIAL, *QWEN25_MARKS]
SPECIAL = {
    QWEN3: [*QWEN_TOKENS, "<tool_response>", "</tool_response>", "<think>", "</think>"],
    QWEN25: QWEN_TOKENS,
    LLAMA: LLAMA_SPECIAL,
}
ENDS = {
    QWEN3: ["<|im_end|>", "<|endoftext|>"],
    QWEN25: ["<|im_end|>", "<|endoftext|>"],
    LLAMA: ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
}
DEFAULT = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How the tokenizers of Qwen and Llama split a text."""
CASES: list[tuple[str, Thinking]] = [
    *((QWEN3, "off"), (QWEN3, "on"), (QWEN3, "template")),
    *((QWEN25, "off"), (LLAMA, "off")),
]
TOOLS: tuple[ToolSpec, ...] = (
    {"type": "function", "function": {"name": "user", "description": "é\n", "parameters": {"type": "object"}}},
)
PROMPT: tuple[Message, ...] = ({"role": "user", "content": "  1\n2\n\n"},)


def made_here() -> Tokenizer:
    """Merges that span the parts of every template, but not what a prompt ends with and what is sampled after it."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\n\n|assistant\n|assistant"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    from tokenizers.trainers import BpeTrainer

    texts = ["user\n", "user\n<tool_response>\n", "system\n# Tools", "\n</tool_response>", "é1\n", "ipython"] * 9
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    assert len(tokenizer.encode("user\n").ids) == 1
    return tokenizer


def from_ranks(ranks: dict[bytes, int], pattern: str) -> Tokenizer:
    converter = TikTokenConverter(vocab_file="", pattern=pattern)
    converter.load_tiktoken_bpe = lambda _: ranks
    return converter.converted()


def tekken() -> Tokenizer:
    """Mistral's vocabulary, which the package mistral_common ships."""
    file = shipped("mistral_common", "data/tekken_240911.json")
    content = json.loads(file.read_text())
    vocabulary = content["vocab"][: content["config"]["default_vocab_size"] - 1000]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in vocabulary}
    return from_ranks(ranks, content["config"]["pattern"])


def of_tiktoken(package: str, name: str) -> Tokenizer:
    lines = shipped(package, name).read_text().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    return from_ranks(ranks, WORDS)


def shipped(package: str, name: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.origin).parent / name


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "made-here": made_here,
    "tekken": tekken,
    "qwen": lambda: of_tiktoken("dashscope", "resources/qwen.tiktoken"),
    "llama": lambda: of_tiktoken("llama_models", "llama3/tokenizer.model"),
}


REAL = [pytest.param(name, marks=pytest.mark.slow) for name in ("tekken", "qwen", "llama")]


@pytest.fixture(scope="module")
def vocabulary(request: pytest.FixtureRequest) -> str:
    return TOKENIZERS[getattr(request, "param", "made-here")]().to_str()


INSTRUCT = (
    OWN[QWEN25]
    .replace(f"{{{{ messages[0].content }}}}{{% else %}}{{{{ '{DEFAULT}' }}}}", "{{ messages[0].content + '\\n\\n' }}")
    .replace("{{ '\\n\\n# Tools", "{{ '# Tools")
    .replace(f"{{%- else -%}}\n{{{{ '<|im_start|>system\\n{DEFAULT}<|im_end|>\\n' }}}}\n", "")
)
"""The template of a Qwen3 without thoughts, such as Qwen3-4B-Instruct-2507."""


@pytest.fixture
def make_folder(vocabulary: str, tmp_path: Path) -> Callable[[str], Path]:
    """Writes what a renderer and Transformers need of a model, with the family's own template."""

    def make(architecture: str) -> Path:
        tokenizer = Tokenizer.from_str(vocabulary)
        special = SPECIAL[architecture]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ENDS[architecture][0]}
        settings["bos_token"] = special[0]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / GENERATION).write_text(json.dumps({"temperature": 0.6, "top_k": 20, "pad_token_id": 7}))
        ends = [tokenizer.token_to_id(token) for token in ENDS[architecture]]
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], "eos_token_id": ends}))
        (tmp_path / TEMPLATE).write_text(OWN[architecture])
        return tmp_path

    return make


def first_difference(renderer: Renderer, folder: Path, tools: Sequence[ToolSpec], turns: Sequence[Any]) -> str:
    """Between the recorded prompts and those of Transformers, which reads the folder as it is."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    render = with_template(renderer, tokenizer, tokenizer.chat_template, tools)
    found = (difference(renderer, ids, render(messages)) for messages, ids in prompts(turns))
    return next(filter(None, found), "")


@pytest.mark.parametrize("vocabulary", ["made-here", *REAL], indirect=True)
@pytest.mark.parametrize(("architecture", "thinking"), CASES)
def test_an_export_renders_what_was_recorded_turn_by_turn(
    make_folder: Callable[[str], Path], architecture: str, thinking: Thinking
) -> None:
    folder = make_folder(architecture)
    renderer = Renderer(folder, thinking=thinking)
    texts, left = texts_of_export(folder, thinking, "auto", temperature=0.9)
    assert left == ""
    for name, text in texts.items():
        (folder / name).write_text(text)
    for tools in ((), TOOLS):
        assert first_difference(renderer, folder, tools, trial(renderer, PROMPT, tools)) == ""
    generation = json.loads(texts[GENERATION])
    assert generation.pop("eos_token_id") == list(renderer.stop_token_ids)
    assert generation == {"do_sample": True, "temperature": 0.9, "top_p": 1.0, "top_k": 0, "pad_token_id": 7}
    assert Renderer(folder, thinking=thinking).thinks == renderer.thinks


def test_a_qwen3_without_thoughts_in_its_template_is_rendered_without_them(make_folder: Callable[[str], Path]) -> None:
    folder = make_folder(QWEN3)
    assert DEFAULT not in INSTRUCT
    (folder / TEMPLATE).write_text(INSTRUCT)
    renderer = Renderer(folder)
    texts, left = texts_of_export(folder, "off", "auto", temperature=1.0)
    assert (texts[TEMPLATE], left) == (INSTRUCT, "")
    for tools in ((), TOOLS):
        turns = trial(renderer, PROMPT, tools)
        assert first_difference(renderer, folder, tools, turns) == ""
        assert [turn.starts_row for turn in turns] == [True, *[False] * (len(turns) - 1)]
    assert (
        renderer.read(turns[0].token_ids, "stop").tool_calls[0].arguments == trial_calls(1)[0]["function"]["arguments"]
    )
    assert "think" not in renderer.decode(turns[-1].prompt_ids) + renderer.decode(turns[-1].token_ids)


def test_an_export_has_the_template_that_the_run_has_executed(make_folder: Callable[[str], Path]) -> None:
    """The model's own behind the flag of the run; without thinking, one that keeps the empty thoughts of Qwen3."""
    folder = make_folder(QWEN3)
    assert texts_of_export(folder, "template", "auto", temperature=1.0)[0][TEMPLATE] == OWN[QWEN3]
    on = texts_of_export(folder, "on", "auto", temperature=1.0)[0][TEMPLATE]
    assert on == flag_line("enable_thinking", True) + OWN[QWEN3]
    off = texts_of_export(folder, "off", "auto", temperature=1.0)[0][TEMPLATE]
    assert off == flag_line("enable_thinking", False) + QWEN3_TEMPLATE.read_text()
    (folder / TEMPLATE).write_text(off)
    assert not Renderer(folder, thinking="template").thinks and Renderer(folder, thinking="on").thinks


def test_the_own_template_of_qwen3_differs_from_training_without_thinking(make_folder: Callable[[str], Path]) -> None:
    folder = make_folder(QWEN3)
    renderer = Renderer(folder, thinking="off")
    assert "the empty thought before an answer stays" in renderer.notes[0]
    assert first_difference(renderer, folder, TOOLS, trial(renderer, PROMPT, TOOLS)) != ""


def test_a_template_that_only_resembles_qwen3s_is_rendered_as_it_is(make_folder: Callable[[str], Path]) -> None:
    """Its empty thoughts are dropped, so that each turn begins a row; nothing is taken from another template."""
    folder = make_folder(QWEN3)
    (folder / TEMPLATE).write_text(OWN[QWEN3].replace("# Tools", "# My tools"))
    renderer = Renderer(folder, thinking="off")
    turns = trial(renderer, PROMPT, TOOLS)
    assert "# My tools" in renderer.decode(turns[0].prompt_ids)
    assert all(turn.starts_row for turn in turns)
    assert any("begins a row" in note for note in renderer.notes)


def test_another_template_is_trained_in_its_own_dialect(make_folder: Callable[[str], Path]) -> None:
    folder = make_folder(QWEN25)
    (folder / TEMPLATE).write_text(OWN[QWEN25].replace("'\\n' + tool|tojson", "'\\n' + tool.function|tojson"))
    texts, left = texts_of_export(folder, "off", "auto", temperature=1.0)
    assert left == ""
    (folder / TEMPLATE).write_text(texts[TEMPLATE])
    renderer = Renderer(folder)
    assert first_difference(renderer, folder, TOOLS, trial(renderer, PROMPT, TOOLS)) == ""
