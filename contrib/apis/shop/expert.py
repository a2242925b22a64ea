"""The expert of the shop tasks: the next assistant message, from the conversation and nothing else.

A plan is a generator: it yields the operation to call, is sent what came back, and ends when there is nothing left to
do. Each turn runs the plan again over the tool messages so far, so the conversation is its only state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from datetime import date
from typing import Any

from contrib.apis.shop.catalogue import CATALOGUE, PRODUCTS
from contrib.apis.shop.task_kinds import DELIVERY, KINDS, RESERVE
from envs.messages import call, say
from forge_env.core.types import Message

Plan = Generator[tuple[str, dict[str, Any]], Any, None]
Words = Mapping[str, Any]

_BLANKS = {
    "order": r"\d+",
    "number": r"\d+",
    "email": r"[\w.]+@[\w.]+",
    "product": "|".join(name for name, _ in PRODUCTS),
    "category": "|".join(CATALOGUE),
    "address": r".+",
}


def expert(messages: list[Message]) -> Message:
    """Return the next message: one tool call in OpenAI's shape, or the final answer.

    Each tool message must hold the JSON body of the response; after anything else, such as an error, the expert answers
    that the task cannot be done.
    """
    question = next(m["content"] for m in messages if m["role"] == "user")
    kind, words = _understand(question)
    plan = _PLANS[kind](words)
    try:
        name, arguments = next(plan)
        for message in messages:
            if message["role"] == "tool":
                name, arguments = plan.send(_body(message["content"]))
    except StopIteration:
        return say("Done.")
    except _Failed as failure:
        return say(f"This cannot be done: {failure}")
    return call(name, **arguments)


class _Failed(Exception):
    """A tool did not give what the plan needs."""


def _body(content: str) -> Any:
    try:
        body = json.loads(content)
    except ValueError:
        raise _Failed(content) from None
    if isinstance(body, dict) and body.keys() == {"detail"}:
        raise _Failed(body["detail"])
    return body


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda m: f"(?P<{m[1]}>{_BLANKS[m[1]]})", re.escape(text)))


_PATTERNS = {name: _pattern(kind.text) for name, kind in KINDS.items()}


def _understand(question: str) -> tuple[str, Words]:
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(question.strip()):
            return kind, {k: int(v) if k in ("order", "number") else v for k, v in match.groupdict().items()}
    raise ValueError(f"this is no task of the shop: {question!r}")


# ---- steps that several plans share ----


def _customer(words: Words) -> Generator[Any, Any, int]:
    return (yield "find_customer", {"email": words["email"]})["customer_id"]


def _latest(words: Words) -> Generator[Any, Any, int]:
    customer = yield from _customer(words)
    return (yield "list_orders", {"customer_id": customer})[0]["order_id"]


def _latest_order(words: Words) -> Generator[Any, Any, Any]:
    return (yield "get_order", {"order_id": (yield from _latest(words))})


def _product(words: Words) -> Generator[Any, Any, Any]:
    products = yield "search_products", {"query": words["product"]}
    return _row_of(products, words["product"])


def _order_one(customer: int, sku: str, quantity: int) -> tuple[str, dict[str, Any]]:
    return "create_order", {"customer_id": customer, "items": [{"sku": sku, "quantity": quantity}]}


def _row_of(rows: Any, name: str) -> Any:
    for row in rows:
        if row["name"] == name:
            return row
    raise _Failed(f"there is no {name}")


def _days_since(order: Any) -> Generator[Any, Any, int]:
    shop = yield "get_shop", {}
    return (date.fromisoformat(shop["today"]) - date.fromisoformat(order["delivered_on"])).days


# ---- plans, by kind ----


def _cancel(words: Words) -> Plan:
    yield "cancel_order", {"order_id": words["order"]}


def _refund(words: Words) -> Plan:
    order = yield "get_order", {"order_id": words["order"]}
    sku = _row_of(order["items"], words["product"])["sku"]
    yield "refund_order", {"order_id": words["order"], "sku": sku, "quantity": words["number"]}


def _restock(words: Words) -> Plan:
    product = yield from _product(words)
    yield "restock_product", {"sku": product["sku"], "quantity": words["number"]}


def _move(words: Words) -> Plan:
    customer = yield from _customer(words)
    yield "update_address", {"customer_id": customer, "address": words["address"]}


def _cancel_latest(words: Words) -> Plan:
    yield "cancel_order", {"order_id": (yield from _latest(words))}


def _refund_latest(words: Words) -> Plan:
    order = yield from _latest_order(words)
    sku = _row_of(order["items"], words["product"])["sku"]
    yield "refund_order", {"order_id": order["order_id"], "sku": sku, "quantity": words["number"]}


def _buy(words: Words) -> Plan:
    customer = yield from _customer(words)
    product = yield from _product(words)
    yield _order_one(customer, product["sku"], words["number"])


def _buy_cheapest(words: Words) -> Plan:
    customer = yield from _customer(words)
    products = yield "search_products", {"query": words["category"]}
    similar = [product for product in products if product["category"] == words["category"]]
    yield _order_one(customer, min(similar, key=lambda product: product["price_cents"])["sku"], words["number"])


def _refund_if(words: Words) -> Plan:
    order = yield from _latest_order(words)
    if (yield from _days_since(order)) <= words["number"]:
        yield "refund_order", {"order_id": order["order_id"], "sku": _row_of(order["items"], words["product"])["sku"]}


def _settle(words: Words) -> Plan:
    order = yield "get_order", {"order_id": words["order"]}
    if order["status"] == "placed":
        yield "cancel_order", {"order_id": words["order"]}
    elif order["status"] == "delivered" and (yield from _days_since(order)) <= words["number"]:
        yield "refund_order", {"order_id": words["order"]}


def _buy_if(words: Words) -> Plan:
    product = yield from _product(words)
    if product["stock"] - words["number"] < RESERVE:
        yield "restock_product", {"sku": product["sku"], "quantity": DELIVERY}
    else:
        customer = yield from _customer(words)
        yield _order_one(customer, product["sku"], words["number"])


_SIMPLE = (_cancel, _refund, _restock, _move, _cancel_latest, _refund_latest, _buy)
_PLANS: Mapping[str, Callable[[Words], Plan]] = {
    plan.__name__.removeprefix("_"): plan for plan in (*_SIMPLE, _buy_cheapest, _refund_if, _settle, _buy_if)
}
