"""FastTokenizer agrees with transformers' tokenizer on the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.renderer.tokenizer import FastTokenizer
from forge_env.core.errors import UserError
from trainers.model.tiny_model import SPECIAL_TOKENS

texts = st.lists(
    st.sampled_from([*SPECIAL_TOKENS, "\n", " ", "46 * 88", "boxes hold", '{"name": ', "é", "👩‍🚀"])
    | st.text(max_size=8),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def both(tiny_model: Path) -> tuple[FastTokenizer, Any]:
    from transformers import AutoTokenizer

    return FastTokenizer(tiny_model), AutoTokenizer.from_pretrained(tiny_model)


@given(text=texts)
def test_encodes_and_decodes_as_transformers_does(both: tuple[FastTokenizer, Any], text: str) -> None:
    ours, theirs = both
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids) == text


@given(data=st.data())
def test_decodes_any_ids_as_transformers_does(both: tuple[FastTokenizer, Any], data: st.DataObject) -> None:
    ours, theirs = both
    ids = data.draw(st.lists(st.integers(0, len(ours) - 1), max_size=12))
    assert ours.decode(ids) == theirs.decode(ids)
    assert [ours.token_id(token) for token in theirs.convert_ids_to_tokens(ids)] == ids
    assert [ours.decode([i]) for i in ids] == [theirs.decode([i]) for i in ids]


def test_special_tokens_and_size_agree(both: tuple[FastTokenizer, Any]) -> None:
    ours, theirs = both
    assert len(ours) == len(theirs)
    assert theirs.eos_token_id == ours.token_id("<|im_end|>")
    assert ours.token_id("no such token") is None


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    for content in ("{", "{}", "<html>", ""):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UserError, match=r"tokenizer.json is no tokenizer: .*; copy it again from the model"):
            FastTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=f"{tmp_path.name} holds no tokenizer.json"):
        FastTokenizer(tmp_path)
