"""The chat template of a model, executed as transformers and the servers on it do.

What a run adds is written before the template, in Jinja: `effective` is the text that the run executes and that an
export holds, so that other programs render what the training rendered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox
from jinja2.parser import Parser

from forge_env.core.errors import TemplateError, UserError
from forge_env.records.run_files import read_object

TEMPLATE = "chat_template.jinja"
"""The file of a model's folder with the chat template."""
OTHERS = "additional_chat_templates"
"""The folder in it with further ones; transformers takes tool_use.jinja where there are tools."""
QWEN3_TEMPLATE = Path(__file__).with_name("qwen3_chat_template.jinja")
"""Qwen3's format, in which the empty thought before an answer stays when the answer is history."""
TEXT_TOOLS = Path(__file__).with_name("text_tools.jinja")
"""Written before a template without tools: it describes tools in the system message, and calls are text."""
THINKING_FLAGS = ("enable_thinking", "thinking")
"""The flags of templates that switch thoughts on or off."""
DATE = "26 Jul 2024"
"""The date of today in every prompt, as Llama 3.1's template has it: a run must not depend on the day."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A Jinja source and the variables that its tokenizer gives it.

    Args:
        tokens: the texts of special tokens by the names of `tokenizer_config.json`.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], where: str) -> None:
        self.source, self.where, self._tokens = source, where, dict(tokens)
        self.formats: set[str] = set()
        """The formats in which the template has asked for today's date."""
        try:
            code, self.reads = _compile(source)
        except jinja2.TemplateError as error:
            raise UserError(
                f"the chat template in {where} is not valid Jinja: {error}; copy the template from the model again"
            ) from None
        names = _ENVIRONMENT.make_globals({"strftime_now": self._today})
        self._program = jinja2.Template.from_code(_ENVIRONMENT, code, names)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), *, add_generation_prompt: bool = False
    ) -> str:
        values = {"messages": list(messages), "tools": list(tools) or None, "documents": None}
        try:
            return self._program.render(**self._tokens, **values, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # a template can raise anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            what = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
            raise TemplateError(
                f"the chat template in {self.where} has no place for this conversation ({roles:.120}): {what:.300}"
            ) from None

    def token(self, name: str) -> str:
        """The text of a special token, such as "eos_token"; "" if there is none."""
        return self._tokens.get(name, "")

    def with_source(self, source: str) -> ChatTemplate:
        """Another source for the same model."""
        return ChatTemplate(source, self._tokens, self.where)

    def _today(self, form: str) -> str:
        self.formats.add(form)
        return DATE


class _Generation(jinja2.ext.Extension):
    """The block {% generation %} marks answers in some templates. It renders its content."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


_ENVIRONMENT: Final = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
)
_ENVIRONMENT.filters["tojson"] = _to_json
_ENVIRONMENT.globals["raise_exception"] = _refuse


@lru_cache(maxsize=64)  # a renderer compiles four templates in a tenth of a second, and others of its model the same
def _compile(source: str) -> tuple[CodeType, frozenset[str]]:
    """The code of a template, and the variables that it reads."""
    variables = jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
    return _ENVIRONMENT.compile(source), frozenset(variables)


def find_template(folder: Path, override: Path | None = None) -> ChatTemplate:
    """The chat template of a Hugging Face folder.

    Args:
        override: a file with another template for this model, as an adapter has it.
    """
    config = read_tokenizer_config(folder)
    tokens = {name: _text_of(config[name]) for name in _TOKENS if config.get(name)}
    source: Any = config.get("chat_template") or ""
    if (file := override or folder / TEMPLATE).is_file():
        source = file.read_text(encoding="utf-8")
    if not override and (others := sorted((folder / OTHERS).glob("*.jinja"))):
        source = [{"name": name, "template": source} for name in ("default", *(other.stem for other in others))]
    if isinstance(source, list):  # several templates by name
        by_name = {str(entry.get("name")): entry.get("template") for entry in source if isinstance(entry, dict)}
        if len(by_name) != 1:
            raise UserError(
                f"the model in {folder} has {len(by_name)} chat templates, {', '.join(by_name)}: write the one to use "
                f"into {folder / TEMPLATE}, and remove the folder {OTHERS} if there is one"
            )
        [source] = by_name.values()
    if not source or not isinstance(source, str):
        raise UserError(
            f"the model in {folder} has no chat template, so there is no form for a conversation: write one into "
            f"{folder / TEMPLATE}, or take the instruct version of the model"
        )
    return ChatTemplate(source, tokens, str(folder))


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The tokenizer_config.json of a folder; {} if there is none."""
    file = folder / "tokenizer_config.json"
    return read_object(file) if file.is_file() else {}


def _text_of(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def effective(
    template: ChatTemplate, *, thinks: bool | None = None, formats: Iterable[str] = (), with_text_tools: bool = False
) -> ChatTemplate:
    """The template, and before it the additions of a run.

    Args:
        thinks: the value of the flags for thoughts; None leaves them to the template.
        formats: the formats of today's date, which becomes `DATE`.
        with_text_tools: whether `TEXT_TOOLS` comes before it.
    """
    parts = []
    if thinks is not None:
        parts += [flag_line(name, thinks) for name in THINKING_FLAGS if name in template.reads]
    if dates := sorted(formats):
        table = ", ".join(f"{json.dumps(form)}: {json.dumps(DATE)}" for form in dates)
        parts.append(f"{{%- macro strftime_now(form) -%}}{{% set dates = {{ {table} }} %}}{{{{ dates[form] }}}}")
        parts.append("{%- endmacro %}\n")
    if with_text_tools:
        parts.append(TEXT_TOOLS.read_text(encoding="utf-8"))
    return template.with_source("".join(parts) + template.source) if parts else template


def flag_line(name: str, value: bool) -> str:
    """Jinja that sets a flag unless a request has set it."""
    return f"{{%- if {name} is not defined %}}{{% set {name} = {str(value).lower()} %}}{{% endif %}}\n"
