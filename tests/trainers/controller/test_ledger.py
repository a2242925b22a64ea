"""Every prompt once, whenever a run stops and goes on."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import InvariantError
from trainers.controller.ledger import Ledger, Prompt
from trainers.controller.mixture import Mixture


@given(seed=st.integers(0, 2**32), stops=st.integers(0, 4), by=st.sampled_from([None, "groups", "tokens"]))
def test_every_prompt_is_trained_or_dropped_exactly_once_over_any_stops(seed: int, stops: int, by: Any) -> None:
    """Of one environment, or of two by their shares; the prompts of each are those of its tasks, in their order."""

    def made() -> Ledger:
        return Ledger(Mixture(weights={"a": 2.0, "b": 1.0}, by=by)) if by else Ledger()

    rng, prompt_of = random.Random(seed), dict[int, Prompt]()
    ledger, ready = made(), []
    trained: list[int] = []
    dropped: list[int] = []
    for _ in range(stops + 1):
        saved = json.dumps(ledger.state_dict())
        ledger = made()
        ledger.load_state_dict(json.loads(saved))
        prompts, running = ledger.prompts(), []
        assert ledger.counts["ready"] == len(ready)
        for _ in range(rng.randrange(30)):
            event = rng.choice(["begin", "finish", "train", "drop"])
            if event == "begin":
                running.append(next(prompts))
                prompt = prompt_of.setdefault(running[-1], ledger.prompt(running[-1]))
                assert prompt == ledger.prompt(running[-1]), "it keeps its task when it begins again"
            elif event == "finish" and running:
                ready.append(running.pop(rng.randrange(len(running))))
                ledger.finish(ready[-1], rng.randrange(100))
            elif event == "train" and ready:
                trained.append(ready.pop(rng.randrange(len(ready))))
                ledger.train(trained[-1])
            elif event == "drop" and running:
                dropped.append(running.pop())
                ledger.drop(dropped[-1], "no signal")
        counts = ledger.counts
        assert counts["begun"] == counts["running"] + counts["ready"] + counts["trained"] + counts["dropped"]
    settled = trained + dropped
    assert len(settled) == len(set(settled))
    assert (ledger.trained, ledger.dropped.total()) == (len(trained), len(dropped))
    unsettled = set(range(ledger.counts["begun"])) - set(settled)
    assert unsettled == set(ledger.state_dict()["open"])
    begun = Counter(prompt.env for prompt in prompt_of.values())
    assert sorted(prompt_of.values()) == sorted((env, i, i) for env, count in begun.items() for i in range(count))
    assert not by or begun == +ledger.mixture.counts["begun"]


def test_what_was_running_begins_again_before_anything_new_and_what_was_ready_does_not() -> None:
    ledger = Ledger()
    assert list(islice(ledger.prompts(), 4)) == [0, 1, 2, 3]
    ledger.observe(1, 2, 4)  # without a sampler nobody learns of it
    ledger.finish(1)
    ledger.train(1)
    ledger.finish(3)
    again = Ledger()
    again.load_state_dict(ledger.state_dict())
    assert list(islice(again.prompts(), 4)) == [0, 2, 4, 5]
    again.train(3)
    assert again.counts == {"begun": 6, "running": 4, "ready": 0, "trained": 2, "dropped": 0}


def test_wrong_transitions_raise() -> None:
    ledger = Ledger()
    (number,) = islice(ledger.prompts(), 1)
    with pytest.raises(InvariantError, match="prompt 0 is running, not ready"):
        ledger.train(number)
    ledger = Ledger()
    with pytest.raises(InvariantError, match="prompt 7 is not open, not running"):
        ledger.drop(7, "reason")
    with pytest.raises(InvariantError, match="does not add up"):
        ledger.load_state_dict(Ledger().state_dict() | {"next": 3, "open": [1], "trained": 1})
