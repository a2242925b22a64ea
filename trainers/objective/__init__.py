"""What is optimised: advantages, losses and their parts, and the plug-ins of a user."""
