"""Which files of installed packages code in the sandbox sees, and what is said of a package that cannot be imported."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import textwrap
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.core.sandbox import ExecStatus
from sandboxes import open_sandbox
from sandboxes.host.find_packages import find_packages
from tests.helpers.sandboxes import opened

LOOK = "import json, os; print(json.dumps(sorted(os.listdir('/packages'))))"


def install(folder: Path, name: str, files: dict[str, str], *, requires: tuple[str, ...] = ()) -> None:
    """Write a distribution as an installer does."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    required = "".join(f"Requires-Dist: {text}\n" for text in requires)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{required}"
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/METADATA", f"{info}/RECORD"))
    for path, text in {**files, f"{info}/METADATA": metadata, f"{info}/RECORD": record}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(textwrap.dedent(text))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


async def printed(code: str, *packages: str) -> str:
    async with opened(packages=packages, slots=1) as sandbox:
        result = await sandbox.run(code)
    assert result.status is ExecStatus.OK, result
    return result.stdout


async def refusal(*packages: str, **settings: object) -> str:
    with pytest.raises(UserError) as caught:
        async with open_sandbox("namespace", packages=packages, **settings):
            pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("package", "code", "output"),
    [
        ("pytest", "print(repr(pytest.main(['--version'])))", "<ExitCode.OK: 0>"),
        ("pydantic", "print(pydantic.TypeAdapter(list[int]).validate_python(['1']))", "[1]"),
        ("py", "print(py.__file__)", "/packages/py.py"),
    ],
)
async def test_a_named_package_brings_what_it_requires(package: str, code: str, output: str) -> None:
    text = await printed(f"import {package}\n{code}\n{LOOK}", package)
    lines = text.splitlines()
    assert output in lines
    shown = {name.partition("-")[0] for name in json.loads(lines[-1])}
    assert package in {name.removesuffix(".py") for name in shown}
    assert not shown & {"forge_env", "yaml", "rich", "typer", "pip", "setuptools"}


async def test_requirements_are_followed_by_their_markers_and_extras(site: Path) -> None:
    tools = (
        "helper[fast] >=0.5 ; python_version >= '3'",
        "unused ; extra == 'unused'",
        "absent ; python_version < '3'",
    )
    install(site, "the-tool", {"the_tool/__init__.py": "import helper, quick"}, requires=tools)
    install(site, "helper", {"helper.py": "VALUE = 1"}, requires=("quick ; extra == 'fast'", "the-tool"))
    for name in ("quick", "unused", "neighbour"):
        install(site, name, {f"{name}.py": ""})
    shown = json.loads(await printed(f"import the_tool\n{LOOK}", "the-tool"))
    assert [name for name in shown if "-" not in name] == ["helper.py", "quick.py", "the_tool"]
    assert find_packages(["the_tool"]).imports == find_packages(["the-tool"]).imports == ["the_tool"]


async def test_of_a_namespace_only_the_parts_of_the_named_distribution_are_shown(site: Path) -> None:
    install(site, "first", {"space/first/__init__.py": "", "space/first/data.txt": "one", "space/alone.py": ""})
    install(site, "second", {"space/second/__init__.py": "VALUE = 2", "space/first_too.py": ""})
    look = "import os\nfor f, _, names in os.walk('/packages/space'): print(f, *sorted(names))"
    text = await printed(f"import space.first\n{look}", "space.first")
    assert text.splitlines() == ["/packages/space alone.py", "/packages/space/first __init__.py data.txt"]
    text = await printed("import space.second; print(space.second.VALUE)", "space")
    assert text == "2\n"


async def test_a_module_that_is_no_distribution_can_be_named(site: Path) -> None:
    (site / "local_folder" / "inner").mkdir(parents=True)
    (site / "local_folder" / "__init__.py").write_text("import local_file")
    (site / "local_file.py").write_text("VALUE = 3")
    code = "import local_folder; print(local_folder.local_file.VALUE)"
    assert await printed(code, "local_folder", "local_file") == "3\n"


async def test_an_interpreter_that_code_starts_sees_the_packages(site: Path) -> None:
    install(site, "spoken", {"spoken.py": "print('here')"})
    code = "import subprocess, sys; print(subprocess.run([sys.executable, '-m', 'spoken'], capture_output=True).stdout)"
    assert await printed(code, "spoken") == "b'here\\n'\n"


