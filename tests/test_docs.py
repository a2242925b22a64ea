"""Every block of docs/, contrib/ and README.md and every example runs, and prints what the page says.

A page is a story: its blocks run from top to bottom in one folder. A Python block whose first line names a file is
saved there; the others run one after another with the names of those before them. A `text` block is what the block
above it prints, "..." standing for anything. A `py` block is code of another library, which is not run.
`python -m tests.test_docs` prints the rows of contrib/README.md.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_env.registry.contrib import folders
from tests.helpers.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]
CONTRIB = sorted((ROOT / "contrib").glob("*/*.md"))
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(page for page in CONTRIB if page.name != "api.md"),  # it has names for the site
]
MISSION = (
    "installing", "environments", "tools", "training", "evaluation",
    "python", "not_learning", "configuration", "metrics", "models",
)  # fmt: skip
"""Pages that a user needs to train a model in an environment of their own."""
ELSEWHERE = {
    "external_agent",  # contrib/external/tests/test_external_endings.py
    "session_agent",  # contrib/external/tests/served/test_serve_agent.py
    "verifiers_environment",  # needs packages of its own
}
"""Examples that other tests run, or none."""
EXAMPLES = sorted(
    path
    for pattern in ("examples/*.py", "contrib/*/examples/*.py")
    for path in ROOT.glob(pattern)
    if path.stem not in ELSEWHERE
)
SLOW = {
    *("README.md", "docs/python.md", "contrib/harbor/coding_agent.md", "contrib/torchforge/examples/own_loop.py"),
    "contrib/serve/serve_model.md",
}
"""Examples and pages that train, and the one that starts vLLM's own server, with three imports of vLLM."""
NOT_HERE = {
    "make demo": "it writes to the checkout, and takes minutes: `python -m benchmarks.demo` measures it",
    "make test": "it is what runs this test",
    "make demo-real": "it takes a model from a package index: `python -m benchmarks.real_model` measures it",
}
"""Commands of README.md that no test runs, with the reason."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.py)\n")
"""The first line of a block that is a file."""
MARK = "@end of block@"


def run(command: list[str], folder: Path, seconds: float = 280, *, reads_line: bool = False) -> str:
    """What a command prints; of one that goes on until it is interrupted, its first line."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    environ["FORGE_ENV_REGISTRY"] = str(folder / ".forge_env" / "registry.yaml")
    if reads_line:
        with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            process.wait(60)
        assert "http://" in line
        return line
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def same(shown: str, printed: str) -> bool:
    shown = re.sub(r"\.\.\.(\n|$)", "...\n", shown)
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def cases(files: list[Path]) -> list[Any]:
    names = {path: path.relative_to(ROOT).as_posix() for path in files}
    return [pytest.param(path, marks=[pytest.mark.slow] * (name in SLOW), id=name) for path, name in names.items()]


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The command of an interpreter that starts at once; where slow tests run, too, it is the plain one."""
    if "not slow" not in request.config.option.markexpr:
        yield [sys.executable]
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(WarmPython(Path(folder))) as warm:
        yield warm.command


@pytest.mark.parametrize("page", cases(PAGES))
def test_every_block_of_a_page_runs(page: Path, python: list[str], tmp_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    parts: list[str] = []
    """The blocks that run, in one process: Python blocks share its names."""
    expected: dict[int, str] = {}
    forge_env = [*python, str(Path(sys.executable).with_name("forge-env"))]
    quick = f"alias python={shlex.quote(shlex.join(python))} forge-env={shlex.quote(shlex.join(forge_env))}"
    for language, body in blocks:
        file = FILE.match(body)
        if language == "python" and file:
            (tmp_path / file[1]).write_text(body, encoding="utf-8")
        elif language == "python":
            parts.append(body)
        elif language == "bash":
            shell = f"shopt -s expand_aliases\n{quick}\n{body}"
            parts.append(f"__import__('subprocess').run(['bash', '-euo', 'pipefail', '-c', {shell!r}], check=True)\n")
        elif language == "py":
            ast.parse(body)
        else:
            assert language == "text", f"{page.name} has a block of {language!r}, which no test runs"
            expected[len(parts) - 1] = body
    script = "".join(f"{part}print({MARK!r}, flush=True)\n" for part in parts)
    printed = run([*python, "-c", script], tmp_path).split(MARK + "\n")
    for number, shown in expected.items():
        assert same(shown, printed[number]), f"{page.name} shows\n{shown}\nand this was printed:\n{printed[number]}"


@pytest.mark.parametrize("example", cases(EXAMPLES))
def test_every_example_runs(example: Path, python: list[str], tmp_path: Path) -> None:
    output = {
        "own_loop": "8 episodes, ",
        "trl_environment": "--as openenv",
    }.get(example.stem, "reward 1.0")
    assert output in run([*python, str(example)], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    printed = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    assert "evaluations [(0, " in printed and "best step " in printed and "95% interval" in printed


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.parent.name not in ("examples", "agents")))
        for folder in ("examples", "benchmarks", "contrib/*/examples", "contrib/*/benchmarks")
        for path in sorted(ROOT.glob(f"{folder}/**/*.py"))
        if path.parent.name == "agents" or '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_every_script_has_a_help(script: Path, python: list[str], tmp_path: Path) -> None:
    """Also if its packages are not installed, or its variables not set."""
    words = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").split()[:3]
    module = ".".join(script.relative_to(ROOT).with_suffix("").parts)
    command = ["-m", module] if (script.parent / "__init__.py").exists() else [str(script)]
    printed = run([*python, *command, "--help"], tmp_path)
    assert "usage: " in printed or words == printed.split()[:3]


class Endpoint(BaseHTTPRequestHandler):
    """A model that knows nothing, behind Chat Completions."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "I do not know."}}
        body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    for _, body in BLOCK.findall(readme):
        if file := FILE.match(body):
            (tmp_path / file[1]).write_text(body, encoding="utf-8")
    commands = re.findall(r"^    ((?:make|forge-env|python) .*?)(?: +#.*)?$", readme, re.M)
    assert NOT_HERE.keys() < set(commands) and any("trainers.grpo" in command for command in commands)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            for command in commands:
                at_port = command.replace("127.0.0.1:8000", f"127.0.0.1:{server.server_port}")
                if command not in NOT_HERE:
                    run([*shlex.split(at_port)], tmp_path, seconds=1800, reads_line="forge-env view" in command)
        finally:
            server.shutdown()
    [summary] = tmp_path.glob("outputs/grpo-*/summary.json")
    figures = json.loads(summary.read_text())
    assert figures["success_after"] > figures["success_before"]


