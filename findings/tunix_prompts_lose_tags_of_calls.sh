#!/bin/sh
# Tunix's QwenChatTemplateParser on the messages of its own ToolAgent, which tells the model to write calls in <tool_call> tags.
# Packages: google-tunix 0.1.7 (its parser and agent alone), absl-py 2.5.1, numpy 2.4.6. Guess: the model reads the form that
# its parser of calls reads, and its own calls in the history as it wrote them.
# Seen: what the parser takes for control tokens is removed from every message, the system prompt and the model's own turns too,
# and "\n<tool_call>\n" and "\n</tool_call>" are among them. So the example of a call in the prompt has no tags, and each call
# of the history becomes bare JSON behind the thought. A model that copies the example or itself makes no call: its parser finds
# none, so the JSON is taken for the final answer. Rows for training keep the tags, so they are not what the model saw.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check absl-py==2.5.1 numpy==2.4.6
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps google-tunix==0.1.7
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import sys
from importlib.metadata import distribution, version
from types import ModuleType, SimpleNamespace

assert version("google-tunix") == "0.1.7"
tunix = sys.modules["tunix"] = ModuleType("tunix")  # the package's own first file imports JAX and all trainers
tunix.__path__ = [str(distribution("google-tunix").locate_file("tunix"))]
from tunix.rl.agentic.agents.tool_agent import ToolAgent
from tunix.rl.agentic.parser.chat_template_parser.parser import QwenChatTemplateParser
from tunix.rl.agentic.tools.calculator_tool import CalculatorTool

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"a": 3, "b": 4, "op": "*"}}\n</tool_call>'
parser = QwenChatTemplateParser(SimpleNamespace(bos_token=None, eos_token="<|im_end|>"))
agent = ToolAgent("Use the tools.\n", tool_map={"calculator": CalculatorTool})
agent.update_from_env({"question": "How much is 3 times 4?"}, 0.0, False, {})
(call,) = agent.update_from_model("I multiply.\n" + CALL).action
assert call["function"]["name"] == "calculator"
agent.update_from_env({"tool_outputs": {call["id"]: "12"}}, 0.0, False, {})

asked = agent.chat_completions[0]["content"]
prompt = parser.parse(agent.chat_completions, add_generation_prompt=True, is_first_msg=True)
system, history = prompt.split("<|im_start|>user\nHow much is 3 times 4?<|im_end|>\n")
print("The agent's prompt ends: ", repr(asked[asked.index("XML tags:\n<tool_call>") :]))
print("The model reads:         ", repr(system[system.index("XML tags:{") :]))
print("The history of the model:", repr(history))
assert '<tool_call>\n{"name": "<function-name>", "arguments": <args-json-object>}\n</tool_call>' in asked
assert 'XML tags:{"name": "<function-name>", "arguments": <args-json-object>}<|im_end|>' in system
assert 'I multiply.{"name": "calculator", "arguments": {"a": 3, "b": 4, "op": "*"}}<|im_end|>' in history
assert "tool_call>" not in history

(copied,) = agent.update_from_model('{"name": "calculator", "arguments": {"a": 3, "b": 4, "op": "*"}}').action
print("A call as in the prompt: ", copied["function"])
assert copied["function"]["name"] == "finish"
EOP
