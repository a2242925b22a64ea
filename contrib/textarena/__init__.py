"""TextArena's games as environments, `textarena:ID`. The package runs in a helper process."""
