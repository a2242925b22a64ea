"""Recorded episodes: exports, imports, replays, audits, new scores."""
