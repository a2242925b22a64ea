"""Calls to actors: endpoints, the clients of services, and waiting for answers."""
