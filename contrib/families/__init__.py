"""Families of models with parts of their own: gpt-oss and Qwen3.5."""
