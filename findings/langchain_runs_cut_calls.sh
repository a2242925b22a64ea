#!/bin/sh
# A call of a tool that was cut off at the limit of tokens, streamed to LangChain and run by LangGraph.
# Packages: langchain-core 1.8.3, langgraph 1.2.24, langgraph-prebuilt as it requires. Guess: arguments that are no JSON make an
# entry of invalid_tool_calls, as they do when the same reply is not streamed, and no tool runs.
# Seen: the sum of the chunks closes what is open. A text that was cut in the middle is the argument, and what was not written yet
# has its default: the tool writes half a file under half a name. Of two objects in one call only the first is read.
# invalid_tool_calls is empty, and only finish_reason says "length", which ToolNode does not ask. So an agent does other things
# when its model streams, and a reward for the length of answers meets them.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check langchain-core==1.8.3 langgraph==1.2.24
    PYTHON="$folder/venv/bin/python"
fi
LANGSMITH_TRACING=false "$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from langchain_core.messages import AIMessage, AIMessageChunk, message_chunk_to_message
from langchain_core.tools import tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

assert version("langchain-core") == "1.8.3" and version("langgraph") == "1.2.24"
done = []


@tool
def write(path: str, text: str = "") -> str:
    """Writes a file."""
    done.append({"path": path, "text": text})
    return "written"


graph = StateGraph(MessagesState)
graph.add_node("tools", ToolNode([write]))
graph.set_entry_point("tools")
agent = graph.compile()


def streamed(arguments):
    """The message that the chunks of a stream add up to, as a chat model of LangChain returns it."""
    whole = AIMessageChunk(content="")
    for number, piece in enumerate((arguments[:7], arguments[7:])):
        name, call = ("write", "c1") if number == 0 else (None, None)
        part = {"name": name, "args": piece, "id": call, "index": 0, "type": "tool_call_chunk"}
        whole += AIMessageChunk(content="", tool_call_chunks=[part])
    return message_chunk_to_message(whole + AIMessageChunk(content="", response_metadata={"finish_reason": "length"}))


for arguments, run in (
    ('{"path": "a.py", "text": "x = 1\\nprint(', {"path": "a.py", "text": "x = 1\nprint("}),
    ('{"path": "notes/2026/ju', {"path": "notes/2026/ju", "text": ""}),
    ('{"path": "a", "text": "b"}{"path": "c"}', {"path": "a", "text": "b"}),
):
    message = streamed(arguments)
    answer = agent.invoke({"messages": [message]})["messages"][-1].content
    print(f"{arguments!r}: {answer}, {done[-1]}, invalid {message.invalid_tool_calls}")
    assert done[-1] == run and answer == "written" and not message.invalid_tool_calls
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    plain = AIMessage(content="", additional_kwargs={"tool_calls": [call]})  # the same reply, not streamed
    assert not plain.tool_calls and plain.invalid_tool_calls[0]["args"] == arguments
EOP
