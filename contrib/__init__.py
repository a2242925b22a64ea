"""What stands beside the heart, a folder each; `rm -r` of one takes away what it adds, and nothing else needs it."""
