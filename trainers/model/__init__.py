"""Models that a run can begin with: the tiny model, folders, and the sizes that are known by name."""
