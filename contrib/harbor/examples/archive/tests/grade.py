"""A tar archive of certain files."""

import tarfile

import judge

EXPECTED = {"data/a.csv": b"1,2\n", "data/sub/b.csv": b"3,4\n"}
entries = {}
try:
    with tarfile.open("/app/tables.tar.gz", "r:gz") as archive:
        for member in archive.getmembers()[:10]:
            is_small = member.isreg() and member.size < 1000
            entries[member.name.removeprefix("./")] = archive.extractfile(member).read() if is_small else None
except (OSError, tarfile.TarError, EOFError):
    pass
judge.reward(entries == EXPECTED)
