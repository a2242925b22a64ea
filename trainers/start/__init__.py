"""What happens before a run starts: its options, the checks of them, and the plan that --dry-run prints."""
