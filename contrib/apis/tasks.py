"""The tasks of tool_api: about the shop, from a file, or calls of the user's functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contrib.apis.shop.operations import OPERATIONS
from contrib.apis.shop.task_kinds import KINDS
from contrib.apis.shop.tasks import LEVELS, shop_tasks
from contrib.apis.tool_names import ToolNames
from envs.data_tasks import data_tasks, message_prompt
from envs.task_splits import kind_of_row
from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import Tool
from forge_env.core.types import Task
from forge_env.data.rows import BadRow, find_file
from forge_env.registry.contrib import tool_source
from forge_env.registry.registry import find, tool_names, tools_of

SHOP = "shop"
_QUESTIONS, _ANSWERS = ("prompt", "question"), ("answer", "target")

_NEEDED: Mapping[str, Sequence[str]] = {
    "cancel": ("cancel_order",),
    "refund": ("get_order", "refund_order"),
    "restock": ("search_products", "restock_product"),
    "move": ("find_customer", "update_address"),
    "cancel_latest": ("find_customer", "list_orders", "cancel_order"),
    "refund_latest": ("find_customer", "list_orders", "get_order", "refund_order"),
    "buy": ("find_customer", "search_products", "create_order"),
    "buy_cheapest": ("find_customer", "search_products", "create_order"),
    "refund_if": ("find_customer", "list_orders", "get_order", "get_shop", "refund_order"),
    "settle": ("get_order", "get_shop", "cancel_order", "refund_order"),
    "buy_if": ("search_products", "restock_product", "find_customer", "create_order"),
}
"""Kind of shop task -> the operations that can solve it."""
_SHORT = ("cancel", "restock")
"""The kinds of level 1 with short episodes."""


def checked_sources(tools: Sequence[str], *, data: str) -> list[str]:
    sources = [source_target(source.strip()) for source in tools if source.strip()]
    if not sources:
        raise UserError("tool_api has no tools: name some, for example tools=shop, or a registered name")
    for i, source in enumerate(sources):
        if source in sources[:i]:
            raise UserError(f"the source of tools {source!r} is named twice: leave one out")
        if source != SHOP and ":" not in source and find(source) is None:
            raise UserError(f"there are no tools {source!r}. {nearest(source, [SHOP, *tool_names()])}")
    if SHOP in sources and data:
        raise UserError(f"the shop has tasks of its own, and data={data!r} has others: leave one of them out")
    return sources


def source_target(name: str) -> str:
    """Return the source that a name is registered for; any other text stays as it is."""
    entry = find(name, "tools") if name != SHOP and ":" not in name else None
    return entry.target if entry is not None and tool_source(entry.target) else name


def shop_operations(level: int, operations: Sequence[str] = ()) -> list[str]:
    """Return the operations of the shop that are tools: those named, else those that tasks of the level need.

    At level 1 only the kinds with short episodes count, which fit into the 512 tokens of a tiny model.
    """
    if level not in LEVELS:
        raise UserError(f"tool_api has no level {level}; the levels are {', '.join(map(str, LEVELS))}")
    kinds = _SHORT if level == 1 else _kinds(level)
    for pattern in operations:
        if not fnmatch.filter(OPERATIONS, pattern):
            raise UserError(f"the shop has no operation {pattern!r}. {nearest(pattern, OPERATIONS)}")
    selection = [n for pattern_of_names in operations for n in fnmatch.filter(OPERATIONS, pattern_of_names)]
    return list(dict.fromkeys(selection or [name for kind in kinds for name in _NEEDED[kind]]))


def tasks_of_operations(split: str, *, count: int, seed: int, level: int, operations: Sequence[str] = ()) -> list[Task]:
    """Return shop tasks of a level that can be solved with the operations."""
    available = shop_operations(level, operations)
    kinds = [kind for kind in _kinds(level) if set(_NEEDED[kind]) <= set(available)]
    if not kinds:
        needs = "; ".join(f"{kind}: {', '.join(_NEEDED[kind])}" for kind in _kinds(level))
        raise UserError(f"no task of level {level} can be solved with {', '.join(available)} alone. They need {needs}")
    size = count
    while True:  # until there are enough of the kinds, or the shop says that there are no more
        tasks = shop_tasks(split, count=size, seed=seed, levels=(level,))
        fitting = [task for task in tasks if task.kind in kinds]
        if len(fitting) >= count:
            return fitting[:count]
        size = 2 * size + 8


def _kinds(level: int) -> list[str]:
    return [name for name, kind in KINDS.items() if kind.level == level]


def functions_of(sources: Sequence[str]) -> dict[str, Tool]:
    tools_by_name: dict[str, Tool] = {}
    names = ToolNames()
    for source in sources:
        if source.startswith(("openapi:", "mcp:")):
            raise UserError(
                f"no tasks can be made up for {source!r}, whose answers may change: give tasks of your own with data="
            )
        tools = tools_of(source)
        new_names = names.of(source, [tool.name for tool in tools])
        tools_by_name |= {new_names[tool.name]: replace(tool, name=new_names[tool.name]) for tool in tools}
    return tools_by_name


def file_tasks(data: str, split: str, *, count: int, seed: int) -> list[Task]:
    file = find_file(data, split)
    source = {"source": file.name if file else data}

    def make(values: Mapping[str, Any]) -> Task:
        question = next((values[name] for name in _QUESTIONS if values.get(name)), None)
        answer = next((values[name] for name in _ANSWERS if values.get(name) not in (None, "")), None)
        if question is None or answer is None:
            raise BadRow('it is no task: a row has columns like {"prompt": "What is 2 + 2?", "answer": "4"}')
        return Task(prompt=message_prompt(question), target=answer, metadata=source, kind=kind_of_row(values))

    return data_tasks(data, split, count=count, seed=seed, make=make)
