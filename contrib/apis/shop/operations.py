"""The operations of the shop, with its rules: plain functions over the database of one session.

Each takes an open database and keyword arguments, and returns JSON-like data. The HTTP service has already checked the
types and ranges of the arguments; the rules that need the database are enforced here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from contrib.common.transaction import transaction

Row = dict[str, Any]
MOST_PRODUCTS = 20
MOST_STOCK = 1_000_000

_ORDER = """SELECT order_id, customer_id, status, placed_on, delivered_on,
    (SELECT sum(quantity * unit_cents) FROM order_items i WHERE i.order_id = o.order_id) AS total_cents,
    (SELECT sum(refunded * unit_cents) FROM order_items i WHERE i.order_id = o.order_id) AS refunded_cents
    FROM orders o """


class ShopError(Exception):
    """The shop refuses: an HTTP status and one sentence for the caller."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def get_shop(db: sqlite3.Connection) -> Row:
    return _all(db, "SELECT today, refund_days FROM shop")[0]


def search_products(db: sqlite3.Connection, *, query: str = "") -> list[Row]:
    text = query.strip().lower()
    return _all(
        db,
        "SELECT * FROM products WHERE instr(lower(name), ?) OR instr(lower(category), ?) ORDER BY sku LIMIT ?",
        text,
        text,
        MOST_PRODUCTS,
    )


def find_customer(db: sqlite3.Connection, *, email: str) -> Row:
    rows = _all(db, "SELECT * FROM customers WHERE lower(email) = ?", email.strip().lower())
    return _only(rows, f"There is no customer with the e-mail address {email!r}.")


def list_orders(db: sqlite3.Connection, *, customer_id: int) -> list[Row]:
    """Orders of a customer without their items, the latest first."""
    _customer(db, customer_id)
    return _all(db, _ORDER + "WHERE customer_id = ? ORDER BY placed_on DESC, order_id DESC", customer_id)


def get_order(db: sqlite3.Connection, *, order_id: int) -> Row:
    order = _only(_all(db, _ORDER + "WHERE order_id = ?", order_id), f"There is no order {order_id}.")
    order["items"] = _all(
        db,
        "SELECT sku, name, quantity, unit_cents, refunded FROM order_items JOIN products USING (sku) "
        "WHERE order_id = ? ORDER BY sku",
        order_id,
    )
    return order


def create_order(db: sqlite3.Connection, *, customer_id: int, items: list[Row]) -> Row:
    """Items are rows with `sku` and `quantity`; they are taken from the stock at today's price."""
    _customer(db, customer_id)
    if len({item["sku"] for item in items}) < len(items):
        raise ShopError(409, "An order lists each product once.")
    [(order_id, today)] = db.execute("SELECT (SELECT max(order_id) + 1 FROM orders), today FROM shop")
    db.execute("INSERT INTO orders VALUES (?, ?, 'placed', ?, NULL)", (order_id, customer_id, today))
    for item in items:
        product = _product(db, item["sku"])
        if item["quantity"] > product["stock"]:
            raise ShopError(409, f"Only {product['stock']} of {item['sku']} are in stock.")
        _add_stock(db, item["sku"], -item["quantity"])
        row = (order_id, item["sku"], item["quantity"], product["price_cents"])
        db.execute("INSERT INTO order_items VALUES (?, ?, ?, ?, 0)", row)
    return get_order(db, order_id=order_id)


def cancel_order(db: sqlite3.Connection, *, order_id: int) -> Row:
    """Only an order that has not been shipped; its items go back to the stock."""
    order = get_order(db, order_id=order_id)
    if order["status"] != "placed":
        raise ShopError(409, f"Order {order_id} is {order['status']}; only a placed order can be cancelled.")
    for item in order["items"]:
        _add_stock(db, item["sku"], item["quantity"])
    _set_status(db, order_id, "cancelled")
    return get_order(db, order_id=order_id)


