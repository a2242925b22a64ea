"""Logs of other programs as Episodes of kind text: `forge-env import`."""
