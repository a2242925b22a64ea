"""Environments that speak the OpenEnv protocol, `openenv:URL_OR_IMAGE`."""
