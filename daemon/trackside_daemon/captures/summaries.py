"""The summary of a capture by its kind: as JSON, and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.captures import layers, memory, stacks
from trackside_daemon.captures.hang import summary as hang_summary
from trackside_daemon.captures.summary.report import text as profile_text
from trackside_daemon.captures.summary.summarize import summarize as summarize_profile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trackside_daemon.model.capture import Capture

DIFFERENCES = 8  # lines about changes since the reference


def summarize(capture: Capture, files: Mapping[int, Path], world_size: int | None = None) -> dict[str, Any]:
    """Return the summary of files by rank, which a worker process makes for profiles; it blocks until then."""
    if capture.kind == "profile":
        return summarize_profile(files, capture.options.steps, world_size)
    makers = {
        "stacks": stacks.summarize,
        "flight_recorder": hang_summary.summarize,
        "memory": memory.summarize,
        "layers": layers.summarize,
    }
    return makers[capture.kind](files)


def text(capture: Capture) -> list[str]:
    """Return a capture for people, in at most 50 lines."""
    lines = [f"{capture.kind} {capture.id} of run {capture.run}: {capture.state}"]
    if capture.reason:
        lines.append(capture.reason)
    if "ranks" in capture.summary:
        makers = {
            "profile": profile_text,
            "stacks": stacks.text,
            "flight_recorder": hang_summary.text,
            "memory": memory.text,
            "layers": layers.text,
        }
        try:
            changes = capture.summary.get("difference", ())
            lines += [f"changed: {change['text']}" for change in changes[:DIFFERENCES]]
            lines += makers[capture.kind](capture.summary)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # of an imported file
            lines.append("its summary has another form than those of this version")
    return lines
