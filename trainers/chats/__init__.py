"""Rows for supervised training: from chat data sets and recorded Episodes to what the trainer takes."""
