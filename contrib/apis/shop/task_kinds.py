"""The kinds of shop tasks: their text, what their shop must contain, and the writes that solve them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from contrib.apis.shop.catalogue import PEOPLE, PRODUCTS, address, email
from contrib.apis.shop.content import REFUND_DAYS, Focus, Shop

Write = tuple[str, dict[str, Any]]
"""One operation that changes the shop, and its arguments."""

RESERVE, DELIVERY = 10, 50  # pieces that stay in stock, and that are bought when they would not
FIRST_NEW_ADDRESS = 3200  # customers live at the addresses below


class Content(NamedTuple):
    """What the text of a task says; everything else in its shop is drawn from a hash of it."""

    kind: str
    subject: int
    """Number of a person, a product or an order. Pairs of kind and subject are held out from training."""
    product: int
    number: int


class ShopFacts(NamedTuple):
    """What the text of a task says, and facts about its shop."""

    content: Content
    focus: Focus
    customer_id: int
    order_id: int
    sku: str
    """Of the product."""
    cheapest: str
    """SKU of the cheapest product of the same category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    level: int
    subject: range
    """All possible subjects: people, products or order numbers."""
    products: range = range(1)
    numbers: Sequence[int] = (0,)
    text: str
    focus: Callable[[Content, random.Random], Focus]
    writes: Callable[[ShopFacts], list[Write]]


_PEOPLE, _PRODUCTS, _ORDERS = range(len(PEOPLE)), range(len(PRODUCTS)), range(1000, 10_000)


def words(content: Content) -> dict[str, object]:
    is_about_product = KINDS[content.kind].subject is _PRODUCTS
    name, category = PRODUCTS[content.subject if is_about_product else content.product]
    return {
        "order": content.subject,
        "email": email(content.subject) if content.subject in _PEOPLE else "",
        "product": name,
        "category": category,
        "number": content.number,
        "address": address(content.number),
    }


def facts(content: Content, focus: Focus, shop: Shop) -> ShopFacts:
    """Return the facts of a shop that was made around a focus; its customer and its product come first."""
    customer, product = shop.customers[0], shop.products[0]
    latest = max((order for order in shop.orders if order[1] == customer[0]), key=lambda order: order[3])
    similar = [other for other in shop.products if other[2] == product[2]]
    return ShopFacts(content, focus, customer[0], latest[0], product[0], min(similar, key=lambda other: other[3])[0])


def _delivery(c: Content, rng: random.Random, **more: Any) -> Focus:
    return Focus(status="delivered", days=rng.randint(1, REFUND_DAYS), quantity=c.number + rng.randint(0, 2), **more)


def _days(rng: random.Random, limit: int, *, is_late: bool) -> int:
    """Days since a delivery, within the shop's own limit even when later than the task's."""
    return rng.randint(limit + 1, REFUND_DAYS) if is_late else rng.randint(1, limit)


def _refund_if_focus(c: Content, rng: random.Random) -> Focus:
    days = _days(rng, c.number, is_late=rng.random() < 0.4)
    return Focus(customer=c.subject, product=c.product, status="delivered", days=days)


def _settle_focus(c: Content, rng: random.Random) -> Focus:
    status = rng.choice(["placed", "placed", "delivered", "delivered", "late", "shipped"])
    if status in ("placed", "shipped"):
        return Focus(order=c.subject, status=status)
    return Focus(order=c.subject, status="delivered", days=_days(rng, c.number, is_late=status == "late"))


def _settle(f: ShopFacts) -> list[Write]:
    if f.focus.status == "placed":
        return [("cancel_order", {"order_id": f.order_id})]
    if f.focus.days is not None and f.focus.days <= f.content.number:
        return [("refund_order", {"order_id": f.order_id})]
    return []


def _buy_if_focus(c: Content, rng: random.Random) -> Focus:
    stock = c.number + RESERVE + rng.choice([-5, -3, -2, -1, 0, 1, 2, 8])
    return Focus(customer=c.subject, product=c.product, stock=stock)


def _buy_if(f: ShopFacts) -> list[Write]:
    assert f.focus.stock is not None
    if f.focus.stock - f.content.number < RESERVE:
        return [("restock_product", {"sku": f.sku, "quantity": DELIVERY})]
    return _buy(f, f.sku)


