#!/bin/sh
# OpenVINO GenAI's parser of pythonic calls (Llama3PythonicToolParser) on replies in the form that Llama 3.2 and 4 are asked
# for.
# Packages: openvino-genai 2026.4.1.0 with the packages below. Guess: `[weather(city="Rome"), time(city="Oslo")]` is two calls,
# or it is refused, and a call has all of its arguments.
# Seen: it is one call: the tool is the text before the first parenthesis, and the arguments are all name="text" of the reply,
# later ones over earlier ones. So the reply above is weather in Oslo, and add(a="1"), mul(b="2") is add(a="1", b="2"). A value
# without double quotes, as a number, a boolean, a list or 'text', is no argument: pay(to="Ann", amount=5) has no amount. Prose
# with brackets is a call: "See [1]" is a call of the tool "1".
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check openvino-genai==2026.4.1.0 openvino==2026.4.1 \
        openvino-tokenizers==2026.4.1.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import ast
from importlib.metadata import version

from openvino_genai import Llama3PythonicToolParser

assert version("openvino-genai") == "2026.4.1.0"


def written(reply):
    """The calls of a reply as Python reads them."""
    return [(call.func.id, {item.arg: ast.literal_eval(item.value) for item in call.keywords})
            for call in ast.parse(reply, mode="eval").body.elts]  # fmt: skip


for reply, made in (
    ('[weather(city="Rome")]', ("weather", {"city": "Rome"})),
    ('[note(text="a=1, b=f(2)")]', ("note", {"text": "a=1, b=f(2)"})),
    ('[weather(city="Rome"), time(city="Oslo")]', ("weather", {"city": "Oslo"})),
    ('[add(a="1"), mul(b="2")]', ("add", {"a": "1", "b": "2"})),
    ('[pay(to="Ann", amount=5, now=True)]', ("pay", {"to": "Ann"})),
    ("[pay(to='Ann', cents=[1, 2])]", ("pay", {})),
):
    message = {"content": reply}
    Llama3PythonicToolParser().parse(message)
    calls = [(call["name"], call["arguments"]) for call in message["tool_calls"]]
    print(f"{reply}: {calls}")
    assert calls == [made] and (calls == written(reply)) == (reply[1:5] in ("weat", "note") and "time" not in reply)
message = {"content": "See [1]."}
Llama3PythonicToolParser().parse(message)
print(message)
assert [call["name"] for call in message["tool_calls"]] == ["1"]
EOP
