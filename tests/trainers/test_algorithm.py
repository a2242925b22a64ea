"""An algorithm in a file of the user's: found by its target, used as those of the trainer are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from tests.helpers.entry import never
from trainers.algorithm import check_unchanged, find_algorithm
from trainers.api import enter
from trainers.setup.run_plan import RunPlan

FILE = """
from dataclasses import dataclass, field, replace
from forge_env.core.errors import UserError
from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.config import RunConfig
from trainers.grpo import GRPO
from trainers.losses import RatioLoss
from trainers.objective.settings import AlgorithmConfig

@dataclass(frozen=True, kw_only=True)
class SquaredConfig(AlgorithmConfig):
    pull: float = 0.5
    \"\"\"How strongly the ratio is pulled back to 1.\"\"\"

    def check(self):
        if self.pull > 1 and self.beta > 0:
            raise UserError("--squared.pull and --squared.beta hold back alike: leave one of them out")

@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    squared: SquaredConfig = field(default_factory=SquaredConfig)

class SquaredLoss(RatioLoss):
    def __init__(self, pull, **options):
        super().__init__(**options)
        self.pull = pull

    def policy_term(self, log_ratio, logprobs, advantages, mask):
        return -log_ratio.exp() * advantages + self.pull * (log_ratio.exp() - 1) ** 2

def loss(config):
    return SquaredLoss(config.squared.pull, **loss_options(config))

SQUARED = Algorithm(name="squared", config=Config, loss=loss, objective=make_objective)
FAILS = replace(SQUARED, loss=lambda config: 1 / 0)
ASKS = replace(SQUARED, loss=lambda config: lambda logprobs, colour: logprobs.sum())
NO_LOSS = replace(SQUARED, loss=None)
NO_OBJECTIVE = replace(SQUARED, objective=None)
NO_SECTION = replace(SQUARED, config=RunConfig)
VARIANT = replace(GRPO, name="mine", loss=lambda config: GRPO.loss(config))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_section_in_a_file_checks_its_own_settings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(f"{file}:SQUARED", never, ["--env", "math", "--squared.pull=2", "--squared.beta=0.1"]) == 2
    assert capsys.readouterr().err.startswith("error: --squared.pull and --squared.beta hold back alike")


def test_an_algorithm_in_a_file_has_options_of_its_own(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[RunPlan] = []

    async def run(plan: RunPlan, _: object) -> None:
        seen.append(plan)

    target = f"{file}:SQUARED"
    assert enter(target, run, ["--env", "math", "--squared.pull", "0.7", "--squared.n_samples=4"]) == 0
    (plan,) = seen
    assert plan.objective is not None and plan.objective.group_size == 4
    assert pickle.loads(pickle.dumps(plan.objective.loss)).pull == 0.7
    assert plan.algorithm == find_algorithm(target)
    assert (plan.algorithm.name, plan.algorithm.command) == ("squared", f"trainers {target}")
    assert enter(target, never, ["--help"]) == 0
    assert "--squared.pull 0.5\n        How strongly the ratio is pulled" in capsys.readouterr().out
    assert enter(target, never, ["--squared.pul", "1"]) == 2
    assert "did you mean --squared.pull?" in capsys.readouterr().err


def test_a_variant_has_the_options_of_the_algorithm_that_it_is_made_of(file: Path) -> None:
    seen: list[RunPlan] = []

    async def run(plan: RunPlan, _: object) -> None:
        seen.append(plan)

    assert enter(f"{file}:VARIANT", run, ["--env", "math", "--grpo.clip_high", "0.5"]) == 0
    assert enter("trainers.grpo:GRPO", run, ["--env", "math"]) == 0
    assert [plan.algorithm.name for plan in seen] == ["mine", "grpo"]
    assert [plan.objective.loss.clip_high for plan in seen if plan.objective] == [0.5, 0.28]  # type: ignore[attr-defined]
    assert (seen[1].algorithm.command, seen[1].algorithm.target) == ("trainers.grpo", "")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py:MINE", "there is no file"),
        ("mine.py", "is not a target"),
        ("mine.py:SQUARE", "has no attribute 'SQUARE'. Did you mean SQUARED?"),
        (
            "mine.py:SquaredLoss",
            "is SquaredLoss and no Algorithm: name the value that the file makes by Algorithm(...)",
        ),
        ("mine.py:NO_LOSS", "is an Algorithm without loss="),
        ("mine.py:NO_OBJECTIVE", "is an Algorithm without objective="),
        ("mine.py:NO_SECTION", "its RunConfig has no section for the algorithm"),
        ("mine.py:FAILS", "its objective cannot be made: ZeroDivisionError: division by zero"),
        ("mine.py:ASKS", "the loss asks for 'colour'"),
    ],
)
def test_a_target_that_is_no_algorithm_is_refused_with_a_sentence(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str, words: str
) -> None:
    monkeypatch.chdir(file.parent)
    assert enter(target, never, ["--env", "math"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and errors.count("\n") == 1 and words in errors


def test_a_file_that_changes_while_the_run_starts_is_said(file: Path) -> None:
    algorithm = find_algorithm(f"{file}:SQUARED")
    check_unchanged(algorithm)
    file.write_text(f"{FILE}\nMORE = 1\n")
    with pytest.raises(UserError, match="has changed while the run started: start it again"):
        check_unchanged(algorithm)
