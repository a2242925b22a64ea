"""An agent program that knows nothing of forge_env: it asks an OpenAI-compatible endpoint, and runs a tool itself.

    forge-env eval --env external --command "python contrib/external/examples/external_agent.py" --option tasks=math \
        --agent vllm:Qwen/Qwen3-0.6B --out outputs/external
    python -m trainers.grpo --env external --command "python contrib/external/examples/external_agent.py" \
        --env.options.tasks math --model Qwen/Qwen3-0.6B

The `openai` package reads OPENAI_BASE_URL and OPENAI_API_KEY by itself; the question is on standard input, and the last
line of standard output is the answer.
"""

import ast
import json
import operator
import os
import sys

from openai import BadRequestError, OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Calculate.",
            "parameters": {
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
                "type": "object",
            },
        },
    }
]
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(node: ast.AST) -> float:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](calculate(node.left), calculate(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    raise ValueError("this is not to be calculated")


def answer_call(arguments: str) -> str:
    """What the model wrote may be anything, and the model is told what is wrong with it."""
    try:
        return f"{calculate(ast.parse(json.loads(arguments)['expression'], mode='eval').body):g}"
    except Exception as error:
        return f"Error: {error}"


def main(question: str) -> None:
    client, model = OpenAI(), os.environ.get("OPENAI_MODEL", "gpt-4o")
    messages: list = [
        {"role": "system", "content": "Use the calculator. Answer with a number."},
        {"role": "user", "content": question},
    ]
    for _ in range(6):
        try:
            message = client.chat.completions.create(model=model, messages=messages, tools=TOOLS).choices[0].message
        except BadRequestError as error:
            if error.code != "context_length_exceeded" or len(messages) == 2:  # else nothing has been said so far
                raise
            print(f"the context is full: {error.message}", file=sys.stderr)
            break
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            content = answer_call(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    print((messages[-1]["content"] or "").strip())


if __name__ == "__main__":
    if "OPENAI_API_KEY" in os.environ and "--help" not in sys.argv:
        main(sys.stdin.read())
    else:  # nobody started it as it is meant to be
        print(__doc__)
