"""The trajectory viewer: shows the files of runs in a browser (`forge-env view`).

Read from the files of a run:
    stored_runs.py     the runs in a folder, and the files of each
    index_row.py       the row of the index for one line of a file
    scan.py            reads the lines of a file into rows, in several processes
    index.py           the index: keeps the rows in SQLite and follows the files
    query.py           lists of episodes and groups from the index; summaries.py faults and evaluations
    search.py          text search in episodes
    episode_detail.py  one episode with all that its page shows; token_text.py the text of its tokens
    metrics_file.py    curves; trace_file.py the timeline; console_files.py console and logs
    file_follower.py   reads new lines of a growing file; lenient_json.py parses what models write

Shown:
    viewed_run.py      one run: its files, index and searches
    views.py           what each page of a run shows
    library.py         several runs, kept up to date
    page.py            the page itself, made of static/
    server.py          the page over HTTP; export.py the page as one file
"""
