"""Real chat templates: none is rendered otherwise than by Transformers, and most that hold tools can be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.templates import Corpus, Result, main

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_template_of_ones_own(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    templates, results = tmp_path / "templates", tmp_path / "results.json"
    templates.mkdir()
    (templates / "good.jinja").write_text(CHATML)
    (templates / "bad.jinja").write_text(CHATML.replace("message.content", "message.text"))
    arguments = [str(tiny_model), "--templates", str(templates), "--jobs", "1", "--json", str(results)]
    assert main(arguments) == 0
    bad, good = json.loads(results.read_text())
    assert (good["verdict"], good["holds_tools"], good["rows"]) == ("exact", False, [0])
    assert bad["verdict"] == "refused" and "does not write the content" in bad["reasons"]["template"]
    assert "refused   bad " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_real_template_is_rendered_otherwise(tiny_model: Path) -> None:
    corpus = Corpus(tiny_model)
    results: list[Result] = list(corpus.try_all([*corpus.templates], jobs=2))
    assert len(results) == 786
    assert {result.name: result.reasons for result in results if result.verdict == "different"} == {}
    with_tools = [result for result in results if result.holds_tools]
    assert sum(result.verdict == "exact" for result in with_tools) >= 0.6 * len(with_tools)
