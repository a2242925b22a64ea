"""Servers that let other machines use what is here: an environment over HTTP."""
