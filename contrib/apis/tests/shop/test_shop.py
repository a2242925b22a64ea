"""The shop over real HTTP: its rules, the walls between sessions, hostile input, and its tasks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from contrib.apis.shop.catalogue import PRODUCTS
from contrib.apis.shop.content import Focus, Shop, make_shop
from contrib.apis.shop.database import memory_database, read_state
from contrib.apis.shop.expert import expert
from contrib.apis.shop.operations import OPERATIONS, perform
from contrib.apis.shop.server import ShopServer
from contrib.apis.shop.task_kinds import KINDS
from contrib.apis.shop.tasks import LEVELS, expected_state, score, shop_of, shop_tasks
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.types import Message, Task

DELIVERED = make_shop("tests", Focus(status="delivered", days=30, quantity=3))
PLACED = make_shop("tests", Focus(status="placed", quantity=3, stock=12))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop_server() -> AsyncIterator[ShopServer]:
    async with ShopServer() as started:
        yield started


class Client:
    """Calls operations by their names in the OpenAPI document, as a tool environment does, and checks the answers."""

    def __init__(self, base_url: str) -> None:
        self.http = httpx.Client(base_url=base_url, timeout=30.0)
        self.validators: dict[tuple[str, str], Any] = {}
        self.document = self.http.get("/openapi.json").json()
        self.operations = {
            operation["operationId"]: (method, path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def call(self, token: str, name: str, key: str | None = None, **arguments: Any) -> httpx.Response:
        method, path, operation = self.operations[name]
        places = {parameter["name"]: parameter["in"] for parameter in operation.get("parameters", ())}
        inside = {n: arguments.pop(n) for n, place in places.items() if place == "path"}
        query = {n: arguments.pop(n) for n, place in places.items() if place == "query" and n in arguments}
        headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key is not None else {})}
        body = arguments if "requestBody" in operation else None
        response = self.http.request(method, path.format(**inside), params=query, json=body, headers=headers)
        self.check(operation, response)
        return response

    def check(self, operation: Any, response: httpx.Response) -> None:
        """Every answer, a refusal among them, is one that the document describes."""
        place = (operation["operationId"], str(response.status_code))
        if place not in self.validators:
            schema = operation["responses"][place[1]]["content"]["application/json"]["schema"]
            full = {**schema, "components": self.document["components"]}
            self.validators[place] = jsonschema.Draft202012Validator(full)
        self.validators[place].validate(response.json())


@pytest.fixture(scope="module")
def client(shop_server: ShopServer) -> Iterator[Client]:
    client = Client(shop_server.base_url)
    yield client
    client.http.close()


class Session:
    """One session of a server, with what its shop holds at the start."""

    def __init__(self, shop_server: ShopServer, client: Client, shop: Shop) -> None:
        self.server, self.client, self.shop = shop_server, client, shop
        self.token = shop_server.open(shop)
        self.customer = shop.customers[0][0]
        self.sku = shop.products[0][0]
        self.order = max((o for o in shop.orders if o[1] == self.customer), key=lambda o: o[3])[0]
        self.start = self.state

    @property
    def state(self) -> Any:
        return self.server.state(self.token)

    def call(self, name: str, key: str | None = None, **arguments: Any) -> Any:
        """The body of an answer that must be a success."""
        response = self.client.call(self.token, name, key, **arguments)
        assert response.is_success, response.text
        return response.json()

    def refused(self, name: str, key: str | None = None, **arguments: Any) -> tuple[int, str]:
        """The status and sentence of an answer that must be a refusal; nothing has changed then."""
        before = self.state
        response = self.client.call(self.token, name, key, **arguments)
        assert 400 <= response.status_code < 500, response.text
        assert self.state == before
        return response.status_code, response.json()["detail"]


@pytest.fixture
def placed(shop_server: ShopServer, client: Client) -> Session:
    return Session(shop_server, client, PLACED)


@pytest.fixture
def delivered(shop_server: ShopServer, client: Client) -> Session:
    return Session(shop_server, client, DELIVERED)


# ---- what the shop does ----


def test_the_document_offers_every_operation_with_a_sentence(client: Client) -> None:
    assert client.operations.keys() == OPERATIONS.keys()
    for method, _, operation in client.operations.values():
        assert operation["description"].endswith(".") and "\n" not in operation["description"]
        assert operation["security"] == [{"HTTPBearer": []}]
        headers = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "header"]
        assert headers == (["Idempotency-Key"] if method == "post" else [])


def test_looking_up_changes_nothing(delivered: Session) -> None:
    customer = delivered.call("find_customer", email=delivered.shop.customers[0][2].upper())
    orders = delivered.call("list_orders", customer_id=customer["customer_id"])
    order = delivered.call("get_order", order_id=orders[0]["order_id"])
    assert (customer["customer_id"], order["order_id"]) == (delivered.customer, delivered.order)
    assert [o["placed_on"] for o in orders] == sorted((o["placed_on"] for o in orders), reverse=True)
    assert order["total_cents"] == sum(item["quantity"] * item["unit_cents"] for item in order["items"])
    assert len(delivered.call("search_products")) == len(delivered.shop.products)
    assert delivered.call("get_shop") == {"today": delivered.shop.today, "refund_days": 30}
    assert delivered.state == delivered.start


def test_a_name_finds_one_product_and_a_category_its_own() -> None:
    for number, (name, category) in enumerate(PRODUCTS):
        with memory_database(make_shop(str(number), Focus(product=number))) as db:
            assert [product["name"] for product in OPERATIONS["search_products"](db, query=name)] == [name]
            assert {product["category"] for product in OPERATIONS["search_products"](db, query=category)} == {category}


def test_an_order_takes_from_the_stock_and_its_cancellation_gives_back(placed: Session) -> None:
    order = placed.call("create_order", customer_id=placed.customer, items=[{"sku": placed.sku, "quantity": 12}])
    assert (order["status"], order["placed_on"]) == ("placed", placed.shop.today)
    assert order["order_id"] == max(o[0] for o in placed.shop.orders) + 1
    assert placed.state["products"][placed.sku]["stock"] == 0
    assert placed.refused("create_order", customer_id=placed.customer, items=[{"sku": placed.sku, "quantity": 1}]) == (
        409,
        f"Only 0 of {placed.sku} are in stock.",
    )
    assert placed.call("cancel_order", order_id=order["order_id"])["status"] == "cancelled"
    assert placed.state["products"] == placed.start["products"]
    assert placed.refused("cancel_order", order_id=order["order_id"])[0] == 409


def test_half_an_order_is_no_order(placed: Session) -> None:
    """The first item is there, the second is not: the first one's stock is not touched either."""
    items = [{"sku": placed.sku, "quantity": 2}, {"sku": "none", "quantity": 1}]
    assert placed.refused("create_order", customer_id=placed.customer, items=items)[0] == 404
    assert placed.refused("create_order", customer_id=placed.customer, items=items[:1] * 2)[0] == 409


