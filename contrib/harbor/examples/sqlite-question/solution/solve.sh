#!/bin/sh
set -e
cd /app
python3 - <<'END' > names.txt
import sqlite3
question = "select name from customers join orders on customer = id group by id having sum(cents) > 5000 order by name"
for (name,) in sqlite3.connect("shop.db").execute(question):
    print(name)
END
