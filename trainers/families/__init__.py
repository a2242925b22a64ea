"""The model families that can be trained; table.py lists them."""