def test_a_refund_ends_with_what_was_paid(delivered: Session) -> None:
    what = {"order_id": delivered.order, "sku": delivered.sku}
    before = delivered.start["products"][delivered.sku]["stock"]
    assert delivered.refused("refund_order", **what, quantity=4)[0] == 409
    order = delivered.call("refund_order", **what, quantity=2)
    price = next(item["unit_cents"] for item in order["items"] if item["sku"] == delivered.sku)
    assert (order["status"], order["refunded_cents"]) == ("delivered", 2 * price)
    assert delivered.state["products"][delivered.sku]["stock"] == before + 2
    assert delivered.refused("refund_order", **what, quantity=2)[0] == 409
    delivered.call("refund_order", **what)
    assert delivered.refused("refund_order", **what) == (
        409,
        f"Only 0 of {delivered.sku} in order {delivered.order} are left to refund.",
    )
    order = delivered.call("refund_order", order_id=delivered.order)
    assert (order["status"], order["refunded_cents"]) == ("refunded", order["total_cents"])
    assert delivered.refused("refund_order", order_id=delivered.order)[0] == 409


def test_item_by_item_is_the_same_as_all_at_once(shop_server: ShopServer, client: Client) -> None:
    whole, parts = (Session(shop_server, client, DELIVERED) for _ in range(2))
    whole.call("refund_order", order_id=whole.order)
    for item in reversed(parts.call("get_order", order_id=parts.order)["items"]):
        parts.call("refund_order", order_id=parts.order, sku=item["sku"])
    assert whole.state == parts.state != whole.start


