#!/bin/sh
# tinker-cookbook's on-policy distillation of an episode with a tool, with and without `kl_discount_factor`, an option of its recipes.
# Packages: tinker-cookbook 0.6.1, tinker 0.38.0, torch 2.13.0. Guess: a discount spreads the teacher's verdict over earlier
# tokens that the student sampled, and the tokens of the prompt and of the tool's result stay out of the loss, as without it.
# Seen: the sum over later tokens is not masked again. With 0.9 each token of the prompt and of the tool's result has an
# advantage too, the prompt's more than most sampled ones. Nothing that is sent to the loss keeps them out: the mask is
# taken off, and the logprob of these tokens is 0.0. `kl_penalty_coef` of plain RL (rl.metrics) does the same.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check tinker==0.38.0 torch==2.13.0 transformers==5.19.0 \
        datasets==4.7.0 chz==0.4.0 blobfile==3.3.0 termcolor==3.3.0 pillow==12.0.0 orjson==3.13.0 cloudpickle==3.1.2 rich==15.0.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps tinker-cookbook==0.6.1
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version
from types import SimpleNamespace

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.distillation.train_on_policy import incorporate_kl_penalty
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.metrics import incorporate_kl_penalty as incorporate_base_penalty
from tinker_cookbook.rl.train import _remove_mask
from tinker_cookbook.rl.types import Trajectory, Transition

assert version("tinker-cookbook") == "0.6.1" and version("tinker") == "0.38.0"


class Teacher:  # gives every token the logprob -3.0, in place of a sampling client of the service
    def compute_logprobs(self, sequence):
        return self._later([None] + [-3.0] * (sequence.length - 1))

    def sample(self, prompt, **_):
        scores = [None] + [-3.0] * (prompt.length - 1)
        return self._later(SimpleNamespace(prompt_logprobs=scores, sequences=[], prompt_cache_hit_tokens=0))

    def _later(self, value):
        async def coroutine():
            return value

        return SimpleNamespace(coroutine=coroutine)


def turn(context, tokens, logprob, done):
    sampled = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[logprob] * len(tokens))
    return Transition(ob=tinker.ModelInput.from_ints(context), ac=sampled, reward=0.0, episode_done=done)


def advantages(penalise, discount):
    """Advantages in the order of the targets, as the loss receives them: 2 of the prompt, 2 sampled, 2 of the tool, 2 sampled."""
    turns = [turn([1, 2, 3], [4, 5], -1.0, False), turn([1, 2, 3, 4, 5, 6, 7], [8, 9], -2.0, True)]
    (row,) = trajectory_to_data(Trajectory(transitions=turns, final_ob=tinker.ModelInput.empty()), 0.0)
    asyncio.run(penalise(row, discount))
    sent = _remove_mask(row).loss_fn_inputs
    assert sorted(sent) == ["advantages", "logprobs", "target_tokens"]
    assert sent["logprobs"].data == [0.0, 0.0, -1.0, -1.0, 0.0, 0.0, -2.0, -2.0]
    return [round(float(value), 2) for value in sent["advantages"].data]


for name, penalise, plain, discounted in (
    (
        *("distillation", lambda row, discount: incorporate_kl_penalty([row], [Teacher()], [0], 1.0, discount)),
        *([0.0, 0.0, -2.0, -2.0, 0.0, 0.0, -1.0, -1.0], [-4.09, -4.54, -5.05, -3.39, -1.54, -1.71, -1.9, -1.0]),
    ),
    (
        *("KL to the base", lambda row, discount: incorporate_base_penalty([row], Teacher(), 1.0, discount)),
        *([0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.5, 0.5], [-0.26, -0.29, -0.33, 0.19, 0.77, 0.85, 0.95, 0.5]),
    ),
):
    for discount, expected in ((0.0, plain), (0.9, discounted)):
        seen = advantages(penalise, discount)
        print(f"{name}, discount {discount}: {seen}")
        assert seen == expected
EOP
