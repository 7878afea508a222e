"""All kinds of captures by their names, and the text of a capture."""

from trackside_daemon.captures.kinds.flight_recorder import FlightRecorder
from trackside_daemon.captures.kinds.kind import CaptureKind
from trackside_daemon.captures.kinds.layers import Layers
from trackside_daemon.captures.kinds.memory import MemoryCaptures
from trackside_daemon.captures.kinds.modules import Modules
from trackside_daemon.captures.kinds.profile import Profiles
from trackside_daemon.captures.kinds.stacks import StackCaptures
from trackside_daemon.model.capture import Capture

BY_NAME: dict[str, type[CaptureKind]] = {
    kind.name: kind for kind in (Profiles, StackCaptures, FlightRecorder, MemoryCaptures, Layers, Modules)
}
DIFFERENCES = 8  # lines about changes since the reference


def text(capture: Capture) -> list[str]:
    """Return a capture for people, in at most 50 lines."""
    lines = [f"{capture.kind} {capture.id} of run {capture.run}: {capture.state}"]
    if capture.reason:
        lines.append(capture.reason)
    if "ranks" in capture.summary:
        try:
            changes = capture.summary.get("difference", ())
            lines += [f"changed: {change['text']}" for change in changes[:DIFFERENCES]]
            lines += BY_NAME[capture.kind].text(capture.summary)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # of an imported file
            lines.append("its summary has another form than those of this version")
    return lines
