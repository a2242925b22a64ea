"""What stands between the marks of a call: JSON, a name with arguments, or Python. Here each is read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agents.renderer.dialects.calls import Block, Calls, Parameters, Tools, Written, read_call
from agents.renderer.dialects.literals import IDENTIFIER, Literals, NotRead, literal, python
from agents.renderer.dialects.scan import Scan
from agents.renderer.model_json import decode_all, dump, flaw, read_arguments, shorten
from forge_env.core.types import ToolCall

_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
ANY: Mapping[str, Any] = {"type": [*_TYPES, "string"]}
_MOST_LEVELS = 8  # of choices within choices


def read_value(text: str, schema: Any) -> Any:
    """The value of a parameter from its text; a text if the schema has no other type for it.

    >>> read_value("3", {"type": "integer"}), read_value("3", {"type": "string"})
    (3, '3')
    """
    types = types_of(schema)
    if types <= {"string"}:
        return text
    value, problem = decode_all(text)
    if problem:
        try:
            value = literal(text)
        except NotRead:
            return text
    kinds = [_TYPES[name] for name in types if name in _TYPES]
    fits = any(isinstance(value, kind) and isinstance(value, bool) <= (bool in kind) for kind in kinds)
    # Without a type that fits, a parameter that may be a text is one; otherwise the tool says what is wrong.
    return value if (fits or "string" not in types) and not flaw({"": value}) else text


def write_value(value: Any) -> str:
    """The text of a value: a string as it is, everything else as JSON."""
    return value if isinstance(value, str) else dump(value)


def types_of(schema: Any, level: int = 0) -> set[str]:
    """The types that a JSON schema names, in itself, its constants or its choices; empty if it names none."""
    if not isinstance(schema, Mapping) or level > _MOST_LEVELS:
        return set()
    kinds = schema.get("type")
    types = (
        {kinds}
        if isinstance(kinds, str)
        else {k for k in kinds if isinstance(k, str)}
        if isinstance(kinds, list)
        else set()
    )
    constants = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
    types |= {_NAMES.get(type(value), "string") for value in constants}
    for choice in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(choice) or ():
            types |= types_of(part, level + 1)
    return types


class Body(Protocol):
    """One form of a call, or of all calls of a turn."""

    @property
    def form(self) -> str:
        """As a model is told to write it."""

    @property
    def is_list(self) -> bool:
        """Whether all calls of a turn are in one body."""

    def read(self, scan: Scan, at: int, tools: Tools) -> Block: ...

    def write(self, calls: Calls) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Json:
    """``{"name": NAME, "arguments": {...}}``, or a list of such objects."""

    name: str = "name"
    keys: tuple[str, ...] = ("arguments", "parameters")
    is_list: bool = False

    @property
    def form(self) -> str:
        return self._in_list(f'{{"{self.name}": "TOOL", "{self.keys[0]}": {{...}}}}')

    def read(self, scan: Scan, at: int, tools: Tools) -> Block:
        value, end, problem = scan.json(at)
        if problem:
            return Block([], end, problem)
        return Block(self.calls(value, scan.text[at:end]), end)

    def calls(self, value: Any, raw: str) -> list[Written]:
        """The calls of a value that was read from the text `raw`."""
        if not (self.is_list and isinstance(value, list)):
            return [read_call(value, raw, self.name, self.keys)]
        if not value:
            return [Written(problem="its list is empty", raw=raw)]
        return [read_call(item, dump(item), self.name, self.keys) for item in value]

    def write(self, calls: Calls) -> str:
        return self._in_list(", ".join([self._object(call) for call in calls]))

    def _object(self, call: ToolCall) -> str:
        return call.raw if call.arguments is None else dump({self.name: call.name, self.keys[0]: call.arguments})

    def _in_list(self, text: str) -> str:
        return f"[{text}]" if self.is_list else text


class Arguments(Protocol):
    """One form of the arguments of a call after its name."""

    @property
    def form(self) -> str: ...

    def read(self, scan: Scan, at: int, parameters: Parameters) -> tuple[dict[str, Any] | None, int, str]:
        """The arguments, their end, and the problem if there is one (they are then None)."""

    def write(self, arguments: Mapping[str, Any]) -> str: ...


class JsonArguments:
    form = "{...}"

    def read(self, scan: Scan, at: int, parameters: Parameters) -> tuple[dict[str, Any] | None, int, str]:
        value, end, problem = scan.json(at)
        if problem:
            return None, end, problem
        arguments, problem = read_arguments(value)
        return arguments, end, f"its arguments {problem.removeprefix('they ')}" if problem[:4] == "they" else problem

    def write(self, arguments: Mapping[str, Any]) -> str:
        return dump(dict(arguments))


_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Names and values between marks: ``<parameter=NAME>VALUE</parameter>``.

    A value is text. The schema of the parameter says what else it is, unless the mark says so.
    """

    start: str
    """The mark before a name."""
    key_end: str
    """The mark after a name. If it holds "?", that is "true" before a text and "false" before JSON."""
    value_start: str = ""
    """The mark before a value, if it is another; white space may stand between the two."""
    end: str
    """The mark after a value."""
    gap: str = ""
    """What a writer puts between the name and the value."""
    pad: str = ""
    """What is around a value, and no part of it."""
    between: str = "\n"
    """What a writer puts after a pair."""
    has_cdata: bool = False
    """Whether a text with "<", "&" or line ends stands in ``<![CDATA[...]]>``."""

    @property
    def form(self) -> str:
        return self._pair("PARAMETER", "VALUE")

    def read(self, scan: Scan, at: int, parameters: Parameters) -> tuple[dict[str, Any] | None, int, str]:
        values: dict[str, Any] = {}
        while scan.text.startswith(self.start, at := scan.space(at)):
            start = at + len(self.start)
            marks = [self.key_end.replace("?", word) for word in (("true", "false") if "?" in self.key_end else ("",))]
            places = [(place, mark) for mark in marks if (place := scan.find(mark, start)) >= 0]
            place, mark = min(places, default=(start, ""))
            key = scan.text[start:place].strip()
            if not mark or "\n" in key or "<" in key:
                return None, at, f"the name of a parameter does not end with {self.key_end.replace('?', 'true')}"
            at = place + len(mark)
            if self.value_start and not scan.text.startswith(self.value_start, at := scan.space(at)):
                return None, at, f"the value of {shorten(key)} does not begin with {self.value_start}"
            at += len(self.value_start)
            is_cdata = self.has_cdata and scan.text.startswith(_CDATA, at)
            at += len(_CDATA) if is_cdata else 0
            end = scan.find(_CDATA_END + self.end if is_cdata else self.end, at)
            if end < 0:
                return None, at, f"the value of {shorten(key)} does not end with {self.end}"
            if key in values:
                return None, end, f"the key {shorten(dump(key))} appears twice"
            text = scan.text[at:end].removeprefix(self.pad).removesuffix(self.pad)
            schema = ANY if "false" in mark else parameters.schema(key) if "?" not in self.key_end else None
            values[key] = read_value(text, schema)
            at = end + len(self.end) + (len(_CDATA_END) if is_cdata else 0)
        return values, at, ""

    def write(self, arguments: Mapping[str, Any]) -> str:
        return "".join([self._pair(key, value) + self.between for key, value in arguments.items()])

    def _pair(self, key: str, value: Any) -> str:
        key_end = self.key_end.replace("?", "true" if isinstance(value, str) else "false")
        return (
            f"{self.start}{key}{key_end}{self.gap}{self.value_start}{self.pad}{write_value(value)}{self.pad}{self.end}"
        )


