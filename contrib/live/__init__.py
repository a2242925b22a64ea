"""A training run that goes on: what it does now, and actions on it."""
