"""Answers that have a form: what a loss is over, what supervised training learns, and what an endpoint is asked."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

MUTANTS = (
    Mutant(
        name="a loss is over tokens under a grammar",
        function="_free",
        old="count = turn.constrained",
        new="count = 0",
        tests=("test_data.py",),
    ),
    Mutant(
        name="supervised training leaves tokens under a grammar out",
        function="Episode.supervised_rows",
        old="replace(turn, constrained=0)",
        new="turn",
        tests=("test_data.py",),
    ),
    Mutant(
        name="the share of constrained tokens is a count",
        function="row_metrics",
        old="constrained / sum(turn.num_written for turn in turns)",
        new="float(constrained)",
        tests=("test_data.py",),
    ),
    Mutant(
        name="a thought is sampled under the grammar of its answer",
        function="ConstrainedTurn._thought",
        old='replace(sampling, grammar="", stop=()',
        new="replace(sampling, stop=()",
        tests=("test_constrained.py",),
    ),
    Mutant(
        name="an answer that no grammar was applied to counts as one of its form",
        function="ConstrainedTurn._answer",
        old="answer.constrained != len(answer.token_ids)",
        new="answer.constrained < 0",
        tests=("test_constrained.py",),
    ),
    Mutant(
        name="an endpoint is offered tools that its answer may not call",
        function="_callable",
        old='if tool["function"]["name"] in constraint.tools',
        new="if constraint.tools",
        tests=("test_chat_agent.py",),
    ),
    Mutant(
        name="a script's answer of another form passes",
        function="check_answer",
        old='if action.finish_reason == "length":',
        new='if action.finish_reason != "length":',
        tests=("test_constrained.py",),
    ),
    Mutant(
        name="a grammar that a process did not survive is good",
        function="GrammarTrials._try",
        old='if answer is not None:\n            return str(answer["problem"])',
        new='if True:\n            return str((answer or {"problem": ""})["problem"])',
        tests=("test_grammar_trial.py",),
    ),
    Mutant(
        name="a count of tokens is a turn",
        function="TokenAgent.act",
        old="if asked.count:",
        new="if False:",
        tests=("test_external_dialects.py",),
    ),
)
