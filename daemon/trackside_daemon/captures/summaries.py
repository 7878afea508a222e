"""The summary of a capture by its kind: as JSON, and as text."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trackside_daemon.captures import layers, memory, stacks
from trackside_daemon.captures.hang import summary as hang_summary
from trackside_daemon.captures.summary import summarize as profiles
from trackside_daemon.captures.summary.report import text as profile_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trackside_daemon.model.capture import Capture

    Summarize = Callable[[Capture, Mapping[int, Path]], dict[str, Any]]

DIFFERENCES = 8  # lines about changes since the reference


@contextmanager
def summarizing(capture: Capture, world_size: Callable[[str], int | None], memory: int) -> Iterator[Summarize]:
    """Yield a function that returns the summary of files by rank, and blocks until then.

    Args:
        capture: The capture that begins. The process that summarises profiles starts at once.
        world_size: Returns the number of ranks of a run, by its id; None if it is not known.
        memory: Most bytes that the process uses.
    """
    if capture.kind != "profile":
        yield summarize
        return
    with profiles.started(memory) as worker:

        def summarize_profile(capture: Capture, files: Mapping[int, Path]) -> dict[str, Any]:
            if capture.kind != "profile":  # nothing could be profiled
                return summarize(capture, files)
            return profiles.summarize(worker, files, capture.options.steps, world_size(capture.run))

        yield summarize_profile


def summarize(capture: Capture, files: Mapping[int, Path]) -> dict[str, Any]:
    """Return the summary of files by rank, of a capture which is no profile."""
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
