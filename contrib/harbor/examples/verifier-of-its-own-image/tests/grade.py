"""A verifier with an image of its own."""

import judge

primes = [number for number in range(2, 200) if all(number % divisor for divisor in range(2, number))]
judge.reward(judge.read("/app/primes.txt").split("\n") == [*map(str, primes), ""])
