"""The Berkeley Function Calling Leaderboard, of the package bfcl-eval."""
