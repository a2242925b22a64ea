"""Reading what runs have left on disk: find, replay, audit and score episodes again."""
