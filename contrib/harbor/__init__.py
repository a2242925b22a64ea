"""Tasks in Harbor's format: folders with task.toml, instruction.md, environment/, tests/ and solution/."""
