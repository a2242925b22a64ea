"""`forge-env sandbox run` and `forge-env sandbox info`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from contrib.common.sizes import size_in_bytes
from forge_env.cli.output import Json, emit, say, show_table
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.utils.run_async import run_async
from forge_env.utils.targets import load

app = typer.Typer(rich_markup_mode=None)

if TYPE_CHECKING:
    _Backend = str
else:
    _Backend = Literal[("auto", *load("sandboxes.settings:BACKENDS"))]


@app.command("run")
def run(
    file: Annotated[str, typer.Argument(help="Python file, or - for standard input.")],
    backend: Annotated[
        _Backend,
        typer.Option(help="subprocess isolates nothing and needs FORGE_ENV_ALLOW_INSECURE_SANDBOX=1."),
    ] = "auto",
    stdin: Annotated[str, typer.Option(help="File that the code reads as its standard input.")] = "",
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file", help="File that the code finds in its working directory, under its name. May be repeated."
        ),
    ] = None,
    wall: Annotated[float, typer.Option(help="Wall-clock limit in seconds.")] = 2.0,
    memory: Annotated[str, typer.Option(help="Memory limit, for example 256M.")] = "256M",
    repeat: Annotated[int, typer.Option(help="Number of runs, each in a fresh state.")] = 1,
) -> int:
    """Run a file in a sandbox and print one JSON line for each run.

    Exits with 0 when every run ended with the status "ok", else with 1.
    """
    if wall <= 0 or repeat < 1:
        raise UserError(f"--wall is {wall:g} and --repeat is {repeat}; --wall must be above 0, and --repeat at least 1")
    limits = {"wall_s": wall, "cpu_s": wall, "memory_bytes": size_in_bytes(memory, "--memory")}
    code = _read(file)
    inputs = {"stdin": _read(stdin) if stdin else "", "files": _read_files(files or [])}
    return run_async(_run(backend, code, inputs, limits, repeat))


@app.command("info")
def info(as_json: Json = False) -> None:
    """Show what backends of sandboxes and workspaces enforce on this machine, as measured, and what is missing."""
    report = run_async(measure())
    if as_json:
        emit({"backends": report.pop("sandbox"), **report})
        return
    for kind, backends in report.items():
        measures = next((facts for facts in backends.values() if "missing" in facts), {})
        capabilities = [name for name in measures if name != "missing"]
        rows = [[name, *(_cell(facts.get(name)) for facts in backends.values())] for name in capabilities]
        if rows:
            show_table((kind, *backends), rows)
    for kind, backends in report.items():
        for backend, capability in backends.items():
            for problem in capability.get("missing", [capability.get("unavailable")]):
                say(f"{kind}, {backend}: {problem}")


async def _run(backend: str, code: str, inputs: dict[str, Any], limits: dict[str, Any], repeat: int) -> int:
    from forge_env.core.sandbox import ExecRequest, Limits, RequestFileError

    open_sandbox = load("sandboxes:open_sandbox")
    all_ok = True
    try:
        request = ExecRequest(code=code, limits=Limits(**limits), **inputs)
    except RequestFileError as error:
        raise UserError(f"--file: {error}") from None
    async with open_sandbox(backend) as sandbox:
        for _ in range(repeat):
            result = await sandbox.run(request)
            all_ok = all_ok and result.status == "ok"
            data = asdict(result)
            data["peak_mem"] = data.pop("peak_memory_bytes")
            del data["value"], data["state_lost"]  # these belong to calls and sessions
            emit(data)
            sys.stdout.flush()
    return 0 if all_ok else 1


async def measure() -> dict[str, dict[str, dict[str, Any]]]:
    """Return, for sandboxes and for workspaces, the capabilities of each backend or why it is not available.

    A kind without a backend is left out, and so is the backend that does not isolate.
    """
    settings = load("sandboxes:settings")
    isolating = [settings.BACKENDS[name] for name in settings.AUTO]
    report: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, backends in (("sandbox", isolating), ("workspaces", settings.WORKSPACE_BACKENDS.values())):
        for backend in backends:
            try:
                instance = await settings.open_backend(backend, {})
            except (SandboxUnavailable, SandboxError) as error:
                facts = {"unavailable": str(error)}
            else:
                facts = asdict(instance.capabilities)
                await instance.close()
            report.setdefault(kind, {})[backend.name] = facts
    return report


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(value) or "-"
    return {True: "yes", False: "no", None: "-"}.get(value, str(value)) if not isinstance(value, str) else value


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{name} cannot be read: {reason}") from None


def _read_files(paths: list[str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for path in map(Path, paths):
        if path.name in contents:
            raise UserError(
                f"--file names two files called {path.name}; the code sees only the names, so they must differ"
            )
        try:
            contents[path.name] = path.read_bytes()
        except OSError as error:
            raise UserError(f"--file {path} cannot be read: {error.strerror}") from None
    return contents
