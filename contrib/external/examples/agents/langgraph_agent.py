"""An agent of LangGraph: a graph of two nodes, the model and its tools, until the model calls none."""

import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools([add])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([add]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
result = graph.compile().invoke({"messages": [("user", sys.stdin.read())]})
print(result["messages"][-1].content)