@pytest.mark.parametrize(
    ("focus", "reason"),
    [
        (Focus(status="delivered", days=31), "delivered 31 days ago; refunds end after 30 days"),
        (Focus(status="shipped"), "only a delivered order can be refunded"),
    ],
)
def test_what_cannot_be_refunded(shop_server: ShopServer, client: Client, focus: Focus, reason: str) -> None:
    session = Session(shop_server, client, make_shop("late", focus))
    status, detail = session.refused("refund_order", order_id=session.order)
    assert status == 409 and reason in detail
    status, detail = session.refused("cancel_order", order_id=session.order)
    assert (status, detail) == (409, f"Order {session.order} is {focus.status}; only a placed order can be cancelled.")


def test_restock_and_address(placed: Session) -> None:
    assert placed.call("restock_product", sku=placed.sku, quantity=1000)["stock"] == 1012
    moved = placed.call("update_address", customer_id=placed.customer, address="  1 New Road ")
    assert moved["address"] == "1 New Road"
    changed = {table for table in placed.start if placed.state[table] != placed.start[table]}
    assert changed == {"products", "customers"}


def test_an_idempotency_key_does_a_thing_once(placed: Session) -> None:
    first = placed.call("restock_product", "k1", sku=placed.sku, quantity=5)
    after = placed.state
    assert placed.call("restock_product", "k1", sku=placed.sku, quantity=5) == first
    assert placed.state == after
    assert placed.refused("restock_product", "k1", sku=placed.sku, quantity=6)[0] == 409
    assert placed.call("restock_product", "k2", sku=placed.sku, quantity=5)["stock"] == first["stock"] + 5
    order = {"customer_id": placed.customer, "items": [{"sku": placed.sku, "quantity": 30}]}
    assert placed.refused("create_order", "k3", **order)[0] == 409  # and the key is still free
    placed.call("restock_product", sku=placed.sku, quantity=50)
    placed.call("create_order", "k3", **order)


# ---- sessions and hostile input ----


def test_sessions_do_not_meet(shop_server: ShopServer, client: Client, placed: Session) -> None:
    other = Session(shop_server, client, make_shop("other"))
    assert {o[0] for o in other.shop.orders}.isdisjoint(o[0] for o in placed.shop.orders)
    assert other.refused("cancel_order", order_id=placed.order)[0] == 404
    assert other.refused("update_address", customer_id=placed.customer, address="1 New Road")[0] == 404
    placed.call("cancel_order", order_id=placed.order)
    assert other.state == other.start


HEADERS = [None, "", "Bearer", "Bearer x", "Basic eDp5", "Bearer ../../etc/passwd", "Bearer é", "Bearer " + "a" * 4000]


@pytest.mark.parametrize("authorization", HEADERS)
def test_without_a_token_there_is_nothing(client: Client, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode()}
    for method, path, _ in client.operations.values():
        place = path.format(order_id=1, customer_id=1, sku="a")
        response = client.http.request(method, place, headers=headers, params={"email": "a"}, json={})
        assert response.status_code == 401
        assert response.json() == {"detail": "A valid bearer token is needed."}


def test_a_closed_session_is_gone(shop_server: ShopServer, placed: Session) -> None:
    shop_server.close(placed.token)
    shop_server.close(placed.token)
    assert placed.client.call(placed.token, "get_shop").status_code == 401
    with pytest.raises(ServiceError, match="cannot be read"):
        shop_server.state(placed.token)


def test_a_token_is_written_nowhere(shop_server: ShopServer, placed: Session) -> None:
    files = list(shop_server._folder.path.iterdir())
    assert files and not any(placed.token in file.name or placed.token.encode() in file.read_bytes() for file in files)
    assert shop_server._folder.path.stat().st_mode & 0o777 == 0o700


