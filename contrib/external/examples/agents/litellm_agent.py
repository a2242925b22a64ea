"""An agent in a plain loop over litellm.completion."""

import json
import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network

import litellm

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["a", "b"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": PARAMETERS}}

messages = [{"role": "user", "content": sys.stdin.read()}]
for _ in range(6):
    reply = litellm.completion(model=f"openai/{os.environ['OPENAI_MODEL']}", messages=messages, tools=[ADD])
    message = reply.choices[0].message
    messages.append(message.model_dump())
    if not message.tool_calls:
        print(message.content)
        break
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])})
