"""`forge-env export`: what each format holds, which episodes, and that an export that does not end leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrib.records.exports import parquet
from contrib.records.exports.parquet import ParquetWriter
from contrib.records.exports.select import Selected
from contrib.records.tests.conftest import Command
from forge_env.core.episode import Episode, Turn, digest, read_jsonl, write_jsonl
from forge_env.core.types import Outcome, Task, ToolCall
from tests.helpers.packages import needs
from trainers.settings.supervised import SFTConfig
from trainers.settings.tasks import EnvConfig
from trainers.sft import Config
from trainers.sft.data import SFTData

CALL = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1+1"}}}
"""As an expert writes it: without an id, with an object."""


def an_episode(number: int, reward: float | None = 1.0, *, kind: str = "sampled", **changes: Any) -> Episode:
    """Two turns with a tool call; sampled ones hold tokens."""
    shown = ({"role": "system", "content": "Calculate."}, {"role": "user", "content": f"{number} + 1?"})
    result = ({"role": "tool", "content": "2", "tool_call_id": "call_0", "name": "calculator"},)
    first, second = (1, 2, 3), (6,)
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"}
    answer = {"role": "assistant", "content": f"answer {number}"}
    tokens: list[dict[str, Any]] = [{}, {}]
    if kind == "sampled":
        before = digest((1, 2, 3, 4, 5, 6))
        tokens = [
            {"prompt_ids": first, "token_ids": (4, 5), "logprobs": (-0.5, -0.25), "versions": ((3, 2),)},
            {"prompt_ids": second, "token_ids": (7,), "logprobs": (-1.0,), "versions": ((4, 1),)},
        ]
        tokens[0] |= {"starts_row": True, "context_digest": digest(first)}
        tokens[1] |= {"context_digest": before}
    call = ToolCall(id="call_0", name="calculator", arguments={"expression": "1+1"})
    turns = (
        Turn(kind=kind, observation=shown, message=calling, tool_calls=(call,), **tokens[0]),  # type: ignore[arg-type]
        Turn(kind=kind, observation=result, message=answer, reward=reward or 0.0, **tokens[1]),  # type: ignore[arg-type]
    )
    values: dict[str, Any] = {
        "task": Task(prompt=shown, target="2", id=f"t{number}", kind="plus"),
        "turns": turns,
        "reward": reward,
        "outcome": Outcome.SCORED if reward is not None else Outcome.INFRA_FAULT,
        "rewards": {"correct": reward} if reward is not None else {},
        "success": reward == 1.0 if reward is not None else None,
        "id": f"train/{number}/0",
        "group_id": f"train/{number}",
        "env": "math",
        "seed": number,
    }
    return Episode(**{**values, **changes})


@pytest.fixture
def export(tmp_path: Path, command: Command) -> Command:
    """Export `tmp_path/run`."""

    def run(to: str, out: str, *more: str, code: int = 0) -> dict[str, Any]:
        return command("export", str(tmp_path / "run"), "--to", to, "--out", str(tmp_path / out), *more, code=code)

    return run


def write_run(folder: Path, *episodes: Episode) -> None:
    (folder / "run").mkdir(exist_ok=True)
    write_jsonl(folder / "run" / "episodes.jsonl", episodes)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "run")


# ---- formats ----


@needs("datasets")
def test_hf_is_a_dataset_with_tokens(tmp_path: Path, export: Command) -> None:
    import datasets

    write_run(tmp_path, an_episode(0), an_episode(1, None))
    assert export("hf", "data", "--tokens")["episodes"] == 2
    files = [str(path) for path in sorted((tmp_path / "data" / "data").iterdir())]
    table = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"), split="train")
    row, fault = table
    assert (row["id"], row["reward"], row["outcome"], row["success"]) == ("train/0/0", 1.0, "scored", True)
    assert (row["task_id"], row["task_kind"], row["env"], row["seed"]) == ("t0", "plus", "math", 0)
    assert row["rewards"] == [{"name": "correct", "value": 1.0}] and json.loads(row["target"]) == "2"
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    called = row["messages"][2]["tool_calls"][0]
    assert called["id"] == row["messages"][3]["tool_call_id"] == "call_0"
    assert json.loads(called["function"]["arguments"]) == {"expression": "1+1"}
    assert json.loads(row["tools"])[0]["function"]["name"] == "calculator"
    assert row["token_ids"] == [[1, 2, 3, 4, 5, 6, 7]]
    assert row["loss_mask"] == [[False, False, False, True, True, False, True]]
    assert row["logprobs"] == [[0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -1.0]]
    assert row["versions"] == [[-1, -1, -1, 3, 3, -1, 4]] and row["sampled_tokens"] == 3
    assert (fault["reward"], fault["success"], fault["outcome"]) == (None, None, "infra_fault")


@needs("pyarrow")
def test_parquet_is_written_in_groups_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    writer = ParquetWriter(tmp_path / "data", tokens=False, file_bytes=1)
    for number in range(5):
        writer.add(Selected(an_episode(number), "", None), model=None, tools=[])
        assert len(writer._rows) < 2  # what is in memory
    writer.close()
    files = sorted((tmp_path / "data" / "data").iterdir())
    found = [pyarrow.parquet.read_table(file)["seed"].to_pylist() for file in files]
    assert found == [[0, 1], [2, 3], [4]]


def test_openai_takes_its_own_keys_only(tmp_path: Path, export: Command) -> None:
    tail = ({"role": "user", "content": "more"},)
    write_run(tmp_path, an_episode(0, tail=tail), an_episode(1, None), an_episode(2, turns=()))
    result = export("openai", "chat.jsonl")
    assert result["left_out"] == {"without a reward": 1, "without an answer": 1}
    assert "those of 1 episodes are left out" in result["said"]  # the thoughts
    (line,) = lines(tmp_path / "chat.jsonl")
    assert line.keys() == {"messages", "tools"} and line["messages"][-1]["content"] == "answer 0"
    keys = {key for message in line["messages"] for key in message}
    assert keys == {"role", "content", "tool_calls", "tool_call_id"}
    export("openai", "scores.jsonl", "--scores")
    (line,) = lines(tmp_path / "scores.jsonl")
    assert line["episode"]["reward"] == 1.0 and line["messages"][-1]["content"] == "more"


def test_sft_keeps_the_episodes_with_their_tokens(tmp_path: Path, export: Command) -> None:
    write_run(tmp_path, an_episode(0), an_episode(1, 0.5))
    export("sft", "tokens.jsonl", "--tokens", "--min-reward", "1")
    assert list(read_jsonl(tmp_path / "tokens.jsonl")) == [an_episode(0)]
    export("sft", "chats.jsonl")
    first, second = lines(tmp_path / "chats.jsonl")
    assert first["messages"][2]["reasoning_content"] == "hm" and second["reward"] == 0.5


def test_an_atif_folder_has_a_file_for_each_episode(tmp_path: Path, export: Command) -> None:
    write_run(tmp_path, an_episode(0), an_episode(1, kind="text"))
    (tmp_path / "trajectories").mkdir()  # an empty folder may be filled
    export("atif", "trajectories", "--tokens")
    files = sorted((tmp_path / "trajectories").iterdir())
    assert [file.name for file in files] == ["000000-train_0_0.json", "000001-train_1_0.json"]
    found, without = (json.loads(file.read_text()) for file in files)
    assert [step["source"] for step in found["steps"]] == ["system", "user", "agent", "agent"]
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3, 4]
    asked, answered = found["steps"][2:]
    assert asked["observation"]["results"][0]["source_call_id"] == asked["tool_calls"][0]["tool_call_id"]
    assert asked["metrics"]["completion_token_ids"] == [4, 5] and asked["metrics"]["logprobs"] == [-0.5, -0.25]
    assert answered["metrics"]["prompt_token_ids"] == [1, 2, 3, 4, 5, 6]
    assert found["final_metrics"] == {"total_prompt_tokens": 9, "total_completion_tokens": 3, "total_steps": 4}
    assert found["extra"]["forge_env"]["reward"] == 1.0
    assert "metrics" not in without["steps"][2]


def test_ids_of_calls_in_atif_are_unique_though_each_turn_counts_anew(tmp_path: Path, export: Command) -> None:
    """Harbor's own export of spans finds a result by the id of its call, in the trajectory as a whole."""
    first, last = an_episode(0, kind="text").turns
    again = replace(first, observation=last.observation)
    write_run(tmp_path, an_episode(0, kind="text", turns=(first, again, last)))
    export("atif", "trajectories")
    (file,) = (tmp_path / "trajectories").iterdir()
    steps = [step for step in json.loads(file.read_text())["steps"] if "tool_calls" in step]
    ids = [step["tool_calls"][0]["tool_call_id"] for step in steps]
    assert ids == ["call_0", "call_0_4"]
    assert [step["observation"]["results"][0]["source_call_id"] for step in steps] == ids


