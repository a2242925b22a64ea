"""The entry point of `forge-env`: its commands, their exit codes, and one sentence for each user error.

Each command imports what it needs when it runs, and one of contrib is imported when it is called. So the help is fast,
and an outbuilding that cannot be imported breaks only its own commands.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forge_env import __version__
from forge_env.cli import diff, evaluate, export_model, new, output, register
from forge_env.core.errors import ForgeError, InvariantError, UserError, first_error
from forge_env.registry.contrib import Row, rows
from forge_env.utils.exits import ends_in_order, show_crashes
from forge_env.utils.folders import disk_problem
from forge_env.utils.interrupts import ends_process, interrupt_again, leave_at_once
from forge_env.utils.secret_values import masked_text
from forge_env.utils.std_streams import is_output_lost

app = typer.Typer(
    name="forge-env",
    help="Environments and tools for language-model agents: register, inspect, write and check them.",
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich takes half a second
    pretty_exceptions_enable=False,
)
COMMANDS: dict[str, Any] = {
    "register": register.register,
    "unregister": register.unregister,
    "list": register.list_names,
    "info": register.info,
    "new": new.new,
    "eval": evaluate.evaluate,
    "profile": evaluate.profile,
    "diff": diff.diff,
    "export-model": export_model.export_model,
}
"""The heart's own commands; commands of contrib come behind the command that they name."""


class _Group(TyperGroup):
    """A group of commands. A row is a line of the help until it is called, and is then imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        path = " ".join([*ctx.command_path.split()[1:], args[0]])
        row = COMMANDS.get(path) or rows("commands").get(path)
        if isinstance(row, Row):
            group = typer.Typer(rich_markup_mode=None)
            _add(group, row.name, row.load(), row.about)
            self.commands.update(typer.main.get_group(group).commands)
        name, command, rest = super().resolve_command(ctx, args)
        _check_repeated(command, rest)
        return name, command, rest


def _check_repeated(command: Any, words: Sequence[str]) -> None:
    """Refuse two texts of an option that has one, for they look like a list. The last of several numbers counts."""
    options = {flag: option for option in command.params for flag in option.opts if flag.startswith("-")}
    values, rest = dict[str, str](), iter(words)
    for word in takewhile("--".__ne__, rest):
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if option is None or option.is_flag:
            continue
        value = value if equals else next(rest, "")
        first = values.setdefault(option.name, value)
        are_numbers = all(re.fullmatch(r"[-+]?[\d.]+", text) for text in (first, value))
        if first != value and not option.multiple and not are_numbers:
            raise UserError(f"{flag} is given twice, {masked_text(first)} and {masked_text(value)}: give one")


def _add(group: typer.Typer, path: str, command: Any, about: str | None = None) -> None:
    """Add a command to its group: a function, a group, or a row. `path` is its name behind the names of its groups."""
    name = path.rpartition(" ")[2]
    if isinstance(command, Row):
        group.command(name, help=command.about)(lambda: None)
    elif isinstance(command, typer.Typer):
        for row in rows("commands").values():
            if row.name.rpartition(" ")[0] == path:
                _add(command, row.name, row)
        group.add_typer(command, name=name, help=about, cls=_Group)
    else:
        group.command(name)(command)


def _commands() -> dict[str, Any]:
    """Return every command, or group or row of them, in the order of the help."""
    in_order = dict(COMMANDS)
    waiting = {name: row for name, row in rows("commands").items() if " " not in name}
    while ready := [name for name, row in waiting.items() if row.after in in_order or row.after not in waiting]:
        row = waiting.pop(ready[0])
        names = list(in_order)
        place = names.index(row.after) + 1 if row.after in in_order else len(names)
        in_order = {name: in_order.get(name, row) for name in [*names[:place], row.name, *names[place:]]}
    return in_order


for _name, _command in _commands().items():
    _add(app, _name, _command)

INTERRUPTED = 130


def _show_version(is_set: bool) -> None:
    if is_set:
        output.say(f"forge-env {__version__}")
        raise typer.Exit()


@app.callback(cls=_Group)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that come before a command."""


@ends_process
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    0 success, 1 a failed check, a fault of the machinery or output that nobody read, 2 a user's mistake, 130 Ctrl-C,
    143 SIGTERM, 129 the end of its terminal.
    """
    options = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    as_json = "--json" in options
    interrupt_again()
    show_crashes()
    try:
        with ends_in_order():
            code = app(args=options, prog_name="forge-env", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer return it, some raise Abort
            raise KeyboardInterrupt
        return code if isinstance(code, int) and code else int(is_output_lost())
    except (KeyboardInterrupt, typer.Abort):
        output.last_words("interrupted")
        return INTERRUPTED
    except (ForgeError, OSError, RuntimeError, BaseExceptionGroup) as raised:
        error = first_error(raised)
        sentence = disk_problem(error)
        if not (sentence or isinstance(error, ForgeError)) or isinstance(error, InvariantError):
            raise  # a bug of ours
        output.fail(sentence or str(error), as_json=as_json)
        return 2 if sentence or isinstance(error, UserError) else 1
    except Exception as error:
        # An error of typer: the module of these classes differs between its versions.
        if not hasattr(error, "format_message"):
            raise
        output.fail(_usage(error.format_message(), options), as_json=as_json)
        return 2
    finally:
        leave_at_once()


def _usage(message: str, options: Sequence[str]) -> str:
    command = next((word for word in options if not word.startswith("-")), "")
    help_of = f"forge-env {command} --help" if command in _commands() else "forge-env --help"
    return f"{' '.join(message.split()).rstrip('.')}; see {help_of}"
