"""Imports go one way, between packages and between the rooms of a package, and never from the heart to contrib."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import forge_env
from forge_env.registry.contrib import TABLES, folders, rows

REPOSITORY = Path(__file__).resolve().parents[1]

# package of the heart -> which of them it may import
OURS = {
    "forge_env": {"forge_env"},
    "sandboxes": {"forge_env", "sandboxes"},
    "envs": {"forge_env", "sandboxes", "envs"},
    "agents": {"forge_env", "agents"},
    "trainers": {"forge_env", "sandboxes", "envs", "agents", "trainers"},
}

# package -> its rooms, folders or files at its root, from the bottom up: a room imports only those before it
ROOMS = {
    "forge_env": "core utils data registry tool_env rollout records evaluation runtime cli __main__",
    "forge_env.runtime": "calls process host_settings machines weights launcher service actor",
    "forge_env.runtime.weights": "tensor_layout store one_host choice",
    "agents": """model_folder model_weights thought_budget renderer served_tokenizer
        token_agent scripted generator""",
    "sandboxes": "settings guest host",
    "envs": "messages task_splits data_tasks processes math code_exec actors",
    "trainers": """settings checkpoints families model lora batching objective metrics titan config algorithm setup run
        controller api grpo dapo gspo sapo cispo reinforce losses sft __main__""",
    "trainers.setup": """packages placement mixture options expert_need run_tasks held_out
        card run_plan memory sizing checks plan describe""",
    "trainers.setup.sizing": "engine fit",
}
APART = {"grpo", "dapo", "gspo", "sapo", "cispo", "reinforce", "sft"}  # algorithms do not import each other

# heavy package -> the only files that may import it
OWNERS = {
    "monarch": ["forge_env/runtime/*", "contrib/clusters/*"],
    "torchstore": ["contrib/clusters/*"],
    "torch": [
        *("forge_env/runtime/*", "agents/*", "trainers/*"),
        *("contrib/clusters/*", "contrib/families/*", "contrib/serve/openai_server.py"),
    ],
    "transformers": [
        *("agents/*", "trainers/*"),
        *("contrib/families/*_model.py", "contrib/external/grammar_trial_process.py"),
    ],
    "vllm": ["agents/generator/*", "contrib/external/engine_grammars.py", "contrib/serve/answer_parser.py"],
    "torchtitan": ["trainers/titan/*", "contrib/families/*"],
    "torchao": ["trainers/titan/*"],
    "docker": ["contrib/docker/*"],
    "dxf": ["contrib/workspaces/images/registry.py"],
    "forge_env.runtime": ["forge_env/runtime/*", "envs/actors/*", "agents/generator/*", "trainers/*", "contrib/*"],
}

FILES = sorted(path for package in OURS for path in (REPOSITORY / package).rglob("*.py"))
CONTRIB = {
    folder.name: [
        path
        for path in sorted(folder.rglob("*.py"))
        if not {"tests", "benchmarks", "examples"} & {*path.relative_to(folder).parts[:-1]}
    ]
    for folder in sorted((REPOSITORY / "contrib").iterdir())
    if (folder / "names.toml").is_file()
}


@dataclass(frozen=True)
class Facts:
    """What a source says of others.

    Attributes:
        imports: every module that it names in an import, wherever in it; `from a import b` gives both a and a.b. A
            relative import begins with its dots.
        at_run_time: those of them that are not under `if TYPE_CHECKING:`, which no process executes.
        texts: all its constant texts.
    """

    imports: set[str]
    at_run_time: set[str]
    texts: set[str]


@functools.cache
def facts(source: str) -> Facts:
    found = Facts(set(), set(), set())
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while nodes:
        node, for_types = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += [(part, True) for part in node.body] + [(part, for_types) for part in node.orelse]
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.texts.add(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.update(_modules(node))
            found.at_run_time.update(() if for_types else _modules(node))
        nodes += [(part, for_types) for part in ast.iter_child_nodes(node)]
    return found


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    module = "." * node.level + (node.module or "")
    return [module] if node.level else [module, *(f"{module}.{name}" for name in names)]


def against_direction(package: str, source: str) -> list[str]:
    """Our own packages that a source of `package` must not import."""
    tops = {name.partition(".")[0] for name in facts(source).imports}
    return sorted((tops & OURS.keys()) - OURS[package])


def of_contrib(source: str) -> set[str]:
    """Folders of contrib that a source imports, or names in a text as "module" or "module:object"."""
    texts = {text.partition(":")[0] for text in facts(source).texts}
    names = (name.split(".") for name in facts(source).imports | texts if name.startswith("contrib."))
    return {parts[1] for parts in names if all(map(str.isidentifier, parts))}


def upwards(file: Path, source: str) -> list[str]:
    """Rooms of its own packages that `file` (its path in the repository) must not import."""
    parts, above = file.with_suffix("").parts, set()
    for package in ROOMS:
        depth = package.count(".") + 1
        if ".".join(parts[:depth]) != package or parts[depth] == "__init__":
            continue
        rooms, room = ROOMS[package].split(), parts[depth]
        used = {name.split(".")[depth] for name in facts(source).imports if name.startswith(f"{package}.")} - {room}
        below = set(rooms[: rooms.index(room)]) - (APART if room in APART else set())
        above |= (used & set(rooms)) - below
    return sorted(above)


def graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> those of `sources` that it imports, in functions too, but not those for type checkers only."""
    arrows = {}
    for module, source in sources.items():
        names = facts(source).at_run_time & sources.keys()
        packages = {name.rpartition(".")[0] for name in names}  # `from a import b` names both a and the module a.b
        arrows[module] = names - packages - {module}
    return arrows


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """A circle of modules, each of which imports the next; empty when there is none."""
    finished: set[str] = set()

    def walk(path: list[str]) -> list[str]:
        for module in sorted(arrows[path[-1]] - finished):
            if module in path:
                return path[path.index(module) :]
            if result := walk([*path, module]):
                return result
        finished.add(path[-1])
        return []

    return next((result for module in sorted(arrows) if module not in finished and (result := walk([module]))), [])