INJECTIONS = ["' OR 1=1 --", "x'; DROP TABLE orders; --", '" OR ""="', "%", "_", "a\x00b", "🙂" * 30]


def test_sql_is_only_text(placed: Session) -> None:
    for text in INJECTIONS:
        assert placed.refused("find_customer", email=text)[0] == 404
        assert placed.call("search_products", query=text) == []
        items = [{"sku": text[:20], "quantity": 1}]
        assert placed.refused("create_order", customer_id=placed.customer, items=items)[0] == 404
        assert placed.call("update_address", customer_id=placed.customer, address=text.ljust(5, "."))
    assert placed.state["orders"] == placed.start["orders"]


def test_quantities_and_numbers_that_are_none(placed: Session) -> None:
    for quantity in (0, -1, 101, 2**63, 10**400, 1.5, "many", None, [], {}):
        items = [{"sku": placed.sku, "quantity": quantity}]
        status, detail = placed.refused("create_order", customer_id=placed.customer, items=items)
        assert status == 422 and detail.startswith("items.0.quantity: ") and len(detail) < 200
    for number in (0, -1, 2**31, 2**63, 2**64, 10**100, "x", "1e3", "1;2"):
        assert placed.refused("get_order", order_id=number)[0] == 422
        assert placed.refused("cancel_order", order_id=number)[0] == 422


def test_bodies_and_addresses_that_are_none(placed: Session) -> None:
    headers = {"Authorization": f"Bearer {placed.token}", "Content-Type": "application/json"}
    for body in ("", "{", "[]", "null", '{"quantity": NaN}', '{"quantity": 1, "more": 1}', "[" * 9999):
        response = placed.client.http.post(f"/products/{placed.sku}/restock", content=body, headers=headers)
        assert response.status_code in (400, 422) and isinstance(response.json()["detail"], str)
    for text in ("\ud800" * 6, " " * 50, "a", "a" * 201):
        body = json.dumps({"address": text})
        response = placed.client.http.put(f"/customers/{placed.customer}/address", content=body, headers=headers)
        assert response.status_code == 422, response.text
    assert placed.state == placed.start


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists)


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), _JSON, _JSON, st.integers())
def test_no_input_breaks_the_service(
    shop_server: ShopServer, client: Client, text: str, one: Any, other: Any, number: int
) -> None:
    token = shop_server.open(PLACED)
    headers = {"Authorization": f"Bearer {token}"}
    sku = PLACED.products[0][0]
    for method, path, body in [
        ("GET", "/products", None),
        ("GET", f"/orders/{number}", None),
        ("POST", "/orders", {"customer_id": PLACED.customers[0][0], "items": [{"sku": one, "quantity": other}]}),
        ("POST", f"/orders/{PLACED.orders[0][0]}/refund", {"sku": one, "quantity": other}),
        ("POST", f"/products/{sku}/restock", {"quantity": one}),
        ("PUT", f"/customers/{PLACED.customers[0][0]}/address", {"address": one}),
    ]:
        content = None if body is None else json.dumps(body)
        response = client.http.request(method, path, params={"query": text}, content=content, headers=headers)
        assert response.status_code < 500, response.text
        assert response.is_success or isinstance(response.json()["detail"], str)
    shop_server.close(token)


# ---- tasks ----


Answer = Callable[[str, dict[str, Any]], str]


def solve(answer: Answer, task: Task) -> list[Message]:
    """The expert's conversation about a task, with whatever answers its calls."""
    messages: list[Message] = list(task.prompt)
    for _ in range(8):
        messages.append(expert(messages))
        if "tool_calls" not in messages[-1]:
            break
        [call] = messages[-1]["tool_calls"]
        content = answer(call["function"]["name"], call["function"]["arguments"])
        messages.append({"role": "tool", "content": content})
    return messages


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_tasks_and_others_do_not(level: int) -> None:
    unchanged = 0
    for task in shop_tasks(count=60, seed=level, levels=[level]):
        with memory_database(shop_of(task)) as db:
            assert score(read_state(db), task) == float(task.target == []), "nothing was done"
            unchanged += task.target == []
            messages = solve(lambda name, arguments: json.dumps(perform(db, name, arguments)), task)
            state = read_state(db)
            assert score(state, task) == 1.0, messages
            assert messages[-1]["content"] == "Done."
            perform(db, "restock_product", {"sku": next(iter(state["products"])), "quantity": 1})
            assert score(read_state(db), task) == 0.0, "something else was done too"
    assert unchanged == 0 if level < 3 else 5 < unchanged < 30


