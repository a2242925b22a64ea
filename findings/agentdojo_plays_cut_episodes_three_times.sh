#!/bin/sh
# An episode that reaches the limit of iterations in AgentDojo (15 in ToolsExecutionLoop), for a model that calls a tool each
# turn and writes no text beside it, as most do.
# Package: agentdojo 0.1.35, suite banking v1.2.2, a scripted model. Guess: the episode ends there and is graded, with 15
# payments on the account.
# Seen: the last message has no text, so run_task_with_pipeline plays the task anew, twice more, in the environment that the
# first play has changed. The account has 45 payments, the model was asked 48 times, and the third play alone is graded and
# returned in the trace. One word of text beside each call, and it is played once. So a reward and a cost depend on whether a
# model talks.
# PYTHON may name an interpreter that has this package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agentdojo==0.1.35
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from agentdojo.agent_pipeline.base_pipeline_element import BasePipelineElement
from agentdojo.agent_pipeline.tool_execution import ToolsExecutionLoop, ToolsExecutor
from agentdojo.functions_runtime import FunctionCall
from agentdojo.task_suite.load_suites import get_suite
from agentdojo.types import text_content_block_from_string

assert version("agentdojo") == "0.1.35"
PAYMENT = {"recipient": "GB29NWBK60161331926819", "amount": 1.0, "subject": "x", "date": "2022-04-01"}


class Model(BasePipelineElement):
    def __init__(self, text):
        self.content, self.turns = text and [text_content_block_from_string(text)], 0

    def query(self, query, runtime, env=None, messages=(), extra_args=None):
        self.turns += 1
        call = FunctionCall(function="send_money", args=PAYMENT, id=str(self.turns))
        message = {"role": "assistant", "content": self.content, "tool_calls": [call]}
        return query, runtime, env, [*messages, message], extra_args


class Agent(BasePipelineElement):
    """The model's first answer, then calls and answers in turn, as AgentDojo's own pipelines are built."""

    def __init__(self, model):
        self.model, self.loop, self.plays = model, ToolsExecutionLoop([ToolsExecutor(), model]), 0

    def query(self, query, runtime, env=None, messages=(), extra_args=None):
        self.plays += 1
        return self.loop.query(*self.model.query(query, runtime, env, [], {}))


suite = get_suite("v1.2.2", "banking")
for text, plays in ((None, 3), ("Paying.", 1)):
    agent, environment = Agent(Model(text)), suite.load_and_inject_default_environment({})
    suite.run_task_with_pipeline(agent, suite.user_tasks["user_task_3"], None, {}, environment=environment)
    paid = sum(each.amount == 1.0 for each in environment.bank_account.transactions)
    print(f"text beside calls {text}: {agent.plays} plays, {agent.model.turns} turns, {paid} payments")
    assert (agent.plays, agent.model.turns, paid) == (plays, 16 * plays, 15 * plays)
EOP
