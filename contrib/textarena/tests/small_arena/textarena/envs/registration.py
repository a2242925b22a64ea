ENV_REGISTRY: dict[str, object] = {}
