"""Agents behind an OpenAI-compatible chat endpoint."""
