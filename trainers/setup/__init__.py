"""From the command line to a checked config and its plan; nothing is started here."""
