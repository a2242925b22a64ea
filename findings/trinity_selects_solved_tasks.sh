#!/bin/sh
# Trinity-RFT's DifficultyBasedSelector, which samples tasks by their pass rate, over 50 steps of 10 tasks.
# Packages: trinity-rft 0.6.0, torch 2.13.0. Guess: with its defaults it prefers tasks that are solved now and then ("neither too
# easy nor too hard", as its docstring says), and a resumed run knows what it has learned about them.
# Seen: of 100 tasks, 10 always solved, 40 half of the time and 50 never. 1. The defaults draw them nearly at random: tau is 1.0,
# and scores lie within 1 of each other, so the best task is drawn at most 2.7 times as often as the worst. 45% of the groups have
# a signal, 40% if drawn at random. 2. tau=0 takes the best tasks by target_reward, whose default is 1.0: from the second step on
# always solved ones alone, so no group teaches anything. With target_reward=0.5 it is 96%. 3. state_dict holds the position only:
# after a resume each task has the pass rate 0.5 again.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 datasets==4.7.0 ray==2.55.1 \
        omegaconf==2.4.0 sqlalchemy==2.1.9 greenlet==3.5.6
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps trinity-rft==0.6.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from trinity.buffer.selector.selector import DifficultyBasedSelector
from trinity.common.config import DataSelectorConfig

assert version("trinity-rft") == "0.6.0", version("trinity-rft")
RATES = np.array([1.0] * 10 + [0.5] * 40 + [0.0] * 50)
# the two features are the pass rates of a weak and of a strong model
TASKS = SimpleNamespace(dataset={"weak": (RATES / 2).tolist(), "strong": RATES.tolist()}, dataset_size=len(RATES))


def selector(options):
    return DifficultyBasedSelector(TASKS, DataSelectorConfig(feature_keys=["weak", "strong"], kwargs=options))


for options, low, high in (({}, 0.40, 0.50), ({"tau": 0}, 0.0, 0.0), ({"tau": 0, "target_reward": 0.5}, 0.9, 1.0)):
    tasks, rng = selector(options), np.random.default_rng(0)
    drawn, signals = np.zeros(len(RATES)), []
    for _ in range(50):
        chosen = np.asarray(tasks.get_indices(10))
        solved = rng.binomial(16, RATES[chosen]) / 16
        tasks.feedback(chosen.tolist(), solved.tolist())
        drawn[chosen] += 1
        signals += ((solved > 0) & (solved < 1)).tolist()
    shares = {f"{rate:g}": round(float(drawn[RATES == rate].mean() / 50 * sum(RATES == rate) / 10), 2) for rate in (1, 0.5, 0)}
    print(f"{options or 'defaults'}: share of draws by pass rate {shares}, groups with a signal {np.mean(signals):.2f}")
    assert low <= np.mean(signals) <= high
resumed = selector(options)
resumed.load_state_dict(tasks.state_dict())
known, after = (each.diff_estimator.predict_pr()[[0, 20, 70]].round(2).tolist() for each in (tasks, resumed))
print(f"pass rates of three tasks: {known}, after a resume {after}; the state was {tasks.state_dict()}")
assert after == [0.5] * 3 != known
EOP
