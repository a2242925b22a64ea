"""Grades logs with swebench, in whose interpreter it runs: JSON rows on standard input, a verdict for each."""

import json
import sys
import tempfile
from pathlib import Path

from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT
from swebench.harness.grading import get_eval_report
from swebench.types import TestSpec


def resolved(row: dict, file: Path) -> bool:
    file.write_text(f"{START_TEST_OUTPUT}\n{row['log']}\n{END_TEST_OUTPUT}\n")
    spec = TestSpec(
        instance_id="i",
        image="",
        eval_script_list=[],
        repo="",
        version="",
        FAIL_TO_PASS=row["fail_to_pass"],
        PASS_TO_PASS=row["pass_to_pass"],
        log_parser=row["parser"],
        eval_type="pass_and_fail",
    )
    prediction = {"instance_id": "i", "model_name_or_path": "m", "model_patch": "p"}
    return get_eval_report(spec, prediction, str(file), True)["i"]["resolved"]


with tempfile.TemporaryDirectory() as folder:
    print(json.dumps([resolved(row, Path(folder) / "log") for row in json.load(sys.stdin)]))