@dataclass(frozen=True, kw_only=True)
class Literal:
    """Names and values as a program writes an object: ``{a:1,b:<escape>text<escape>}``, without the first bracket."""

    quote: str

    @property
    def form(self) -> str:
        return f"PARAMETER:{self.quote}TEXT{self.quote},PARAMETER:NUMBER}}"

    def read(self, scan: Scan, at: int, parameters: Parameters) -> tuple[dict[str, Any] | None, int, str]:
        try:
            values, end = Literals(scan.text, self.quote).pairs(at, ":", "}")
        except NotRead as error:
            return None, at, str(error)
        problem = flaw(values)
        return (None if problem else values), end, problem

    def write(self, arguments: Mapping[str, Any]) -> str:
        return self._write(dict(arguments))[1:]

    def _write(self, value: Any) -> str:
        if isinstance(value, dict):
            items = [f"{self._key(key)}:{self._write(value[key])}" for key in sorted(value)]
            return "{" + ",".join(items) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._write, value)) + "]"
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else dump(value)

    def _key(self, key: str) -> str:
        return key if IDENTIFIER.fullmatch(key) else f"{self.quote}{key}{self.quote}"


_NAME = re.compile(r"""[^\s<>{}\[\]()"'|`]+""")
_NATIVE_ID = re.compile(r"(?:functions\.)?(?P<name>.+):\d+")


