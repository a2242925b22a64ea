"""The sections of a run's settings, one file for each part of the trainer that uses them."""
