"""Digests of code, files, values and tasks, and what an evaluation that goes on is compared by."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

DIGESTS = ("test_digests.py", "test_eval_cli.py")
EPISODE = ("test_episode.py",)

MUTANTS = (
    Mutant(
        name="the digest of tokens does not see their order",
        function="digest",
        old='pack(token_ids, "i")',
        new='pack(sorted(token_ids), "i")',
        tests=(*EPISODE, "test_token_agent.py"),
    ),
    Mutant(
        name="the digest of the tasks is of their ids only",
        function="depends_on",
        old="value_digest(list(tasks))",
        new="value_digest([task.id for task in tasks])",
        tests=DIGESTS,
    ),
    Mutant(
        name="the agent is not in the digests",
        function="depends_on",
        old='"agent": agent_digests',
        new='"agent": {}',
        tests=DIGESTS,
    ),
    Mutant(
        name="files that options name are not in the digests",
        function="environment_digests",
        old="{name: file_digest(path) for name, path in files.items()}",
        new="{}",
        tests=DIGESTS,
    ),
    Mutant(
        name="a file that is new is no change",
        function="changed",
        old="old.keys() | new.keys()",
        new="old.keys() & new.keys()",
        tests=DIGESTS,
    ),
    Mutant(
        name="what an environment says it is made of is not in the digests",
        function="_modules",
        old="yield from env_class.made_of",
        new="return",
        tests=DIGESTS,
    ),
    Mutant(
        name="the services that episodes share are not in the digests",
        function="_modules",
        old="for target in env_class.shared.values()",
        new="for target in ()",
        tests=DIGESTS,
    ),
    Mutant(
        name="the digest of the tasks does not see their order",
        function="task_list_digest",
        old=r'"\n".join(task.id for task in tasks)',
        new=r'"\n".join(sorted(task.id for task in tasks))',
        tests=DIGESTS,
    ),
    Mutant(
        name="the digest of a mapping hangs on the order of its keys",
        function="_plain",
        old="sorted((str(key), _plain(item)) for key, item in value.items())",
        new="[(str(key), _plain(item)) for key, item in value.items()]",
        tests=DIGESTS,
    ),
    Mutant(
        name="the digest of an object holds its address",
        function="_plain",
        old='_ADDRESS.sub("", repr(value))',
        new="repr(value)",
        tests=DIGESTS,
    ),
    Mutant(
        name="modules that a file imports are not in its digest",
        function="_walk",
        old="for name in _imports(content, _package(path, root))",
        new="for name in ()",
        tests=DIGESTS,
    ),
    Mutant(
        name="relative imports are looked for one folder too high",
        function="_imported_names",
        old="len(package) + 1 - node.level",
        new="len(package) - node.level",
        tests=DIGESTS,
    ),
    Mutant(
        name="the weights of a model are not in the digests",
        function="_agent_digests",
        old='kind in ("vllm", "checkpoint")',
        new='kind in ("vllm",)',
        tests=DIGESTS,
    ),
    Mutant(
        name="an evaluation goes on with another seed",
        function="_difference",
        old='{"depends_on", "task_digest"}',
        new='{"depends_on", "task_digest", "seed"}',
        tests=("test_eval_cli.py",),
    ),
    Mutant(
        name="an evaluation goes on with other tasks",
        function="_difference",
        old='present["task_digest"] != plan["task_digest"]',
        new="False",
        tests=("test_eval_cli.py",),
    ),
    Mutant(
        name="a run that goes on forgets the code that it began with",
        function="code_at_start",
        old="code if isinstance(code, dict) else {}",
        new="{}",
        tests=("test_run_record.py",),
    ),
)