def test_an_order_too_many_is_wrong_even_when_cancelled(shop_server: ShopServer, client: Client) -> None:
    task = next(t for t in shop_tasks(count=20, levels=[2]) if t.metadata["kind"] == "buy")
    session = Session(shop_server, client, shop_of(task))
    wrong = session.call("create_order", customer_id=session.customer, items=[{"sku": session.sku, "quantity": 1}])
    session.call("cancel_order", order_id=wrong["order_id"])
    solve(lambda name, arguments: json.dumps(session.call(name, **arguments)), task)
    assert score(session.state, task) == 0.0
    assert len(session.state["orders"]) == len(expected_state(task)["orders"]) + 1


def test_blind_obedience_fails_where_the_condition_does_not_hold(shop_server: ShopServer, client: Client) -> None:
    """The shop itself would give the refund that the task forbids."""
    tasks = [t for t in shop_tasks(count=60, levels=[3]) if t.metadata["kind"] == "refund_if" and not t.target]
    for task in tasks:
        session = Session(shop_server, client, shop_of(task))
        session.call("refund_order", order_id=session.order, sku=session.sku)
        assert score(session.state, task) == 0.0
    assert len(tasks) >= 3


def test_the_expert_gives_up_in_words() -> None:
    [task] = shop_tasks(count=1)
    first = expert(list(task.prompt))
    for answer in ("Error: the tools are switched off.", '{"detail": "There is no order 1."}'):
        last = expert([*task.prompt, first, {"role": "tool", "content": answer}])
        assert "tool_calls" not in last and last["content"].startswith("This cannot be done: ")


@pytest.mark.parametrize("level", LEVELS)
def test_tasks_are_many_distinct_and_repeatable(level: int) -> None:
    tasks = shop_tasks(count=1200, seed=1, levels=[level])
    assert tasks[:50] == shop_tasks(count=50, seed=1, levels=[level]) != shop_tasks(count=50, seed=2, levels=[level])
    assert len({task.prompt[0]["content"] for task in tasks}) == len({task.id for task in tasks}) == 1200
    assert {task.metadata["kind"] for task in tasks} == {name for name, kind in KINDS.items() if kind.level == level}
    assert all(json.loads(json.dumps([t.target, dict(t.metadata)])) == [t.target, t.metadata] for t in tasks[:50])


def test_no_kind_of_level_2_is_used_up_by_thousands_of_tasks() -> None:
    kinds = Counter(task.kind for task in shop_tasks(count=3000, levels=[2])[-600:])
    assert kinds.keys() == {"buy", "cancel_latest", "refund_latest"} and min(kinds.values()) > 120


def test_the_order_of_a_task_has_one_to_three_items() -> None:
    shops = [make_shop(str(seed), Focus(order=5000)) for seed in range(60)]
    assert {sum(number == 5000 for number, *_ in shop.order_items) for shop in shops} == {1, 2, 3}


def test_the_test_split_is_new_in_content() -> None:
    def questions(split: str, count: int, seeds: int) -> set[str]:
        return {t.prompt[0]["content"] for seed in range(seeds) for t in shop_tasks(split, count=count, seed=seed)}

    test = questions("test", 150, 2)
    assert len(test) > 150 and not test & questions("train", 1500, 1)


def test_mistaken_arguments() -> None:
    for split, levels, problem in (
        ("train", [4], r"levels \[4\].*\[1, 2, 3\]"),
        ("train", [], r"levels \[\]"),
        ("valid", [1], "'valid'"),
    ):
        with pytest.raises(UserError, match=problem):
            shop_tasks(split, count=1, levels=levels)
