"""A thin tokenizer over Hugging Face `tokenizers`, without the wrapper of transformers."""

from __future__ import annotations

import functools
from pathlib import Path

from tokenizers import Tokenizer

from forge_env.core.errors import UserError
from forge_env.core.tokens import Ids, as_list

SHORT, CACHED = 32, 4096  # characters, texts: templates tokenise the same few words with every message


class FastTokenizer:
    """Reads `tokenizer.json` of a Hugging Face folder.

    Raises:
        UserError: the folder holds no tokenizer, or a damaged one.
    """

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f"the model folder {folder} holds no tokenizer.json: save its tokenizer there in Hugging Face format"
            )
        self.name_or_path = str(folder)
        self._tokenizer = _load(path.resolve(), path.stat().st_mtime_ns)
        self._short: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens in it are recognised."""
        if len(text) > SHORT:
            return self._encode(text)
        ids = self._short.get(text)
        if ids is None:
            if len(self._short) >= CACHED:
                self._short.clear()
            ids = self._short[text] = self._encode(text)
        return ids.copy()

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:  # a lone surrogate, which JSON can spell out and no tokenizer takes
            return self._encode(text.encode("utf-8", "replace").decode())
        return ids

    def decode(self, token_ids: Ids) -> str:
        """Text of tokens, with special tokens."""
        return self._tokenizer.decode(as_list(token_ids), skip_special_tokens=False)

    def token_id(self, text: str) -> int | None:
        """The id of a text that is one token of the vocabulary; otherwise None."""
        return self._tokenizer.token_to_id(text)

    def token_text(self, token_id: int) -> str:
        """The text of a token of the vocabulary; "" if there is none of this id."""
        return self._tokenizer.id_to_token(token_id) or ""

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens, as text."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]

    @property
    def added_tokens(self) -> list[str]:
        """All added tokens, as text. Gemma 3 has thousands, such as spaces and tags of HTML."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]

    @property
    def vocabulary(self) -> dict[str, int]:
        """The number of every token, added ones among them, by its text."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()


@functools.lru_cache(maxsize=2)
def _load(path: Path, modified_ns: int) -> Tokenizer:
    """The tokenizer of a file, which takes a second to read if its vocabulary is large."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower one
        raise UserError(f"{path} is no tokenizer: {error}; copy it again from the model") from None
