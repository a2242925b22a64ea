"""Where the metrics of a run go: one file for each sink, and what is measured of the machine."""
