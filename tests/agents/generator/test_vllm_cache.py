"""vLLM's cache of compiled graphs is the same for models that differ in their folder only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents.generator.start import stable_path

NAMES = """
import sys
from pathlib import Path
from agents.generator.start import stable_path
links, *folders = sys.argv[1:]
names = [stable_path(folder, Path(links)) for folder in folders]
"""
KEYS = """
from vllm import EngineArgs

def key(model):
    made = EngineArgs(model=model, dtype="float32", skip_tokenizer_init=True, enable_chunked_prefill=False)
    return made.create_engine_config().compute_hash()

print(key(names[0]), key(folders[0]))
"""


def run(program: str, links: Path, *folders: Path, **environ: str) -> list[str]:
    """The words that a process prints last that is given the folders, and holds their names while it lives."""
    result = subprocess.run(
        [sys.executable, "-c", NAMES + program, str(links), *map(str, folders)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environ,
    )
    return result.stdout.splitlines()[-1].split()


def model_folder(folder: Path, weights: str, config: str = "{}") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "weights").write_text(weights)
    return folder


def test_models_of_one_config_have_one_name_unless_an_engine_of_another_folder_holds_it(tmp_path: Path) -> None:
    one, two = (model_folder(tmp_path / text, text) for text in ("one", "two"))
    other, links = model_folder(tmp_path / "other", "other", config="[]"), tmp_path / "links"
    read = "for name in names: print(name, open(name + '/weights').read(), end=' ')"
    said = run(read, links, one, one, two, other)
    assert said[1::2] == ["one", "one", "two", "other"], "each name leads to its own folder"
    first, again, second, third = said[::2]
    assert first == again and len({first, second, third}) == 3
    assert Path(first).parent == Path(second).parent != Path(third).parent, "two configs have two names"
    for folder in (two, one):  # nobody holds it any more
        assert run(read, links, folder) == [first, folder.name]


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
        environ = {"VLLM_LOGGING_LEVEL": "ERROR", "TMPDIR": str(temporary)}
        keys[name] = run(KEYS, tmp_path / "links", copied, **environ)
    assert keys["one"][0] == keys["two"][0]
    assert keys["one"][1] != keys["two"][1], "otherwise vLLM does not look at the folder any more, and needs no help"
