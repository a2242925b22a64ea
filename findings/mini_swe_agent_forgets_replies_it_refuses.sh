#!/bin/sh
# Replies of a model that mini-swe-agent cannot run: without a call, or with one call of several that is wrong.
# Packages: mini-swe-agent 2.4.6, litellm 1.110.2 (its own scripted replies, no server).
# Guess: the reply goes into the history, the error behind it, as for any other turn; of two calls the right one is
# run.
# Seen: the reply is thrown away. The history, which the model reads next and which is saved as the trajectory, has the
# user's task and then the error as a second text of the user: "Unknown tool 'python'" is about a call that the model
# does not see, and its thoughts, and a right call beside the wrong one, are gone, too. So the next prompt is nearly
# the same as before, and rows that are made of the messages never hold a mistake, nor any of its tokens, though each
# was sampled and billed. The text is in `extra` of the error alone, which is not sent.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2 platformdirs==4.14.9 \
        python-dotenv==1.2.4 rich==15.0.0 tenacity==9.2.1
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps mini-swe-agent==2.4.6
    PYTHON="$folder/venv/bin/python"
fi
MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR="$folder/config" LITELLM_LOCAL_MODEL_COST_MAP=True \
    "$PYTHON" -W ignore - "$folder" 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import json
import sys
from importlib.metadata import version

import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

assert version("mini-swe-agent") == "2.4.6" and version("litellm") == "1.110.2"
litellm.suppress_debug_info = True


def call(name, key, text, number):
    function = {"name": name, "arguments": json.dumps({key: text})}
    return {"id": f"call_{number}", "type": "function", "function": function}


def play(text, *calls):
    """The roles and texts that the model would read after two turns with the same reply."""
    reply = {"mock_response": text, **({"mock_tool_calls": list(calls)} if calls else {})}
    model = LitellmModel(model_name="openai/m", model_kwargs=reply, cost_tracking="ignore_errors")
    agent = DefaultAgent(
        model, LocalEnvironment(cwd=sys.argv[1]), system_template="Work.", instance_template="{{ task }}", step_limit=2
    )
    agent.run("Mend it.")
    sent = model._prepare_messages_for_api([message for message in agent.messages if message["role"] != "exit"])
    return [message["role"] for message in sent], json.dumps(sent), json.dumps(agent.messages)


good, other = call("bash", "command", "echo first > out.txt", 0), call("python", "code", "print(1)", 1)
for title, text, calls, roles, kept in (
    ("a right call", "I look first.", [good], ["system", "user", "assistant", "tool", "assistant", "tool"], True),
    ("no call", "I look first.", [], ["system", "user", "user", "user"], False),
    ("an unknown tool", "I look first.", [other], ["system", "user", "user", "user"], False),
    ("a right and a wrong call", "I look first.", [good, other], ["system", "user", "user", "user"], False),
):
    seen, sent, saved = play(text, *calls)
    print(f"{title}: {seen}; the reply is sent back: {text in sent}")
    assert seen == roles and (text in sent) is kept and text in saved
    assert ("echo first" in sent) is kept
EOP
