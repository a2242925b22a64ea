import sqlite3
import sys

CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eve")
with sqlite3.connect(sys.argv[1]) as db:
    db.execute("create table customers (id integer, name text)")
    db.execute("create table orders (customer integer, cents integer)")
    db.executemany("insert into customers values (?, ?)", enumerate(CUSTOMERS))
    orders = [(0, 3000), (0, 2100), (1, 5000), (2, 9000), (3, 100), (4, 2500), (4, 2500), (4, 1)]
    db.executemany("insert into orders values (?, ?)", orders)
