"""Captures from the request to the summary, over a real history, with a scripted recorder."""

from __future__ import annotations

import stat
from contextlib import nullcontext
from dataclasses import replace
from errno import EAGAIN
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from histories import history, opened
from processes import DEADLINE
from scripted_recorder import CapturesHarness

from trackside.wire import Flight, FlightEntry, FlightGroup
from trackside_daemon.captures.captures import (
    AT_ONCE,
    DAEMON_STOPPED,
    NO_PROCESS_CONNECTED,
    CaptureError,
    CaptureRequest,
)
from trackside_daemon.captures.kinds import by_name
from trackside_daemon.captures.store import FILES
from trackside_daemon.history.record import run_changes
from trackside_daemon.model.capture import Capture, CaptureFile, ProfileOptions, RankAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from histories import History

REQUEST = CaptureRequest("id-1", 0)


@pytest.fixture
def stored_history(tmp_path: Path) -> Iterator[History]:
    with history(tmp_path) as one:
        one.put([opened("id-1")])
        yield one


@pytest.fixture
def harness(stored_history: History) -> Iterator[CapturesHarness]:
    made = CapturesHarness(stored_history.database, stored_history.writer)
    made.captures.start()
    yield made
    made.recorder.released.set()
    made.captures.stop()


def test_a_capture_passes_through_its_states_and_leaves_compressed_private_files(
    harness: CapturesHarness, tmp_path: Path
) -> None:
    ended = harness.wait(harness.captures.begin(REQUEST).id)
    states = list(dict.fromkeys(record.state for record in harness.records))
    assert states == ["asked", "recording", "written", "summarised"]
    assert (ended.state, ended.reason, sorted(ended.summary["ranks"])) == ("summarised", "", ["0", "1"])
    assert [(file.rank, file.name, file.kind) for file in ended.files] == [
        (0, "profile_0.json.gz", "trace"),
        (1, "profile_1.json.gz", "trace"),
    ]
    paths = [harness.captures.store.path(ended, file.name) for file in ended.files]
    assert [path and stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / FILES).stat().st_mode) == 0o700
    assert harness.captures.store.path(ended, "../../trackside.db") is None
    counts = {sample.labels: sample.value for sample in harness.captures.samples().samples}
    assert counts["api", "summarised"] == 1


def test_ranks_that_cannot_be_recorded_have_their_reason_and_the_others_a_summary(harness: CapturesHarness) -> None:
    harness.ranks = (0, 1, 2, 3)
    harness.recorder.refused = {1: "no PyTorch", 2: "no PyTorch"}
    harness.recorder.failing = {3: "it ended"}
    ended = harness.wait(harness.captures.begin(REQUEST).id)
    assert (ended.state, [file.rank for file in ended.files]) == ("summarised", [0])
    assert ended.reason == "ranks 1, 2: no PyTorch; rank 3: it ended"


def test_a_capture_of_nothing_fails_in_one_line_and_leaves_no_directory(
    harness: CapturesHarness, tmp_path: Path
) -> None:
    harness.recorder.refused = {0: "no PyTorch", 1: "no PyTorch"}
    refused = harness.wait(harness.captures.begin(REQUEST).id)
    harness.ranks = ()
    alone = harness.wait(harness.captures.begin(REQUEST).id)
    assert [(one.state, one.reason) for one in (refused, alone)] == [
        ("failed", "ranks 0, 1: no PyTorch"),
        ("failed", NO_PROCESS_CONNECTED),
    ]
    assert list((tmp_path / FILES).iterdir()) == []


def test_a_rank_that_ends_while_it_is_recorded_has_its_end_as_the_reason(harness: CapturesHarness) -> None:
    harness.recorder.failing = {0: "its client does not answer", 1: "its client does not answer"}
    harness.ends = {1: "was killed by SIGKILL", None: "was killed by SIGKILL"}
    ended = harness.wait(harness.captures.begin(REQUEST).id)
    assert ended.reason == (
        "rank 0: its client does not answer; rank 1: while it was recorded, it was killed by SIGKILL"
    )


def test_a_run_that_has_ended_cannot_be_recorded(harness: CapturesHarness) -> None:
    harness.ranks = ()
    harness.ends = {None: "finished"}
    ended = harness.wait(harness.captures.begin(REQUEST).id)
    assert ended.reason == "it finished; only a run that trains can be recorded"


