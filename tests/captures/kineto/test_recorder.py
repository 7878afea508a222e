"""The recorder, with processes that ask and write as libkineto does."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import eventually

from trackside.captures.kineto import BUSY
from trackside.wire import OptimizerSteps
from trackside_daemon.captures.kineto.profiler_socket import PollingProcess
from trackside_daemon.captures.kineto.recorder import LATE, UNREACHED, KinetoRecorder, RecordingLimits
from trackside_daemon.captures.kineto.windows import LOOP_SECONDS, Windows
from trackside_daemon.model.capture import Capture, ProfileOptions, RankAnswer
from trackside_daemon.model.rank_process import RankProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from trackside_daemon.captures.kineto.profiler_socket import Pollers

Outcomes = dict[int, "Path | str"]
STEP = 0.1


class Machine:
    """A recorder, and ranks 0 and 1 of a run, whose process ids are 1000 and 1001."""

    def __init__(self, place: Path, pollers: Pollers) -> None:
        self.pollers = pollers
        self.ranks = [RankProcess("mnist", "r1", 1, rank, rank, "", 1000 + rank) for rank in range(2)]
        self.cancelled = threading.Event()
        self.directory = place / "store"
        self.sockets = place / "push.kineto"
        for path in (self.directory, self.sockets):
            path.mkdir()
        self.limit()
        self.steps: list[dict[int, int]] = []
        self.skipped = {0: 0, 1: 0}
        self._pool = ThreadPoolExecutor(1)

    def limit(self, loop_seconds: float = LOOP_SECONDS, **limits: float) -> None:
        """Make another recorder, with these limits."""
        windows = Windows(self.pollers, lambda *_: STEP, self._ask, loop_seconds)
        self.recorder = KinetoRecorder(
            self.sockets,
            self.pollers,
            lambda: self.ranks,
            windows,
            RecordingLimits(**limits),  # type: ignore[arg-type]
        )

    def _ask(self, *question: Any, **_: Any) -> Any:
        self.counting_seconds = question[-1].seconds
        counts = self.steps.pop(0) if self.steps else {}
        return frozenset(counts), [
            RankAnswer(rank, 0.0, OptimizerSteps(count, self.skipped[rank])) for rank, count in counts.items()
        ]

    def capture(self, kind: str = "profile", **options: object) -> Capture:
        chosen = ProfileOptions(**options)  # type: ignore[arg-type]
        return Capture("0123456789ab", "r1", 1, kind, "person", time.time(), options=chosen)

    def start(self, *ranks: int, **options: object) -> Future[Outcomes]:
        return self._pool.submit(self.recorder.record, self.capture(**options), ranks, self.directory, self.cancelled)  # type: ignore[arg-type]

    def ask(self, rank: int) -> dict[str, str]:
        """Ask until there is a configuration, and return its lines."""
        text = eventually(lambda: self.pollers.answer(1000 + rank, accepts=True))
        return dict(line.split("=") for line in text.splitlines())

    def write(self, lines: dict[str, str], rank: int, text: str = "{}") -> None:
        path = Path(lines["ACTIVITIES_LOG_FILE"].replace(".json", f"_{1000 + rank}.json"))
        incomplete = path.with_name(path.name + ".tmp")
        incomplete.write_text(text)
        incomplete.rename(path)

    def close(self) -> None:
        self.cancelled.set()
        self._pool.shutdown()


@pytest.fixture
def machine(place: Path, pollers: Pollers) -> Iterator[Machine]:
    made = Machine(place, pollers)
    yield made
    made.close()


def test_ranks_that_do_not_ask_or_are_profiled_already_are_refused(machine: Machine) -> None:
    machine.pollers.answer(1000, accepts=True)
    machine.pollers.answer(1001, accepts=False)
    assert machine.recorder.refuse(machine.capture(), [0, 1, 2]) == {1: BUSY, 2: UNREACHED}
    assert machine.recorder.unreached(machine.capture().run, [0, 1, 2]) == {2}
    machine.ranks.clear()
    assert machine.recorder.refuse(machine.capture(), [0]) == {0: UNREACHED}


def test_one_rank_records_exactly_the_steps(machine: Machine) -> None:
    machine.steps = [{0: 500}]
    future = machine.start(0, steps=7)
    lines = machine.ask(0)
    assert (lines["PROFILE_START_ITERATION"], lines["ACTIVITIES_ITERATIONS"]) == ("0", "7")
    machine.write(lines, 0)
    assert future.result() == {0: machine.directory / "trace_0_1000.json"}
    assert not list(machine.sockets.iterdir()), "the link stays"


def test_a_rank_that_counts_no_steps_records_for_a_time(machine: Machine) -> None:
    machine.start(0, steps=7)
    lines = machine.ask(0)
    assert float(lines["ACTIVITIES_DURATION_MSECS"]) > 8 * STEP * 1000
    assert "ACTIVITIES_ITERATIONS" not in lines


def test_several_ranks_start_together_and_record_long_enough(machine: Machine) -> None:
    for rank in (0, 1):
        machine.pollers.answer(1000 + rank, accepts=True)
    future = machine.start(0, 1, steps=10)
    asked = time.time()
    first, second = machine.ask(0), machine.ask(1)
    assert first["PROFILE_START_TIME"] == second["PROFILE_START_TIME"]
    assert float(first["PROFILE_START_TIME"]) > asked * 1000
    assert float(first["ACTIVITIES_DURATION_MSECS"]) > 11 * STEP * 1000
    assert "ACTIVITIES_ITERATIONS" not in first
    machine.write(second, 1)
    machine.write(first, 0)
    assert set(future.result()) == {0, 1}


def test_ranks_that_step_together_record_the_same_steps(machine: Machine) -> None:
    for rank in (0, 1):
        machine.pollers.answer(1000 + rank, accepts=True)
    machine.steps = [{0: 500, 1: 500}, {0: 600, 1: 601}]
    machine.skipped = {0: 500, 1: 497}
    future = machine.start(0, 1, steps=7)
    first, second = machine.ask(0), machine.ask(1)
    start = int(first["PROFILE_START_ITERATION"]) + 500  # PyTorch has not counted the skipped steps
    assert start == int(second["PROFILE_START_ITERATION"]) + 497
    assert 601 + 1000 < start < 601 + 10_000  # 1,000 steps a second, which ask within 5 s
    assert first["ACTIVITIES_ITERATIONS"] == second["ACTIVITIES_ITERATIONS"] == "7"
    machine.write(second, 1)
    machine.write(first, 0)
    assert set(future.result()) == {0, 1}


def test_a_rank_that_asks_while_steps_are_counted_is_expected_an_interval_later(machine: Machine) -> None:
    now = time.monotonic()
    due = {1000: now + 0.08, 1001: now + 0.3}
    machine.pollers.get = lambda pid: PollingProcess(due[pid] - 1.0, 1.0, True)  # type: ignore[method-assign]
    machine.steps = [{0: 500, 1: 500}, {0: 501, 1: 501}]
    machine.start(0, 1, steps=7)
    start = int(machine.ask(0)["PROFILE_START_ITERATION"])
    assert start > 501 + 0.8 / STEP


def test_ranks_count_steps_until_the_latest_window_has_ended(machine: Machine) -> None:
    for _ in range(2):
        machine.pollers.answer(1000, accepts=True)
    machine.steps = [{0: 500}]
    machine.start(0, steps=7)
    machine.ask(0)
    asked = 1.0 + 5.0  # the counting, and a busy machine
    recorded = 7 * STEP * 2 * 1.5
    assert machine.counting_seconds > asked + recorded + 2 * 1.0  # steps before the window, which may become faster


def test_a_request_that_comes_after_its_start_is_repeated(machine: Machine) -> None:
    machine.limit(loop_seconds=0.1)
    for rank in (0, 1, 0, 1):
        machine.pollers.answer(1000 + rank, accepts=True)
    future = machine.start(0, 1, seconds=0.1, steps=None)
    machine.write(machine.ask(0), 0, "first")
    machine.ask(1)  # and discards it
    for rank in (1, 0):
        machine.write(machine.ask(rank), rank, "second")
    assert {path.read_text() for path in future.result().values() if isinstance(path, Path)} == {"second"}


@pytest.mark.parametrize(
    "steps", [[{0: 500}, {0: 600}], [{0: 500, 1: 100}, {0: 600, 1: 200}], [{0: 0, 1: 0}, {0: 0, 1: 0}], []]
)
def test_ranks_that_do_not_step_together_start_at_the_same_moment(
    machine: Machine, steps: list[dict[int, int]]
) -> None:
    machine.steps = steps
    machine.start(0, 1, steps=7)
    assert "PROFILE_START_TIME" in machine.ask(0)


def test_a_rank_that_ends_does_not_cost_the_other(machine: Machine) -> None:
    machine.limit(end_seconds=0.0)
    future = machine.start(0, 1)
    machine.ask(0)
    lines = machine.ask(1)
    del machine.ranks[0]
    machine.write(lines, 1)
    outcomes = future.result()
    assert outcomes[0] == "its process ended before it had written the trace"
    assert outcomes[1] == machine.directory / "trace_1_1001.json"


def test_a_missing_file_has_a_reason(machine: Machine) -> None:
    machine.limit(write_seconds=0.0)
    future = machine.start(0, seconds=0.01, steps=None)
    machine.ask(0)
    assert "PyTorch wrote no trace within 1 s" in str(future.result()[0])


def test_a_process_that_stops_asking_has_a_reason_and_gets_nothing_later(machine: Machine) -> None:
    machine.limit(ask_seconds=-10.0)
    assert machine.start(0).result() == {0: "its PyTorch has stopped asking for profiles"}
    assert not machine.pollers.answer(1000, accepts=True)


def test_processes_that_ask_after_the_start_get_it_again_and_have_a_reason(machine: Machine) -> None:
    for rank in (0, 1, 0, 1):
        machine.pollers.answer(1000 + rank, accepts=True)
    assert machine.start(0, 1, seconds=0.1, steps=None).result() == {0: LATE, 1: LATE}


def test_a_trace_that_is_too_large_is_refused(machine: Machine) -> None:
    machine.limit(trace_bytes=10)
    future = machine.start(0)
    machine.write(machine.ask(0), 0, "x" * 11)
    assert "record fewer steps" in str(future.result()[0])


def test_a_capture_can_be_cancelled(machine: Machine) -> None:
    future = machine.start(0)
    eventually(lambda: machine.pollers.waits(1000))
    machine.cancelled.set()
    assert future.result() == {0: "cancelled"}
    assert not machine.pollers.waits(1000)


def test_a_disk_that_becomes_full_ends_the_recording(machine: Machine) -> None:
    machine.limit(free_bytes=1 << 60)
    assert machine.start(0, seconds=100.0).result() == {0: f"{machine.directory}: no space left on device"}
    assert not machine.pollers.waits(1000)


def test_a_directory_without_room_for_the_link_has_a_reason(machine: Machine) -> None:
    machine.sockets.rmdir()
    (reason,) = machine.start(0).result().values()
    assert "no such file or directory" in str(reason)
