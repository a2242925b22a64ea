"""What transformers makes of a model's tokenizer, against its tokenizer.json.

A run, an evaluation and an export tokenise by tokenizer.json alone. Other programs, vLLM's server among them, use the
class that tokenizer_config.json names, and some classes replace parts of tokenizer.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

from agents.model_weights import check_head
from agents.renderer.chat_template import read_tokenizer_config
from agents.renderer.conversation_format import Thinking, ToolsForm
from agents.renderer.rendering import Renderer
from forge_env.core.errors import UserError
from forge_env.utils.atomic import hold_lock, replace_file
from forge_env.utils.digests import files_digests, value_digest
from forge_env.utils.folders import cache_folder

PLAIN = "PreTrainedTokenizerFast"
"""The class of transformers that keeps to tokenizer.json."""
REMEDY = f"set tokenizer_class to {PLAIN} in its tokenizer_config.json"
PACKAGES = ("tokenizers", "transformers")
SECONDS = 300.0
"""Time limit of the other process."""
MOST_KEPT = 200
"""Files of answers, a few kilobytes each; the oldest are removed."""
TEXTS = (
    "In 1945 it was 12,345.67 of 1000000, or 3.",
    "  two spaces,   three\tand a tab ",
    "one line\nanother\n\nand one after an empty line\r\n",
    "I'm sure they'll say it isn't HE'S; we've, you'd",
    "naïve café, über, Żółw; e\u0301 ﬁ ½ ™",
    "Привет, мир! Ελληνικά. 你好，世界。こんにちは 한국어 العربية हिन्दी ไทย",
    "🙂 👩‍💻 ∑ₙ x² ≤ ∞ → −5",
    'def f(x):\n    return {"a": [x ** 2, None]}  # ok\n',
    "<b>bold</b> \\frac{1}{2} $x_i$ a_b-c/d @e #f",
    "",
)
"""Texts in which tokenizers differ: digits, spaces, ends of lines, contractions, accents, other scripts."""
_CHILD = """
import json, logging, os, sys, tempfile
sys.modules["torch"] = None  # transformers needs it for models only, and its import takes seconds
logging.disable(logging.CRITICAL)
out, sys.stdout = sys.stdout, sys.stderr
from transformers import AutoTokenizer

def read(folder):
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return {"name": type(tokenizer).__name__, "ids": ids}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}

folder, texts, config, expected = json.load(sys.stdin)
answer = {"given": read(folder)}
if answer["given"].get("ids") != expected:
    with tempfile.TemporaryDirectory() as other:
        for name in ("config.json", "tokenizer.json"):
            os.symlink(os.path.join(folder, name), os.path.join(other, name))
        with open(os.path.join(other, "tokenizer_config.json"), "w") as file:
            file.write(config)
        answer["plain"] = read(other)
