"""Makes the content of a shop from a seed: a few customers, products and orders, the same in every process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta

from contrib.apis.shop.catalogue import PEOPLE, PRODUCTS, address, email

CUSTOMERS, OTHER_PRODUCTS, OTHER_ORDERS = 4, 3, 4
REFUND_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """What a task needs in the shop; a field that is None is drawn from the seed.

    The subject is the latest order of the customer, and it contains the product.
    """

    customer: int | None = None
    """Number in `catalogue.PEOPLE`."""
    product: int | None = None
    """Number in `catalogue.PRODUCTS`."""
    order: int | None = None
    """Number of the subject."""
    status: str | None = None
    """Of the subject: placed, shipped or delivered."""
    days: int | None = None
    """Days since the subject was delivered."""
    quantity: int | None = None
    """How many of the product the subject contains."""
    stock: int | None = None
    """How many of the product are in stock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Rows of the tables, in the order of `database.SCHEMA`; dates are ISO texts, money is in cents."""

    today: str
    customers: tuple[tuple[int, str, str, str], ...]
    products: tuple[tuple[str, str, str, int, int], ...]
    orders: tuple[tuple[int, int, str, str, str | None], ...]
    order_items: tuple[tuple[int, str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Order:
    customer: int
    age: int
    status: str
    delivery_age: int | None
    """Days ago."""
    is_subject: bool = False


def make_shop(seed: str, focus: Focus | None = None) -> Shop:
    rng, focus = random.Random(f"shop/{seed}"), focus or Focus()
    today = date(2031, 1, 1) + timedelta(days=rng.randrange(365))
    customers, products = _customers(rng, focus), _products(rng, focus)
    all_orders = _orders(rng, focus, [customer[0] for customer in customers])
    position = next(i for i, order in enumerate(all_orders) if order.is_subject)
    first = rng.randint(1000, 9000) if focus.order is None else focus.order - position
    orders, items = [], []
    for number, order in enumerate(all_orders, start=first):
        day = today - timedelta(days=order.age)
        delivery = None if order.delivery_age is None else (today - timedelta(days=order.delivery_age)).isoformat()
        orders.append((number, order.customer, order.status, day.isoformat(), delivery))
        items += [(number, *item) for item in _items(rng, focus, products, order.is_subject)]
    return Shop(
        today=today.isoformat(),
        customers=tuple(customers),
        products=tuple(products),
        orders=tuple(orders),
        order_items=tuple(items),
    )


def _with_first(rng: random.Random, first: int | None, choices: range, count: int) -> list[int]:
    """Draw `count` distinct numbers; the first may be given."""
    numbers = rng.sample(choices, count + 1)
    return numbers[:count] if first is None else [first, *(n for n in numbers if n != first)][:count]


def _customers(rng: random.Random, focus: Focus) -> list[tuple[int, str, str, str]]:
    people = _with_first(rng, focus.customer, range(len(PEOPLE)), CUSTOMERS)
    numbers = rng.sample(range(100, 1000), CUSTOMERS)
    homes = rng.sample(range(3200), CUSTOMERS)
    return [(n, " ".join(PEOPLE[p]), email(p), address(h)) for n, p, h in zip(numbers, people, homes, strict=True)]


def _products(rng: random.Random, focus: Focus) -> list[tuple[str, str, str, int, int]]:
    """The product of the focus first, then two of its category, then others."""
    subject = rng.randrange(len(PRODUCTS)) if focus.product is None else focus.product
    category = PRODUCTS[subject][1]
    similar = [i for i, product in enumerate(PRODUCTS) if product[1] == category and i != subject]
    different = [i for i, product in enumerate(PRODUCTS) if product[1] != category]
    indices = [subject, *rng.sample(similar, 2), *rng.sample(different, OTHER_PRODUCTS)]
    numbers = rng.sample(range(100, 1000), len(indices))
    skus = [f"{PRODUCTS[i][1][:2].upper()}{n}" for i, n in zip(indices, numbers, strict=True)]
    prices = rng.sample(range(300, 9000, 10), len(indices))
    stocks = [rng.randint(12, 60) for _ in indices]
    if focus.stock is not None:
        stocks[0] = focus.stock
    return [(skus[k], *PRODUCTS[i], prices[k], stocks[k]) for k, i in enumerate(indices)]


def _orders(rng: random.Random, focus: Focus, customers: list[int]) -> list[_Order]:
    """Orders from the oldest to the newest: the subject, two earlier ones of its customer, and others'."""
    subject = _subject(rng, focus, customers[0])
    earlier = [_drawn_order(rng, customers[0], subject.age + extra) for extra in rng.sample(range(1, 40), 2)]
    others = [_drawn_order(rng, rng.choice(customers[1:]), rng.randint(0, 60)) for _ in range(OTHER_ORDERS)]
    return sorted([subject, *earlier, *others], key=lambda order: -order.age)


def _subject(rng: random.Random, focus: Focus, customer: int) -> _Order:
    status = focus.status or rng.choice(["placed", "shipped", "delivered"])
    if status != "delivered":
        return _Order(customer, rng.randint(*{"placed": (0, 2), "shipped": (2, 5)}[status]), status, None, True)
    days = rng.randint(1, REFUND_DAYS) if focus.days is None else focus.days
    return _Order(customer, days + rng.randint(2, 4), status, days, True)


def _drawn_order(rng: random.Random, customer: int, age: int) -> _Order:
    if rng.random() < 0.15:
        return _Order(customer, age, "cancelled", None)
    if age < 6:
        return _Order(customer, age, "placed" if age < 2 else "shipped", None)
    return _Order(customer, age, "delivered", age - rng.randint(2, 4))


def _items(
    rng: random.Random, focus: Focus, products: list[tuple[str, str, str, int, int]], is_subject: bool
) -> list[tuple[str, int, int, int]]:
    """Rows (sku, quantity, unit_cents, refunded) of one order. What was paid may be less than today's price."""
    # An order of one item teaches to copy an article number before the right one has to be chosen.
    others = rng.sample(products[1:], rng.randint(0 if is_subject else 1, 2))
    items = [(p[0], rng.randint(1, 4), p[3] * rng.choice([8, 9, 10]) // 10, 0) for p in others]
    if not is_subject:
        return items
    quantity = rng.randint(2, 4) if focus.quantity is None else focus.quantity
    return [(products[0][0], quantity, products[0][3], 0), *items]
