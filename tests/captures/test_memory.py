"""Snapshots of memory: what a rank sends, its mappings, and what grew."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from scripted_recorder import answering

from trackside.wire import AllocationSite, Allocator, MemorySnapshot
from trackside_daemon.captures.kinds.memory import MemoryCaptures, read_mappings
from trackside_daemon.model.capture import Capture, RankAnswer
from trackside_daemon.model.rank_process import RankProcess

if TYPE_CHECKING:
    from typing import Any

MIB = 1 << 20
CAPTURE = Capture("1", "id-1", 0, "memory", "person", 1.0)
STACK = [
    "/venv/lib/python3.11/site-packages/torch/nn.py:3 forward",
    "/home/me/train.py:12 step",
    "/home/me/train.py:30 main",
]


def snapshot(size: int) -> MemorySnapshot:
    sites = [AllocationSite(STACK, size, 3), AllocationSite([], MIB, 1)]
    return MemorySnapshot([Allocator("cuda:0", size + MIB, 2 * size, sites)], ["ValueError: too many traces"])


def recorded(tmp_path: Path, *answers: RankAnswer, pid: int = 0) -> dict[str, Any]:
    """Return the summary of ranks 0 and 1, or their reasons."""
    processes = [RankProcess("train", "id-1", 0, 1, 1, "", pid)]
    recorder = MemoryCaptures(answering(*answers), lambda: processes, Path("/proc"))
    found = recorder.record(CAPTURE, [0, 1], tmp_path, threading.Event())
    files = {rank: path for rank, path in found.items() if isinstance(path, Path)}
    return {
        **MemoryCaptures.summarize(files),
        "reasons": {rank: why for rank, why in found.items() if isinstance(why, str)},
    }


def test_a_summary_has_the_largest_allocations_and_mappings_by_the_users_own_call(tmp_path: Path) -> None:
    summary = recorded(tmp_path, RankAnswer(0, 0.1, snapshot(8 * MIB)), pid=os.getpid())
    assert summary["reasons"] == {}
    (allocator,) = summary["ranks"]["0"]["allocators"]
    assert [(one["name"], one["bytes"], one["count"]) for one in allocator["sites"]] == [
        ("/home/me/train.py:12 step", 8 * MIB, 3),
        ("", MIB, 1),
    ]
    assert summary["ranks"]["1"]["allocators"] == []
    assert "[heap]" in {one["name"] for one in summary["ranks"]["1"]["mappings"]}
    lines = MemoryCaptures.text(summary)
    assert lines[:4] == [
        "rank 0, cuda:0: 9 MiB allocated of 16 MiB reserved",
        "      8 MiB in 3 x  /home/me/train.py:12 step",
        "      1 MiB in 1 x  no stack recorded yet",
        "rank 0: ValueError: too many traces",
    ]
    assert lines[4].startswith("rank 1, process: ")


def test_a_rank_that_shows_nothing_has_its_reason(tmp_path: Path) -> None:
    summary = recorded(tmp_path)
    assert summary["reasons"] == dict.fromkeys((0, 1), "its client does not answer, and its mappings cannot be read")


def test_growth_is_named_with_its_place(tmp_path: Path) -> None:
    before = recorded(tmp_path, RankAnswer(0, 0.1, snapshot(8 * MIB)))
    after = recorded(tmp_path, RankAnswer(0, 0.1, snapshot(24 * MIB)))
    assert [change["text"] for change in MemoryCaptures.difference(before, after)] == [
        "rank 0, cuda:0: /home/me/train.py:12 step 8 MiB → 24 MiB"
    ]
    assert MemoryCaptures.difference(after, before) == []


def test_the_mappings_of_this_process_sum_to_its_memory() -> None:
    rollup = Path("/proc/self/smaps_rollup").read_text().split("Pss:")[1].split()[0]
    sizes = read_mappings(Path("/proc"), os.getpid())
    assert abs(sum(sizes.values()) - int(rollup) * 1024) < 0.2 * int(rollup) * 1024
    assert read_mappings(Path("/proc"), 0) == read_mappings(Path("/none"), 1) == {}