def test_conversations_of_one_episode_are_lines_of_their_own(tmp_path: Path, export: Command) -> None:
    def turn(*observation: Any, answer: str) -> Turn:
        return Turn(kind="text", observation=observation, message={"role": "assistant", "content": answer})

    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    told, again = {"role": "assistant", "content": "a"}, {"role": "user", "content": "again"}
    turns = (turn(system, user, answer="a"), turn(again, answer="b"), turn(user, told, again, answer="c"))
    write_run(tmp_path, an_episode(0, turns=turns))
    assert export("openai", "chat.jsonl")["lines"] == 2
    first, second = (line["messages"] for line in lines(tmp_path / "chat.jsonl"))
    assert [message["content"] for message in first] == ["s", "u", "a", "again", "b"]
    weights = [("u", None), ("a", 0), ("again", None), ("c", None)]
    assert [(m["content"], m.get("weight")) for m in second] == weights
    export("sft", "sft.jsonl")
    assert [(m["content"], m.get("weight")) for m in lines(tmp_path / "sft.jsonl")[1]["messages"]] == weights


@needs("datasets")
async def test_trainers_read_every_export_of_conversations(tmp_path: Path, tiny_model: Path, export: Command) -> None:
    """Chats, a row of parquet and the Episode itself give the same rows of tokens, tools included."""
    write_run(tmp_path, *(an_episode(number, kind="text") for number in range(3)))
    export("sft", "chats.jsonl")
    export("sft", "episodes.jsonl", "--tokens")
    export("hf", "data")
    found = []
    for name in ("chats.jsonl", "episodes.jsonl", "data/data/train-00000.parquet"):
        sft = SFTConfig(data=str(tmp_path / name), held_out_share=0.5)
        config = Config(sft=sft, env=EnvConfig(thinking="on"))
        data = SFTData(config.sft, training=config.training, env=config.env)
        await data.prepare(tiny_model)
        found.append([sample.rows for sample in next(data.batches())])
    assert found[0] == found[1] == found[2] and found[0]


