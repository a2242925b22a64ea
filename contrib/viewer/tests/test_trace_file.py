"""A timeline that a run still writes is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrib.viewer.trace_file import TraceFile


@pytest.mark.parametrize("torn", ["", ',{"pid": 1, "name": "half', ',{"pid": 1, "name": "' + "half" * 999])
def test_each_span_is_seen_when_it_has_ended_also_behind_a_torn_one(tmp_path: Path, torn: str) -> None:
    Timeline = pytest.importorskip("contrib.observe.timeline").Timeline
    path = tmp_path / "trace.json"
    followed = TraceFile(path)
    for name in ("before", "after"):
        timeline = Timeline(tmp_path)
        with timeline.span("training", name, {}):
            pass
        assert followed.update() and [span[3] for span in followed.read_spans(None, None)["spans"]][-1] == name
        timeline.close()
        if torn:  # what a full disk leaves
            path.write_text(path.read_text().removesuffix("]") + torn)
