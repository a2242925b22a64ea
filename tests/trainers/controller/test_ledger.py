"""Every prompt once, whenever a run stops and goes on."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import InvariantError
from trainers.controller.ledger import Ledger


@given(seed=st.integers(0, 2**32), stops=st.integers(0, 4))
def test_every_prompt_is_trained_or_dropped_exactly_once_over_any_stops(seed: int, stops: int) -> None:
    rng = random.Random(seed)
    ledger, ready = Ledger(), []
    trained: list[int] = []
    dropped: list[int] = []
    for _ in range(stops + 1):
        saved = json.dumps(ledger.state_dict())
        ledger = Ledger()
        ledger.load_state_dict(json.loads(saved))
        prompts, running = ledger.prompts(), []
        assert ledger.counts["ready"] == len(ready)
        for _ in range(rng.randrange(30)):
            event = rng.choice(["begin", "finish", "train", "drop"])
            if event == "begin":
                running.append(next(prompts))
            elif event == "finish" and running:
                ready.append(running.pop(rng.randrange(len(running))))
                ledger.finish(ready[-1])
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


def test_what_was_running_begins_again_before_anything_new_and_what_was_ready_does_not() -> None:
    ledger = Ledger()
    assert list(islice(ledger.prompts(), 4)) == [0, 1, 2, 3]
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
