"""Environments of forge_env as environments of Gymnasium, by id."""
