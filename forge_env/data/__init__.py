"""Rows of data: the one reader of files and of datasets of the hub, for tasks and for supervised training.

rows.py: `open_data`, the way in. row.py: what a row is, and the count of those that cannot be used. text_files.py: JSON
lines, JSON and CSV. tables.py: parquet files and the hub. tasks.py: tasks that were made of rows.
"""
