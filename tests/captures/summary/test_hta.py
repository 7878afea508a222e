"""HTA's own parser opens our traces (`make soak` installs it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from captures.summary.traces import healthy, summarized
from processes import require

if TYPE_CHECKING:
    from pathlib import Path

require("hta")


@pytest.mark.filterwarnings("ignore")  # of its own
def test_hta_reads_ranks_and_steps_of_a_capture(tmp_path: Path) -> None:
    from hta.common.trace import Trace

    files = {rank: tmp_path / f"trace_{rank}_7.json" for rank in (0, 3)}
    for rank, path in files.items():
        path.write_bytes(healthy(rank, steps=12).text())
    assert summarized(files, 5, world_size=8)["failed"] == {}
    trace = Trace(trace_dir=str(tmp_path))
    trace.parse_traces(use_multiprocessing=False)
    trace.decode_symbol_ids()
    assert sorted(trace.get_ranks()) == [0, 3]
    assert sorted(trace.get_iterations()) == [0, 1, 2, 3, 4]
    for events in trace.traces.values():
        assert events["s_name"].str.startswith("ProfilerStep#").sum() == 5
        assert (events["s_name"] == "aten::mm").sum() == 5
