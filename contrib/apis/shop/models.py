"""The shapes that the shop takes and returns, as its OpenAPI document shows them. Money is in cents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Status = Literal["placed", "shipped", "delivered", "cancelled", "refunded"]
_Number = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Sku = Annotated[str, Field(max_length=20)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewItem(_Request):
    sku: _Sku
    quantity: int = Field(ge=1, le=100)


class NewOrder(_Request):
    customer_id: _Number
    items: list[NewItem] = Field(min_length=1, max_length=10)


class Refund(_Request):
    sku: _Sku | None = Field(
        default=None, description="The product to refund; all that is left of the order without it."
    )
    quantity: int | None = Field(
        default=None, ge=1, le=100, description="How many pieces of the product; all without it."
    )


class Restock(_Request):
    quantity: int = Field(ge=1, le=1000, description="How many pieces to add.")


class Address(_Request):
    address: Annotated[str, StringConstraints(strip_whitespace=True, min_length=5, max_length=200)]


class ShopInfo(BaseModel):
    today: str
    refund_days: int


class Product(BaseModel):
    name: str
    sku: str
    category: str
    price_cents: int
    stock: int


class Customer(BaseModel):
    customer_id: int
    name: str
    email: str
    address: str


class OrderSummary(BaseModel):
    order_id: int
    customer_id: int
    status: Status
    placed_on: str
    delivered_on: str | None
    total_cents: int
    refunded_cents: int


class OrderItem(BaseModel):
    name: str
    sku: str
    quantity: int
    unit_cents: int
    refunded: int


class Order(OrderSummary):
    items: list[OrderItem]


class Problem(BaseModel):
    detail: str
