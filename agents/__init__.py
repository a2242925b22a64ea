"""Policies and agents: vLLM, chat endpoints, scripted. Nothing heavy is imported here."""

from forge_env.former_paths import accept_former_paths

accept_former_paths()
