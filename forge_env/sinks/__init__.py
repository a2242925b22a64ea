"""Where the metrics and episodes of a run or an evaluation go, beside its own files."""
