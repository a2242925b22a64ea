"""Benchmarks that others wrote, as environments: bfcl, agentdojo, humaneval.

The code and data of a suite stay in its package, which may be in an environment of its own: `catalogue` finds or makes
it, and `process` runs a library file in it.
"""
