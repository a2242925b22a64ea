"""Makes repositories: parts put together to a package with a report and tests, and one fault in one of the parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from contrib.workspaces.bug_fix.part import DRAW, NUMBER, PARTS, Kind

_DRAWS = 400
_DRAWS_FOR_HIDING = 60
_RAISED = object()


class Function(NamedTuple):
    """A function of a repository: the part that it is, with its number."""

    part: str
    number: int


class Layout(NamedTuple):
    """Everything that a repository is made of. Equal layouts make equal repositories."""

    name: str
    """Of the package, or of the module if there is no package."""
    functions: tuple[Function, ...]
    faulty: int
    """Index of the function with the fault."""
    fault: int
    is_package: bool
    """A package has one module for each function, and a report that calls each function with the result of the one
    before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function, and what it returns when nothing is wrong."""

    module: str
    function: str
    argument: Any
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of one function: those that the fault changes, and those that it does not."""

    showing: tuple[Call, ...]
    hiding: tuple[Call, ...]


class NoCallsError(Exception):
    """The fault of a layout is not shown by enough of the drawn arguments."""


class Repository:
    """The files, and the calls that tell whether the fault is mended."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._parts = [PARTS[function.part] for function in layout.functions]

    @property
    def fault_path(self) -> str:
        return self._path(self.layout.functions[self.layout.faulty].part)

    @property
    def fault_function(self) -> str:
        return self.layout.functions[self.layout.faulty].part

    @property
    def fault_about(self) -> str:
        """What the function with the fault says that it returns."""
        function = self.layout.functions[self.layout.faulty]
        return PARTS[function.part].about.replace(NUMBER, str(function.number))

    @property
    def fault_line(self) -> int:
        """The number of the line with the fault, from 1."""
        right, wrong = (self.sources(is_faulty=is_faulty)[self.fault_path].split("\n") for is_faulty in (False, True))
        return next(number for number, lines in enumerate(zip(right, wrong, strict=True), 1) if lines[0] != lines[1])

    def sources(self, *, is_faulty: bool) -> dict[str, str]:
        """Return path -> text of the modules, without tests."""
        texts = [
            part.text(function.number, self.layout.fault if is_faulty and at == self.layout.faulty else None)
            for at, (part, function) in enumerate(zip(self._parts, self.layout.functions, strict=True))
        ]
        if not self.layout.is_package:
            return {f"{self.layout.name}.py": "\n\n".join(texts)}
        modules = {self._path(part.name): text for part, text in zip(self._parts, texts, strict=True)}
        return {f"{self.layout.name}/__init__.py": "", **modules, f"{self.layout.name}/report.py": self._report()}

    def tests(self, calls: Mapping[str, Calls], *, shows_in_report_only: bool) -> dict[str, str]:
        """Return path -> text of the repository's suite for pytest; that of a module alone is a script too."""
        if not self.layout.is_package:
            calls_of_test = [call for own in calls.values() for call in (*own.showing[:1], *own.hiding[:1])]
            return {f"test_{self.layout.name}.py": _test_module(calls_of_test, is_script=True)}
        files = {}
        for name, own in calls.items():
            is_shown = name == "report" or not shows_in_report_only
            calls_of_test = [*(own.showing[:1] if is_shown else ()), *own.hiding[:1]]
            files[f"tests/test_{name}.py"] = _test_module(calls_of_test)
        return files

    def calls(self, rng: random.Random, *, showing: int, hiding: int) -> dict[str, Calls]:
        """Draw calls of every function, and of the report.

        Args:
            showing: how many calls there are of each function that the fault changes.
            hiding: how many there are at most that the fault does not change; some faults change nearly every call.
        """
        right, wrong = self._functions(is_faulty=False), self._functions(is_faulty=True)
        kinds: dict[str, Kind] = {part.name: part.takes for part in self._parts}
        if self.layout.is_package:
            kinds["report"] = self._parts[0].takes
        functions = {self.fault_function, "report"}
        return {
            name: self._draw(
                name, right[name], wrong[name], DRAW[kind], rng, showing if name in functions else 0, hiding
            )
            for name, kind in kinds.items()
        }

    def _draw(
        self,
        name: str,
        right: Callable[[Any], Any],
        wrong: Callable[[Any], Any],
        draw: Callable[[random.Random], Any],
        rng: random.Random,
        showing: int,
        hiding: int,
    ) -> Calls:
        counts = {True: showing, False: hiding}
        calls: dict[bool, dict[str, Call]] = {True: {}, False: {}}
        for number in range(_DRAWS):
            argument = draw(rng)
            expected = right(argument)
            shows = _result(wrong, argument) != expected
            if len(calls[shows]) < counts[shows]:
                call = Call(module=self._module(name), function=name, argument=argument, expected=expected)
                calls[shows].setdefault(repr(argument), call)
            is_enough = len(calls[False]) == hiding or number >= _DRAWS_FOR_HIDING
            if len(calls[True]) == showing and is_enough:
                return Calls(showing=tuple(calls[True].values()), hiding=tuple(calls[False].values()))
        raise NoCallsError(f"{self.layout} is not shown by calls of {name}")

    def _functions(self, *, is_faulty: bool) -> dict[str, Callable[[Any], Any]]:
        """Return the functions themselves; their text is ours."""
        namespace: dict[str, Any] = {}
        for path, text in self.sources(is_faulty=is_faulty).items():
            if not path.endswith("report.py"):
                exec(text, namespace)
        functions = {part.name: namespace[part.name] for part in self._parts}

        def report(argument: Any) -> Any:
            for part in self._parts:
                argument = functions[part.name](argument)
            return argument

        return {**functions, "report": report}

    def _report(self) -> str:
        names = [part.name for part in self._parts]
        imports = "".join(f"from {self.layout.name}.{name} import {name}\n" for name in sorted(names))
        takes = self._parts[0].takes
        steps = ", then ".join(names)
        call: str = takes
        for name in names:
            call = f"{name}({call})"
        return f'{imports}\n\ndef report({takes}):\n    """Apply {steps} to the {takes}."""\n    return {call}\n'

    def _module(self, function: str) -> str:
        return f"{self.layout.name}.{function}" if self.layout.is_package else self.layout.name

    def _path(self, function: str) -> str:
        return f"{self._module(function).replace('.', '/')}.py"


