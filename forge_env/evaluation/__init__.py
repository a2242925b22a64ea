"""Evaluation of an agent: its plan, its folder, its results, and the comparison of two."""
