"""`forge-env export-model`: weights of a run as a folder for other programs, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents import model_folder
from forge_env.cli.main import main
from forge_env.records.run_files import MANIFEST

FILES = {name: name for name in ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja")}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete run with checkpoints of two steps, one of which has been used as a model."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    for step in (20, 40):
        checkpoint = folder / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / MANIFEST).write_text("{}")
    for model, marker in ((folder / "model", "last"), (folder / "checkpoints/step_000020/model", "of 20")):
        model.mkdir()
        for name, text in FILES.items():
            (model / name).write_text(f"{text} {marker}")
    (folder / "summary.json").write_text('{"steps": 60}')
    evaluation = {"phase": "evaluation", "step": 20, "success": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(evaluation) + "\n")
    return folder


@pytest.mark.parametrize(
    ("arguments", "step", "marker"),
    [
        (("run",), 60, "last"),
        (("run", "--step", "best"), 20, "of 20"),
        (("run/checkpoints/step_000020",), 20, "of 20"),
    ],
)
def test_a_whole_folder(
    run: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], step: int, marker: str
) -> None:
    Path("models/out").mkdir(parents=True)  # empty
    assert main(["export-model", *arguments, "--out", "models/out"]) == 0
    said = capfd.readouterr().out
    assert said.endswith(f"run after step {step} is in models/out\n")
    files = {path.name: path.read_text() for path in Path("models/out").iterdir()}
    assert files == {name: f"{text} {marker}" for name, text in FILES.items()}
    assert [path.name for path in Path("models").iterdir()] == ["out"]
    assert main(["export-model", *arguments, "--out", "models/out", "--json"]) == 2
    error = json.loads(capfd.readouterr().out)["error"]
    assert error == "--out models/out holds something already: name a new one, or delete it first"
    assert main(["export-model", *arguments, "--out", "again", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert (Path(answer["run"]).name, answer["step"], answer["out"]) == ("run", step, "again")


def test_weights_that_there_are_not_are_one_sentence(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export-model", "run@20", "--step", "best", "--out", "out"]) == 2
    assert "error: run@20 holds neither a model/ folder" in capfd.readouterr().err
    assert main(["export-model", "run", "--step", "30", "--out", "out"]) == 2
    assert "run has no weights @30: it has the weights of the steps 20, 40, 60; name" in capfd.readouterr().err
    for out in ("run/model/out", "run/checkpoints/step_000050"):
        assert main(["export-model", "run", "--out", out]) == 2
        assert f"--out {out} is within " in capfd.readouterr().err
    (run / "model" / "chat_template.jinja").unlink()
    (run / "model" / "chat_template.jinja").symlink_to("nowhere")  # a file that cannot be copied
    assert main(["export-model", "run", "--out", "out"]) == 2
    assert "error: --out out cannot be written: [Errno 2] No such file" in capfd.readouterr().err
    (run / "model" / "tokenizer.json").unlink()
    assert main(["export-model", "run", "--out", "out"]) == 2
    assert "holds no tokenizer.json" in capfd.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_nothing_is_left_of_an_export_that_is_stopped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(checkpoint: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(model_folder, "_write_model", write_half)
    assert main(["export-model", "run@40", "--out", "models/out"]) == 130
    with pytest.raises(KeyboardInterrupt):
        model_folder.trained_model("run@40")
    assert [path.name for path in Path().iterdir()] == ["run"]
    assert [path.name for path in (run / "checkpoints" / "step_000040").iterdir()] == [MANIFEST]
