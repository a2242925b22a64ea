"""Names of other libraries lead to ours, and the pages agree."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.settings import leaves
from tests.helpers.rows import rows
from trainers.config import SHORT_OPTIONS
from trainers.grpo import Config
from trainers.setup.options.parser import ALGORITHM, OUR_NAMES, names_of_others, our_name, parse
from trainers.sft import SFT

OURS = {setting.name for config in (Config(), SFT.config()) for setting in leaves(config)}
PAGE = Path(__file__).parents[3] / "docs" / "coming_from.md"


def test_every_name_leads_to_one_setting() -> None:
    assert [name for name in OUR_NAMES if name and name.replace(ALGORITHM, "grpo") not in OURS] == []
    assert {name for name, count in Counter(names_of_others()).items() if count > 1} == set(
        OUR_NAMES["sft.epochs"].split()
    )


@pytest.mark.parametrize(("name", "ours"), rows(__file__, "other_names.tsv"))
def test_an_option_of_another_library_is_understood(name: str, ours: str) -> None:
    with pytest.raises(UserError, match=f"there is no option --{name}; did you mean --{ours}\\?"):
        parse(Config, [f"--{name}", "5"], SHORT_OPTIONS)


@pytest.mark.parametrize("name", ["deepspeed", "use_liger_loss", "trainer.loss.type", "trainer.log.level"])
def test_a_name_without_a_counterpart_leads_nowhere(name: str) -> None:
    with pytest.raises(UserError, match=f"there is no option --{name}; --help"):
        parse(Config, [f"--{name}", "5"], SHORT_OPTIONS)


def test_supervised_training_has_epochs_and_no_groups() -> None:
    with pytest.raises(UserError, match="no option --top_k; --help"):
        parse(Config, ["--top_k", "5"], SHORT_OPTIONS)
    with pytest.raises(UserError, match=r"did you mean --sft\.epochs"):
        parse(SFT.config, ["--num_train_epochs", "5"], SHORT_OPTIONS)
    with pytest.raises(UserError, match="no option --num_generations; --help"):
        parse(SFT.config, ["--num_generations", "5"], SHORT_OPTIONS)


def test_the_page_says_the_same() -> None:
    rows = re.findall(r"^\| (.*`.*) \| (.*`[a-z]+\.[a-z_]+`.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    pairs = [
        (ours, re.findall(r"`([\w.]+)", right), theirs)
        for left, right in rows
        for theirs in re.findall(r"`([\w.]+)", left)
        if (ours := our_name(theirs, "grpo", OURS))
    ]
    assert len(pairs) > 15
    assert [(theirs, ours) for ours, right, theirs in pairs if not any(ours.startswith(name) for name in right)] == []
