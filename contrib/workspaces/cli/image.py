"""`forge-env image pull`, `build`, `list` and `prune`: the images of workspaces."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from forge_env.cli.output import Json, emit, say, show_table
from forge_env.core.errors import UserError
from forge_env.utils.run_async import run_async
from forge_env.utils.targets import load

app = typer.Typer(rich_markup_mode=None)

_MEMORY, _DISK = 2 * 2**30, 4 * 2**30


@app.command("pull")
def pull(
    image: Annotated[
        str,
        typer.Argument(help="Name in a registry (debian:12), or path of an OCI layout or a `docker save` archive."),
    ],
    name: Annotated[str, typer.Option(help="A further name for the image.")] = "",
    as_json: Json = False,
) -> None:
    """Unpack an image into the cache. Layers that are there are not fetched again."""
    pull_image = load("contrib.workspaces.images.resolve:pull_image")
    _show(pull_image(image, name=name, progress=_progress), image, as_json)


@app.command("build")
def build(
    folder: Annotated[Path, typer.Argument(help="Folder with a Dockerfile and the files that it copies.")],
    name: Annotated[str, typer.Option(help="Name of the image.")],
    builder: Annotated[
        Literal["auto", "forge", "docker", "buildah"],
        typer.Option("--with", help="auto: docker or buildah if one is here, else forge_env's own reader."),
    ] = "auto",
    timeout: Annotated[float, typer.Option(help="Seconds for the build; with forge for each RUN.")] = 1800.0,
    as_json: Json = False,
) -> None:
    """Build a Dockerfile into the cache. FROM host, and FROM a folder, is always built by forge_env itself."""
    if timeout <= 0:
        raise UserError(f"--timeout is {timeout:g}; it must be above 0")
    folder = folder.absolute()
    program = load("contrib.workspaces.images.build:choose_builder")(folder) if builder == "auto" else builder
    _progress(f"building with {program}")
    if program == "forge":
        image = run_async(_build_with_forge(folder, name, timeout))
    else:
        by_program = load("contrib.workspaces.images.build:build_with_program")
        image = by_program(program, folder, name, timeout_s=timeout, progress=_progress)
    _show(image, name, as_json)


@app.command("list")
def list_images(as_json: Json = False) -> None:
    """List the images in the cache."""
    images = load("contrib.workspaces.images.store:stored_images")()
    short_name = load("contrib.workspaces.images.reference:short_name")
    if as_json:
        emit({"images": [_as_data(item, short_name) for item in images]})
        return
    if not images:
        folder = load("contrib.workspaces.images.cache:images_folder")()
        say(f"no images in {folder}; pull one: forge-env image pull debian:12")
        return
    rows = []
    for item in images:
        names = ", ".join(map(short_name, item.names)) or "-"
        rows.append([names, item.id[:12], f"{item.bytes / 1e6:.1f} MB", str(len(item.layers))])
    show_table(("name", "id", "size", "layers"), rows)


@app.command("prune")
def prune(
    names: Annotated[list[str] | None, typer.Argument(help="Images that are to go, by name or id.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All images.")] = False,
    as_json: Json = False,
) -> None:
    """Remove images without a name, layers that no image has, and what killed processes have left.

    What a process uses stays.
    """
    outcome = load("contrib.workspaces.images.prune:prune")(names or (), everything=everything)
    if as_json:
        emit({"removed": outcome.removed, "in_use": outcome.in_use, "bytes": outcome.bytes})
        return
    for line in outcome.removed:
        say(f"removed {line}")
    for line in outcome.in_use:
        say(f"in use, kept: {line}")
    say(f"{outcome.bytes / 1e6:.1f} MB freed")


async def _build_with_forge(folder: Path, name: str, timeout: float) -> Any:
    from contrib.workspaces.contract import WorkspaceLimits

    limits = WorkspaceLimits(memory_bytes=_MEMORY, disk_bytes=_DISK, wall_s=timeout)
    async with load("contrib.workspaces.open:open_workspaces")() as workspaces:
        by_forge = load("contrib.workspaces.images.build:build_with_forge")
        return await by_forge(workspaces, folder, name, limits=limits, timeout_s=timeout)


def _show(image: Any, name: str, as_json: bool) -> None:
    if as_json:
        emit({"name": name, "id": image.digest, "root": str(image.root)})
    else:
        say(f"{name} is {image.digest[:19]} in {image.root}")


def _as_data(entry: Any, short_name: Any) -> dict[str, Any]:
    image = asdict(entry.image)
    return {
        "names": [short_name(name) for name in entry.names],
        "id": image.pop("digest"),
        "root": str(image.pop("root")),
        "bytes": entry.bytes,
        "layers": len(entry.layers),
        **image,
    }


def _progress(line: str) -> None:
    sys.stderr.write(line + "\n")