# ---- which episodes ----


def test_conditions_select_episodes_of_all_phases(tmp_path: Path, export: Command) -> None:
    folder = tmp_path / "run" / "episodes"
    folder.mkdir(parents=True)
    write_jsonl(folder / "train.jsonl", [an_episode(0), an_episode(1, 0.0), an_episode(2, None), an_episode(3)])
    write_jsonl(folder / "evaluation_000002.jsonl", [an_episode(9, 0.5, id="evaluation/0/0")])
    trained_in = enumerate((1, 1, 2, 3))
    steps = [{"step": step, "episode": f"train/{number}/0", "advantages": []} for number, step in trained_in]
    (tmp_path / "run" / "trained.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))

    def ids(name: str, *options: str) -> list[str]:
        export("atif", f"{name}.jsonl", *options)
        return [line["session_id"] for line in lines(tmp_path / f"{name}.jsonl")]

    everything = ["evaluation/0/0", *(f"train/{number}/0" for number in range(4))]
    assert ids("all") == everything
    scored = ["train/0/0", "train/1/0", "train/3/0"]
    assert ids("phase", "--where", "phase=train", "--where", "outcome=scored") == scored
    assert ids("either", "--where", "outcome=infra_fault,truncated") == ["train/2/0"]
    assert ids("success", "--where", "success=true") == ["train/0/0", "train/3/0"]
    assert ids("reward", "--min-reward", "0.5") == ["evaluation/0/0", "train/0/0", "train/3/0"]
    assert ids("steps", "--step", "2..3") == ["evaluation/0/0", "train/2/0", "train/3/0"]
    assert ids("step", "--step", "1") == ["train/0/0", "train/1/0"]
    assert ids("from", "--step", "3..") == ["train/3/0"]


def test_faults_of_an_evaluation_are_exported(tmp_path: Path, export: Command) -> None:
    write_run(tmp_path, an_episode(0))
    record = {"class": "SandboxError", "error": "", "episode": json.loads(an_episode(1, None).to_json())}
    (tmp_path / "run" / "faults.jsonl").write_text(json.dumps(record) + "\n")
    export("atif", "all.jsonl")
    found = [line["extra"]["forge_env"] for line in lines(tmp_path / "all.jsonl")]
    assert [(each["phase"], each["reward"]) for each in found] == [("", 1.0), ("faults", None)]


def test_a_half_written_end_is_said(tmp_path: Path, export: Command) -> None:
    write_run(tmp_path, an_episode(0), an_episode(1))
    file = tmp_path / "run" / "episodes.jsonl"
    os.truncate(file, file.stat().st_size - 5)
    result = export("sft", "x.jsonl")
    assert result["episodes"] == 1 and result["cut"] == [f"{file}:2"]
    assert f"left out: {file}:2 is cut off" in result["said"]


# ---- hostile text ----


@needs("pyarrow")
@pytest.mark.parametrize("to", ["hf", "atif", "openai", "sft"])
def test_hostile_text_becomes_valid_unicode(to: str, tmp_path: Path, export: Command) -> None:
    text = "half \ud83d pair \x00 " + "x" * 1_000_000
    asked, said = {"role": "user", "content": text}, {"role": "assistant", "content": text}
    turn = Turn(kind="text", observation=(asked,), message=said)  # type: ignore[arg-type]
    write_run(tmp_path, an_episode(0), an_episode(1, turns=(turn,), info={"value": float("inf")}))
    name = "out" if to == "hf" else "out.jsonl"
    result = export(to, name)
    assert result["replaced"] == 1 and "U+FFFD in 1 of them" in result["said"]
    expected = "half \ufffd pair \x00 " + "x" * 1_000_000
    if to == "hf":
        import pyarrow.parquet

        row = pyarrow.parquet.read_table(tmp_path / "out" / "data" / "train-00000.parquet").to_pylist()[1]
    else:
        row = lines(tmp_path / name)[1]
    found = row["steps"][1]["message"] if to == "atif" else row["messages"][1]["content"]
    assert found == expected


# ---- refusals, and what is left of them ----


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["csv", "x"], "--to csv:"),
        (["openai", "x.jsonl", "--tokens"], "--tokens does not go with --to openai"),
        (["hf", "x", "--scores"], "--scores is for --to openai"),
        (["sft", "x"], "must end in .jsonl"),
        (["sft", "x.jsonl", "--where", "colour=red"], "--where colour=red is not FIELD=VALUE"),
        (["sft", "x.jsonl", "--where", "outcome=score"], "Did you mean scored"),
        (["sft", "x.jsonl", "--step", "5..2"], "--step 5..2 begins after its end"),
        (["sft", "x.jsonl", "--step", "a"], "--step a is no step N"),
        (["sft", "x.jsonl", "--step", "1"], "records none"),
        (["sft", "x.jsonl", "--min-reward", "2"], "nothing of"),
        (["sft", "full.jsonl"], "exists already"),
        (["hf", "full"], "holds something already"),
        (["sft", "full.jsonl/x.jsonl"], "full.jsonl is no folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    options: list[str], sentence: str, tmp_path: Path, export: Command
) -> None:
    write_run(tmp_path, an_episode(0))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "full.jsonl").write_text("mine")
    to, out, *more = options
    assert sentence in export(to, out, *more, code=2)["error"]
    assert left_over(tmp_path) == ["full", "full.jsonl"] and (tmp_path / "full.jsonl").read_text() == "mine"


