"""vLLM's cache of compiled graphs is the same for models that differ in their folder only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents.generator.start import stable_path

NAME = """
import sys
from pathlib import Path
from agents.generator.start import stable_path
name = stable_path(sys.argv[1], Path(sys.argv[2]))
"""
KEYS = """
from vllm import EngineArgs

def key(model):
    made = EngineArgs(model=model, dtype="float32", skip_tokenizer_init=True, enable_chunked_prefill=False)
    return made.create_engine_config().compute_hash()

print(key(name), key(sys.argv[1]))
"""


def run(program: str, folder: Path, links: Path, **environ: str) -> str:
    """What a process prints last that is given the folder."""
    result = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(links)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environ,
    )
    return result.stdout.splitlines()[-1]


def model_folder(folder: Path, weights: str, config: str = "{}") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "weights").write_text(weights)
    return folder


def test_models_with_one_config_have_one_name_one_after_the_other(tmp_path: Path) -> None:
    read = NAME + "print(name, open(name + '/weights').read())"
    models = [model_folder(tmp_path / text, text) for text in ("one", "two")]
    outputs = [run(read, model, tmp_path / "links").split() for model in (*models, models[0])]
    assert len({name for name, _ in outputs}) == 1
    assert [weights for _, weights in outputs] == ["one", "two", "one"], "each process reads its own folder"


def test_engines_that_live_at_the_same_time_share_a_name_only_for_the_same_folder(tmp_path: Path) -> None:
    one, two = (model_folder(tmp_path / text, text) for text in ("one", "two"))
    links = tmp_path / "links"
    holder = subprocess.Popen(
        [sys.executable, "-c", NAME + "print(name, flush=True)\ninput()", str(one), str(links)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    first = holder.stdout.readline().strip()
    try:
        assert run(NAME + "print(name)", one, links) == first
        other = run(NAME + "print(name)", two, links)
        assert other != first
        assert os.path.realpath(first) == str(one.resolve()) and os.path.realpath(other) == str(two.resolve())
    finally:
        holder.communicate("\n", timeout=60)
    assert run(NAME + "print(name)", two, links) == first, "nobody holds it any more"


def test_two_configs_have_two_names(tmp_path: Path) -> None:
    models = [model_folder(tmp_path / text, text, config=text) for text in ("{}", "[]")]
    names = [run(NAME + "print(name)", model, tmp_path / "links") for model in models]
    assert names[0] != names[1]


def test_a_model_that_cannot_be_linked_keeps_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "missing"), str(tmp_path / "file"), str(tmp_path / "empty"), "Qwen/Qwen3-0.6B"):
        assert stable_path(name, tmp_path / "links") == name
    model = str(model_folder(tmp_path / "model", "weights"))
    assert stable_path(model, tmp_path / "file") == model


@pytest.mark.slow
def test_the_key_of_vllm_is_the_same_for_a_model_that_is_made_anew(tiny_model: Path, tmp_path: Path) -> None:
    keys = {}
    for name in ("one", "two"):
        temporary = tmp_path / f"{name}_temporary"
        temporary.mkdir()
        copied = shutil.copytree(tiny_model, tmp_path / f"{name}_model")
        keys[name] = run(
            NAME + KEYS, copied, tmp_path / "links", VLLM_LOGGING_LEVEL="ERROR", TMPDIR=str(temporary)
        ).split()
    assert keys["one"][0] == keys["two"][0]
    assert keys["one"][1] != keys["two"][1], "otherwise vLLM does not look at the folder any more, and needs no help"