def named_pages(nav: Any) -> list[str]:
    """The files that the nav of mkdocs.yml, or a section of it, names."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in named_pages(part)]


def test_the_site_names_every_page_once_and_each_is_there() -> None:
    named = named_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    beside = {
        "index.md": "README.md",
        **{path.name: path.name for path in ROOT.glob("*.md")},
    }  # docs/hook.py takes them
    assert len(named) == len(set(named))
    assert pages <= set(named)
    assert [page for page in named if page not in pages and not (ROOT / beside.get(page, page)).is_file()] == []


def test_the_pages_are_read_in_an_afternoon() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md")]
    words = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").split()) for path in pages}
    assert sum(words[f"docs/{name}.md"] for name in MISSION) <= 16_000, words
    assert sum(words.values()) <= 48_000, words


def test_every_link_of_a_page_leads_to_a_file() -> None:
    lists = [*ROOT.glob("*.md"), ROOT / "contrib" / "README.md", *(ROOT / "benchmarks" / "results").glob("*.md")]
    for page in {*PAGES, *CONTRIB, *lists}:
        links = re.findall(r"\]\(([^)#\s:]+)[)#]", page.read_text(encoding="utf-8"))
        dead = [path for link in links if not (path := (page.parent / link).resolve()).exists()]
        assert [path for path in dead if not is_taken_away(path)] == [], page


def is_taken_away(path: Path) -> bool:
    """Whether a file is in a folder of contrib/ that is not here."""
    return (
        path.is_relative_to(ROOT / "contrib")
        and not (ROOT / "contrib" / path.relative_to(ROOT / "contrib").parts[0]).exists()
    )


def test_every_outbuilding_has_a_page_and_a_row_in_their_list() -> None:
    assert {page.parent.name for page in CONTRIB if page.name == "README.md"} == folders().keys()
    text = (ROOT / "contrib" / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert [row for row in rows if row.split("]")[0][3:] in folders()] == [row_of(name) for name in folders()]


def row_of(name: str) -> str:
    """What contrib/README.md says of a folder."""
    folder = folders()[name]
    adds = [
        f"{table.replace('_', ' ')} {', '.join(f'`{row}`' for row in rows)}" for table, rows in folder.tables.items()
    ]
    return f"| [{name}]({name}/README.md) | {folder.about} | {'; '.join(adds)} |"


SPINE = re.compile(r"^- `(\S+\.py)`:? ", re.M)
"""A file of the list in ARCHITECTURE.md."""


def test_the_spine_is_there_and_as_long_as_the_page_says() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    files = SPINE.findall(text)
    assert 40 <= len(files) == len(set(files)) <= 60
    [lines] = re.findall(r"have ([\d,]+) lines", text)
    there_are = sum((ROOT / file).read_text(encoding="utf-8").count("\n") for file in files)
    assert abs(int(lines.replace(",", "")) - there_are) <= 0.02 * there_are, there_are


def test_a_release_has_at_most_60_lines_in_the_changelog() -> None:
    _, *releases = re.split(r"^## (?=\[)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    assert {release.partition("\n")[0]: release.count("\n") for release in releases if release.count("\n") > 60} == {}
    assert len(releases) >= 2


def test_the_pages_and_examples_are_there() -> None:
    assert {"environments.md", "tools.md"} <= {page.name for page in PAGES}
    assert len(EXAMPLES) >= 3


if __name__ == "__main__":
    print("\n".join(row_of(name) for name in folders()))
