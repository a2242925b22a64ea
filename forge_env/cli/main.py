"""The way into `forge-env`: its commands, and one sentence for each mistake.

What a command needs is imported when it runs, so that `forge-env --help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from forge_env.cli import (
    audit,
    check,
    diff,
    evaluate,
    listing,
    new,
    output,
    register,
    replay,
    report,
    sandbox,
    score,
    view,
)
from forge_env.core.errors import ForgeError, InvariantError, UserError, first_error

app = typer.Typer(
    name="forge-env",
    help="Environments and tools for language-model agents: register, look at, write and check them.",
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich's takes half a second to import
    pretty_exceptions_enable=False,
)
app.command("register")(register.register)
app.command("unregister")(register.unregister)
app.command("list")(listing.list_names)
app.command("info")(listing.info)
app.command("new")(new.new)
app.command("check")(check.check)
app.add_typer(sandbox.app, name="sandbox")
app.command("eval")(evaluate.evaluate)
app.command("score")(score.score)
app.command("diff")(diff.diff)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("replay")(replay.replay)
app.command("view")(view.view)


@app.callback()
def _commands() -> None:
    """Without a callback, typer would make an app of one command into that command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    0 success, 1 a failed check or a fault of the machinery, 2 a user's mistake, 130 Ctrl-C, 143 SIGTERM.
    """
    options = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    as_json = "--json" in options
    try:
        with _sigterm():
            code = app(args=options, prog_name="forge-env", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        return 1  # as typer does where it is the one that notices
    except (ForgeError, BaseExceptionGroup) as raised:
        error = first_error(raised)
        if not isinstance(error, ForgeError) or isinstance(error, InvariantError):
            raise  # a bug of ours
        output.fail(str(error), as_json=as_json)
        return 2 if isinstance(error, UserError) else 1
    except Exception as error:
        # typer's own errors: where their classes are differs between its versions.
        if not hasattr(error, "format_message"):
            raise
        output.fail(_usage(error.format_message(), options), as_json=as_json)
        return 2


def _usage(message: str, options: Sequence[str]) -> str:
    """A sentence for options that typer refuses."""
    command = next((word for word in options if not word.startswith("-")), "")
    names = {info.name for info in app.registered_commands}
    help_of = f"forge-env {command} --help" if command in names else "forge-env --help"
    return f"{' '.join(message.split()).rstrip('.')}; see {help_of}"


@contextmanager
def _sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143), so that what a command has started is ended in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
