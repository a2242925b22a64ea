"""Admission: places never need more tokens than the cache has, no turn waits for ever, and no place is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from agents.generator.admission import KEEP_SECONDS, Admission, Turn


@dataclass
class Engine:
    """What an engine is asked: turns that run, by name. Its clock stands still unless it is moved."""

    capacity: int
    most_running: int = 1000
    block: int = 1
    seconds: float = 0.0
    running: dict[str, Turn] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = Admission(self.capacity, self.most_running, block=self.block, clock=lambda: self.seconds)
        self.turns: dict[str, Turn] = {}
        self._number = count()

    def ask(self, name: str, prompt: int, most: int, *, first: int | None = None) -> None:
        """A turn of `prompt` tokens; prompts begin with the number `first`, and so differ unless it is the same."""
        number = next(self._number) if first is None else first
        self.turns[name] = self.admission.arrive(name, [number, *range(prompt - 1)], most, lambda: self.begin(name))

    def begin(self, name: str) -> None:
        self.begun.append(name)

    def answer(self, name: str, sampled: int, *, is_cached: bool = True) -> None:
        self.begun.remove(name)
        self.admission.answered(self.turns[name], sampled, is_cached=is_cached)


def test_a_new_conversation_waits_until_its_turn_fits() -> None:
    engine = Engine(100)
    engine.ask("a", 30, 30)
    engine.ask("b", 25, 30)
    engine.ask("small", 1, 1)  # would fit, and does not overtake
    assert engine.begun == ["a"] and engine.admission.used == 60 and engine.admission.waiting == 2
    engine.answer("a", 10)
    assert engine.begun == ["b", "small"], "the place of a has shrunk to 40 tokens"
    assert engine.admission.places == 3 and engine.admission.waiting == 0


def test_a_turn_of_a_conversation_with_a_place_goes_first() -> None:
    engine = Engine(100, most_running=1)
    engine.ask("a", 10, 10)
    engine.answer("a", 10)
    engine.ask("b", 10, 10)
    engine.ask("c", 10, 10)
    engine.ask("a", 25, 10)
    engine.answer("b", 10)
    assert engine.begun == ["a"]


def test_kept_prefixes_make_room_where_little_runs_and_the_oldest_goes_first() -> None:
    engine = Engine(100)
    for name in ("a", "b", "c"):
        engine.ask(name, 20, 10)
    for name in ("b", "a", "c"):
        engine.answer(name, 10)
    assert engine.admission.used == 90 and engine.admission.places == 3
    engine.ask("d", 20, 10)
    assert engine.begun == ["d"], "running turns may have half of the cache"
    engine.ask("e", 20, 10)
    assert engine.begun == ["d"], "and kept prefixes the other half"
    engine.ask("c", 31, 9)
    assert engine.begun == ["d", "c"], "a conversation with a place takes what it needs"
    engine.ask("b", 31, 9)
    assert engine.admission.waiting == 2
    engine.answer("c", 9)
    assert engine.begun == ["d"], "b has lost its place, so that it waits for room as a new one does"
    engine.answer("d", 9)
    assert engine.begun == ["b", "e"], "and begins before it"


def test_a_prefix_is_dropped_for_others_when_its_tool_takes_long() -> None:
    engine = Engine(100)
    engine.ask("a", 45, 5)
    engine.answer("a", 5)
    engine.ask("b", 20, 5)
    engine.ask("c", 30, 5)
    assert engine.begun == ["b"]
    engine.seconds = KEEP_SECONDS + 1
    engine.ask("d", 1, 1)
    assert engine.begun == ["b", "c", "d"]


def test_a_prefix_is_kept_as_long_as_it_takes_to_compute_the_cache() -> None:
    """Where prompts are quick to compute and tools slow, conversations lose their places to turns that can run."""
    for prompt_seconds, begun in ((0.2, ["b"]), (0.05, ["b", "c"])):  # 20 and 5 seconds for 100 tokens
        engine = Engine(100)
        engine.admission.prompt_seconds = prompt_seconds
        engine.ask("a", 20, 5)
        engine.answer("a", 5)
        engine.seconds = 10.0
        engine.ask("a", 30, 5)
        engine.answer("a", 5)
        engine.ask("b", 30, 10)
        engine.ask("c", 30, 10)
        assert engine.begun == begun, "turns follow 10 seconds after the one before"


def test_siblings_share_their_prompt() -> None:
    engine = Engine(100)
    for i in range(5):
        engine.ask(f"sibling {i}", 50, 10, first=7)
    assert len(engine.begun) == 5 and engine.admission.used == 50 + 5 * 10
    engine.ask("sibling 5", 50, 10, first=7)
    engine.ask("other", 50, 10, first=8)
    assert engine.admission.waiting == 2
    for i in range(5):
        engine.answer(f"sibling {i}", 10)
        engine.admission.ended(f"sibling {i}")
    assert "sibling 5" in engine.begun
    engine.answer("sibling 5", 10)
    engine.admission.ended("sibling 5")
    assert engine.begun == ["other"] and engine.admission.used == 60


def test_a_place_is_of_whole_blocks() -> None:
    engine = Engine(160, block=16)
    engine.ask("sibling 0", 40, 10, first=7)
    engine.ask("sibling 1", 40, 10, first=7)
    assert engine.admission.used == 32 + 2 * 32, "the third block of the prompt has tokens of the answer, too"
    engine.ask("other", 1, 1)
    assert engine.admission.used == 32 + 2 * 32 + 16


def test_siblings_count_their_prompt_again_with_new_weights() -> None:
    engine = Engine(1000)
    engine.ask("old", 50, 10, first=7)
    engine.admission.forget_prefixes()
    engine.ask("new", 50, 10, first=7)
    assert engine.admission.used == 120


def test_new_weights_free_the_places_of_conversations_between_turns() -> None:
    engine = Engine(100)
    engine.ask("a", 45, 5)
    engine.ask("b", 35, 5)
    engine.answer("a", 5)
    engine.ask("c", 45, 5)
    assert engine.begun == ["b"]
    engine.admission.forget_prefixes()
    assert engine.begun == ["b", "c"]
    engine.answer("b", 5, is_cached=False)  # it began with the old weights
    assert engine.admission.used == 50


def test_a_request_larger_than_the_cache_runs_alone() -> None:
    engine = Engine(100)
    engine.ask("a", 20, 10)
    engine.ask("huge", 90, 50)
    engine.ask("b", 20, 10)
    assert engine.begun == ["a"]
    engine.answer("a", 10)
    assert engine.begun == ["huge"]
    engine.answer("huge", 50)
    assert engine.begun == ["b"]


def test_what_turns_are_expected_to_sample_is_learned() -> None:
    engine = Engine(1000)
    for i in range(400):
        engine.ask(f"{i}", 10, 500)
        engine.answer(f"{i}", 10)
        engine.admission.ended(f"{i}")
    for i in range(30):
        engine.ask(f"late {i}", 10, 500)
    assert len(engine.begun) == 30


def test_cancelled_turns_leave_nothing() -> None:
    engine = Engine(100)
    engine.ask("runs", 60, 10)
    engine.ask("waits", 60, 10)
    engine.ask("next", 60, 10)
    engine.admission.abandoned(engine.turns["waits"])
    engine.admission.abandoned(engine.turns["runs"])
    assert engine.begun == ["runs", "next"] and engine.admission.waiting == 0
    engine.admission.abandoned(engine.turns["next"])
    assert engine.admission.used == engine.admission.places == 0


@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(50, 400),
    most_running=st.integers(1, 12),
    block=st.sampled_from([1, 16]),
    conversations=st.integers(1, 30),
)
def test_any_run_comes_to_its_end_within_the_cache(
    seed: int, capacity: int, most_running: int, block: int, conversations: int
) -> None:
    """Arrivals, answers, tool waits, cancellations, new weights and conversations whose end nobody says, at random."""
    draw = random.Random(seed)
    engine = Engine(capacity, most_running, block)
    admission = engine.admission
    tokens: dict[str, int] = {}  # of conversations between two turns
    turns_left = {f"{i}": draw.randint(1, 5) for i in range(conversations)}
    waits: set[str] = set()  # turns that were asked for
    unasked = list(turns_left)

    def ask(name: str, prompt: int) -> None:
        waits.add(name)
        engine.ask(name, prompt, draw.randint(1, 40), first=int(name) // 4 if name not in tokens else None)

    def over(name: str) -> None:
        waits.discard(name)
        del turns_left[name]

    for _ in range(10_000):
        if not turns_left:
            break
        engine.seconds += draw.choice([0.0, 1.0, 20.0])
        running = sorted(set(engine.begun))
        action = draw.random()
        if unasked and action < 0.3:
            ask(unasked.pop(0), 20)
        elif tokens and action < 0.5:
            name = draw.choice(sorted(tokens))
            ask(name, tokens[name] + draw.randint(0, 10))
            del tokens[name]
        elif running and action < 0.9:
            name = draw.choice(running)
            turn = engine.turns[name]
            sampled = draw.randint(1, turn.most_sampled)
            engine.answer(name, sampled, is_cached=draw.random() < 0.9)
            waits.discard(name)
            turns_left[name] -= 1
            if turns_left[name]:
                tokens[name] = turn.prompt_tokens + sampled
            else:
                over(name)
                if draw.random() < 0.7:
                    admission.ended(name)
        elif waits and action < 0.93:
            name = draw.choice(sorted(waits))
            admission.abandoned(engine.turns[name])
            if name in engine.begun:
                engine.begun.remove(name)
            over(name)
        elif action < 0.95:
            admission.forget_prefixes()
        assert len(set(engine.begun)) == len(engine.begun) == admission.running <= most_running
        assert admission.used <= capacity or admission.running == 1, "only a turn that is larger may run, alone"
        assert admission.running or not admission.waiting, "nothing waits while nothing runs"
        assert admission.running + admission.waiting == len(waits)
    assert not turns_left, "every conversation came to its end"
    for i in range(conversations):
        admission.ended(f"{i}")
    assert admission.used == admission.places == admission.waiting == admission._kept_tokens == 0
    assert not admission._first_prompts and not admission._lost


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 2**32))
def test_a_new_conversation_begins_although_others_never_stop_coming(prompts: list[int], seed: int) -> None:
    """Those before it have 3 turns each; those after it do not overtake it."""
    draw = random.Random(seed)
    engine = Engine(80, most_running=4)
    left = {f"before {i}": 3 for i in range(len(prompts))}
    for name, prompt in zip(left, prompts, strict=True):
        engine.ask(name, prompt, 10)
    engine.ask("it", draw.randint(1, 75), 5)
    for late in count():
        if "it" in engine.begun:
            break
        assert late <= 3 * len(prompts), "each answer brings it nearer"
        engine.ask(f"after {late}", 1, 1)
        assert not [name for name in engine.begun if name.startswith("after")]
        name = draw.choice(engine.begun)
        prompt = engine.turns[name].prompt_tokens + 5
        engine.answer(name, 5)
        left[name] -= 1
        if left[name]:
            engine.ask(name, prompt, 10)
        else:
            engine.admission.ended(name)
