"""Models that a run can begin with: the tiny model, folders, and models with known sizes."""
