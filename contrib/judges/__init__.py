"""Models as judges, and simulated users."""
