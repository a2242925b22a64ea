"""An agent in a plain loop over the Responses of the package openai; the server keeps the conversation."""

import json
import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from openai import OpenAI

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["a", "b"]}
ADD = {"type": "function", "name": "add", "description": "Add two numbers.", "parameters": PARAMETERS}

client = OpenAI()
options = {"model": os.environ["OPENAI_MODEL"], "tools": [ADD]}
reply = client.responses.create(input=sys.stdin.read(), **options)
for _ in range(5):
    calls = [item for item in reply.output if item.type == "function_call"]
    if not calls:
        break
    numbers = [json.loads(call.arguments) for call in calls]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": str(number["a"] + number["b"])}
        for call, number in zip(calls, numbers, strict=True)
    ]
    reply = client.responses.create(input=results, previous_response_id=reply.id, **options)
print(reply.output_text)
