"""Rows of a program whose clients name their agents: where rows come from, what counts, and what is learned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.scripted import ScriptedAgent
from contrib.external.tests.external_playing import (
    LIMITS,
    Check,
    Play,
    SaysPolicy,
    calls,
    opened,
    playing,
    says,
    with_policy,
)
from contrib.external.tests.test_external_parallel import Meeting
from forge_env.core.episode import Lineage, Turn
from forge_env.core.protocols import Conversation
from forge_env.core.turn import Completion
from forge_env.core.types import Action, Outcome, Sampling, ToolSpec
from forge_env.evaluation.metrics import row_metrics
from trainers.batching.batch import Sample, pack
from trainers.objective.credit import per_target, turn_values

TITLE = {"role": "system", "content": "You are a title generator. Write a title."}
WORK = {"role": "system", "content": "You work."}
OPENCODE = {"user-agent": "opencode/1.18.33"}
ROOT, SUB = {"x-session-id": "s1", **OPENCODE}, {"x-session-id": "s2", "x-parent-session-id": "s1", **OPENCODE}


class MeetsFrom(SaysPolicy):
    """Answers the third and the fourth request when both are there."""

    def __init__(self, model: Path, *messages: Any) -> None:
        super().__init__(model, messages)
        self.meeting = Meeting(2)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        answer = await super().generate(prompt_ids, sampling, request_id=request_id, session=session)
        if len(self.asked) > 2:
            await self.meeting.join()
        return answer


async def test_a_title_and_a_sub_agent_are_rows_of_a_tree_and_no_loss_is_over_the_title(
    play: Play, check: Check, tiny_model: Path
) -> None:
    """The sub-agent is answered while its caller is. Four turns of work fit into the limit, and the title beside."""
    asks = calls("agent", prompt="Count all the files.")
    agent: Any = {"type": "function", "function": {"name": "agent", "parameters": {"type": "object"}}}
    policy = MeetsFrom(tiny_model, "a title", asks, "both", "both", "the end")
    limits = replace(LIMITS, max_turns=4)
    async with play(agent=with_policy(tiny_model, policy), limits=limits) as program:
        await program.chat(TITLE, "go", extra_headers=ROOT)
        first = (await program.chat(WORK, "go", extra_headers=ROOT, tools=[agent])).choices[0].message
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It runs."}
        main, sub = await asyncio.gather(
            program.chat(WORK, "go", first, result, extra_headers=ROOT, tools=[agent]),
            program.chat("Count all the files.", extra_headers=SUB),
        )
        answers = [answer.choices[0].message for answer in (main, sub)]
        await program.chat(WORK, "go", first, result, answers[0], "go on", extra_headers=ROOT, tools=[agent])
        episode = await program.end()
    assert (episode.outcome, episode.ended_by, episode.reward) == (Outcome.SCORED, "environment", 1.0), episode.error
    assert episode.info["turns_at_once"] == 2
    reason = "a title: system matches '^You are a title generator'"
    assert [turn.auxiliary for turn in episode.turns] == [reason, "", "", "", ""]
    why = "x-parent-session-id names the agent that it works for"
    assert episode.lineage == (
        Lineage(turn=0, agent="s1", kind="auxiliary", why=reason),
        Lineage(turn=1, parent=2, known_by="x-parent-session-id", agent="s2", kind="sub_agent", why=why),
        Lineage(turn=2, agent="s1"),
    )
    assert [any(row.loss_mask) for row in episode.rows] == [False, True, True]
    assert [turn.reward for turn in episode.turns] == [0, 0, 0, 0, 1.0]
    check(episode)
    metrics = row_metrics([episode])
    assert (metrics["rollout/rows_per_episode"], metrics["rollout/auxiliary_turns"]) == (2.0, 1.0)
    assert metrics["rollout/row_began/sub_agent"] == 1.0
    # What a trainer makes of it: the title is not even computed.
    sample = Sample(rows=episode.rows, advantage=per_target([1.0, 2.0, 3.0, 4.0], episode))
    assert turn_values(sample.advantage, episode) == [0.0, 1.0, 2.0, 3.0, 4.0]
    [batch] = pack([sample], max_tokens=10_000, pack_length=0, pad_id=0)
    assert len(batch.tokens) == 2 and batch.units[0] == sum(len(turn.token_ids) for turn in episode.work)


async def test_auxiliary_requests_may_come_after_the_last_turn_and_do_not_decide_how_it_ends(
    play: Play, tiny_model: Path
) -> None:
    limits = replace(LIMITS, max_turns=1, max_turn_tokens=8)
    policy = SaysPolicy(tiny_model, ["ok", "a very long title that is cut off at the limit of a turn " * 3])
    async with play(agent=with_policy(tiny_model, policy), limits=limits) as program:
        await program.chat("go")
        await program.chat(TITLE, "go", extra_headers=OPENCODE)
        episode = await program.end()
    assert (episode.outcome, episode.reward, len(episode.work)) == (Outcome.SCORED, 1.0, 1)
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0] and episode.turns[0].auxiliary


async def test_a_program_may_end_before_its_auxiliary_requests_are_answered(play: Play) -> None:
    class LeavesTitles:
        def __init__(self) -> None:
            self.asked = asyncio.Event()
            self._agent = ScriptedAgent(lambda messages: {"role": "assistant", "content": "ok"})

        async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
            if conversation.auxiliary:
                self.asked.set()
                await asyncio.Event().wait()
            return await self._agent.act(conversation, tools)

    agent = LeavesTitles()
    async with play(agent=agent) as program:
        title = asyncio.create_task(program.chat(TITLE, "go", extra_headers=OPENCODE))
        await agent.asked.wait()
        await program.chat("go")
        episode = await program.end()
        await asyncio.gather(title, return_exceptions=True)
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 1), episode.error


async def test_an_answer_that_was_asked_for_again_and_left_is_not_learned(play: Play, check: Check) -> None:
    async with play("bad", "good", "done") as program:
        await program.chat("go")
        again = (await program.chat("go")).choices[0].message
        await program.chat("go", again, "on")
        episode = await program.end()
    assert [bool(turn.auxiliary) for turn in episode.turns] == [True, False, False]
    assert episode.turns[0].auxiliary.startswith("a retry")
    assert [(row.turn, row.kind, row.parent) for row in episode.lineage] == [(0, "", None), (1, "repeated", 0)]
    check(episode)


async def test_a_rule_of_a_user_decides(tiny_model: Path, tmp_path: Path) -> None:
    rules, agent = "!system: title\nuser: ^summarise", says(tiny_model, "one", "two", "three")
    async with opened(folder=tmp_path, auxiliary=rules) as factory, playing(factory, agent, tmp_path) as program:
        await program.chat(TITLE, "go", extra_headers=OPENCODE)
        answer = (await program.chat("go")).choices[0].message
        await program.chat("go", answer, "summarise")
        episode = await program.end()
    assert [turn.auxiliary for turn in episode.turns] == ["user matches '^summarise'", "", ""]
    assert episode.lineage[0].parent == 2 and episode.lineage[0].known_by == "messages"
