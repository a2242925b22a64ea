"""One training run: its folder, its services and actors, warm-up and evaluations."""
