"""Actors for a training loop of your own, with the names that torchforge's apps use."""
