"""The real PyTorch as a rank: one process for all tests, which the last one ends."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from captures.summary.traces import summarized
from processes import DEADLINE, ROOT, clean_environ, eventually, require
from scripted_recorder import answering

from trackside.captures.kineto import BUSY, is_tested, socket_directory, variables
from trackside.wire import OptimizerSteps
from trackside_daemon.captures.kineto.environment import torch_version
from trackside_daemon.captures.kineto.recorder import Kineto
from trackside_daemon.captures.summary.difference import difference
from trackside_daemon.captures.summary.steps import cut
from trackside_daemon.captures.summary.trace import decode
from trackside_daemon.captures.summary.trace_summary import summarize_trace
from trackside_daemon.model.capture import Capture, ProfileOptions, RankAnswer
from trackside_daemon.model.rank_process import RankProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

require("torch")
if not is_tested(torch_version(sys.executable)):
    pytest.skip("the installed PyTorch is not a tested version", allow_module_level=True)

SCRIPT = Path(__file__).with_name("training_script.py")
STEP_SECONDS = 0.1  # from which the time limits follow


class Training:
    """The process, and the recorder of its run."""

    def __init__(self, place: Path) -> None:
        socket = place / "push.sock"
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env=clean_environ({**variables(socket_directory(socket)), "OMP_NUM_THREADS": "1"}),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._place = place
        asked = RankAnswer(0, 0.0, OptimizerSteps())
        ranks = [RankProcess("mnist", "r1", 1, 0, 0, "", self.process.pid)]
        self._kineto = Kineto(socket, lambda: ranks, lambda *_: STEP_SECONDS, answering(asked), enabled=True)
        self._kineto.start()
        self.recorder = self._kineto.recorder
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{command}\n"

    def capture(self, **options: Any) -> Capture:
        return Capture(
            f"{time.time_ns():012x}"[-12:], "r1", 1, "profile", "person", 0.0, options=ProfileOptions(**options)
        )

    def reason(self) -> str:
        return self.recorder.refuse(self.capture(), [0]).get(0, "")

    def record(self, **options: Any) -> Path:
        """Record, and return the trace."""
        eventually(lambda: not self.reason())
        found = self.recorder.record(self.capture(**options), [0], self.empty(), threading.Event())[0]
        assert isinstance(found, Path), found
        return found

    def empty(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._place))

    def close(self) -> None:
        self.process.kill()
        with self.process:  # closes its streams
            self._kineto.stop()


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    """The process."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        made = Training(Path(place))
        yield made
        made.close()


def events(trace: Path) -> list[dict[str, Any]]:
    return [event for event in msgspec.json.decode(trace.read_bytes())["traceEvents"] if event.get("ph") == "X"]


def test_steps_are_recorded_without_code(training: Training) -> None:
    trace = training.record(steps=5, shapes=True)
    recorded = events(trace)
    # PyTorch's own thread ends the recording, which is late on a busy machine; the trace is then cut to the steps.
    assert sum(event["name"].startswith("Optimizer.step#SGD") for event in recorded) >= 5
    assert len(cut(decode(trace.read_bytes()), 5).edges) == 6
    assert any(event["name"] == "aten::linear" and "Input Dims" in event["args"] for event in recorded)
    assert not any(event["cat"] == "python_function" for event in recorded)


def test_a_time_is_recorded_with_python_functions(training: Training) -> None:
    recorded = events(training.record(steps=None, seconds=0.1, stacks=True))
    assert any("training_script.py" in event["name"] and event["cat"] == "python_function" for event in recorded)


def profiled(training: Training, planted: str, **options: Any) -> dict[str, Any]:
    """Return the summary of some steps with a planted slowness, as the one of rank 0."""
    if planted != "healthy":
        training.send(planted)
    trace = decode(training.record(**{"steps": 5, **options}).read_bytes())
    if planted != "healthy":
        training.send("healthy")
    return {"ranks": {"0": summarize_trace(trace, cut(trace, options.get("steps", 5)))}}


@pytest.mark.parametrize(
    ("planted", "expected", "named"),
    [
        ("data", "data", r"training_script\.py:\d+ in read_slowly"),
        pytest.param("function", "host", r"training_script\.py:\d+ in augment", marks=pytest.mark.only_soak),
        pytest.param("tiny", "host", r"aten::add", marks=pytest.mark.only_soak),
        ("copies", "copy", r"aten::copy_"),
    ],
)
def test_a_planted_bottleneck_is_named(
    training: Training, planted: str, expected: str, named: str, count: Callable[[int, int], int]
) -> None:
    for _ in range(count(1, 10)):
        found = profiled(training, planted, stacks=planted in {"data", "function"})["ranks"]["0"]["bottleneck"]
        assert found["class"] == expected, found["text"]
        assert re.search(named, found["name"]), found["text"]


@pytest.mark.usefixtures("only_soak")
def test_healthy_windows_do_not_differ_and_a_planted_one_does(
    training: Training, count: Callable[[int, int], int]
) -> None:
    reference = profiled(training, "healthy", steps=20)
    for _ in range(count(2, 20)):
        assert difference(reference, profiled(training, "healthy", steps=20)) == []
    # On a busy machine, other processes can take more of a window than what is planted.
    eventually(lambda: names(difference(reference, profiled(training, "copies", steps=10)))[:1] == ["aten::copy_"])


def names(changes: list[dict[str, Any]]) -> list[str]:
    """Return what changed."""
    return [change["name"] for change in changes]


def test_a_profiler_of_the_trainings_own_is_left_alone(training: Training) -> None:
    training.send("profile")
    eventually(lambda: training.reason() == BUSY)
    training.send("healthy")
    eventually(lambda: not training.reason())


def test_a_full_disk_costs_the_capture_alone(training: Training) -> None:
    eventually(lambda: not training.reason())
    disk = training.empty()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounts a small disk, which root alone can")
    try:
        (outcome,) = training.recorder.record(training.capture(steps=5), [0], disk, threading.Event()).values()
        if isinstance(outcome, Path):  # what fitted
            outcome = summarized({0: outcome}, 5)["failed"]["0"]
        assert "\n" not in outcome
        assert re.search("no space|is not a trace|not complete|wrote no trace", outcome.lower()), outcome
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # PyTorch may have the file open still
    assert events(training.record(steps=2))


def test_the_end_of_a_process_that_is_recorded_does_not_crash_it(training: Training) -> None:
    eventually(lambda: not training.reason())
    place = training.empty()
    cancelled = threading.Event()
    capture = training.capture(steps=None, seconds=300.0)
    recording = threading.Thread(target=training.recorder.record, args=(capture, [0], place, cancelled))
    recording.start()
    eventually(lambda: list(place.glob("*.tmp")))  # it has begun
    assert training.process.stdin is not None
    training.process.stdin.close()
    assert training.process.wait(DEADLINE) == 0
    cancelled.set()
    recording.join(DEADLINE)
    assert not recording.is_alive()
