"""Processes that environments start, none of which outlives its owner. `guard` runs a program of the user."""
