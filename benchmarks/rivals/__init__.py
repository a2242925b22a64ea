"""Rollouts, code runs and one training run of other libraries, beside ours: `python -m benchmarks.rivals`."""
