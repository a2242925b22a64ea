"""Mutation testing: a table of mistakes, and what tries them. `python -m benchmarks.mutants` runs it."""
