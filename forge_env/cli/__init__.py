"""The command line, `forge-env`: one file for each command or pair of commands."""
