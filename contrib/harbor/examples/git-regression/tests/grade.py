"""A regression in a repository."""

import calls
import judge

CASES = (
    ("Hello, World", "hello-world"),
    ("Version 2.10", "version-2-10"),
    ("a -- b", "a-b"),
    ("one two three four five six", "one-two-three-four-f"),
    ("one two three four 5 six", "one-two-three-four-5"),
    ("end!", "end"),
)
values = calls.call("/app/text.py", "slug", [[text] for text, _ in CASES])
judge.reward(values == [[expected] for _, expected in CASES])
