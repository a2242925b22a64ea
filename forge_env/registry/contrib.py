"""The folders of `contrib/`: what each of them adds, as its names.toml says.

    about = "Tasks in Harbor's format."
    needs = ["workspaces"]                  # other folders of contrib that it imports
    extra = "images"                        # of the package, if it needs one

    [families]
    harbor = "contrib.harbor.env:resolve"

    [commands]
    image = { target = "contrib.workspaces.cli.image:app", after = "sandbox", about = "Images of workspaces." }

A row is a target, or a table with a target, one line about it, and the row that it comes behind. Nothing else in this
package names a folder of contrib, so a folder that is taken away takes its rows with it.
"""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from forge_env.utils.targets import load

TABLES = {
    "envs": "environments, by name",
    "families": 'environments by a prefix, as "gymnasium:FrozenLake-v1": a function makes the class from what follows',
    "audits": "classes that attack training tasks by cheats and know those cheats in episodes, trainers/run/audit.py",
    "agents": "kinds of agents: an async context manager of what follows the colon, and AgentSettings",
    "tool_sources": "sources of tools by a prefix, which are opened and not imported",
    "commands": 'of forge-env, imported when they are called; "sandbox shell" is one of the group sandbox',
    "doctor": "async functions that return parts for forge-env doctor: of each its name, how ready it is, what to do",
    "grammars": "lets an engine sample under grammars: a class, of a model folder",
    "gymnasium": "register: a function that registers an environment with Gymnasium, by its name",
    "hosts": "machines beside this one",
    "models": "families of models, by the model_type of config.json: a Family of trainers/families/family.py",
    "observers": "classes that see a training run from its start to its end, trainers/metrics/observer.py",
    "reports": "functions that write a page of a training run when it ends",
    "sandboxes": "backends of sandboxes; one that comes behind no other isolates nothing, and is opened by name only",
    "sinks": "of metrics and episodes",
    "stores": "of weights",
    "workspaces": "backends of workspaces",
}
"""What a folder can add."""


class Row(NamedTuple):
    """One name that a folder adds."""

    name: str
    target: str
    """"module:object", imported when it is used."""
    about: str = ""
    after: str = ""
    """Name of the row, of any folder or of the heart, that this one comes behind where the order shows."""
    extra: str = ""
    """Of the package, if the folder needs one."""
    folder: str = ""

    def load(self) -> Any:
        return load(self.target, option=f"the outbuilding {self.folder}:" if self.folder else "")


class Folder(NamedTuple):
    """A folder of contrib, by its names.toml."""

    name: str
    about: str
    needs: tuple[str, ...]
    extra: str
    tables: Mapping[str, Mapping[str, Row]]


def rows(table: str) -> dict[str, Row]:
    """Return what all folders add of a kind (see `TABLES`), by name, in the order of the folders' names."""
    return {name: row for folder in folders().values() for name, row in folder.tables.get(table, {}).items()}


@functools.cache
def folders() -> Mapping[str, Folder]:
    """Return the folders of contrib that are here, sorted by name."""
    package = Path(__file__).parents[1]
    roots = (package / "contrib", package.parent / "contrib")  # of the wheel, and of a checkout
    root = next((root for root in roots if root.is_dir()), roots[0])
    return read_folders(root)


def read_folders(root: Path) -> dict[str, Folder]:
    """Return the folders below one, by name. One whose names.toml is wrong is left out, with a sentence on stderr."""
    read: dict[str, Folder] = {}
    for file in sorted(root.glob("*/names.toml")):
        try:
            read[file.parent.name] = _read(file)
        except (OSError, ValueError) as error:
            print(f"note: the outbuilding {file.parent.name} is left out: {file}: {error}", file=sys.stderr)
    return read


def family(name: str) -> Row | None:
    """Return the family of an environment's name such as "gymnasium:FrozenLake-v1"; None if it is of none."""
    return rows("families").get(name.partition(":")[0]) if ":" in name else None


def tool_source(target: str) -> Row | None:
    """Return the kind of a source of tools such as "mcp:python -m server", which is opened and not imported."""
    return rows("tool_sources").get(target.partition(":")[0]) if ":" in target else None


def _read(file: Path) -> Folder:
    """Read a names.toml.

    Raises:
        OSError, ValueError: it cannot be read, or is wrong.
    """
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    head: dict[str, Any] = {}
    for key, kind, default in (("about", str, None), ("needs", list, []), ("extra", str, "")):
        head[key] = data.pop(key, default)
        if not isinstance(head[key], kind):
            raise ValueError(f"{key} is {head[key]!r}, and has to be {'a list' if kind is list else 'a text'}")
    if wrong := sorted(data.keys() - set(TABLES)):
        raise ValueError(f"there is no table {wrong[0]!r}; the tables are {', '.join(TABLES)}")
    if flat := [key for key, value in data.items() if not isinstance(value, dict)]:
        raise ValueError(f"{flat[0]} is {data[flat[0]]!r}, and has to be a table")
    tables = {
        table: {
            name: Row(name, **_fields(f"{table}.{name}", row), extra=head["extra"], folder=file.parent.name)
            for name, row in rows.items()
        }
        for table, rows in data.items()
    }
    return Folder(file.parent.name, head["about"], tuple(head["needs"]), head["extra"], tables)


def _fields(place: str, row: Any) -> dict[str, str]:
    fields = row if isinstance(row, dict) else {"target": row}
    texts = all(isinstance(value, str) for value in fields.values())
    if not texts or "target" not in fields or not fields.keys() <= {"target", "about", "after"}:
        raise ValueError(f"{place} is {row!r}, and has to be a target, or a table of target, about and after as texts")
    return fields
