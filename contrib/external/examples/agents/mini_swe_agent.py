"""mini-swe-agent (pip install mini-swe-agent) on the task that is its standard input, in the current folder.

Its client for OpenRouter is the one that starts fastest. Commands are blocks of text, which a small model writes more
easily than calls of tools. The number of steps is the first argument.
"""

import argparse
import os
import sys

SYSTEM = """Mend the code, not its tests. Answer with one command of the shell in a block:

```mswea_bash_command
ls
```

To end, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="?", type=int, default=8)
    steps = parser.parse_args().steps
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", os.environ.get("TMPDIR", "/tmp"))
    os.environ.setdefault("MSWEA_COST_TRACKING", "ignore_errors")
    os.environ.setdefault("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", "1")  # a refused request stays refused
    os.environ["OPENROUTER_API_KEY"] = os.environ["OPENAI_API_KEY"]

    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.openrouter_textbased_model import OpenRouterTextbasedModel

    model = OpenRouterTextbasedModel(model_name=os.environ["OPENAI_MODEL"])
    model._api_url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    agent = DefaultAgent(
        model, LocalEnvironment(), system_template=SYSTEM, instance_template="{{ task }}", step_limit=steps
    )
    print(agent.run(sys.stdin.read())["exit_status"])
