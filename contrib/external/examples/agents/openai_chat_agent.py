"""An agent in a plain loop over the Chat Completions of the package openai."""

import json
import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from openai import OpenAI

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["a", "b"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": PARAMETERS}}

client = OpenAI()
messages = [{"role": "user", "content": sys.stdin.read()}]
for _ in range(6):
    reply = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=[ADD])
    message = reply.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        print(message.content)
        break
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])})
