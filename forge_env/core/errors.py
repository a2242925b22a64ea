"""The exceptions of forge_env, named by the boundary that was crossed.

ForgeError
├── UserError                a mistake that the user can correct: one sentence, exit code 2, no stack trace
│   ├── TooFewTasks          more tasks were asked for than there are
│   └── TemplateError        a chat template cannot render some messages
├── EnvError                 the environment's own code broke            -> Outcome.ENV_FAULT
│   └── TurnRefused           the agent cannot do what the environment asks of a turn
├── InfraError               the machinery of an episode broke           -> Outcome.INFRA_FAULT
│   ├── SandboxError         the sandbox failed, not the code in it
│   ├── SandboxUnavailable   this machine has no usable sandbox
│   ├── PolicyError          the policy did not answer
│   └── ServiceError         an actor or service died, or missed its deadline
│       ├── MissedDeadline   no answer in time
│       ├── ProcessDied      a process died that is not replaced
│       ├── ReplicaDied      the replica died during a call that may have had an effect
│       └── ReplicaBroken    the replica reports that it cannot work any more
├── NothingTrained           no step of a run had a gradient: exit code 3
└── InvariantError           internal data is wrong: a bug, so it always raises
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ForgeError(Exception):
    """Root of every exception that forge_env raises on purpose."""


class UserError(ForgeError):
    """A user's mistake. The message says what is wrong, the value, what is allowed and what to do."""


class TooFewTasks(UserError):
    """More tasks were asked for than there are; a caller to whom fewer will do asks for `there_are`."""

    def __init__(self, text: str, there_are: int) -> None:
        super().__init__(text)
        self.there_are = there_are

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.there_are)


class TemplateError(UserError):
    """A chat template cannot render the messages that a model is to read."""


class EnvError(ForgeError):
    """The environment's own code raised; the episode gets no reward."""

    where = ""
    """Part of the episode, file and line, if the user's code raised it itself: "tool buy (shop.py:41)"; else ""."""


class TurnRefused(EnvError):
    """The agent cannot do what the environment asks of a turn, see `NextTurn`; the environment may ask otherwise."""


class InfraError(ForgeError):
    """The machinery of an episode failed; the episode gets no reward and is never scored zero."""

    tool = ""
    """Name of the tool of the failed call, if any; the text then begins with "tool NAME: "."""

    def __str__(self) -> str:
        return f"tool {self.tool}: {super().__str__()}" if self.tool else super().__str__()


class SandboxError(InfraError):
    """The sandbox itself failed; this says nothing about the code that ran in it."""


class SandboxUnavailable(UserError, InfraError):
    """No usable sandbox. The message names what was tried, what is missing and how to get it."""


class PolicyError(InfraError):
    """The policy did not answer a request."""


class ServiceError(InfraError):
    """An actor or service died or missed its deadline."""


class MissedDeadline(ServiceError):
    """A call was not answered in time; it may still be running."""


class ProcessDied(ServiceError):
    """A process died that is not replaced, as the trainer's."""

    def __init__(self, end: str, details: str = "") -> None:
        super().__init__(end + details)
        self.end = end
        """Which process, and how it ended, as "the trainer process died of SIGKILL (signal 9)"."""


class ReplicaDied(ServiceError):
    """The replica died, or stopped answering, during a call that may have had an effect."""


class ReplicaBroken(ServiceError):
    """Raised by an actor that cannot work any more: it is replaced, and its idempotent calls are repeated elsewhere."""


class NothingTrained(ForgeError):
    """No step of a run had a gradient, at its end or in all its first steps. The message says why."""


class InvariantError(ForgeError):
    """An Episode or Group that breaks its own rules: always a bug, never data."""


def first_error(error: BaseException) -> BaseException:
    """Return the first real exception inside an exception group, or the exception itself."""
    return first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a sentence with the choice nearest to a name, and a list of all choices.

    >>> nearest("code_exce", ["math", "code_exec"])
    'Did you mean code_exec? Available: code_exec, math.'
    """
    names = sorted(choices)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Available: {', '.join(names) or 'none'}."
