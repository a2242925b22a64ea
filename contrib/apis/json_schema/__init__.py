"""JSON schemas of arguments: `from_openapi` converts them, `validation` checks a call, `sampling` draws arguments."""