json.dump(answer, out)
"""


class ServedTokenizer:
    """The tokenizer that transformers makes of a folder, in a process of its own, which starts at once.

    Use it with `with`: the process ends with the block.
    """

    def __init__(self, folder: Path) -> None:
        from agents.renderer.tokenizer import FastTokenizer

        self._folder = folder
        tokenizer = FastTokenizer(folder)
        self._texts = [*TEXTS, *(f"a {mark}b" for mark in _marks(folder, tokenizer.added_tokens))]
        self._ids = [tokenizer.encode(text) for text in self._texts]
        self._input = json.dumps([str(folder.resolve()), self._texts, plain_config(folder), self._ids])
        self._file = self._file_of_answer()
        self._saved_answer = _read_answer(self._file)
        self._process: Popen[str] | None = None
        if self._saved_answer is None:
            self._process = Popen(
                [sys.executable, "-c", _CHILD], stdin=PIPE, stdout=PIPE, stderr=PIPE, encoding="utf-8", errors="replace"
            )

    def __enter__(self) -> ServedTokenizer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def check(self) -> str:
        """Compare it with tokenizer.json; returns the difference in words, or "" if there is none.

        With the text of `plain_config` as its tokenizer_config.json, the folder has none.
        """
        answer = self._answer()
        problem = self._problem(answer["given"])
        if not problem:
            return ""
        if not self._problem(answer.get("plain", answer["given"])):
            return problem
        raise UserError(
            f"{problem}, and does so with the tokenizer_class {PLAIN}, too: save the tokenizer anew, for example by "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )

    def _problem(self, answer: dict[str, Any]) -> str:
        if "error" in answer:
            return f"transformers cannot make the tokenizer of {self._folder}: {answer['error']}"
        for text, ours, theirs in zip(self._texts, self._ids, answer["ids"], strict=True):
            if theirs != ours:
                return (
                    f"the tokenizer of {self._folder} has two meanings: for {text!r} tokenizer.json gives the tokens "
                    f"{_part(ours, theirs)}, and transformers' {answer['name']}, which servers use, gives "
                    f"{_part(theirs, ours)}"
                )
        return ""

    def _file_of_answer(self) -> Path | None:
        """Where an answer is kept: its name is a digest of all that it follows from. Copies of a folder share one."""
        versions = {part.name: part.version for name in PACKAGES for part in distributions(name=name)}
        files = [path for path in sorted(self._folder.iterdir()) if path.is_file() and path.suffix != ".safetensors"]
        name = value_digest([_CHILD, PLAIN, self._texts, self._ids, versions, sys.version, files_digests(files)])
        return folder / name if (folder := cache_folder("tokenizers")) is not None else None

    def _answer(self) -> dict[str, Any]:
        if self._saved_answer is not None:
            return self._saved_answer
        assert self._process is not None
        try:
            out, errors = self._process.communicate(self._input, timeout=SECONDS)
            answer: dict[str, Any] = json.loads(out)
        except TimeoutExpired:
            return {"given": {"error": f"it took more than {SECONDS:g} s"}}
        except ValueError:
            return {"given": {"error": (errors.strip().splitlines() or ["its process ended without a word"])[-1]}}
        if self._file is not None and "error" not in answer["given"]:
            with suppress(OSError, UserError):
                with hold_lock(self._file):
                    replace_file(self._file, out)
                by_age = sorted((path.stat().st_mtime_ns, path) for path in self._file.parent.iterdir())
                for _, old in by_age[:-MOST_KEPT]:
                    old.unlink(missing_ok=True)
        return answer


def _read_answer(file: Path | None) -> dict[str, Any] | None:
    """The answer in a file; None if there is none, or a part of one."""
    with suppress(OSError, ValueError):
        answer: Any = json.loads(file.read_text(encoding="utf-8")) if file else None
        return answer if isinstance(answer, dict) and "given" in answer else None
    return None


def plain_config(folder: Path) -> str:
    """The tokenizer_config.json of a folder, with the class that keeps to tokenizer.json."""
    config = {**read_tokenizer_config(folder), "tokenizer_class": PLAIN}
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _marks(folder: Path, special: Sequence[str]) -> list[str]:
    """The special tokens of tokenizer.json and of tokenizer_config.json, which may differ."""
    tokens = (read_tokenizer_config(folder).get("added_tokens_decoder") or {}).values()
    return list(dict.fromkeys([*special, *(token["content"] for token in tokens)]))


def _part(ids: Sequence[int], others: Sequence[int]) -> list[int]:
    """A few tokens from the first difference on."""
    first = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), min(len(ids), len(others)))
    return list(ids[first : first + 6])


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    renderer: Renderer
    tokenizer: str
    """How programs that serve the folder tokenise otherwise, see `ServedTokenizer.check`; "" if they do not."""


def check_folder(folder: Path, thinking: Thinking, tools: ToolsForm = "auto") -> CheckedFolder:
    """Check the template, the tokenizer, the thinking and the output layer of a Hugging Face folder."""
    check_head(folder)
    with ServedTokenizer(folder) as tokenizer:  # its process works meanwhile
        renderer = Renderer(folder, thinking=thinking, tools=tools)
        return CheckedFolder(renderer, tokenizer.check())
