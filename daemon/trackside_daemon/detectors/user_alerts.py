"""Pass on alerts of ``run.alert``, at most one a minute per run."""

from collections.abc import Iterator

from trackside_daemon.detectors.run_view import RunClock
from trackside_daemon.model.finding import Finding, severity_of
from trackside_daemon.model.recent import Recent
from trackside_daemon.model.records import Event

APART = 60.0  # Seconds between two alerts of a run. Those in between are only counted.
OLD = 900.0  # age in seconds above which a late alert is not reported

TITLE, TEXT = 200, 4000  # characters kept of title and text

RUNS = 512  # runs that are remembered


class UserAlerts:
    """`UserAlert`. Title and text are for people and never become labels."""

    def __init__(self) -> None:
        self._last = Recent[str, float](RUNS)
        self._left_out = Recent[str, int](RUNS)

    def evaluate(self, event: Event, name: str, clock: RunClock) -> Iterator[Finding]:
        """Yield the finding for an alert event of the run called *name*, unless it comes too soon after another."""
        if clock.now and clock.now - event.time > OLD:
            return
        last = self._last.get(event.run)
        if last is not None and clock.at - last < APART:
            self._left_out[event.run] = self._left_out.get(event.run, 0) + 1
            return
        self._last[event.run] = clock.at
        yield self._finding(event, name, clock)

    def _finding(self, event: Event, name: str, clock: RunClock) -> Finding:
        rank = str(event.rank or 0)
        left_out = self._left_out.pop(event.run, 0)
        more = (
            f"{left_out} more alerts arrived within the minute before and are in the history only." if left_out else ""
        )
        step = "" if event.step is None else f" at step {event.step}"
        source = f"Raised by rank {rank} of run {name}{step}."
        text = "\n".join(filter(None, (_cut(str(event.fields.get("text", "")), TEXT), source, more)))
        labels = (("rank", rank), ("run", name))
        title = _cut(str(event.fields.get("title", "")), TITLE) or "an alert without a title"
        severity = severity_of(event.fields.get("severity"))
        return Finding("UserAlert", severity, labels, event.time or clock.now, title, text, once=True, run=event.run)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
