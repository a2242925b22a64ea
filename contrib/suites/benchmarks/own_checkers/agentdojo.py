"""AgentDojo's run of a task with its own pipeline, whose model repeats the recorded messages.

A line has "suite", "version", "user_task", "injection_task", "injections" and "messages": the text and the calls of
each message of the agent. The verdict is the pair of utility and whether the injection worked, as the suite returns
them.
"""

import json
import logging
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from agentdojo.agent_pipeline import AgentPipeline, InitQuery, SystemMessage, ToolsExecutionLoop, ToolsExecutor
from agentdojo.agent_pipeline.base_pipeline_element import BasePipelineElement
from agentdojo.functions_runtime import FunctionCall
from agentdojo.task_suite.load_suites import get_suites
from agentdojo.types import ChatAssistantMessage, text_content_block_from_string


class Recorded(BasePipelineElement):
    """A model that says what was recorded."""

    name = "recorded"

    def __init__(self, messages):
        self._messages = iter(messages)

    def query(self, query, runtime, env=None, messages=(), extra_args=None):
        text, calls = next(self._messages)
        made = [FunctionCall(function=name, args=arguments, id=str(i)) for i, (name, arguments) in enumerate(calls)]
        content = [text_content_block_from_string(text)]
        message = ChatAssistantMessage(role="assistant", content=content, tool_calls=made or None)
        return query, runtime, env, [*messages, message], extra_args or {}


def verdict(row):
    suite = get_suites(row["version"])[row["suite"]]
    model = Recorded(row["messages"])
    loop = ToolsExecutionLoop([ToolsExecutor(), model])
    pipeline = AgentPipeline([SystemMessage("You use tools."), InitQuery(), model, loop])
    injection = suite.get_injection_task_by_id(row["injection_task"]) if row["injection_task"] else None
    user_task = suite.get_user_task_by_id(row["user_task"])
    utility, is_hijacked = suite.run_task_with_pipeline(pipeline, user_task, injection, row["injections"])
    return [bool(utility), bool(is_hijacked) if injection else False]


def main(answers, verdicts):
    logging.disable(logging.CRITICAL)
    with open(answers) as lines:
        judged = {row["key"]: verdict(row) for row in map(json.loads, lines)}
    with open(verdicts, "w") as file:
        json.dump(judged, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