def refund_order(db: sqlite3.Connection, *, order_id: int, sku: str | None = None, quantity: int | None = None) -> Row:
    """Refund all that is left of an order, or of one product in it, or some pieces; they go back to the stock."""
    order = get_order(db, order_id=order_id)
    _check_refundable(db, order)
    if sku is None and quantity is not None:
        raise ShopError(409, "A quantity needs the sku of the product to refund.")
    items = [item for item in order["items"] if sku in (None, item["sku"])]
    if not items:
        raise ShopError(404, f"Order {order_id} contains no product {sku!r}.")
    for item in items:
        remaining = item["quantity"] - item["refunded"]
        pieces = remaining if quantity is None else quantity
        if sku is not None and not 0 < pieces <= remaining:
            raise ShopError(409, f"Only {remaining} of {sku} in order {order_id} are left to refund.")
        refund = "UPDATE order_items SET refunded = refunded + ? WHERE order_id = ? AND sku = ?"
        db.execute(refund, (pieces, order_id, item["sku"]))
        _add_stock(db, item["sku"], pieces)
    if all(item["refunded"] == item["quantity"] for item in get_order(db, order_id=order_id)["items"]):
        _set_status(db, order_id, "refunded")
    return get_order(db, order_id=order_id)


def restock_product(db: sqlite3.Connection, *, sku: str, quantity: int) -> Row:
    if _product(db, sku)["stock"] + quantity > MOST_STOCK:
        raise ShopError(409, f"The stock of a product is {MOST_STOCK} at most.")
    _add_stock(db, sku, quantity)
    return _product(db, sku)


def update_address(db: sqlite3.Connection, *, customer_id: int, address: str) -> Row:
    _customer(db, customer_id)
    db.execute("UPDATE customers SET address = ? WHERE customer_id = ?", (address.strip(), customer_id))
    return _customer(db, customer_id)


_READS = (get_shop, search_products, find_customer, list_orders, get_order)
_WRITES = (create_order, cancel_order, refund_order, restock_product, update_address)
OPERATIONS: Mapping[str, Callable[..., Any]] = {function.__name__: function for function in (*_READS, *_WRITES)}


def perform(db: sqlite3.Connection, name: str, arguments: Mapping[str, Any]) -> Any:
    """Do one operation in a transaction of its own: all of it, or nothing."""
    with transaction(db):
        return OPERATIONS[name](db, **arguments)


def _check_refundable(db: sqlite3.Connection, order: Row) -> None:
    number, shop = order["order_id"], get_shop(db)
    if order["status"] != "delivered":
        raise ShopError(409, f"Order {number} is {order['status']}; only a delivered order can be refunded.")
    days = (date.fromisoformat(shop["today"]) - date.fromisoformat(order["delivered_on"])).days
    if days > shop["refund_days"]:
        raise ShopError(
            409, f"Order {number} was delivered {days} days ago; refunds end after {shop['refund_days']} days."
        )


def _all(db: sqlite3.Connection, query: str, *values: Any) -> list[Row]:
    cursor = db.execute(query, values)
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor]


def _only(rows: list[Row], otherwise: str) -> Row:
    if not rows:
        raise ShopError(404, otherwise)
    return rows[0]


def _customer(db: sqlite3.Connection, customer_id: int) -> Row:
    rows = _all(db, "SELECT * FROM customers WHERE customer_id = ?", customer_id)
    return _only(rows, f"There is no customer {customer_id}.")


def _product(db: sqlite3.Connection, sku: str) -> Row:
    return _only(_all(db, "SELECT * FROM products WHERE sku = ?", sku), f"There is no product {sku!r}.")


def _add_stock(db: sqlite3.Connection, sku: str, pieces: int) -> None:
    db.execute("UPDATE products SET stock = stock + ? WHERE sku = ?", (pieces, sku))


def _set_status(db: sqlite3.Connection, order_id: int, status: str) -> None:
    db.execute("UPDATE orders SET status = ? WHERE order_id = ?", (status, order_id))
