"""A coding agent of the package mini-swe-agent, step by step; its long system prompt says how many calls were made.

With the argument "edited" the system prompt is rendered again before every step, as agents do that keep a state there;
with "fixed" it stays.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", os.environ.get("TMPDIR", "/tmp"))

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel

RULES = [
    "Work in the current folder only. Nothing outside of it is yours to read or to change.",
    "Look before you write: list a folder before you guess its files, and read a file before you edit it.",
    "Make the smallest change that does what was asked. Leave names, formats and comments of others as they are.",
    "Call the tool bash with one command at a time. A command ends within half a minute, and never asks for input.",
    "After a change, run what shows that it works. An answer without a check is a guess.",
    "If a command fails, read what it wrote before you try another one. Do not repeat a command that has failed.",
    "Do not install packages, do not open connections, and do not start programs that stay in the background.",
    "Keep secrets out of what you write. A value that looks like a key is not to be printed, copied or saved.",
    "When everything is done, print COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT on a line of its own, then the answer.",
]
SYSTEM = (
    "You are a careful programmer at a shell.\n\n# State\n\nCalls so far: {{ n_model_calls }}\n\n# Rules\n\n"
    + "\n".join(f"{number}. {rule}" for number, rule in enumerate(RULES * 3, 1))
)


def main(mode: str, question: str) -> None:
    model = LitellmModel(
        model_name=f"openai/{os.environ['OPENAI_MODEL']}",
        model_kwargs={"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]},
        cost_tracking="ignore_errors",
    )
    cwd = os.environ["TMPDIR"]
    agent = DefaultAgent(model, LocalEnvironment(cwd=cwd), system_template=SYSTEM, instance_template="{{ task }}")
    agent.extra_template_vars["task"] = question
    agent.add_messages(
        model.format_message(role="system", content=agent._render_template(SYSTEM)),
        model.format_message(role="user", content=question),
    )
    answer = ""
    for _ in range(4):
        if mode == "edited":
            agent.messages[0]["content"] = agent._render_template(SYSTEM)
        try:
            agent.step()
        except Submitted as end:
            answer = end.messages[0]["extra"]["submission"].strip()
            break
    result = {"answer": answer, "reward": float(answer == "2")}
    Path(os.environ["FORGE_ENV_RESULT"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