class Repair(NamedTuple):
    """A text that occurs once in a file, and what it has to become."""

    old: str
    new: str


def find_repair(text: str) -> Repair | None:
    """Return the repair of a module's text: of its wrong line, or of the function if that line occurs again.

    The right line is the same for all faults of a line, so what is learned of one helps with the others. None is the
    repair of a text without a fault.
    """
    for part in PARTS.values():
        for index in range(len(part.faults)):
            match = part.pattern(index).search(text)
            if match is None:
                continue
            number = match["n"]
            new, old = (line.replace(NUMBER, number) for line in part.fault(index))
            if text.count(old) == 1:
                return Repair(old, new)
            return Repair(match[0], part.text(int(number)))
    return None


def chains(takes: Kind, length: int, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every sequence of distinct parts in which each takes what the one before gives; all begin with `names`."""
    if length == 0:
        yield names
        return
    for part in PARTS.values():
        if part.takes == takes and part.name not in names:
            yield from chains(part.gives, length - 1, (*names, part.name))


def _result(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except Exception:
        return _RAISED


def _test_module(calls: list[Call], *, is_script: bool = False) -> str:
    imports = sorted({f"from {call.module} import {call.function}" for call in calls})
    counts: dict[str, int] = {}
    tests = {}
    for call in calls:
        counts[call.function] = counts.get(call.function, 0) + 1
        assertion = f"assert {call.function}({call.argument!r}) == {call.expected!r}"
        tests[f"test_{call.function}_{counts[call.function]}()"] = assertion
    definitions = "".join(f"\n\ndef {name}:\n    {assertion}\n" for name, assertion in tests.items())
    calls_of_script = "".join(f"    {name}\n" for name in tests)
    script = f'\n\nif __name__ == "__main__":\n{calls_of_script}' if is_script else ""
    return "\n".join(imports) + "\n" + definitions + script
