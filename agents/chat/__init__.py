"""Agents behind an OpenAI-compatible chat endpoint, and the judge that asks one."""
