"""Helpers: atomic files, digests, deadlines, threads, statistics, "module:Class" strings."""
