"""Rows of the embedding that were never trained, although the model's template uses their tokens; and new ones.

A tokenizer may have a token such as <tool_call> that the model never saw: its row is what it was initialised with, and
equals the rows of other such tokens. A model cannot tell two of these apart, neither reading nor writing.

    marks = untrained_tokens(folder, renderer)  # the marks of the template with such rows
    make_folder(folder, marks, into, seed=0)   # the same model with rows of their own for these marks
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from agents.model_folder import config_of, weight_files
from agents.model_weights import EMBEDDING, HEAD, Place, places, rows, write_rows
from agents.renderer.rendering import Renderer
from agents.renderer.served import trial
from agents.renderer.tokenizer import FastTokenizer

if TYPE_CHECKING:
    import torch

SAME = 0.999
"""Two rows with a larger cosine count as equal: SmolLM2 in 4 bits has trained rows up to 0.993, others 1.0000."""
NOISE = 0.5
"""Deviation of the noise on a new row, in deviations of the whole matrix."""
_TEXTS = (".json", ".jinja", ".txt", ".model")  # beside the weights
_PADDING = 512  # rows after the tokenizer's last token that are looked at


def untrained_tokens(folder: Path, renderer: Renderer) -> dict[str, tuple[str, ...]]:
    """The added tokens of a trial conversation that have the row of another added token, by matrix.

    The conversation has calls. In the embedding all of its tokens count, and in an output layer of its own the tokens
    that the model writes. Only the rows of added tokens are read, and some rows that no token has.
    """
    tokenizer = FastTokenizer(folder)
    numbers = tokenizer.vocabulary
    texts = {numbers[text]: text for text in tokenizer.added_tokens}
    turns = trial(renderer)
    outputs = {int(token) for turn in turns for token in turn.token_ids}
    read = outputs | {int(token) for turn in turns for token in turn.prompt_ids}
    there, first_unused = places(weight_files(folder)), max(numbers.values()) + 1
    is_tied, by_matrix = bool(config_of(folder).get("tie_word_embeddings")), dict[str, tuple[str, ...]]()
    for name, tokens_of_matrix in ((EMBEDDING, read), (HEAD, read if is_tied else outputs)):
        if name in there and (marks := sorted(tokens_of_matrix & texts.keys())):
            tokens = _equal_rows(there[name], marks, sorted(texts), first_unused)
            by_matrix |= {name: tuple(texts[token] for token in tokens)} if tokens else {}
    return by_matrix


def untrained_marks(tokens: Mapping[str, Sequence[str]]) -> str:
    """The tokens of a result of `untrained_tokens`, for a person."""
    return ", ".join(dict.fromkeys(mark for marks in tokens.values() for mark in marks))


def _equal_rows(place: Place, marks: Sequence[int], added_ids: Sequence[int], first_unused: int) -> list[int]:
    """The marks with a row of zeros, or with the row of another added token or of a number from `first_unused` on."""
    size = place.shape[0]
    ids = [token for token in added_ids if token < size] + [*range(first_unused, min(size, first_unused + _PADDING))]
    matrix = rows(place, ids)  # (ids, width)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    matrix /= np.maximum(norms, np.finfo(np.float32).tiny)  # a row of zeros stays zeros
    positions = [ids.index(token) for token in marks if token < size]
    cosines = matrix[positions] @ matrix.T  # (marks, ids)
    cosines[range(len(positions)), positions] = 0.0
    is_equal = (cosines > SAME).any(axis=1) | (norms[positions, 0] == 0)
    return [ids[place] for place, equal in zip(positions, is_equal.tolist(), strict=True) if equal]


def make_folder(folder: Path, marks: Mapping[str, Sequence[str]], into: Path, *, seed: int) -> None:
    """Make a copy of a model's folder in which some added tokens have new rows.

    A row is the mean of the rows of its text's pieces plus noise, at the median norm of all rows. The copy appears
    complete or not at all. Files of weights that do not change are links to the model's.

    Args:
        marks: added tokens of its tokenizer, by matrix: the result of `untrained_tokens`.
        into: does not exist yet.
    """
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    there, files = places(weight_files(folder)), weight_files(folder)
    new_files = {there[name].file for name in marks}
    for path in folder.iterdir():
        if path in files and path not in new_files:
            os.symlink(path.resolve(), partial / path.name)
        elif path in new_files or (path.is_file() and path.suffix in _TEXTS):
            shutil.copyfile(path, partial / path.name)
    for name, texts in marks.items():
        place = there[name]
        write_rows(partial / place.file.name, place.name, _new_rows(place, _pieces(folder, texts), seed))
    partial.rename(into)


def _new_rows(place: Place, pieces: dict[int, list[int]], seed: int) -> dict[int, torch.Tensor]:
    import torch

    sample = torch.from_numpy(rows(place, range(0, place.shape[0], max(1, place.shape[0] // 4096))))
    norm, deviation = sample.norm(dim=1).median(), sample.std()
    generator = torch.Generator().manual_seed(seed)
    new = {}
    for token, parts in pieces.items():
        noise = torch.randn(place.shape[1], generator=generator) * deviation * NOISE
        row = torch.from_numpy(rows(place, parts)).mean(dim=0) + noise
        new[token] = row / row.norm() * norm
    return new


def _pieces(folder: Path, marks: Sequence[str]) -> dict[int, list[int]]:
    """For each mark its token, and the tokens that its text would have if it were not a token."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["content"] not in marks]
    plain = Tokenizer.from_str(json.dumps(content))
    return {ids[mark]: plain.encode(mark, add_special_tokens=False).ids for mark in marks}
