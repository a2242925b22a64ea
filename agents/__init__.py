"""Policies and agents: vLLM, chat endpoints, scripted. Nothing heavy is imported here."""
