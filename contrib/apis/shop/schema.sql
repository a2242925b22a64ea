CREATE TABLE shop (id INTEGER PRIMARY KEY, today TEXT NOT NULL, refund_days INTEGER NOT NULL);
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL,
    address TEXT NOT NULL);
CREATE TABLE products (sku TEXT PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price_cents INTEGER NOT NULL,
    stock INTEGER NOT NULL CHECK (stock >= 0)) WITHOUT ROWID;
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL,
    placed_on TEXT NOT NULL, delivered_on TEXT);
CREATE TABLE order_items (order_id INTEGER NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL,
    unit_cents INTEGER NOT NULL, refunded INTEGER NOT NULL CHECK (refunded BETWEEN 0 AND quantity),
    PRIMARY KEY (order_id, sku)) WITHOUT ROWID;
CREATE TABLE replies (idempotency_key TEXT PRIMARY KEY, request TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