def _buy(f: ShopFacts, sku: str) -> list[Write]:
    items = [{"sku": sku, "quantity": f.content.number}]
    return [("create_order", {"customer_id": f.customer_id, "items": items})]


def _refund(f: ShopFacts, **quantity: int) -> list[Write]:
    return [("refund_order", {"order_id": f.order_id, "sku": f.sku, **quantity})]


KINDS: Mapping[str, Kind] = {
    "cancel": Kind(
        level=1,
        subject=_ORDERS,
        text="Cancel order {order}.",
        focus=lambda c, rng: Focus(order=c.subject, status="placed"),
        writes=lambda f: [("cancel_order", {"order_id": f.order_id})],
    ),
    "refund": Kind(
        level=1,
        subject=_ORDERS,
        products=_PRODUCTS,
        numbers=range(1, 4),
        text="Refund {number} x {product} in order {order}.",
        focus=lambda c, rng: _delivery(c, rng, order=c.subject, product=c.product),
        writes=lambda f: _refund(f, quantity=f.content.number),
    ),
    "restock": Kind(
        level=1,
        subject=_PRODUCTS,
        numbers=range(2, 100),
        text="Add {number} x {product} to the stock.",
        focus=lambda c, rng: Focus(product=c.subject),
        writes=lambda f: [("restock_product", {"sku": f.sku, "quantity": f.content.number})],
    ),
    "move": Kind(
        level=1,
        subject=_PEOPLE,
        numbers=range(FIRST_NEW_ADDRESS, 2 * FIRST_NEW_ADDRESS),
        text="Change the address of {email} to: {address}",
        focus=lambda c, rng: Focus(customer=c.subject),
        writes=lambda f: [("update_address", {"customer_id": f.customer_id, "address": address(f.content.number)})],
    ),
    "cancel_latest": Kind(
        level=2,
        subject=_PEOPLE,
        products=_PRODUCTS,
        text="Cancel the latest order of {email}, with the {product}.",
        focus=lambda c, rng: Focus(customer=c.subject, product=c.product, status="placed"),
        writes=lambda f: [("cancel_order", {"order_id": f.order_id})],
    ),
    "refund_latest": Kind(
        level=2,
        subject=_PEOPLE,
        products=_PRODUCTS,
        numbers=range(1, 4),
        text="Refund {number} x {product} in the latest order of {email}.",
        focus=lambda c, rng: _delivery(c, rng, customer=c.subject, product=c.product),
        writes=lambda f: _refund(f, quantity=f.content.number),
    ),
    "buy": Kind(
        level=2,
        subject=_PEOPLE,
        products=_PRODUCTS,
        numbers=range(1, 10),
        text="Order {number} x {product} for {email}.",
        focus=lambda c, rng: Focus(customer=c.subject, product=c.product),
        writes=lambda f: _buy(f, f.sku),
    ),
    "buy_cheapest": Kind(
        level=3,
        subject=_PEOPLE,
        products=range(0, len(PRODUCTS), 5),  # one of each category
        numbers=range(1, 10),
        text="Order {number} x the cheapest {category} product for {email}.",
        focus=lambda c, rng: Focus(customer=c.subject, product=rng.randrange(c.product, c.product + 5)),
        writes=lambda f: _buy(f, f.cheapest),
    ),
    "refund_if": Kind(
        level=3,
        subject=_PEOPLE,
        products=_PRODUCTS,
        numbers=range(5, 26),
        text="If the latest order of {email} was delivered at most {number} days ago, refund all of the {product} "
        "in it; otherwise change nothing.",
        focus=_refund_if_focus,
        writes=lambda f: _refund(f) if (f.focus.days or 0) <= f.content.number else [],
    ),
    "settle": Kind(
        level=3,
        subject=_ORDERS,
        numbers=range(5, 26),
        text="If order {order} has not been shipped, cancel it; if it was delivered at most {number} days ago, "
        "refund all of it; otherwise change nothing.",
        focus=_settle_focus,
        writes=_settle,
    ),
    "buy_if": Kind(
        level=3,
        subject=_PEOPLE,
        products=_PRODUCTS,
        numbers=range(2, 12),
        text=f"Order {{number}} x {{product}} for {{email}} if at least {RESERVE} stay in stock; otherwise "
        f"only add {DELIVERY} pieces to the stock.",
        focus=_buy_if_focus,
        writes=_buy_if,
    ),
}
