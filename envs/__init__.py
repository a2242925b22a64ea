"""The environments that ship. Nothing heavy is imported here."""
