"""vLLM's cache of compiled graphs is the same for models that differ in their folder only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.generator.compile_cache import stable_path

NAME = "import sys; from agents.generator.compile_cache import stable_path; name = stable_path(sys.argv[1])\n"
KEYS = """
from vllm import EngineArgs

def key(model):
    made = EngineArgs(model=model, dtype="float32", skip_tokenizer_init=True, enable_chunked_prefill=False)
    return made.create_engine_config().compute_hash()

print(key(name), key(sys.argv[1]))
"""


def run(program: str, folder: Path, **environ: str) -> str:
    """What a process prints last that is given the folder."""
    result = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environ,
    )
    return result.stdout.splitlines()[-1]


def test_a_folder_has_one_name_in_every_process(tmp_path: Path) -> None:
    outputs = []
    for text in ("one", "two"):
        (tmp_path / text).mkdir()
        (tmp_path / text / "config.json").write_text(text)
        outputs.append(run(NAME + "print(name, open(name + '/config.json').read())", tmp_path / text).split())
    assert outputs[0][0] == outputs[1][0], "under one name"
    assert [text for _, text in outputs] == ["one", "two"], "each process reads its own folder"


def test_two_folders_of_one_process_have_two_names(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    names = [stable_path(str(folder)) for folder in folders]
    try:
        assert [os.path.realpath(name) for name in names] == [str(folder.resolve()) for folder in folders]
    finally:
        for name in names:
            os.close(int(name.rpartition("/")[2]))


def test_what_is_no_folder_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in (str(tmp_path / "missing"), str(tmp_path / "file"), "Qwen/Qwen3-0.6B"):
        assert stable_path(name) == name


@pytest.mark.slow
def test_the_key_of_vllm_is_the_same_for_a_model_that_is_made_anew(tiny_model: Path, tmp_path: Path) -> None:
    keys = {}
    for name in ("one", "two"):
        folder, temporary = tmp_path / name, tmp_path / f"{name}_temporary"
        folder.symlink_to(tiny_model)
        temporary.mkdir()
        keys[name] = run(NAME + KEYS, folder, VLLM_LOGGING_LEVEL="ERROR", TMPDIR=str(temporary)).split()
    assert keys["one"][0] == keys["two"][0]
    assert keys["one"][1] != keys["two"][1], "otherwise vLLM does not look at the folder any more, and needs no help"
