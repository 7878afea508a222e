"""`trackside benchmark --watch`: each good checkpoint is measured, and one that is worse than the first raises an alert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trackside.benchmark.messages import LATENCY, Finding, Load, Request, Spec
from trackside.benchmark.results import REGRESSION, Measured
from trackside_daemon.cli.benchmark import watching
from trackside_daemon.cli.sources.errors import SourceError
from trackside_daemon.questions import table as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class Daemon:
    """The daemon's answers, one list of checkpoints after the other, until the run ends."""

    def __init__(self, listed: Sequence[Sequence[dict[str, Any]]], outages: int = 0) -> None:
        self._listed = list(listed)
        self._outages = outages

    def ask(self, question: Any) -> dict[str, Any]:
        return self.run() if isinstance(question, questions.Run) else self.checkpoints()

    def run(self) -> dict[str, Any]:
        return {"state": "running" if self._listed else "finished", "ended": None if self._listed else 0.0}

    def checkpoints(self) -> dict[str, Any]:
        if self._outages:
            self._outages -= 1
            raise SourceError("the daemon does not answer")
        return {"checkpoints": self._listed.pop(0) if self._listed else []}


class Recorded:
    """A run that keeps what it receives."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.steps: list[int] = []

    def push(self, _values: dict[str, float], *, step: int) -> None:
        self.steps.append(step)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def summary(self, _values: dict[str, Any]) -> None:
        pass


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The duration of a call of each checkpoint, by the name of its file."""
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.0)
    return {}


def measuring(durations: dict[str, float]) -> Callable[[Request], tuple[Measured, str]]:
    def measure(request: Request) -> tuple[Measured, str]:
        assert request.polite
        measured = Measured([spec.name for spec in request.specs])
        measured.begin()
        for number in range(40):
            values = {spec.name: durations[spec.checkpoint.rpartition("/")[2]] for spec in request.specs}
            noise = 1 + 0.01 * (number % 3)
            rounds = [{name: {LATENCY: [value * noise]} for name, value in values.items()}]
            measured.add(Finding(Load(), rounds))
        return measured, ""

    return measure


def checkpoint(place: Path, step: int, **more: Any) -> dict[str, Any]:
    path = place / f"{step}.pt"
    path.touch()
    return {
        "path": str(path),
        "step": step,
        "time": step,
        "good": True,
        "state": "complete",
        "fingerprint": f"{step}",
        **more,
    }


def test_a_slower_checkpoint_is_reported_once_and_damaged_ones_are_left_out(
    seconds: dict[str, float], tmp_path: Path
) -> None:
    first, second, damaged, third = (checkpoint(tmp_path, step) for step in (10, 20, 25, 30))
    damaged["good"] = False
    seconds |= {"10.pt": 0.01, "20.pt": 0.0101, "30.pt": 0.012}
    daemon = Daemon([[], [first], [first], [first, second], [first, second, damaged], [first, second, damaged, third]])
    run, request = Recorded(), Request("measure", [Spec("original", "m:f")], [Load()])
    lines = list(watching.watch(daemon, "run", request, run, measuring(seconds)))  # type: ignore[arg-type]
    assert run.steps == [10, 20, 30]
    assert [line.partition(":")[2].split("(")[0].strip() for line in lines[:2]] == ["as before", "as before"]
    [event] = [fields for kind, fields in run.events if kind == REGRESSION]
    assert event["title"].startswith("checkpoint of step 30: 1.2 to 1.2 times slower than the first checkpoint")
    assert event["text"] == third["path"]


def test_of_checkpoints_that_appear_together_the_newest_is_measured_and_outages_are_waited_for(
    seconds: dict[str, float], tmp_path: Path
) -> None:
    several = [checkpoint(tmp_path, step) for step in (10, 20)]
    seconds |= {"20.pt": 0.01}
    run, request = Recorded(), Request("measure", [Spec("original", "m:f")], [Load()])
    list(watching.watch(Daemon([several], outages=2), "run", request, run, measuring(seconds)))  # type: ignore[arg-type]
    assert run.steps == [20]


def test_the_last_checkpoint_is_waited_for_after_the_end(seconds: dict[str, float], tmp_path: Path) -> None:
    class Ended(Daemon):
        """A run that has ended."""

        def run(self) -> dict[str, Any]:
            return {"state": "finished", "ended": 0.0}

    last = checkpoint(tmp_path, 10)
    seconds |= {"10.pt": 0.01}
    read = [{**last, "state": "writing", "good": False}]
    run, request = Recorded(), Request("measure", [Spec("original", "m:f")], [Load()])
    list(watching.watch(Ended([read, read, [last]]), "run", request, run, measuring(seconds)))  # type: ignore[arg-type]
    assert run.steps == [10]


def test_less_agreement_counts_only_beyond_both_intervals() -> None:
    def top1(value: float, half: float) -> dict[str, Any]:
        return {"top1": {"value": value, "low": value - half, "high": value + half}}

    assert not list(watching.disagreement("int8", top1(0.95, 0.02), top1(0.92, 0.02)))
    [text] = watching.disagreement("int8", top1(0.95, 0.02), top1(0.8, 0.02))
    assert text == "int8 disagrees more: top1 0.8 after 0.95"
    assert not list(watching.disagreement("int8", top1(0.95, 0.02), {}))