def out_of_place(file: str, source: str) -> list[str]:
    """Heavy packages that `file` (its path in the repository) must not import."""
    return sorted(
        heavy
        for heavy, owners in OWNERS.items()
        if any(name == heavy or name.startswith(f"{heavy}.") for name in facts(source).imports)
        and not any(fnmatch(file, owner) for owner in owners)
    )


def test_every_file_imports_only_what_it_may() -> None:
    wrong = {}
    for path in FILES:
        file, source = path.relative_to(REPOSITORY), path.read_text(encoding="utf-8")
        relative = sorted(name for name in facts(source).imports if name[0] == ".")
        rules = {
            "another package": against_direction(file.parts[0], source),
            "a room above": upwards(file, source),
            "an outbuilding": sorted(of_contrib(source)),
            "a heavy package": out_of_place(file.as_posix(), source),
            "a relative import, which the other rules do not see": relative,
        }
        wrong |= {f"{file}: {rule}": found for rule, found in rules.items() if found}
    assert wrong == {}


def test_a_folder_of_contrib_imports_the_heart_and_what_it_says_that_it_needs() -> None:
    wrong = {}
    for name, paths in CONTRIB.items():
        for path in paths:
            file, source = path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")
            if found := [*sorted(of_contrib(source) - {name, *folders()[name].needs}), *out_of_place(file, source)]:
                wrong[file] = found
    assert wrong == {}


def test_no_folders_of_contrib_need_each_other_in_a_circle() -> None:
    assert circle({name: {*folder.needs} for name, folder in folders().items()}) == []


def test_every_row_of_contrib_is_there_once() -> None:
    for table in TABLES:
        names = [name for folder in folders().values() for name in folder.tables.get(table, {})]
        assert sorted(set(names)) == sorted(names), table
        for row in rows(table).values():
            target = row.load()
            assert target is not None
            if table == "commands" and inspect.isfunction(target):
                assert row.about == (inspect.getdoc(target) or "").partition("\n\n")[0], "the help says one thing"


