"""Tasks are read, verified and aggregated as by Harbor itself: its own code runs on the same folders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from contrib.harbor.config import HarborTask, read_task, resolved
from contrib.harbor.tests.playing import write_task
from contrib.harbor.tests.test_harbor_format import EXAMPLES, ONLY_OURS, READ, REFUSED
from contrib.harbor.verify import HarborVerdict, _read_reward, combine, passes
from contrib.workspaces.contract import WorkspaceFileError
from tests.helpers.own_environment import python_with

HARBOR = "harbor==0.26.0"
Files = Mapping[str, str]
"""reward.json and reward.txt, by their endings, as Latin-1."""
_MANY = json.dumps({"reward": 0.25, **{f"part_{number}": number / 7 for number in range(5000)}})

FILES: dict[str, Files] = {
    "a number": {"txt": "1"},
    "a share with white space": {"txt": "  0.25\n\n"},
    "an exponent": {"txt": "1e-3"},
    "an underscore": {"txt": "1_0"},
    "a negative one": {"txt": "-0.5"},
    "not a number": {"txt": "nan"},
    "infinite": {"txt": "inf"},
    "a word": {"txt": "true"},
    "a comma": {"txt": "0,5"},
    "two numbers": {"txt": "1 2"},
    "nothing": {"txt": ""},
    "white space": {"txt": " \n"},
    "no text": {"txt": "\xff\xfe"},
    "no file": {},
    "an object": {"json": '{"reward": 1.0}'},
    "an integer": {"json": '{"reward": 1}'},
    "true": {"json": '{"reward": true}'},
    "false and a part": {"json": '{"reward": false, "part": 0.5}'},
    "several": {"json": '{"a": 0.5, "b": 1}'},
    "the object first": {"json": '{"reward": 0.5}', "txt": "1"},
    "a broken object first": {"json": '{"reward": ', "txt": "1"},
    "an empty object file first": {"json": "", "txt": "1"},
    "twice": {"json": '{"reward": 0, "reward": 1}'},
    "null": {"json": '{"reward": null}'},
    "a text": {"json": '{"reward": "1"}'},
    "a part that is a text": {"json": '{"reward": 1, "note": "good"}'},
    "nested": {"json": '{"reward": {"value": 1}}'},
    "a plain number as JSON": {"json": "0.5"},
    "a list": {"json": "[1]"},
    "true alone": {"json": "true"},
    "NaN": {"json": '{"reward": NaN}'},
    "too large": {"json": '{"reward": 1e309}'},
    "90 KB": {"json": _MANY},
}
_HALF, _ONE, _NONE = {"json": '{"reward": 0.5}'}, {"json": '{"reward": 1, "style": 0.5}'}, {"txt": ""}
_STEPS = "".join(f"[[steps]]\nname = '{name}'\n" for name in "abc")
_GATED = _STEPS.replace("name = 'a'\n", "name = 'a'\nmin_reward = 1.0\n", 1)
_FINAL = "multi_step_reward_strategy = 'final'\n"

TASKS: dict[str, tuple[str, Sequence[Files]]] = {
    "three steps": (_STEPS, [_HALF, _ONE, _HALF]),
    "three steps, the last one": (_FINAL + _STEPS, [_HALF, _ONE, _HALF]),
    "a stop after the first": (_GATED, [_HALF, _ONE, _ONE]),
    "a stop after the first, the last one": (_FINAL + _GATED, [_HALF, _ONE, _ONE]),
    "a gate that is passed": (_GATED, [_ONE, _HALF, _ONE]),
    "a gate on a part": (_STEPS.replace("'b'\n", "'b'\nmin_reward = {style = 0.6}\n"), [_HALF, _ONE, _ONE]),
    "a gate on a part that is not there": (_STEPS.replace("'a'\n", "'a'\nmin_reward = {x = 0}\n"), [_ONE] * 3),
    "a gate just above": (_GATED.replace("1.0", "0.30000000000000004"), [{"txt": "0.3"}, _ONE, _ONE]),
    "a gate of zero": (_GATED.replace("1.0", "0"), [{"txt": "0"}, _ONE, _ONE]),
    "parts that some steps lack": (_STEPS, [_ONE, {"json": '{"speed": 3}'}, _HALF]),
    "variables of both": (f"[verifier.env]\nA = '1'\nB = '2'\n{_STEPS}[steps.verifier.env]\nB = '3'\n", [_ONE] * 3),
    "variables of a step": (f"{_STEPS}[steps.verifier.env]\nB = '3'\n", [_ONE] * 3),
    "a template": ("[verifier.env]\nA = '${NOT_SET_HERE:-x}'\n", [_ONE]),
    "the time of the task": (f"[verifier]\ntimeout_sec = 5\n{_STEPS}", [_ONE] * 3),
    "the time of a step": (f"[verifier]\ntimeout_sec = 5\n{_STEPS}verifier = {{timeout_sec = 7}}\n", [_ONE] * 3),
    "the time without steps": ("[verifier]\ntimeout_sec = 5\n", [_ONE]),
    "users": (f"[verifier]\nuser = 'a'\n{_STEPS}verifier = {{user = 5}}\n", [_ONE] * 3),
    "a separate step": (f"{_STEPS}verifier = {{environment_mode = 'separate'}}\n", [_ONE] * 3),
    "a shared step of a separate task": (
        f"[verifier.environment]\nmemory = '1G'\n{_STEPS}verifier = {{environment_mode = 'shared'}}\n",
        [_ONE] * 3,
    ),
    "a step's own environment in a shared task": (
        f"[verifier]\nenvironment_mode = 'shared'\n{_STEPS}[steps.verifier.environment]\ncpus = 2\nstorage = '1.5G'\n",
        [_ONE] * 3,
    ),
    "environments of both": (
        f"[verifier.environment]\nmemory_mb = 100\n{_STEPS}[steps.verifier.environment]\nmemory_mb = 200\n",
        [_ONE] * 3,
    ),
    "hooks of both": (
        f"[[verifier.collect]]\ncommand = 'one'\n{_STEPS}[[steps.verifier.collect]]\ncommand = 'two'\n",
        [_ONE] * 3,
    ),
    "sizes": ("[environment]\nmemory = '1.5g'\nstorage = '512M'\ncpus = 2.0\n", [_ONE]),
    "sizes with white space": ("[environment]\nmemory = ' 2 G '\nstorage = '1e3M'\n", [_ONE]),
    "small sizes": ("[environment]\nmemory = '.5G'\nstorage = '4096K'\ncpus = 0.5\n", [_ONE]),
    "sizes in MB": ("[environment]\nmemory_mb = 2048.0\nstorage_mb = '10'\n", [_ONE]),
    "no internet": ("[environment]\nallow_internet = false\n", [_ONE]),
    "no internet as a text": ("[environment]\nallow_internet = 'false'\n", [_ONE]),
    "internet and a mode": ("[environment]\nallow_internet = true\nnetwork_mode = 'no-network'\n", [_ONE]),
}
NONE_HERE = {"an empty object": {"json": "{}"}, "huge": {"json": '{"reward": 1e300}'}}
ONLY_HERE = {
    "a byte order mark": {"txt": "\xef\xbb\xbf1"},
    "a byte order mark as JSON": {"json": '\xef\xbb\xbf{"reward": 1}'},
}
ON_PURPOSE = {**NONE_HERE, **ONLY_HERE}
"""Files that only Harbor, or only we, take for rewards."""
_CANARY = "<!-- canary GUID 1 -->\n# a canary\n\nWrite hello.\n"


class Written:
    """The part of a workspace that rewards are read from."""

    def __init__(self, files: Files) -> None:
        self.files = files

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        text = self.files.get(path.rpartition(".")[2])
        if text is None:
            raise WorkspaceFileError(f"{path!r}: No such file or directory")
        return text.encode("latin-1")


async def _ours(task: HarborTask, written: Sequence[Files]) -> dict[str, Any]:
    """What we make of a task, in the form of `harbor_itself.played`."""
    verdicts: list[HarborVerdict] = []
    steps: list[dict[str, Any]] = []
    for step, files in zip(task.steps, written, strict=True):
        verdicts.append(await _read_reward(Written(files)))  # type: ignore[arg-type]
        verifier, is_separate = task.verifier(step), task.verifier_place(step) == "separate"
        section = task.verifier_image(step)[1] if is_separate else None
        steps.append(
            {
                "rewards": verdicts[-1].rewards,
                "stops": step is None or not passes(verdicts[-1], step.min_reward),
                "env": resolved(verifier.env, where="here"),
                "seconds": verifier.timeout_sec,
                "user": verifier.user,
                "mode": "separate" if is_separate else "shared",
                "sizes": [section.memory_mb, section.storage_mb, section.cpus] if section else None,
                "instruction": task.instruction(step),
                "collect": [hook.command for hook in verifier.collect],
            }
        )
        if steps[-1]["stops"]:
            break
    environment = task.config.environment
    total = combine(verdicts, task.config.multi_step_reward_strategy) if task.config.steps else verdicts[0].rewards
    sizes = [environment.memory_mb, environment.storage_mb, environment.cpus, environment.network_mode]
    return {"steps": steps, "total": total, "environment": sizes}


def _write(folder: Path) -> dict[str, tuple[HarborTask, Sequence[Files]]]:
    cases = {name: ("", [files]) for name, files in {**FILES, **ON_PURPOSE}.items()} | TASKS
    written = {}
    for number, (name, (toml, files)) in enumerate(cases.items()):
        texts = {f"steps/{step}/instruction.md": f"{_CANARY}{step}" for step in "abc"}
        texts |= {"instruction.md": _CANARY, "environment/Dockerfile": "FROM host\n"}
        written[name] = (read_task(write_task(folder / str(number), toml, **texts)), files)
    return written


async def test_what_harbor_pays_is_paid(tmp_path: Path) -> None:
    """The cases of `test_harbor_itself_agrees` that other readers have had wrong, with what Harbor makes of them."""
    tasks = _write(tmp_path)

    async def total(name: str) -> Any:
        return (await _ours(*tasks[name]))["total"]

    assert await total("true") == {"reward": 1.0} and (await total("90 KB"))["reward"] == 0.25
    assert [await total(name) for name in ("a plain number as JSON", "NaN", "no text", *NONE_HERE)] == [None] * 5
    assert [await total(name) for name in ONLY_HERE] == [{"reward": 1.0}] * 2
    stopped = [await total(f"a stop after the first{strategy}") for strategy in ("", ", the last one")]
    assert stopped == [{"reward": 0.5}, {"reward": 0.5}]
    both = (await _ours(*tasks["variables of both"]))["steps"]
    assert [step["env"] for step in both] == [{"A": "1", "B": "2"}] * 2 + [{"A": "1", "B": "3"}]
    assert [step["seconds"] for step in (await _ours(*tasks["the time of a step"]))["steps"]] == [600.0, 600.0, 7.0]


@pytest.mark.slow
async def test_harbor_itself_agrees(tmp_path: Path) -> None:
    tasks = _write(tmp_path)
    texts = {**READ, **REFUSED, **ONLY_OURS} | {p.parent.name: p.read_text() for p in EXAMPLES.glob("*/task.toml")}
    folders = {name: (str(task.folder), files) for name, (task, files) in tasks.items()}
    done = subprocess.run(
        [python_with(HARBOR, least=(3, 12)), "-W", "ignore", Path(__file__).with_name("harbor_itself.py")],
        input=json.dumps({"tasks": folders, "texts": texts}),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    theirs = json.loads(done.stdout)
    print(f"compared with harbor {theirs['version']}: {len(tasks)} tasks, {len(texts)} files task.toml")
    assert theirs["refused"] == list(REFUSED)
    ours = {name: await _ours(task, files) for name, (task, files) in tasks.items()}
    others = [name for name in tasks if json.loads(json.dumps(ours[name])) != theirs["tasks"][name]]
    assert others == list(ON_PURPOSE), {name: (ours[name], theirs["tasks"][name]) for name in others}
    assert len(tasks) >= 60