def test_a_profile_of_ranks_that_end_does_not_become_their_stacks(stored_history: History) -> None:
    harness = CapturesHarness(stored_history.database, stored_history.writer)
    harness.recorder.failing = {0: "no trace", 1: "no trace"}
    harness.ends = {0: "finished"}
    request = REQUEST._replace(options=ProfileOptions(stacks=True), trigger="plan")
    ended = harness.wait(harness.captures.begin(request).id)
    assert (ended.kind, ended.state) == ("profile", "failed")
    assert ended.reason == "rank 0: while it was recorded, it finished; rank 1: no trace"


def test_a_disk_without_room_is_reported_before_anything_is_recorded(
    harness: CapturesHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(harness.recorder, "least_bytes", 1 << 60)
    ended = harness.wait(harness.captures.begin(REQUEST).id)
    assert ended.reason.startswith(f"{tmp_path / FILES} has ")
    assert ended.reason.endswith(
        " of free room, and a capture of kind profile needs 1,024 PiB with storage.min-free; free some, or set storage.path to another disk"
    )
    assert not harness.recorder.began.is_set()
    monkeypatch.undo()
    assert harness.wait(harness.captures.begin(REQUEST).id).state == "summarised", "the ranks are free"


def test_the_ranks_of_a_capture_are_free_when_its_summary_cannot_begin(
    harness: CapturesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> AbstractContextManager[Any]:
        raise OSError(EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(harness.recorder, "prepared_summary", fail)
    first = harness.captures.begin(REQUEST)
    assert harness.wait(first.id).reason.endswith(": resource temporarily unavailable")
    if (thread := harness.captures._threads.get(first.id)) is not None:
        thread.join(DEADLINE)
    monkeypatch.undo()
    assert harness.wait(harness.captures.begin(REQUEST).id).state == "summarised"


def test_a_rank_is_recorded_by_one_capture_at_a_time_and_few_run_at_once(harness: CapturesHarness) -> None:
    harness.recorder.released.clear()
    first = harness.captures.begin(REQUEST)
    assert harness.recorder.began.wait(DEADLINE)
    second = harness.wait(harness.captures.begin(REQUEST._replace(ranks=(0,))).id)
    assert (second.state, second.reason) == ("failed", f"rank 0: capture {first.id} records it")
    assert [one.id for one in harness.stored()] == [first.id], "the answer is not a capture of the run"
    assert not any(sample.value for sample in harness.captures.samples().samples)
    others = [harness.captures.begin(REQUEST._replace(run=f"id-{number}")) for number in range(2, AT_ONCE + 1)]
    with pytest.raises(CaptureError, match="4 captures run already"):
        harness.captures.begin(REQUEST)
    harness.recorder.released.set()
    assert harness.wait(first.id).state == "summarised"
    assert len(others) == AT_ONCE - 1


def test_what_a_daemon_did_not_complete_has_failed_after_its_restart(stored_history: History) -> None:
    stored_history.put([Capture("0" * 12, "id-1", 0, "profile", "api", 5.0, state="recording")])
    harness = CapturesHarness(stored_history.database, stored_history.writer)
    harness.captures.start()
    ended = harness.wait("0" * 12)
    assert (ended.state, ended.reason) == ("failed", DAEMON_STOPPED)


def test_a_daemon_that_stops_does_not_wait_for_a_long_summary(
    stored_history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = CapturesHarness(stored_history.database, stored_history.writer)
    summarizing, released = Event(), Event()

    def summarize(*_: object) -> dict[str, Any]:
        summarizing.set()
        assert released.wait(DEADLINE)
        return {"files": {}}

    monkeypatch.setattr(harness.recorder, "prepared_summary", lambda _: nullcontext(summarize))
    asked = harness.captures.begin(REQUEST)
    assert summarizing.wait(DEADLINE)
    harness.captures.stop(0.01)
    assert harness.records[-1].state == "written"
    released.set()
    assert harness.wait(asked.id).state == "failed"


def test_deleting_a_run_deletes_its_captures(harness: CapturesHarness, stored_history: History, tmp_path: Path) -> None:
    ended = harness.wait(harness.captures.begin(REQUEST).id)
    fresh = CapturesHarness(stored_history.database, stored_history.writer)
    stored_history.writer.call(lambda store: run_changes.delete(store, "id-1")).result(DEADLINE)
    fresh.captures.sweep()
    assert ended.files
    assert list((tmp_path / FILES).iterdir()) == []


def test_automatic_captures_make_room_first_then_the_oldest(harness: CapturesHarness) -> None:
    def of(id_: str, trigger: str, asked: float, size: int, run: str = "id-1") -> Capture:
        file = CaptureFile(0, "a", size, "trace")
        return Capture(id_, run, 0, "profile", trigger, asked, files=(file,), state="summarised")

    mib = 1 << 20
    old, automatic = of("old", "person", 1.0, mib // 2), of("automatic", "alert", 2.0, mib // 2)
    new = of("new", "person", 3.0, mib // 2)
    surplus = harness.captures.store.surplus
    assert [one.id for one in surplus([old, automatic])] == []
    assert [one.id for one in surplus([old, automatic, new])] == ["automatic"]
    assert [one.id for one in surplus([old, automatic, of("large", "api", 4.0, mib)])] == ["automatic", "old"]
    unfinished = replace(automatic, state="written")
    assert [one.id for one in surplus([old, unfinished, new])] == ["old"]


def test_flight_recorders_show_which_rank_waits_for_which(stored_history: History) -> None:
    def flight(last: int, state: str, age: float = 30.0) -> Flight:
        entry = FlightEntry(last, "all_reduce", state, "[4] Float", 4, age)
        return Flight({"MainThread 1": ["/x/train.py:3 main"]}, [FlightGroup("gloo", "0", "default_pg", [], [entry])])

    answers = [RankAnswer(0, 0.1, flight(32, "started")), RankAnswer(1, 0.1, flight(31, "completed"))]
    harness = CapturesHarness(stored_history.database, stored_history.writer, answers)
    request = REQUEST._replace(kind="flight_recorder")
    ended = harness.wait(harness.captures.begin(request).id)
    assert (ended.state, [file.kind for file in ended.files]) == ("summarised", ["flight_recorder"] * 2)
    assert by_name.text(ended)[1].startswith("Rank 1 never arrived at all_reduce number 32 of default_pg")
    assert by_name.text(ended)[2:] == [
        "rank 0: train.py:3 in main; in all_reduce number 32 of default_pg, for 30 s",
        "rank 1: train.py:3 in main",
    ]
    hostile = RankAnswer(0, 0.1, flight(32, "started", float("inf")))  # which JSON does not have
    harness = CapturesHarness(stored_history.database, stored_history.writer, [hostile])
    failed = harness.wait(harness.captures.begin(request).id)
    assert failed.reason.startswith("rank 0: flight_recorder_0.json cannot be read: ")


@pytest.mark.parametrize("kind", ["profile", "stacks", "flight_recorder", "memory"])
def test_an_imported_summary_of_any_form_has_a_text(kind: str) -> None:
    ranks: Any
    for ranks in ({"0": {}}, {"0": 7}, [], {"x": {"threads": 3, "steps": [], "allocators": None}}):
        imported = Capture("0" * 12, "id-1", 0, kind, "api", 5.0, state="summarised", summary={"ranks": ranks})
        assert by_name.text(imported)[0].startswith(f"{kind} 0")


def test_without_a_profiler_the_stacks_that_were_asked_for_are_recorded(stored_history: History) -> None:
    threads: Any = type("Body", (), {"threads": {"MainThread 1": ["a.py:1 f", "b.py:2 g"]}})
    harness = CapturesHarness(stored_history.database, stored_history.writer, [RankAnswer(0, 0.1, threads)])
    harness.recorder.refused = {0: "no PyTorch", 1: "no PyTorch"}
    ended = harness.wait(harness.captures.begin(REQUEST._replace(options=ProfileOptions(stacks=True))).id)
    assert (ended.kind, ended.state, [file.kind for file in ended.files]) == ("stacks", "summarised", ["stacks"])
    assert by_name.text(ended)[-3:] == ["rank 0: 1 thread, MainThread 1:", "  a.py:1 f", "  b.py:2 g"]
    assert ended.reason == "rank 1: it does not answer: it is stopped, or a call holds the GIL"
