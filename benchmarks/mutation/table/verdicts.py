"""Verdicts on the work of agents in workspaces: what is copied, what counts, what a program reaches."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

SWE, HARBOR, INSIDE = ("test_swe.py",), ("test_harbor_policies.py",), ("test_external_inside.py",)

MUTANTS = (
    Mutant(
        name="a report in which every test passes is believed",
        function="_outcome",
        old='if passed and outcomes.get(canary) != "failed":',
        new="if False:",
        tests=SWE,
    ),
    Mutant(
        name="changed tests and settings count",
        function="_apply",
        old="(path not in solution and decides_about_tests(path))",
        new="False",
        tests=SWE,
    ),
    Mutant(name="links of a submission count", function="_apply", old="mode in _LINKS or ", new="", tests=SWE),
    Mutant(
        name="a test that does not pass is no matter",
        function="_facts",
        old="outcome.passed is not None and not failed",
        new="outcome.passed is not None",
        tests=SWE,
    ),
    Mutant(
        name="what the agent has deleted is there for the verifier",
        function="WorkspaceTasks._verify",
        old='"-delete"',
        new='"-print"',
        tests=("test_workspace_env.py",),
    ),
    Mutant(
        name="the agent's files replace those of the verifier",
        function="WorkspaceTasks._verify",
        old="for path, text in row.verifier_files.items()",
        new="for path, text in ()",
        tests=("test_workspace_env.py",),
    ),
    Mutant(
        name="bases that episodes use are closed",
        function="Bases._close_idle",
        old="if not base.users and base.making.done()",
        new="if base.making.done()",
        tests=("test_workspace_env.py",),
    ),
    Mutant(
        name="what an artefact excludes is copied",
        function="collect_artifacts",
        old=".extend(artifact.exclude)",
        new=".extend([])",
        tests=HARBOR,
    ),
    Mutant(
        name="an agent works for as long as it likes",
        function="Harbor._act",
        old="if self._used < limit:",
        new="if True:",
        tests=HARBOR,
    ),
    Mutant(
        name="failures in the start period count",
        function="_wait_until_healthy",
        old="failures += not is_early",
        new="failures += 1",
        tests=HARBOR,
    ),
    Mutant(
        name="a verifier has the network of the agent",
        function="_asked_for_verifier",
        old="if verifier.network_mode is not None:",
        new="if False:",
        tests=HARBOR,
    ),
    Mutant(
        name="a result is read while what the program has left still runs",
        function="InsideProgram._run",
        old="await workspace.end_processes()",
        new="pass",
        tests=INSIDE,
    ),
    Mutant(
        name="a program in its task's workspace is shown the task's metadata",
        function="start_in_room",
        old="{} if room.env is not None else task.metadata",
        new="task.metadata",
        tests=INSIDE,
    ),
    Mutant(
        name="the reward of a task's verifier is not that of the program",
        function="External._reward",
        old="player.room.env is not None and ",
        new="False and ",
        tests=INSIDE,
    ),
)