def test_no_files_of_a_package_import_each_other_in_a_circle() -> None:
    names = {file: ".".join(file.relative_to(REPOSITORY).with_suffix("").parts) for file in FILES}
    sources = {name.removesuffix(".__init__"): file.read_text(encoding="utf-8") for file, name in names.items()}
    assert circle(graph(sources)) == []


def test_every_package_has_files() -> None:
    assert {path.relative_to(REPOSITORY).parts[0] for path in FILES} == OURS.keys()


def test_every_room_has_its_place() -> None:
    for package, rooms in ROOMS.items():
        folder = REPOSITORY / package.replace(".", "/")
        files = {file.relative_to(folder).with_suffix("").parts[0] for file in FILES if file.is_relative_to(folder)}
        assert files - {"__init__"} == set(rooms.split()), package


def test_the_rules_find_what_breaks_them() -> None:
    assert against_direction("envs", "def f():\n    from trainers.controller.loop import Loop\n") == ["trainers"]
    assert against_direction("agents", "import envs.math") == ["envs"]
    assert against_direction("trainers", "import agents, envs, sandboxes, forge_env") == []
    assert out_of_place("forge_env/rollout/rollout.py", "import torch.nn") == ["torch"]
    assert out_of_place("forge_env/core/env.py", "from forge_env import runtime") == ["forge_env.runtime"]
    assert out_of_place("agents/generator/engine.py", "if True:\n    from vllm import LLM") == []
    assert out_of_place("envs/math.py", "import torchvision") == []
    assert of_contrib("def f():\n    import contrib.a.b\nx = 'contrib.b.c:D', 'see contrib.d.e'") == {"a", "b"}
    assert upwards(Path("forge_env/core/env.py"), "from forge_env.registry.registry import find") == ["registry"]
    assert upwards(Path("forge_env/runtime/process/exit.py"), "from forge_env.runtime import launcher") == ["launcher"]
    sources = {
        "agents.a": "def f():\n    import agents.b",
        "agents.b": "from agents import c",
        "agents.c": "if TYPE_CHECKING:\n    import agents.d\nfrom agents.a import f",
        "agents.d": "import agents.a",
    }
    assert circle(graph(sources)) == ["agents.a", "agents.b", "agents.c"]
    assert circle(graph(sources | {"agents.c": "if TYPE_CHECKING:\n    import agents.a"})) == []
    assert upwards(Path("trainers/gspo.py"), "import trainers.grpo, trainers.api") == ["grpo"]


def test_the_packages_are_those_of_this_repository() -> None:
    for package in OURS:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None, package
        assert Path(spec.origin).resolve() == REPOSITORY / package / "__init__.py"


def test_importing_the_gym_half_loads_nothing_heavy() -> None:
    code = (
        "import sys, forge_env, sandboxes, envs, agents\n"
        "for name in forge_env.env_names(): forge_env.env_class(name)\n"
        f"print(sorted(sys.modules.keys() & {set(OWNERS)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_every_public_name_is_there_for_readers_and_for_python() -> None:
    source = (REPOSITORY / "forge_env" / "__init__.py").read_text(encoding="utf-8")
    shown = {
        (alias.name, node.module)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("forge_env.")
        for alias in node.names
    }
    called = {
        ("leave_at_once", "forge_env.utils.interrupts"),
        ("register_with_gymnasium", "forge_env.registry.gymnasium_registration"),
    }
    assert shown - called == set(forge_env._MODULE_OF.items())
    for name in forge_env.__all__:
        assert getattr(forge_env, name) is not None


def test_importing_the_package_loads_nothing_of_it() -> None:
    """The command line says its help in a tenth of a second."""
    heavy = ("forge_env.", "pydantic", "gymnasium", "numpy")
    code = f"import sys, forge_env; print([m for m in sys.modules if m.startswith({heavy!r})])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    light = [
        f"forge_env.{name}" for name in ("utils", "utils.interrupts", "registry", "registry.gymnasium_registration")
    ]
    assert (done.returncode, done.stdout.strip()) == (0, str(light)), done.stderr
