"""The trajectory viewer: shows the files of runs in a browser (`forge-env view`).

`viewed_run` is one run with its files, its index and its searches, `views` what each page shows of it. `library` keeps
several runs up to date; `server` and `export` show them by the `page`, which is made of static/.
"""
