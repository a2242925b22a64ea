"""Records as other programs read them: `forge-env export`."""