def test_a_broken_line_names_its_place_and_leaves_nothing(tmp_path: Path, export: Command) -> None:
    write_run(tmp_path, an_episode(0))
    file = tmp_path / "run" / "episodes.jsonl"
    file.write_bytes(file.read_bytes() + b"\xff{}\n" + file.read_bytes())
    assert f"{file}:2: " in export("hf", "x", code=2)["error"]
    assert left_over(tmp_path) == []


def test_an_empty_run_is_refused(tmp_path: Path, export: Command) -> None:
    (tmp_path / "run").mkdir()
    assert "holds no episodes" in export("hf", "x", code=2)["error"]
    (tmp_path / "run" / "episodes.jsonl").touch()
    assert "it holds no episode" in export("hf", "x", code=2)["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_cancelled_export_leaves_nothing(number: signal.Signals, tmp_path: Path, export: Command) -> None:
    """The run is a pipe, so that the export is under way as long as we like."""
    write_run(tmp_path, an_episode(0))
    pipe, line = tmp_path / "run" / "pipe", an_episode(0).line
    os.mkfifo(pipe)
    code = (
        "import signal, sys; from pathlib import Path; from contrib.records.exports import select\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "select.all_files = lambda run: {'': run}\nfrom forge_env.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "export", str(pipe), "--to", "atif", "--out", str(tmp_path / "x")]
    root = Path(__file__).parents[4]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL) as process, pipe.open("wb") as writer:
        writer.write(line * 500)
        writer.flush()
        process.send_signal(number)
        process.wait(60)
    assert process.returncode in (128 + number, -number)
    assert left_over(tmp_path) == ([".x.part"] if number == signal.SIGKILL else [])
    pipe.unlink()
    export("atif", "x")  # what a killed one has left does not hinder another
    assert left_over(tmp_path) == ["x"] and len(list((tmp_path / "x").iterdir())) == 1


def test_info_of_an_environment_is_no_list_of_tools(tmp_path: Path, export: Command) -> None:
    """Only what an import has kept is read as tools: an environment may record anything under that name."""
    write_run(tmp_path, an_episode(0, info={"tools": 3, "model": 5}))
    export("sft", "new/parents/x.jsonl")
    assert lines(tmp_path / "new/parents/x.jsonl")[0]["tools"][0]["function"]["name"] == "calculator"


def test_an_environment_that_is_not_here_is_named(tmp_path: Path, export: Command) -> None:
    write_run(tmp_path, an_episode(0, env="gone_env"))
    result = export("openai", "x.jsonl")
    assert "tools" not in lines(tmp_path / "x.jsonl")[0] and "the tools of gone_env are not in it: " in result["said"]


def test_two_exports_to_one_place(tmp_path: Path, export: Command) -> None:
    from forge_env.utils.atomic import Target

    write_run(tmp_path, an_episode(0))
    with Target(tmp_path / "x.jsonl"):
        assert "another export is writing" in export("sft", "x.jsonl", code=2)["error"]
    export("sft", "x.jsonl")
