"""Images: where the root file systems of workspaces come from, unpacked once into a cache."""
