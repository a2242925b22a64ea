"""An agent of Pydantic AI; its argument names the dialect: openai-chat, openai-responses or anthropic."""

import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from pydantic_ai import Agent

agent = Agent(f"{sys.argv[1]}:{os.environ['OPENAI_MODEL']}", system_prompt="Add with the tool.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


print(agent.run_sync(sys.stdin.read()).output)
