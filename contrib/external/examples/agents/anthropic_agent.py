"""An agent in a plain loop over the Messages of the package anthropic."""

import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from anthropic import Anthropic

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["a", "b"]}
ADD = {"name": "add", "description": "Add two numbers.", "input_schema": PARAMETERS}

client = Anthropic()
options = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 200, "tools": [ADD]}
messages = [{"role": "user", "content": sys.stdin.read()}]
for _ in range(6):
    reply = client.messages.create(messages=messages, **options)
    messages.append({"role": "assistant", "content": reply.content})
    calls = [block for block in reply.content if block.type == "tool_use"]
    if not calls:
        print("".join(block.text for block in reply.content if block.type == "text"))
        break
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + call.input["b"])}
        for call in calls
    ]
    messages.append({"role": "user", "content": results})
