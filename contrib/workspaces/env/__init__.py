"""Environments in which the model works in a workspace: a file system from an image, with a shell and files."""
