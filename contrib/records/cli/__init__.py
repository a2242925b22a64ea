"""Its commands of `forge-env`."""
