"""From the command line and config files to the config of a run, and --help."""
