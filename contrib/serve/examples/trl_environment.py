"""An environment of forge_env in TRL: `GRPOTrainer(environment_factory=...)`, by its OpenEnv server.

    forge-env serve --env math --as openenv --split train --port 8800      # prints the token
    pip install trl openenv
    ENV_URL=http://127.0.0.1:8800/TOKEN python contrib/serve/examples/trl_environment.py --model Qwen/Qwen3-0.6B

It needs the packages `trl` and `openenv`, and nothing of forge_env.
"""

import argparse
import os
import sys

# ---- the environment ----


class Math:
    """One episode at a time. The public methods are the model's tools; TRL reads their types and docstrings."""

    def __init__(self):
        from openenv import GenericEnvClient

        self._client = GenericEnvClient(base_url=os.environ["ENV_URL"]).sync()
        self._client.connect()

    def reset(self, index, **row):
        self._reward, self._over = 0.0, False
        observation = self._client.reset(index=index).observation
        return "\n\n".join(message["content"] for message in observation["messages"])

    def calculator(self, expression: str) -> str:
        """
        Calculate.

        Args:
            expression: What to calculate.
        """
        return self._step({"type": "call_tool", "tool_name": "calculator", "arguments": {"expression": expression}})

    def answer(self, text: str) -> str:
        """
        Give the final answer.

        Args:
            text: The answer.
        """
        return self._step({"type": "call_tool", "tool_name": "answer", "arguments": {"text": text}})

    def get_reward(self):
        """TRL leaves a completion without a reward out: None, where the episode has ended by a fault."""
        try:
            if not self._over:
                self._step({"content": ""})  # the model has not answered
        except RuntimeError:
            return None
        return self._reward

    def _step(self, action):
        result = self._client.step(action)
        self._reward, self._over = self._reward + (result.reward or 0.0), result.done
        return result.observation.get("result", {}).get("data", "")


# ---- a run ----


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--max-completion-length", type=int, default=512)
    parser.add_argument("--out", default="outputs/trl")
    options = parser.parse_args()

    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    # The index goes to `reset`, so that all completions of a group have the same task.
    rows = [{"prompt": [{"role": "user", "content": ""}], "index": index} for index in range(200)]
    trainer = GRPOTrainer(
        model=options.model,
        environment_factory=Math,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=options.out,
            max_steps=options.steps,
            num_generations=4,
            per_device_train_batch_size=4,
            max_completion_length=options.max_completion_length,
            logging_steps=1,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            save_strategy="no",
        ),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "rewards/Math/mean" in entry:
            print("step", entry["step"], "reward", entry["rewards/Math/mean"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main()
    else:
        print(__doc__)
