"""A program that sorts lines."""

import judge
import programs

CASES = (
    ("pear\nfig\n\napple\ndate\n", "fig\ndate\npear\napple\n"),
    ("bb\naa\nb\na\n", "a\nb\naa\nbb\n"),
    ("", ""),
    ("a b\nab\n\n\n", "ab\na b\n"),
)
results = [programs.run("python3", "-I", "/app/sort_lines.py", stdin=text) for text, _ in CASES]
judge.reward(results == [(0, expected) for _, expected in CASES])