@dataclass(frozen=True, kw_only=True)
class Named:
    """A name, and its arguments: ``NAME[ARGS]{...}``, ``<function=NAME><parameter=P>VALUE</parameter></function>``."""

    lead: str = ""
    sep: str = ""
    """Between the name and the arguments."""
    arguments: Arguments = field(default_factory=JsonArguments)
    tail: str = ""
    """After the arguments."""
    id_mark: str = ""
    """Between the name and an id, which may be missing."""
    is_id: bool = False
    """Whether the name stands within the id of the call: ``functions.NAME:INDEX``."""
    is_list: bool = False

    @property
    def form(self) -> str:
        name = "functions.TOOL:INDEX" if self.is_id else "TOOL"
        return f"{self.lead}{name}{self.sep}{self.arguments.form}{self.tail}"

    def read(self, scan: Scan, at: int, tools: Tools) -> Block:
        start = scan.space(at)
        if (at := scan.skip(self.lead, at)) < 0:
            return Block([], start, f"it does not begin with {self.lead.strip()}")
        match = _NAME.match(scan.text, at)
        if match is None:
            return Block([], at, "its name is missing")
        name, id_, at = match[0], "", match.end()
        if self.is_id:
            native = _NATIVE_ID.fullmatch(name)
            name, id_ = (native["name"], name) if native else (name, "")
        if self.id_mark and scan.text.startswith(self.id_mark, at):
            match = _NAME.match(scan.text, at + len(self.id_mark))
            id_, at = (match[0], match.end()) if match else ("", at)
        if (at := scan.skip(self.sep, before := at)) < 0:
            return Block([], before, f"{self.sep.strip()} does not follow its name", name)
        arguments, at, problem = self.arguments.read(scan, at, Parameters(tools, name))
        if problem:
            return Block([], at, problem, name)
        if self.tail and (at := scan.skip(self.tail, before := at)) < 0:
            return Block([], before, f"{self.tail.strip()} does not follow its arguments", name)
        return Block([Written(name, arguments, id=id_)], at)

    def write(self, calls: Calls) -> str:
        [call] = calls
        if call.arguments is None:
            return call.raw
        return f"{self.lead}{self._name(call.name, call.id)}{self.sep}{self.arguments.write(call.arguments)}{self.tail}"

    def _name(self, name: str, id_: str) -> str:
        if not self.is_id:
            return name
        return id_ if _NATIVE_ID.fullmatch(id_) else f"functions.{name}:0"


@dataclass(frozen=True, kw_only=True)
class Either:
    """Two forms after the same mark: JSON, and a name with arguments. A reader takes both."""

    json: Json
    named: Named
    writes_json: bool
    is_list: bool

    @property
    def form(self) -> str:
        return self._form_to_write.form

    @property
    def _form_to_write(self) -> Json | Named:
        return self.json if self.writes_json else self.named

    def read(self, scan: Scan, at: int, tools: Tools) -> Block:
        is_json = scan.text.startswith(("[", "{"), scan.space(at))
        return (self.json if is_json else self.named).read(scan, scan.space(at), tools)

    def write(self, calls: Calls) -> str:
        return self._form_to_write.write(calls)


@dataclass(frozen=True, kw_only=True)
class Python:
    """Calls as Python writes them: ``[add(a=1), add(a=2)]``."""

    has_brackets: bool = True
    """Whether a writer puts the calls into a list; otherwise each has its line. A reader takes both."""
    is_list: bool = True

    @property
    def form(self) -> str:
        return "[TOOL(PARAMETER=VALUE, ...)]" if self.has_brackets else "TOOL(PARAMETER=VALUE, ...)"

    def read(self, scan: Scan, at: int, tools: Tools) -> Block:
        literals, calls = Literals(scan.text), list[Written]()
        in_list = scan.text.startswith("[", at := scan.space(at))
        at = scan.space(at + in_list)
        while match := IDENTIFIER.match(scan.text, at):
            if not scan.text.startswith("(", match.end()):
                break
            try:
                values, at = literals.pairs(match.end() + 1, "=", ")")
            except NotRead as error:
                return Block([], at, str(error), match[0])
            if problem := flaw(values):
                return Block([], at, problem, match[0])
            calls.append(Written(match[0], values))
            end, at = at, scan.space(at)
            if scan.text.startswith((",", ";"), at):
                at = scan.space(at + 1)
        if not calls:
            return Block([], at, "it is no call of a function")
        if in_list and not scan.text.startswith("]", at):
            return Block([], at, "its list does not end with ]")
        return Block(calls, at + 1 if in_list else end)

    def write(self, calls: Calls) -> str:
        texts = [call.raw if call.arguments is None else _python_call(call) for call in calls]
        return f"[{', '.join(texts)}]" if self.has_brackets else "\n".join(texts)


def _python_call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={python(value)}' for name, value in (call.arguments or {}).items())})"
