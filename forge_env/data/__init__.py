"""Rows of data: the one reader of files and of datasets of the hub, for tasks and for supervised training.

rows.py: `open_data`, the way in. row.py: what a row is, the count of those that cannot be used, and the tasks
made of rows. text_files.py: JSON lines, JSON and CSV. tables.py: parquet files and the hub.
"""
