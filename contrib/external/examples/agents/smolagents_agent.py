"""An agent of smolagents: its ToolCallingAgent ends with the tool final_answer.

The first argument is the tool_choice, auto or required. The default of smolagents is required: its answers are sampled
under a grammar, and a trainer leaves them out of the loss. Train with auto.
"""

import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a + b


model = OpenAIServerModel(
    os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    tool_choice=sys.argv[1],
)
print(ToolCallingAgent(tools=[add], model=model, max_steps=6, verbosity_level=0).run(sys.stdin.read()))
