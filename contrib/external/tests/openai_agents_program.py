"""An agent of the package openai-agents, as its documentation writes one; it knows nothing of forge_env.

With the argument "chat" it speaks Chat Completions; with "default" what the package speaks by default, Responses.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import agents
from agents import Agent, Runner, function_tool, set_default_openai_api


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(mode: str, question: str) -> None:
    if mode == "chat":
        set_default_openai_api("chat_completions")
    agent = Agent(name="adder", instructions="Add with the tool.", tools=[add], model=os.environ["OPENAI_MODEL"])
    first = await Runner.run(agent, question)
    streamed = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": "And again?"}])
    async for _ in streamed.stream_events():
        pass
    answer = [first.final_output, streamed.final_output, agents.__file__]
    result = {"reward": float(first.final_output == "42"), "answer": answer}
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps(result))
    print(json.dumps(answer))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.stdin.read()))
