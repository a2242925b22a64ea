"""The backend "docker": snippets run in containers that a Docker engine starts."""
