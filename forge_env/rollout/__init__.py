"""Playing an episode: an environment is made, an agent acts in it, and an Episode is left."""