async def test_nothing_of_the_host_changes(site: Path) -> None:
    install(site, "outer", {"deep/outer/__init__.py": ""}, requires=("inner",))
    install(site, "inner", {"deep/outer/plugins/inner.py": "", "deep/inner.py": ""})
    before = sorted(site.rglob("*"))
    assert await printed("import deep.outer.plugins.inner; print(1)", "outer") == "1\n"
    assert sorted(site.rglob("*")) == before


async def test_threads_of_a_package_are_not_those_of_a_run(site: Path) -> None:
    install(site, "busy", {"busy.py": "import threading\nthreading.Thread(target=threading.Event().wait).start()"})
    assert await printed("import threading; print(threading.active_count())", "busy") == "1\n"


async def test_a_module_that_is_missing_is_named_with_the_remedy(site: Path) -> None:
    install(site, "needy", {"needy.py": "import there_is_no_such_module"})
    text = await refusal("needy")
    assert text == (
        "'needy' of packages cannot be imported in the sandbox: it needs the module 'there_is_no_such_module', which "
        "is not installed here; install that, or leave 'needy' out of packages."
    )


async def test_a_module_that_is_not_required_is_named_with_the_remedy(site: Path) -> None:
    install(site, "careless", {"careless.py": "import forgotten"})
    install(site, "forgotten", {"forgotten.py": "VALUE = 5"})
    text = await refusal("careless")
    assert "it needs the module 'forgotten', which its metadata does not require; add 'forgotten' to packages" in text
    assert await printed("import careless; print(careless.forgotten.VALUE)", "careless", "forgotten") == "5\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('bad luck')", "ValueError: bad luck"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(7)", "the zygote ended with exit code 7"),
        ("open('/tmp/cache', 'w')", "OSError: [Errno 30] Read-only file system: '/tmp/cache'"),
    ],
)
async def test_whatever_ends_an_import_is_no_fault_of_the_kernel(site: Path, source: str, reason: str) -> None:
    install(site, "broken", {"broken.py": source})
    text = await refusal("broken")
    assert text == f"'broken' of packages cannot be imported in the sandbox: {reason}; leave it out of packages."


async def test_a_module_of_preimport_is_named_too() -> None:
    text = await refusal(preimport=("json", "jsno"))
    reason = "ModuleNotFoundError: No module named 'jsno'"
    assert text == f"'jsno' of preimport cannot be imported in the sandbox: {reason}; leave it out of preimport."


@pytest.mark.parametrize("name", ["no_such_package", "no-such-package", "", "../up", "a b"])
async def test_a_package_that_is_not_installed(name: str) -> None:
    assert f"package {name!r} is not installed here" in await refusal(name)


def test_a_single_module_brings_its_compiled_form(site: Path) -> None:
    install(site, "lone", {"lone.py": "VALUE = 1"})
    compiled = Path(importlib.util.cache_from_source(str(site / "lone.py")))
    compiled.parent.mkdir()
    compiled.write_bytes(b"")
    (compiled.parent / "neighbour.pyc").write_bytes(b"")
    targets = [target for _, target in find_packages(["lone"]).paths]
    assert targets == [f"__pycache__/{compiled.name}", "lone-1.0.dist-info", "lone.py"]


def test_requirements_are_those_that_apply_here(site: Path) -> None:
    for name in ("here", "elsewhere", "optional"):
        install(site, name, {f"{name}.py": ""})
    install(
        site,
        "base",
        {"base.py": ""},
        requires=(
            "here (>=0.1); python_version >= '3.8' and os_name == 'posix'",
            "elsewhere; sys_platform == 'win32'",
            "optional; extra == 'Big_Thing'",
            "is not; a requirement",
            "absent>=1",
        ),
    )
    install(site, "whole", {"whole.py": ""}, requires=("base[big-thing]",))

    def modules(name: str) -> set[str]:
        return {target for _, target in find_packages([name]).paths if target.endswith(".py")}

    assert modules("base") == {"base.py", "here.py"}
    assert modules("whole") == {"whole.py", "base.py", "here.py", "optional.py"}


def test_what_is_installed_later_is_seen(site: Path) -> None:
    install(site, "early-tool", {"early.py": ""})
    assert "early_tool-1.0.dist-info" in dict(find_packages(["early"]).paths).values()
    install(site, "late-tool", {"late.py": ""})
    assert "late_tool-1.0.dist-info" in dict(find_packages(["late"]).paths).values()


async def test_openings_at_once_do_not_mix(site: Path) -> None:
    for name in ("left", "right"):
        install(site, name, {f"{name}.py": ""})
    texts = await asyncio.gather(printed(LOOK, "left"), printed(LOOK, "right"))
    assert [json.loads(text)[-1] for text in texts] == ["left.py", "right.py"]
