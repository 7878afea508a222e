"""Summaries in worker processes: real files, broken files and bombs."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from captures.summary.traces import Writer, healthy, summarized

from trackside_daemon.captures.summary import __main__ as worker
from trackside_daemon.captures.summary.request import SummaryRequest
from trackside_daemon.captures.summary.trace import TEXT_BYTES, TraceError, decode, read_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def written(path: Path, writer: Writer, **fields: Any) -> Path:
    path.write_bytes(writer.text(**fields))
    return path


def test_two_ranks_are_cut_to_the_same_steps_and_marked(tmp_path: Path) -> None:
    late = healthy(1, steps=20, noise=0.0)
    for event in late.events[1:]:
        event["ts"] += 4000.0  # less than half a step
    files = {0: written(tmp_path / "a.json", healthy(0, steps=20, noise=0.0)), 3: written(tmp_path / "b.json", late)}
    summary = summarized(files, 5, world_size=8)
    assert summary["failed"] == {}
    assert summary["files"] == {"0": "a.json.gz", "3": "b.json.gz"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz"]
    assert [len(rank["steps"]) for rank in summary["ranks"].values()] == [5, 5]
    assert summary["bottleneck"]["class"] == "compute"
    traces = [json.loads(gzip.decompress((tmp_path / name).read_bytes())) for name in summary["files"].values()]
    assert [one["distributedInfo"] for one in traces] == [
        {"backend": "", "rank": rank, "world_size": 8} for rank in (0, 3)
    ]
    marks = [[one for one in each["traceEvents"] if one["name"].startswith("ProfilerStep#")] for each in traces]
    assert [mark["name"] for mark in marks[0]] == [f"ProfilerStep#{index}" for index in range(5)]
    assert marks[1][0]["ts"] - marks[0][0]["ts"] == pytest.approx(4000)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in summary["files"].values()} == {0o600}


def test_a_file_that_cannot_be_summarised_costs_only_itself(tmp_path: Path) -> None:
    files = {0: tmp_path / "missing.json", 1: written(tmp_path / "b.json", healthy())}
    summary = summarized(files, 10)
    assert list(summary["ranks"]) == ["1"]
    assert "No such file" in summary["failed"]["0"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/nonexistent"], "it cannot be started"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "it was killed: Killed"),
        ([sys.executable, "-c", "input(); print('{\"answer\": {}}', flush=True)"], "its answer cannot be used"),
    ],
)
def test_a_process_that_fails_costs_only_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], expected: str
) -> None:
    monkeypatch.setattr("trackside_daemon.linux.worker_call.own_module", lambda *_, **__: command)
    failed = summarized({0: written(tmp_path / "a.json", healthy())}, 10)["failed"]["0"]
    assert failed.startswith(f"the process that reads traces failed: {expected}")


def reason(path: Path) -> str:
    """Return why a trace is not summarised; empty if it is."""
    try:
        worker.answer(SummaryRequest(str(path), str(path) + ".gz", {"rank": 0}, 10, None))
    except TraceError as error:
        return str(error)
    return ""


def test_a_trace_of_500_megabytes_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(500 << 20)
    assert reason(path) == f"the trace is longer than {TEXT_BYTES >> 20} MiB; record fewer steps, or no stacks"
    assert path.exists()


def test_a_bomb_of_gzip_is_refused(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    megabytes = count(8, TEXT_BYTES >> 20)
    path = tmp_path / "bomb.json.gz"
    deflate = zlib.compressobj(9, wbits=31)
    path.write_bytes(b"".join(deflate.compress(bytes(1 << 20)) for _ in range(megabytes + 1)) + deflate.flush())
    with pytest.raises(TraceError, match=f"longer than {megabytes} MiB"):
        read_text(path, megabytes << 20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "this is not a trace"),
        (b"[]", "this is not a trace"),
        (b"{}", "missing required field `traceEvents`"),
        (b'{"traceEvents": []}', "the trace is empty"),
        (b'{"traceEvents": [{"ph": "X", "ts": "soon"}]}', "this is not a trace"),
        (b'{"traceEvents": [{"ph": "X", "name": "' + b"\xff" * 9 + b'"}]}', "this is not a trace"),
        (b'{"traceEvents": ' + b"[" * 100_000, "this is not a trace"),
        (b'{"traceEvents": [], "more": ' + b"[" * 100_000, "this is not a trace"),
        (b'{"traceEvents": [{"ph": "X", "args": {"Input Dims": ' + b"[" * 100_000, "this is not a trace"),
        (b"\x1f\x8b" + bytes(20), "the trace is not complete"),
        (gzip.compress(b'{"traceEvents": []}')[:-9], "the trace is not complete"),
    ],
)
def test_broken_traces_are_refused(tmp_path: Path, text: bytes, expected: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    found = reason(path)
    assert expected in found
    assert "\n" not in found
    assert len(found) < 250


def test_hostile_shapes_are_left_out(tmp_path: Path) -> None:
    for shapes in (5, "x", {"a": 1}, [None, "y"], None):
        writer = healthy()
        for event in writer.events[1:]:
            event["args"] = {"Input Dims": shapes}
        assert reason(written(tmp_path / "trace.json", writer)) == ""


def test_events_at_times_that_cannot_be_added_up_are_left_out(tmp_path: Path) -> None:
    writer = healthy()
    writer.add("Optimizer.step#SGD.step", 1e308, 1e308, "user_annotation")
    writer.add("aten::mm", -1e308, 1e308)
    found = summarized({0: written(tmp_path / "a.json", writer), 1: written(tmp_path / "b.json", healthy())}, 5)
    assert (sorted(found["ranks"]), found["failed"]) == (["0", "1"], {})


def test_a_trace_that_has_marks_retains_its_own(tmp_path: Path) -> None:
    writer = healthy(steps=3)
    writer.add("ProfilerStep#7", 1000.0, 8000.0, "user_annotation")
    info = {"rank": 5, "backend": "nccl", "world_size": 9}
    path = written(tmp_path / "trace.json", writer, distributedInfo=info, traceName="x")
    assert reason(path) == ""
    kept = json.loads(read_text(tmp_path / "trace.json.gz"))
    assert kept["distributedInfo"] == info
    assert sum(event["name"].startswith("ProfilerStep#") for event in kept["traceEvents"]) == 1
    assert kept["traceName"] == "x"
    left = decode(json.dumps(kept).encode()).events
    assert all(event.ts < 9000.0 and event.end > 1000.0 for event in left)
    assert 1 < len(left) < len(writer.events) - 1


def test_reading_no_trace_raises(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        decode(b"5")
