"""Repositories with a bug: small Python packages that are made on the spot, with their tests."""
