"""Policies and agents: vLLM, scripted. Nothing heavy is imported here."""
