"""Environments on other machines: the protocol, and its client, which is an environment like others."""
