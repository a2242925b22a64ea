"""The shop over HTTP: a FastAPI app. Its OpenAPI document describes ten operations, meant to become tools of a model.

One app serves every episode: the bearer token of a request chooses the database. Sessions are files that only the host
makes and removes (`server.ShopServer`), so there is no operation on sessions for a model to find. The only file that
needs fastapi.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from contrib.apis.shop import operations
from contrib.apis.shop.database import open_database, session_path
from contrib.apis.shop.models import (
    Address,
    Customer,
    NewOrder,
    Order,
    OrderSummary,
    Problem,
    Product,
    Refund,
    Restock,
    ShopInfo,
)
from contrib.apis.shop.operations import ShopError
from contrib.common.transaction import transaction

# The endpoints are coroutines although SQLite is not: an operation takes less time than a switch of threads.
router = APIRouter(responses={status: {"model": Problem} for status in (401, 422)})
_bearer = HTTPBearer(auto_error=False)
_REFUSALS: dict[int | str, dict[str, Any]] = {404: {"model": Problem}, 409: {"model": Problem}}
_WHOLE = Refund()  # what a refund without a body asks for


async def _open_session(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> AsyncIterator[sqlite3.Connection]:
    """The database of the request's session, found by its token, for as long as the request lasts."""
    try:
        if credentials is None:
            raise sqlite3.OperationalError("no token")
        db = open_database(session_path(request.app.state.folder, credentials.credentials))
    except sqlite3.OperationalError:
        raise HTTPException(401, "A valid bearer token is needed.", {"WWW-Authenticate": "Bearer"}) from None
    with closing(db):
        yield db


Database = Annotated[sqlite3.Connection, Depends(_open_session)]
OrderId = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the order.")]
CustomerId = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the customer.")]
Sku = Annotated[str, Path(max_length=20, description="SKU of the product.")]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=100, description="A request sent again with its key is done once."),
]


@router.get("/shop", operation_id="get_shop")
async def get_shop(db: Database) -> ShopInfo:
    """Get today's date and for how many days after delivery refunds are given."""
    return operations.get_shop(db)  # type: ignore[return-value]


@router.get("/products", operation_id="search_products")
async def search_products(
    db: Database,
    query: Annotated[str, Query(max_length=100, description="Part of the name or category; empty for all.")] = "",
) -> list[Product]:
    """Search products, with their SKU, price and stock."""
    return operations.search_products(db, query=query)  # type: ignore[return-value]


@router.get("/customers", operation_id="find_customer", responses={404: {"model": Problem}})
async def find_customer(
    db: Database, email: Annotated[str, Query(max_length=200, description="E-mail address of the customer.")]
) -> Customer:
    """Find a customer by e-mail address."""
    return operations.find_customer(db, email=email)  # type: ignore[return-value]


@router.get("/customers/{customer_id}/orders", operation_id="list_orders", responses={404: {"model": Problem}})
async def list_orders(db: Database, customer_id: CustomerId) -> list[OrderSummary]:
    """List the orders of a customer, the latest first."""
    return operations.list_orders(db, customer_id=customer_id)  # type: ignore[return-value]


@router.get("/orders/{order_id}", operation_id="get_order", responses={404: {"model": Problem}})
async def get_order(db: Database, order_id: OrderId) -> Order:
    """Get an order with its items."""
    return operations.get_order(db, order_id=order_id)  # type: ignore[return-value]


@router.post("/orders", operation_id="create_order", status_code=201, responses=_REFUSALS)
async def create_order(
    db: Database, order: Annotated[NewOrder, Body()], idempotency_key: IdempotencyKey = None
) -> Order:
    """Place an order for a customer; the items leave the stock."""
    return _do(db, idempotency_key, "create_order", **order.model_dump())


@router.post("/orders/{order_id}/cancel", operation_id="cancel_order", responses=_REFUSALS)
async def cancel_order(db: Database, order_id: OrderId, idempotency_key: IdempotencyKey = None) -> Order:
    """Cancel an order that has not been shipped."""
    return _do(db, idempotency_key, "cancel_order", order_id=order_id)


@router.post("/orders/{order_id}/refund", operation_id="refund_order", responses=_REFUSALS)
async def refund_order(
    db: Database, order_id: OrderId, refund: Annotated[Refund, Body()] = _WHOLE, idempotency_key: IdempotencyKey = None
) -> Order:
    """Refund a delivered order: all of it, or only one product."""
    return _do(db, idempotency_key, "refund_order", order_id=order_id, **refund.model_dump())


@router.post("/products/{sku}/restock", operation_id="restock_product", responses=_REFUSALS)
async def restock_product(
    db: Database, sku: Sku, restock: Annotated[Restock, Body()], idempotency_key: IdempotencyKey = None
) -> Product:
    """Add pieces of a product to the stock."""
    return _do(db, idempotency_key, "restock_product", sku=sku, **restock.model_dump())


@router.put("/customers/{customer_id}/address", operation_id="update_address", responses={404: {"model": Problem}})
async def update_address(db: Database, customer_id: CustomerId, address: Annotated[Address, Body()]) -> Customer:
    """Change the address of a customer."""
    return _do(db, None, "update_address", customer_id=customer_id, **address.model_dump())


def make_app(folder: FilePath) -> FastAPI:
    app = FastAPI(title="Shop", version="1", docs_url=None, redoc_url=None)
    app.state.folder = folder
    app.include_router(router)
    app.add_exception_handler(ShopError, _shop_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


def _do(db: sqlite3.Connection, key: str | None, name: str, **arguments: Any) -> Any:
    """Do an operation, once for each idempotency key; one that was refused may be tried again with its key."""
    request = json.dumps([name, arguments], sort_keys=True)
    with transaction(db):
        [*replies] = db.execute("SELECT request, body FROM replies WHERE idempotency_key = ?", (key,))
        if replies and replies[0][0] != request:
            raise ShopError(409, "This Idempotency-Key was used for another request.")
        if replies:
            return json.loads(replies[0][1])
        result = operations.OPERATIONS[name](db, **arguments)
        if key is not None:
            db.execute("INSERT INTO replies VALUES (?, ?, ?)", (key, request, json.dumps(result)))
    return result


async def _shop_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ShopError)
    return JSONResponse({"detail": error.detail}, error.status)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """What is wrong with the arguments as one sentence, without the values: they may be huge, or no JSON."""
    assert isinstance(error, RequestValidationError)
    problems = (f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in error.errors()[:5])
    return JSONResponse({"detail": "; ".join(problems) + "."}, 422)
