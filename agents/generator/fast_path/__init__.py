"""Patches of vLLM's engine that save its thread time, see `agents.generator.fast_path.install`."""
