"""A program that reads its environment."""

import os

import judge
import programs

other = os.environ["OTHER_PORT"]
CASES = (
    ({}, (0, "localhost:8080\n")),
    ({"APP_HOST": "example.org"}, (0, "example.org:8080\n")),
    ({"APP_PORT": other}, (0, f"localhost:{other}\n")),
    ({"APP_PORT": "0"}, (1, "")),
    ({"APP_PORT": "x"}, (1, "")),
    ({"APP_PORT": "65536"}, (1, "")),
)
results = [programs.run("python3", "-I", "/app/settings.py", env=env) for env, _ in CASES]
judge.reward(results == [expected for _, expected in CASES])
