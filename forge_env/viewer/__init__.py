"""The trajectory viewer: what runs have left on disk, in a browser (`forge-env view`).

folder.py     which runs there are, and which files each has
row.py        what the index keeps of a line
scan.py       lines of a file to rows, in several processes where there is much to read
index.py      the rows on disk, which follow files that grow, shrink or go
query.py      pages of episodes and groups, faults
search.py     text in episodes
record.py     one episode, whole, as it is shown; tokens.py the text of its tokens
series.py     curves; spans.py the timeline
library.py    all of these for several runs: what the page may ask for
server.py     the same over HTTP, for one person; export.py the same in one file
page.py       the page itself, made of static/
"""
