"""What a run writes down of itself, and who else hears of it."""
