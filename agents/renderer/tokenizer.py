"""A thin tokenizer over Hugging Face `tokenizers`, without the wrapper of transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from forge_env.core.errors import UserError
from forge_env.core.tokens import Ids, as_list

SHORT, CACHED = 32, 4096  # characters, texts: templates tokenise the same few words with every message


class FastTokenizer:
    """Reads `tokenizer.json` of a Hugging Face folder.

    Raises:
        UserError: the folder holds no tokenizer.
    """

    unk_token_id = None

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f"the model folder {folder} holds no tokenizer.json: save its tokenizer there in Hugging Face format"
            )
        self.name_or_path = str(folder)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._short: dict[str, list[int]] = {}
        config = Path(folder) / "tokenizer_config.json"
        eos = json.loads(config.read_text()).get("eos_token") if config.is_file() else None
        eos = eos.get("content") if isinstance(eos, dict) else eos
        self.eos_token_id = self._tokenizer.token_to_id(eos) if eos else None

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        if len(text) > SHORT:
            return self._encode(text)
        ids = self._short.get(text)
        if ids is None:
            if len(self._short) >= CACHED:
                self._short.clear()
            ids = self._short[text] = self._encode(text)
        return ids.copy()

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: int | Ids, *_: Any, **__: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else as_list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may be a part of a character. The vocabulary is byte-level BPE."""
        text = self._tokenizer.id_to_token(token_id) or ""
        if not all(character in _BYTES for character in text):
            return text.encode("utf-8", "replace")
        return bytes([_BYTES[character] for character in text])

    @property
    def special_tokens(self) -> list[str]:
        """Special and added tokens, as text."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()


def chat_template(folder: Path) -> str:
    """The chat template of a Hugging Face folder; "" if it has none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    template = json.loads(config.read_text()).get("chat_template") if config.is_file() else None
    # Some folders hold several templates by name.
    return template if isinstance(template, str) else json.dumps(template or "", ensure_ascii=False)


def _byte_characters() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes: printable ones of Latin-1 stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()
