"""Functions over lists of whole numbers."""

from __future__ import annotations

from envs.bug_fix.part import Part

PARTS = (
    Part(
        name="every",
        takes="numbers",
        gives="numbers",
        about="Return the first of the numbers, and then every {n}th after it.",
        body="return numbers[::{n}]",
        faults=(("[::{n}]", "[1::{n}]"), ("[::{n}]", "[:{n}]"), ("numbers[::{n}]", "numbers[{n}::{n}]")),
        numbers=range(2, 6),
    ),
    Part(
        name="clip",
        takes="numbers",
        gives="numbers",
        about="Return the numbers, each below 0 as 0 and each above {n} as {n}.",
        body="return [min(max(number, 0), {n}) for number in numbers]",
        faults=(
            ("max(number, 0)", "number"),
            ("max(number, 0)", "abs(number)"),
            (", {n})", ", {n} - 1)"),
            ("min(max(number, 0), {n})", "max(number, 0)"),
        ),
        numbers=range(4, 11),
    ),
    Part(
        name="totals",
        takes="numbers",
        gives="numbers",
        about="Return the running total after each number; the total begins at {n}.",
        body="""
total = {n}
result = []
for number in numbers:
    total += number
    result.append(total)
return result
""",
        faults=(
            ("total = {n}", "total = 0"),
            ("total += number", "total = number"),
            ("total += number", "total -= number"),
            ("append(total)", "append(total + number)"),
        ),
        numbers=range(1, 30),
    ),
    Part(
        name="windows",
        takes="numbers",
        gives="numbers",
        about="Return the sum of each {n} neighbours, from left to right.",
        body="return [sum(numbers[at : at + {n}]) for at in range(len(numbers) - {n} + 1)]",
        faults=(
            ("- {n} + 1)", "- {n})"),
            ("- {n} + 1)", ")"),
            ("at + {n}]", "at + {n} + 1]"),
            ("[at : at", "[at + 1 : at"),
        ),
        numbers=range(2, 5),
    ),
    Part(
        name="changes",
        takes="numbers",
        gives="numbers",
        about="Return each number less the one {n} places before it, from the first that has one.",
        body="return [numbers[at] - numbers[at - {n}] for at in range({n}, len(numbers))]",
        faults=(
            ("numbers[at] - numbers[at - {n}]", "numbers[at - {n}] - numbers[at]"),
            ("range({n},", "range(0,"),
            ("range({n},", "range({n} + 1,"),
            ("[at - {n}]", "[at - 1]"),
        ),
        numbers=range(2, 5),
    ),
    Part(
        name="recent",
        takes="numbers",
        gives="numbers",
        about="Return the numbers without each that is among the last {n} that were kept.",
        body="""
result = []
for number in numbers:
    if number not in result[-{n}:]:
        result.append(number)
return result
""",
        faults=(
            ("result[-{n}:]", "result"),
            ("result[-{n}:]", "result[:{n}]"),
            ("result[-{n}:]", "numbers[-{n}:]"),
            ("result[-{n}:]", "result[-1:]"),
        ),
        numbers=range(2, 5),
    ),
    Part(
        name="floors",
        takes="numbers",
        gives="numbers",
        about="Return each number rounded down to a multiple of {n}.",
        body="return [number - number % {n} for number in numbers]",
        faults=(
            ("number - number", "number + number"),
            ("number - number % {n}", "number // {n}"),
            ("number - number % {n}", "int(number / {n}) * {n}"),
            ("number % {n}", "number % ({n} - 1)"),
        ),
        numbers=range(3, 8),
    ),
    Part(
        name="rotate",
        takes="numbers",
        gives="numbers",
        about="Return the numbers turned left by {n} places, as often around as it takes.",
        body="""
if not numbers:
    return []
at = {n} % len(numbers)
return numbers[at:] + numbers[:at]
""",
        faults=(
            ("at = {n} % len(numbers)", "at = {n}"),
            ("numbers[at:] + numbers[:at]", "numbers[-at:] + numbers[:-at]"),
            ("numbers[:at]", "numbers[: at - 1]"),
        ),
        numbers=range(2, 7),
    ),
    Part(
        name="fill",
        takes="numbers",
        gives="numbers",
        about="Return the numbers, each below 0 replaced by the last before it that is not; at the beginning by {n}.",
        body="""
last = {n}
result = []
for number in numbers:
    if number >= 0:
        last = number
    result.append(last)
return result
""",
        faults=(
            ("number >= 0", "number > 0"),
            ("last = {n}", "last = 0"),
            ("append(last)", "append(abs(number))"),
            ("number >= 0", "number <= 0"),
        ),
        numbers=range(1, 20),
    ),
    Part(
        name="longest",
        takes="numbers",
        gives="number",
        about="Return the length of the longest run of numbers that are above {n}.",
        body="""
best = run = 0
for number in numbers:
    run = run + 1 if number > {n} else 0
    best = max(best, run)
return best
""",
        faults=(
            ("number > {n}", "number >= {n}"),
            ("else 0", "else run"),
            ("max(best, run)", "run"),
            ("best = run = 0", "best = run = 1"),
        ),
        numbers=range(6),
    ),
    Part(
        name="weigh",
        takes="numbers",
        gives="number",
        about="Return the sum of the numbers, each times its weight: 1, 2, .., {n}, then from 1 again.",
        body="return sum(number * (at % {n} + 1) for at, number in enumerate(numbers))",
        faults=(
            ("at % {n} + 1", "at % {n}"),
            ("at % {n} + 1", "(at + 1) % {n}"),
            ("at % {n} + 1", "at % ({n} + 1) + 1"),
            ("at % {n} + 1", "at + 1"),
        ),
        numbers=range(3, 7),
    ),
    Part(
        name="inversions",
        takes="numbers",
        gives="number",
        about="Return how many pairs of numbers there are whose first is more than {n} above its second.",
        body="""
count = 0
for at, first in enumerate(numbers):
    for second in numbers[at + 1 :]:
        if first - second > {n}:
            count += 1
return count
""",
        faults=(
            ("first - second > {n}", "first - second >= {n}"),
            ("first - second > {n}", "abs(first - second) > {n}"),
            ("numbers[at + 1 :]", "numbers[at + 1 : at + 2]"),
            ("numbers[at + 1 :]", "numbers"),
        ),
        numbers=range(1, 6),
    ),
    Part(
        name="checksum",
        takes="numbers",
        gives="number",
        about="Return the remainder by {n} of the numbers as digits to the base 31.",
        body="""
total = 0
for number in numbers:
    total = (total * 31 + number) % {n}
return total
""",
        faults=(
            ("(total * 31 + number)", "(total + number)"),
            ("(total * 31 + number)", "(total * 31 - number)"),
            ("(total * 31 + number) % {n}", "total * 31 + number % {n}"),
            ("total = 0", "total = 1"),
        ),
        numbers=range(50, 99),
    ),
    Part(
        name="quantile",
        takes="numbers",
        gives="number",
        about="Return the number that {n} percent of the sorted numbers stand before, and 0 of no numbers.",
        body="""
ordered = sorted(numbers)
if not ordered:
    return 0
return ordered[len(ordered) * {n} // 100]
""",
        faults=(
            ("sorted(numbers)", "numbers"),
            ("len(ordered) * {n} // 100", "(len(ordered) - 1) * {n} // 100"),
            ("sorted(numbers)", "sorted(numbers, reverse=True)"),
            ("sorted(numbers)", "sorted(set(numbers))"),
        ),
        numbers=range(20, 90, 5),
    ),
)
