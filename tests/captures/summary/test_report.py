"""The text of a summary: short, aligned and safe on a terminal."""

from __future__ import annotations

from typing import Any

from captures.summary.traces import Writer, capture, healthy

from trackside_daemon.captures.kinds.profile import LINES, Profiles


def test_a_profile_fits_into_forty_lines() -> None:
    more: dict[str, Any] = {f"op{index}": 0.1 for index in range(60)}
    writers = [healthy(seed, **more) for seed in range(12)]
    summary = capture(*writers) | {"failed": {str(rank): "it ended" for rank in range(12, 40)}}
    lines = Profiles.text(summary)
    assert len(lines) <= LINES
    assert lines[0] == "rank 12: it ended"
    assert any(line.startswith("bottleneck: compute: ") for line in lines)
    assert any("aten::mm" in line for line in lines)


def test_one_rank_is_shown_with_its_parts_and_operators() -> None:
    lines = Profiles.text(capture(healthy(1, noise=0.0)))
    assert lines[0].startswith("bottleneck: compute: 7.3 ms of 8.8 ms a step; most in aten::mm 4 ms")
    assert lines[3].split() == ["rank", "0", "8.8", "7.4", "0", "0", "0", "0.3", "1.1", "0"]
    assert lines[6].split() == ["45.5", "%", "cpu", "4", "ms", "1", "x", "aten::mm", "[64,128]", "[128,64]"]


def test_unprintable_names_are_escaped() -> None:
    writer = Writer(100.0)
    for _ in range(11):
        writer.call("aten::\x1b[2J\n", 3000.0)
        writer.optimizer()
    assert all(line.isprintable() for line in Profiles.text(capture(writer)))


def test_a_capture_without_traces_gives_its_reasons() -> None:
    assert Profiles.text(capture() | {"failed": {"3": "the trace is empty"}}) == ["rank 3: the trace is empty"]
